"""A Loader whose batches are trees of jax arrays.

>>> import penstock
>>> for x, y in penstock.jax.feed(dataset, batch_size=64, workers=8, use_multiprocessing=True): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..base.element_spec import with_types
from ..device.ahead import Ahead
from ..device.functions import Functions, Worked
from ..device.staged_loader import StagedLoader
from ..errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..loader.options import LoaderOptions

__all__ = ["JaxLoader", "feed"]


def feed(
    source: Any, *, device: Any = None, sharding: Any = None, **options: Unpack[LoaderOptions]
) -> JaxLoader:
    """Feed jax from any dataset.

    Parameters
    ----------
    source : object
        As for `penstock.Loader`.
    device : jax.Device, optional
        The device of the batches; None is jax's default device.
    sharding : jax.sharding.Sharding, or tree of them, optional
        The layout of the batches over devices, instead of `device`: one for all arrays, or a tree
        that is a prefix of a batch (such as ``(sharding_of_x, sharding_of_y)``). If devices belong
        to several processes, each process feeds its share of the global batch (see ``shard=``).
    **options
        As for `penstock.Loader`.

    Returns
    -------
    JaxLoader

    Raises
    ------
    InvalidArgument
        Both device and sharding are given, one of them has another type, or an option of the Loader
        is invalid.

    Notes
    -----
    Arrays and torch tensors become jax arrays with jax's types (without ``jax_enable_x64``, float64
    becomes float32). Values that jax has no type for, such as strings, are not changed.
    """
    return JaxLoader(source, device=device, sharding=sharding, **options)


class JaxLoader(StagedLoader):
    """A `penstock.Loader` of jax arrays. Made by `feed`.

    On the CPU, arrays are views of the memory that workers wrote: nothing is copied, and memory is
    not overwritten before jax has released it. On an accelerator, the next batch is transferred
    while the current one is used; its host memory is kept until the transfer is complete.
    """

    def __init__(
        self,
        source: Any,
        *,
        device: Any = None,
        sharding: Any = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        functions = Functions(source)
        if functions:
            given = device if sharding is None else sharding
            functions.check_device(given, given is None or given == functions.device)
            if sharding is None:
                device = functions.device
        if device is not None and sharding is not None:
            raise InvalidArgument("give a device or a sharding, not both", "feed")
        if device is not None and not isinstance(device, jax.Device):
            raise InvalidArgument(
                f"device is {device!r}; give a jax.Device, such as jax.devices()[0]", "feed"
            )
        for leaf in jax.tree.leaves(sharding, is_leaf=_is_place):
            if not _is_place(leaf):
                raise InvalidArgument(
                    f"sharding is or holds {leaf!r}; give a jax.sharding.Sharding, or a tree of "
                    "them that begins like a batch",
                    "feed",
                )
        super().__init__(functions.source, Ahead(1, always=True), **options)
        self._place = device if sharding is None else sharding
        places = jax.tree.leaves(self._place, is_leaf=_is_place) or [jax.devices()[0]]
        self._stages = any(_platform(place) != "cpu" for place in places)
        self._functions = functions
        self._sent = {"batches": 0, "copies": 0, "bytes": 0}
        if not self._stages:
            self._ahead.most = 0
        self._global = any(not getattr(place, "is_fully_addressable", True) for place in places)

    @property
    def element_spec(self) -> Any:
        """As for `penstock.Loader`, with jax's types.

        Functions of a device run once for it, on a batch without rows. If they fail with one, or
        lengths are unknown, it is an `InvalidArgument`.
        """
        spec = super().element_spec
        if self._functions:
            return self._functions.spec(spec)
        return with_types(spec, jax.dtypes.canonicalize_dtype)

    def stats(self) -> dict[str, Any]:
        """Return the counters of `penstock.Loader.stats`, and ``device`` on an accelerator.

        ``device`` has ``batches``, ``copies`` (one for each array) and ``bytes`` that were given to
        jax, and ``ahead``, the batches in transfer besides the one in use.
        """
        stats = super().stats()
        if self._stages:
            stats["device"] = {**self._sent, "ahead": self._ahead.most}
        return stats

    def _placed(self, batches: Iterator[Any], epoch: int | None) -> Iterator[Any]:
        if self._functions:
            size = self._functions.batch_size
            way = Worked(
                self._functions, lambda: self._sending(size), self._put, lambda batch: batch
            )
            return self._ahead.run(lambda: self, batches, epoch, way.send, way.deliver)
        if not self._stages:
            return map(self._put, batches)
        return self._ahead.run(lambda: self, batches, epoch, self._put)

    def _put(self, batch: Any) -> Any:
        leaves, tree = jax.tree.flatten(batch)
        arrays = [_array(leaf) for leaf in leaves]
        which = [i for i, array in enumerate(arrays) if array is not None]
        chosen = [arrays[i] for i in which]
        places = self._place
        if places is not None and not _is_place(places):
            spread = jax.tree.broadcast(places, batch, is_leaf=_is_place)
            every = jax.tree.leaves(spread, is_leaf=_is_place)
            places = [every[i] for i in which]
        if self._global:
            each = places if isinstance(places, list) else [places] * len(chosen)
            make: Callable[..., Any] = jax.make_array_from_process_local_data
            put = [make(place, array) for place, array in zip(each, chosen, strict=True)]
        else:
            put = jax.device_put(chosen, places)
        self._sent["batches"] += 1
        self._sent["copies"] += len(chosen)
        self._sent["bytes"] += sum(array.nbytes for array in chosen)
        for i, array in zip(which, put, strict=True):
            leaves[i] = array
        return jax.tree.unflatten(tree, leaves)


def _is_place(value: Any) -> bool:
    return isinstance(value, (jax.Device, jax.sharding.Sharding))


def _platform(place: Any) -> str:
    device = next(iter(place.device_set)) if hasattr(place, "device_set") else place
    return str(device.platform)


def _array(leaf: Any) -> Any:
    """Convert a leaf to a value that jax accepts; None: the leaf is not converted."""
    if isinstance(leaf, np.ndarray):
        kind = leaf.dtype.kind
        if kind == "V" and leaf.dtype.names is None and leaf.dtype.type is not np.void:
            return leaf  # bfloat16 and similar types
        if kind not in "biufc" or leaf.dtype.char in "gG":  # longdouble
            return None
        return leaf if leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("="))
    if isinstance(leaf, jax.Array):
        return leaf if leaf.is_fully_addressable else None
    if not hasattr(leaf, "__dlpack__"):
        return None
    return jax.dlpack.from_dlpack(leaf)  # torch's

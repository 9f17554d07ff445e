"""A Loader whose batches are nests of torch tensors.

>>> import penstock
>>> train = penstock.Dataset.tfrecord("train.tfrecord").map(parse).shuffle(seed=1).batch(64)
>>> for batch in penstock.torch.feed(train, workers=8): ...
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..base.arguments import integer
from ..base.element_spec import with_types
from ..base.interop import tensor_of_leaf
from ..base.nests import mapped
from ..device.ahead import Ahead
from ..device.functions import Functions, Rows, Worked, worked
from ..device.place import Place, stats_of, torch_device, torch_place
from ..device.staged_loader import StagedLoader
from ..loader.source import info_for_device

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..loader.options import LoaderOptions

__all__ = ["TensorLoader", "feed"]


def feed(
    source: Any, *, device: Any = None, ahead: int = 2, **options: Unpack[LoaderOptions]
) -> TensorLoader:
    """Feed torch from a `penstock.Dataset`, or from any other source of `penstock.Loader`.

    Parameters
    ----------
    source : object
        As for `penstock.Loader`. For a torch data set with torch's own arguments, samplers and
        collating use `DataLoader`.
    device : str or torch.device, optional
        Where the batches are: ``"cuda:0"``, ``"cuda"`` for torch's current device, or another of
        torch's devices. None, and ``"cpu"``: in the memory that workers wrote.
    ahead : int
        With a device: batches that may be on their way to it, or there, besides the one in use.
    **options
        As for `penstock.Loader`.

    Returns
    -------
    TensorLoader

    Raises
    ------
    InvalidArgument
        The device is not one of torch's, this torch has no CUDA, or an option is invalid.
    NotFound
        No CUDA driver, or no such device.

    Notes
    -----
    Arrays become tensors over the same memory, which is not overwritten while one of them exists.
    Read-only arrays are copied. Nests do not change, and values that torch has no type for are not
    converted: strings, `penstock.Ragged`.

    On a CUDA device, tensors are views of buffers that belong to the feed. A buffer is used again
    after the work that was enqueued on the consumer's stream before its tensors were dropped; see
    docs/device.md for other streams and for CUDA graphs.
    """
    return TensorLoader(source, device=device, ahead=ahead, **options)


class TensorLoader(StagedLoader):
    """A `penstock.Loader` of torch tensors. Made by `feed`."""

    def __init__(
        self, source: Any, *, device: Any = None, ahead: int = 2, **options: Unpack[LoaderOptions]
    ) -> None:
        ahead = integer("ahead", ahead, 0, 1 << 10, operation="feed")
        functions = Functions(source)
        if device is None:
            device = functions.device
        elif functions:
            same = torch_device(device) == torch_device(functions.device)
            functions.check_device(device, same)
        place = torch_place(device)
        if place is not None:
            place.check_start_method(options.get("start_method"))
        samples = options.get("batch_size") is not None
        on_error, streams = options.get("on_error", "raise"), options.get("streams")
        info = info_for_device(
            functions.source, [place], samples=samples, on_error=on_error, streams=streams
        )
        super().__init__(info, Ahead(0 if place is None else ahead), **options)
        self._place, self._functions = place, functions
        if place is not None:
            self._device_lanes = place.lanes
        self._way: Place | Worked | None = place
        if functions:
            loader = weakref.ref(self)  # the loader must not own itself

            def rows() -> Rows:
                return loader()._sending(functions.batch_size)  # type: ignore[union-attr]

            if place is None:
                self._way = Worked(functions, rows, _tensors, _same)
            else:
                self._way = worked(place, functions, rows)

    def _placed(self, batches: Iterator[Any], epoch: int | None) -> Iterator[Any]:
        way = self._way
        if way is None:
            return map(_tensors, batches)
        return self._ahead.run(lambda: self, batches, epoch, way.send, way.deliver)

    @property
    def element_spec(self) -> Any:
        """As for `penstock.Loader`, with torch's types.

        Functions of a device run once for it, on a batch without rows. If they fail with one, or
        lengths are unknown, it is an `InvalidArgument`.
        """
        spec = super().element_spec
        if self._functions:
            return self._functions.spec(spec)
        return with_types(spec, _type_of)

    def stats(self) -> dict[str, Any]:
        """Return the counters of `penstock.Loader.stats`, and ``device`` if there is one.

        docs/device.md describes its keys.
        """
        stats = super().stats()
        if self._place is not None:
            stats["device"] = stats_of(self._place, self._ahead.most, stats)
        return stats

    def close(self) -> None:
        """End the workers, and wait for copies in flight. Held batches stay valid."""
        super().close()  # first: a running iteration raises Closed
        self._ahead.leave()
        if self._place is not None:
            self._place.close()


def _same(batch: Any) -> Any:
    return batch


def _tensors(batch: Any) -> Any:
    return mapped(tensor_of_leaf, batch)


def _type_of(dtype: np.dtype[Any]) -> Any:
    made = tensor_of_leaf(np.zeros(1, dtype))
    return made.dtype if isinstance(made, torch.Tensor) else dtype

"""A feed for ``fit``, ``evaluate`` and ``predict`` of Keras 3, on every backend.

>>> import penstock
>>> feed = penstock.keras.feed(sequence, workers=8, use_multiprocessing=True)
>>> model.fit(feed, epochs=5)

Keras uses a feed of known length as a `keras.utils.PyDataset` without workers of Keras, and
requests one batch after the other. The requested index is ignored, because the order is the
Loader's. A stream is a data adapter of its own, since a PyDataset cannot end.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
from keras.utils import PyDataset

from ..device.functions import DeviceMapped
from ..errors import InvalidArgument
from ..loader import Loader
from ..loader.source import SourceInfo
from .feed_base import MOST_PEEKED, FeedBase, empty_dataset, refuse_unfit
from .stream import StreamFeed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..loader.options import LoaderOptions

__all__ = ["PyDatasetFeed", "StreamFeed", "feed"]

if tuple(int(part) for part in keras.__version__.split(".")[:2]) < (3, 8):
    raise ImportError(
        "penstock.keras needs Keras 3.8 or later, whose trainers ask for batches one by one and in "
        f"order; this is {keras.__version__}. A penstock.Loader works with any (docs/keras.md)"
    )


def feed(source: Any, **options: Unpack[LoaderOptions]) -> PyDatasetFeed | StreamFeed:
    """Make a feed for ``model.fit(x=...)`` from any dataset.

    Parameters
    ----------
    source : object
        A `keras.utils.PyDataset` (``Sequence``), any source of `penstock.Loader`, or a Dataset
        with functions of the device that Keras computes on (torch, jax). Batches have
        the form that Keras expects: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``, each an array
        or a tuple or dict of arrays.
    **options
        As for `penstock.Loader`; ``max_queue_size`` is 10 unless it is given.

    Returns
    -------
    PyDatasetFeed or StreamFeed
        A StreamFeed if the source's length is unknown. Both have ``close()``, ``stats()``,
        ``report()``, ``state()`` and ``restore()``, and are context managers.

    Notes
    -----
    Each ``fit``, ``evaluate`` or ``predict`` begins an epoch of the data, unless `restore` set the
    position; an unfinished epoch counts as finished. Use one feed for training and another one for
    ``validation_data``.

    Where Keras trains with torch on an accelerator, batches are sent to it ahead of the step, as by
    `penstock.torch.feed`; `stats` then has ``device``. With JAX, Keras itself sends one batch
    ahead.
    """
    if isinstance(source, PyDataset) and not hasattr(source, "__len__"):
        source = _info_of_dataset(source)
    options.setdefault("max_queue_size", 10)
    loader = _loader(source, options)
    return StreamFeed(loader) if loader._info.endless_or_unknown else PyDatasetFeed(loader)


def _loader(source: Any, options: LoaderOptions) -> Loader:
    device = _torch_device()
    mapped = isinstance(source, DeviceMapped)
    if device is None and not mapped:
        return Loader(source, **options)
    backend = keras.backend.backend()
    if backend == "torch":
        from ..torch.tensor_loader import TensorLoader

        return TensorLoader(source, device=device or "cpu", **options)
    if backend == "jax":
        from ..jax.loader import JaxLoader

        return JaxLoader(source, **options)
    raise InvalidArgument(
        f"{source!r} has functions of torch's or jax's devices, and Keras computes with {backend}: "
        "use a backend of theirs, or map without device=",
        "feed",
    )


def _torch_device() -> str | None:
    """Return where Keras computes, if that is an accelerator of torch's."""
    if keras.backend.backend() != "torch":
        return None
    from keras.src.backend.torch.core import get_device

    device = str(get_device())
    return None if device.partition(":")[0] in ("cpu", "meta") else device


# ---- Keras' own dataset, where it has no __len__ -----------------------------------------------


class _Numbered:
    """Adds a length to a PyDataset that has only ``num_batches``."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return int(self.dataset.num_batches)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def _each_by_itself(epoch: int) -> Iterator[list[int]]:
    return ([index] for index in itertools.count())


def _info_of_dataset(dataset: Any) -> SourceInfo:
    title = type(dataset).__name__
    if dataset.num_batches is None:  # infinite: one epoch that does not end
        return SourceInfo("listed", dataset, title, hooked=dataset, begin=_each_by_itself)
    return SourceInfo("map", _Numbered(dataset), title, int(dataset.num_batches), hooked=dataset)


class _Pass:
    """The batches that one generator of Keras took, from the first of `places` on."""

    def __init__(self, start: dict[str, Any], length: float) -> None:
        self.length = length
        self.taken = 0
        self.kept: list[Any] | None = []  # all taken batches, while they are few
        self.places = [start]  # the states before each kept batch, and after the last one

    def again(self) -> _Pass:
        """Return the same pass with nothing taken."""
        new = _Pass(self.places[0], self.length)
        new.kept, new.places = self.kept, self.places
        return new


def _asked_by_keras() -> bool:
    """Whether Keras, and not the user, reads the property that calls this."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).partition(".")[0] == "keras"


# ---- known length ------------------------------------------------------------------------------


class PyDatasetFeed(FeedBase, PyDataset):  # type: ignore[misc]
    """A Loader as a PyDataset of Keras. Made by `feed`.

    Keras makes a generator over it, and drops the generator if it only inspected the data, or
    after ``validation_steps``. The feed detects this by the order of Keras' calls: every fit,
    evaluate and predict reads ``workers`` once, and every generator that starts reads
    ``num_batches``. If a generator was dropped early and the next one belongs to the same call, the
    batches are returned again; if it belongs to another call, the epoch has ended.
    """

    def __init__(self, loader: Loader) -> None:
        PyDataset.__init__(self)
        FeedBase.__init__(self, loader)
        self._pass: _Pass | None = None
        self._new_call = True
        self._new_generator = True
        self._new_epochs = True  # no epoch of Keras has ended in this call
        self._began = False
        self._endless = loader._info.kind == "listed"

    # ---- asked by Keras

    @property
    def workers(self) -> int:
        """The number of Keras' own workers; the feed has its own workers."""
        if _asked_by_keras():
            self._new_call = self._new_epochs = True
        return 1

    @property
    def use_multiprocessing(self) -> bool:
        """Whether Keras' own workers are processes: no."""
        return False

    @property
    def max_queue_size(self) -> int:
        """The size of Keras' own queue; the feed has its own queue."""
        return 1

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; None: endless."""
        if _asked_by_keras():
            self._new_generator = True
        if self._endless:
            return None
        length = len(self)
        if length == 0:
            raise empty_dataset()
        return length

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, index: int) -> Any:
        """Return the next batch; `index` is ignored."""
        with self._lock:
            if self._pass is None or self._new_generator:
                self._begin_pass()
            return self._next()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one epoch, as over a Loader."""
        with self._lock:
            self._pass = self._steps = None
            return iter(self._loader)

    def on_epoch_begin(self) -> None:
        """Keras' epoch begins; the dataset's own hook runs when the data's epoch does."""
        self._began = True

    def on_epoch_end(self) -> None:
        """Keras' epoch ends; the dataset's own hook runs when the data's epoch does."""
        with self._lock:
            began, self._began = self._began, False
            if not self._endless:
                self._end_epoch_if_over()
            elif began and not self._only_looked() and self._loader._epochs.open is not None:
                self._loader._epochs.call("on_epoch_end")
                self._loader._epochs.publish()
            self._new_epochs = False

    # ---- what it does

    def _only_looked(self) -> bool:
        now = self._pass
        return now is None or (self._new_epochs and now.taken <= MOST_PEEKED)

    def _begin_pass(self) -> None:
        last, self._pass = self._pass, None
        new_call, self._new_call = self._new_call, False
        self._new_generator = False
        length = math.inf if self._endless else len(self)
        if last is not None and last.taken < last.length:
            if not new_call or self._endless:
                if last.kept is not None:
                    self._pass = last.again()
                    return
                if not self._endless:
                    FeedBase.restore(self, last.places[0])
            else:
                self._break_off()
        self._pass = _Pass(self._loader.state(), length)

    def _break_off(self) -> None:
        """Go to the next epoch in the same way as a ``for`` over the Loader."""
        self._steps = None
        self._loader._resumed = False
        iter(self._loader)

    def _next(self) -> Any:
        now = self._pass
        assert now is not None
        if now.kept is not None and now.taken < len(now.kept):
            batch = now.kept[now.taken]
        else:
            batch = self._pull()
            refuse_unfit(batch)
            if now.kept is not None:
                if len(now.kept) == MOST_PEEKED:
                    now.kept = None
                else:
                    now.kept.append(batch)
                    now.places.append(self._loader.state())
        now.taken += 1
        return batch

    def state(self) -> dict[str, Any]:
        """Return the position as a small dict for JSON. Inspected batches do not count.

        Any thread may call it. The position is after the last batch that Keras took, which on
        TensorFlow and on accelerators is ahead of the running step.
        """
        with self._lock:
            now = self._pass
            if now is not None and now.kept is not None and now.taken < len(now.kept):
                return dict(now.places[now.taken])
            return self._loader.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Make the next ``fit``, ``evaluate`` or ``predict`` continue where `state` was taken.

        Raises
        ------
        InvalidArgument
            The state is of another dataset or plan; the text names the difference. Nothing changes.
        """
        with self._lock:
            FeedBase.restore(self, state)
            self._pass = None

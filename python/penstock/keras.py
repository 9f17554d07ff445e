"""A feed that goes into ``fit``, ``evaluate`` and ``predict`` of Keras 3, whatever its backend.

>>> import penstock
>>> feed = penstock.keras.feed(sequence, workers=8, use_multiprocessing=True)
>>> model.fit(feed, epochs=5)

How it works: Keras takes a feed of known length for a `keras.utils.PyDataset` that wants no workers
of Keras', and asks it for batch after batch; which number it asks for does not matter, because the
order is the Loader's. A stream is a data adapter of its own, since a PyDataset cannot end.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.utils import PyDataset

from ._plan import Plan
from .errors import InvalidArgument, WorkerTraceback
from .loader import Loader

__all__ = ["Feed", "StreamFeed", "feed"]

if tuple(int(part) for part in keras.__version__.split(".")[:2]) < (3, 8):
    raise ImportError(
        "penstock.keras needs Keras 3.8 or later, whose trainers ask for batches one by one and in "
        f"order; this is {keras.__version__}. A penstock.Loader works with any (docs/keras.md)"
    )

# Keras looks at one batch to build a model (torch: at `steps_per_execution` of them) and at two to
# know their shapes (TensorFlow). So many are kept, to be given again.
_MOST_PEEKED = 2
_FOREVER = 1 << 62


def feed(
    source: Any,
    *,
    workers: int | None = None,
    use_multiprocessing: bool = False,
    max_queue_size: int = 10,
    **options: Any,
) -> Feed | StreamFeed:
    """Make what ``model.fit(x=...)`` takes of any dataset.

    Parameters
    ----------
    source : object
        A `keras.utils.PyDataset` (``Sequence``), or anything that `penstock.Loader` feeds. Its
        batches are what Keras expects of one: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``,
        each an array or a tuple or dict of arrays.
    workers, use_multiprocessing, max_queue_size, **options
        As for `penstock.Loader`.

    Returns
    -------
    Feed or StreamFeed
        The latter if only running the source tells its length. Both have ``close()``, ``stats()``,
        ``report()``, ``state()`` and ``restore()``, and are context managers.

    Notes
    -----
    Each ``fit``, ``evaluate`` or ``predict`` begins an epoch of the data, unless `restore` set the
    place; an epoch that was left early counts as over. Use one feed for training and another one
    for ``validation_data``.
    """
    if isinstance(source, PyDataset) and not hasattr(source, "__len__"):
        source = _plan_of_dataset(source)
    loader = Loader(
        source,
        workers=workers,
        use_multiprocessing=use_multiprocessing,
        max_queue_size=max_queue_size,
        **options,
    )
    return StreamFeed(loader) if loader._plan.kind == "stream" else Feed(loader)


# ---- Keras' own dataset, where it has no __len__ -----------------------------------------------


class _Numbered:
    """Gives a PyDataset that has ``num_batches`` only a length."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return int(self.dataset.num_batches)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def _each_by_itself(epoch: int) -> Iterator[list[int]]:
    return ([index] for index in itertools.count())


def _plan_of_dataset(dataset: Any) -> Plan:
    title = type(dataset).__name__
    if dataset.num_batches is None:  # infinite: one epoch that does not end
        return Plan("listed", dataset, title, hooked=dataset, begin=_each_by_itself)
    return Plan("map", _Numbered(dataset), title, int(dataset.num_batches), hooked=dataset)


# ---- what both feeds have ----------------------------------------------------------------------


class _Face:
    """The Loader's methods, under a feed's lock: TensorFlow asks for batches on its own threads."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._steps: Iterator[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._loader.epoch

    def state(self) -> dict[str, Any]:
        """Return the position, as `penstock.Loader.state` does."""
        with self._lock:
            return self._loader.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Let the next ``fit`` go on where `state` was taken."""
        with self._lock:
            self._steps = None
            self._loader.restore(state)

    def stats(self) -> dict[str, Any]:
        """Return what was counted so far, as `penstock.Loader.stats` does."""
        return self._loader.stats()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows what each worker did and what the bottleneck is."""
        self._loader.report(path)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the same events for chrome://tracing and Perfetto."""
        self._loader.trace(path)

    def analysis(self) -> dict[str, Any]:
        """Say what the bottleneck is and what to change."""
        return self._loader.analysis()

    def close(self) -> None:
        """End the workers. Keras never does that."""
        self._loader.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pull(self) -> Any:
        """Take the next batch, across the ends of epochs."""
        if self._steps is None:
            self._steps = self._loader.steps(_FOREVER)
        try:
            return next(self._steps)
        except BaseException as error:
            self._steps = None
            _note_place(error)
            raise

    def _next_epoch(self) -> None:
        """Go to the start of the epoch after the one that was broken off."""
        loader = self._loader
        epoch = loader.epoch
        self._steps = None
        loader._end_epoch()
        loader.restore({**loader.state(), "epoch": epoch + 1, "batches": 0, "ahead": []})

    def _end_epoch_if_over(self) -> None:
        """Run the dataset's ``on_epoch_end`` as soon as Keras has had the last batch."""
        loader = self._loader
        begun = loader._open_epoch
        if begun is not None and loader.epoch > begun:
            loader._end_epoch()


def _note_place(error: BaseException) -> None:
    """Keep the worker's traceback, and the index: Keras raises exceptions without their cause."""
    place = error.__cause__
    if not isinstance(place, WorkerTraceback) or sys.version_info < (3, 11):
        return
    known = getattr(error, "__notes__", ())
    if keras.config.is_traceback_filtering_enabled() and str(place) not in known:
        error.add_note(str(place))


def _empty() -> InvalidArgument:
    return InvalidArgument("the dataset is empty: an epoch of it has no batch", "feed")


class _Pass:
    """Batches that one generator of Keras took, from `start` on."""

    def __init__(self, start: dict[str, Any], length: float) -> None:
        self.start = start
        self.length = length
        self.taken = 0
        self.kept: list[Any] | None = []  # all that it took, while they are few


# ---- known length ------------------------------------------------------------------------------


class Feed(_Face, PyDataset):  # type: ignore[misc]
    """A Loader that Keras takes for a PyDataset. Made by `feed`.

    Keras makes a generator over it and drops that whenever it only wanted to look at the data, or
    when ``validation_steps`` were enough. It says so in nothing but the order of its calls:
    ``workers`` is read once by every fit, evaluate and predict, ``num_batches`` by every generator
    that starts. A generator dropped halfway is taken back if the next one is of the same call; if
    it is of another call, the epoch is over.
    """

    def __init__(self, loader: Loader) -> None:
        PyDataset.__init__(self)
        _Face.__init__(self, loader)
        self._pass: _Pass | None = None
        self._new_call = True
        self._new_generator = True
        self._new_epochs = True  # no epoch of Keras' ended in this call
        self._began = False
        self._endless = loader._plan.kind == "listed"

    # ---- asked by Keras

    @property
    def workers(self) -> int:
        """Of Keras: none, the feed has its own."""
        self._new_call = self._new_epochs = True
        return 1

    @property
    def use_multiprocessing(self) -> bool:
        return False

    @property
    def max_queue_size(self) -> int:
        return 1

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; None: it never ends. Keras reads it; use ``len()``."""
        self._new_generator = True
        if self._endless:
            return None
        length = len(self)
        if length == 0:
            raise _empty()
        return length

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, index: int) -> Any:
        """Take the next batch, whatever `index` is."""
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
        self._began = True

    def on_epoch_end(self) -> None:
        """Keras' epoch ends; the dataset's own hook runs when the data's epoch does."""
        with self._lock:
            began, self._began = self._began, False
            if not self._endless:
                self._end_epoch_if_over()
            elif began and not self._only_looked() and self._loader._open_epoch is not None:
                self._loader._call("on_epoch_end")
                self._loader._publish()
            self._new_epochs = False

    # ---- what it does

    def _only_looked(self) -> bool:
        now = self._pass
        return now is None or (self._new_epochs and now.taken <= _MOST_PEEKED)

    def _begin_pass(self) -> None:
        last, self._pass = self._pass, None
        new_call, self._new_call = self._new_call, False
        self._new_generator = False
        length = math.inf if self._endless else len(self)
        if last is not None and last.taken < last.length:
            if not new_call or self._endless:
                if last.kept is not None:
                    self._pass = _Pass(last.start, last.length)
                    self._pass.kept = last.kept
                    return
                if not self._endless:
                    _Face.restore(self, last.start)
            else:
                self._next_epoch()
        self._pass = _Pass(self._loader.state(), length)

    def _next(self) -> Any:
        now = self._pass
        assert now is not None
        if now.kept is not None and now.taken < len(now.kept):
            batch = now.kept[now.taken]
        else:
            batch = self._pull()
            if now.kept is not None:
                now.kept.append(batch)
                if len(now.kept) > _MOST_PEEKED:
                    now.kept = None
        now.taken += 1
        return batch

    def state(self) -> dict[str, Any]:
        with self._lock:
            now = self._pass
            if now is not None and now.kept is not None and now.taken < len(now.kept):
                done = now.taken * self._loader._world
                return {**now.start, "batches": now.start["batches"] + done}
            return self._loader.state()

    def restore(self, state: dict[str, Any]) -> None:
        with self._lock:
            _Face.restore(self, state)
            self._pass = None

    state.__doc__ = _Face.state.__doc__
    restore.__doc__ = _Face.restore.__doc__


# ---- unknown length ----------------------------------------------------------------------------


class StreamFeed(_Face, DataAdapter):  # type: ignore[misc]
    """A Loader of a stream, as a Keras data adapter. Made by `feed`.

    ``class_weight`` of ``fit`` does not reach an adapter: yield sample weights instead.
    """

    def __init__(self, loader: Loader) -> None:
        _Face.__init__(self, loader)
        self._kept: list[Any] | None = []
        self._taken = 0
        self._asked = 0  # how often num_batches was read since the last batch: twice by a new call
        self._over = True
        self._serial = 0
        self._signature: Any = None

    # ---- asked by Keras

    @property
    def num_batches(self) -> None:
        """Nobody knows before the stream has ended."""
        self._asked += 1
        return None

    @property
    def batch_size(self) -> None:
        return None

    @property
    def has_partial_batch(self) -> None:
        return None

    @property
    def partial_batch_size(self) -> None:
        return None

    def on_epoch_end(self) -> None:
        with self._lock:
            self._end_epoch_if_over()

    def get_numpy_iterator(self) -> Any:
        return data_adapter_utils.get_numpy_iterator(self._batches())

    def get_jax_iterator(self) -> Any:
        return data_adapter_utils.get_jax_iterator(self._batches())

    def get_torch_dataloader(self) -> Any:
        return data_adapter_utils.get_torch_dataloader(self._batches())

    def get_tf_dataset(self) -> Any:
        import tensorflow as tf

        if self._signature is None:
            looked_at = list(itertools.islice(self._batches(), _MOST_PEEKED))
            self._signature = data_adapter_utils.get_tensor_spec(looked_at)
        return tf.data.Dataset.from_generator(self._batches, output_signature=self._signature)

    # ---- what it does

    def _batches(self) -> Iterator[Any]:
        """Iterate over an epoch of the stream; begins at the first ``next``."""
        with self._lock:
            self._serial += 1
            serial = self._serial
            inside = self._loader.state()["batches"] > 0  # perhaps just before the stream's end
            self._begin()
        gave = False
        while True:
            with self._lock:
                if serial != self._serial:
                    return
                try:
                    batch = self._next()
                except StopIteration:
                    self._over = True
                    if gave:
                        return
                    if not inside:
                        raise _empty() from None
                    inside = False
                    self._begin()
                    continue
                except BaseException as error:
                    _note_place(error)
                    raise
            gave = True
            yield batch

    def _begin(self) -> None:
        looked_only = not self._over and self._asked < 2 and self._kept is not None
        broken_off = not self._over and not looked_only and self._loader._plan.replayable
        self._asked = 0
        self._taken = 0
        if looked_only:
            return
        self._kept = []
        if broken_off:
            self._next_epoch()
        if self._over or broken_off:
            self._steps = None
        if self._steps is None:
            self._steps = iter(self._loader)
        self._over = False

    def _next(self) -> Any:
        self._asked = 0
        if self._kept is not None and self._taken < len(self._kept):
            self._taken += 1
            return self._kept[self._taken - 1]
        assert self._steps is not None
        batch = _standard(next(self._steps))
        if self._kept is not None:
            self._kept.append(batch)
            self._taken += 1
            if len(self._kept) > _MOST_PEEKED:
                self._kept = None
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one epoch, as over a Loader."""
        with self._lock:
            self._over, self._steps, self._kept = True, None, []
            return iter(self._loader)

    def restore(self, state: dict[str, Any]) -> None:
        with self._lock:
            _Face.restore(self, state)
            self._over, self._kept = True, []

    restore.__doc__ = _Face.restore.__doc__


def _standard(batch: Any) -> Any:
    """Put a batch into one of the forms that trainers take apart."""
    if isinstance(batch, list):
        batch = tuple(batch)
    if isinstance(batch, (tuple, dict)):
        if isinstance(batch, tuple) and not 1 <= len(batch) <= 3:
            raise ValueError(
                "a batch must be x, (x, y) or (x, y, sample_weight); "
                f"the stream gave a tuple of {len(batch)}"
            )
        return batch
    return (batch,)

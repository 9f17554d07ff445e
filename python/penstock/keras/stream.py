"""A stream for Keras: a data adapter of its own, since a PyDataset cannot end."""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from ..loader import Loader
from .feed_base import MOST_PEEKED, FeedBase, empty_dataset, note_place, refuse_unfit

_Weights = dict[int, float] | None


class StreamFeed(FeedBase, DataAdapter):  # type: ignore[misc]
    """A Loader of a stream, as a Keras data adapter. Made by `feed`.

    Keras does not pass the ``class_weight`` of ``fit`` to a data adapter that the user made, and
    gives no warning. Each call has an EpochIterator with the ``class_weight``; the feed reads it
    from there at the first request for `num_batches`, and keeps it for the generators of that
    EpochIterator, because callbacks may make calls within a call.
    """

    def __init__(self, loader: Loader) -> None:
        FeedBase.__init__(self, loader)
        self._kept: list[Any] | None = []
        self._taken = 0
        self._asked = 0  # reads of num_batches since the last batch; a new call reads it twice
        self._over = True
        self._serial = 0
        self._weights: weakref.WeakKeyDictionary[EpochIterator, _Weights]
        self._weights = weakref.WeakKeyDictionary()
        self._signatures: dict[bool, Any] = {}  # TensorFlow's, without class weights and with them

    # ---- asked by Keras

    @property
    def num_batches(self) -> None:
        """None: the length of a stream is unknown before it has ended."""
        self._asked += 1
        known = sys._getframe(1).f_locals
        if "class_weight" in known and isinstance(known.get("self"), EpochIterator):
            self._weights[known["self"]] = known["class_weight"]
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
        return data_adapter_utils.get_numpy_iterator(self._batches(self._weights_there()))

    def get_jax_iterator(self) -> Any:
        return data_adapter_utils.get_jax_iterator(self._batches(self._weights_there()))

    def get_torch_dataloader(self) -> Any:
        return data_adapter_utils.get_torch_dataloader(self._batches(self._weights_there()))

    def get_tf_dataset(self) -> Any:
        import tensorflow as tf

        weights = self._weights_there()
        batches = functools.partial(self._batches, weights)
        weighed = weights is not None  # then batches have one more part
        if weighed not in self._signatures:
            looked_at = list(itertools.islice(batches(), MOST_PEEKED))
            self._signatures[weighed] = data_adapter_utils.get_tensor_spec(looked_at)
        signature = self._signatures[weighed]
        return tf.data.Dataset.from_generator(batches, output_signature=signature)

    # ---- what it does

    def _weights_there(self) -> _Weights:
        """Return the class weights of the EpochIterator that called the caller of this."""
        asking = sys._getframe(2).f_locals.get("self")
        return self._weights.get(asking) if isinstance(asking, EpochIterator) else None

    def _batches(self, weights: _Weights) -> Iterator[Any]:
        """Iterate over an epoch of the stream; begins at the first ``next``."""
        with self._lock:
            self._serial += 1
            serial = self._serial
            inside = self._loader.state()["batches"] > 0  # possibly at the stream's end
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
                        raise empty_dataset() from None
                    inside = False
                    self._begin()
                    continue
                except BaseException as error:
                    note_place(error)
                    raise
            gave = True
            yield _weighed(batch, weights)

    def _begin(self) -> None:
        looked_only = not self._over and self._asked < 2 and self._kept is not None
        broken_off = not self._over and not looked_only and self._loader._info.replayable
        self._asked = 0
        self._taken = 0
        if looked_only:
            return
        self._kept = []
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
            if len(self._kept) > MOST_PEEKED:
                self._kept = None
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one epoch, as over a Loader."""
        with self._lock:
            self._over, self._steps, self._kept = True, None, []
            return iter(self._loader)

    def restore(self, state: dict[str, Any]) -> None:
        with self._lock:
            FeedBase.restore(self, state)
            self._over, self._kept = True, []

    restore.__doc__ = FeedBase.restore.__doc__


def _standard(batch: Any) -> Any:
    """Convert a batch to one of the forms that trainers unpack."""
    refuse_unfit(batch)
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


def _weighed(batch: Any, class_weight: _Weights) -> Any:
    """Add the weights of its classes to a batch, as Keras does for a PyDataset."""
    if class_weight is None or not isinstance(batch, tuple) or len(batch) == 1:
        return batch
    if len(batch) == 3:
        raise ValueError("You cannot specify `class_weight` and `sample_weight` at the same time.")
    if isinstance(batch[1], (dict, list, tuple)):
        raise ValueError("`class_weight` is only supported for Models with a single output.")
    weights = data_adapter_utils.class_weight_to_sample_weights(batch[1], class_weight)
    return (*batch, weights)

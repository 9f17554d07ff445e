"""The base of the feeds for Keras: the Loader's methods, and its batches in sequence."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from ..base.conventions import Closing, Restorable, shown
from ..base.notes import add_note
from ..base.ragged import Ragged
from ..errors import InvalidArgument, WorkerTraceback
from ..loader import Loader

# Keras reads one batch to build a model (torch: `steps_per_execution` batches), and two to infer
# their shapes (TensorFlow). So many batches are kept, to be returned again.
MOST_PEEKED = 2
_FOREVER = 1 << 62


class FeedBase(Restorable, Closing):
    """The Loader's methods, under a feed's lock: TensorFlow's threads request batches."""

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
        """Make the next ``fit`` continue where `state` was taken."""
        with self._lock:
            self._steps = None
            self._loader.restore(state)

    @property
    def element_spec(self) -> Any:
        """That of the Loader."""
        return self._loader.element_spec

    def __repr__(self) -> str:
        return shown(self, self._loader)

    def stats(self) -> dict[str, Any]:
        """Return the counters, as `penstock.Loader.stats` does."""
        return self._loader.stats()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the activity of each worker and the bottleneck."""
        self._loader.report(path)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the same events for chrome://tracing and Perfetto."""
        self._loader.trace(path)

    def analysis(self) -> dict[str, Any]:
        """Return the bottleneck and what to change."""
        return self._loader.analysis()

    def close(self) -> None:
        """End the workers. Keras never calls this."""
        self._loader.close()

    def _pull(self) -> Any:
        """Take the next batch, across the ends of epochs."""
        if self._steps is None:
            self._steps = self._loader._steps(_FOREVER)  # Keras has a bar of its own
        try:
            return next(self._steps)
        except BaseException as error:
            self._steps = None
            note_place(error)
            raise

    def _end_epoch_if_over(self) -> None:
        """Run the dataset's ``on_epoch_end`` if Keras has taken the last batch."""
        loader = self._loader
        begun = loader._epochs.open
        if begun is not None and loader.epoch > begun:
            loader._epochs.end()


def note_place(error: BaseException) -> None:
    """Add the worker's traceback and the index as a note: Keras drops an exception's cause."""
    place = error.__cause__
    if isinstance(place, WorkerTraceback) and keras.config.is_traceback_filtering_enabled():
        add_note(error, str(place))


def refuse_unfit(batch: Any, name: str = "batch") -> None:
    """Raise an error for leaves that Keras converts to tensors on no backend.

    Raises
    ------
    InvalidArgument
        A leaf is text or bytes, or a `Ragged`; the message names the leaf and the remedy.
    """
    kind = type(batch)
    if issubclass(kind, dict):
        for key, value in batch.items():
            refuse_unfit(value, f"{name}[{key!r}]")
    elif issubclass(kind, (tuple, list)):
        for place, value in enumerate(batch):
            refuse_unfit(value, f"{name}[{place}]")
    elif kind is Ragged and batch.kind == "array":
        raise InvalidArgument(
            f"the rows of {name} differ in length, and Keras takes arrays: use padded_batch in "
            "place of batch, or bucket_by_length",
            "feed",
        )
    elif kind in (Ragged, str, bytes) or (kind is np.ndarray and batch.dtype.kind in "UST"):
        raise InvalidArgument(
            f"{name} is text or bytes, and Keras takes numbers: leave the field out, in a Dataset "
            "by .map(penstock.select('image', 'label')) with the names of x and y in front of "
            "batch; or convert it to numbers. For TensorFlow's layers of text, give "
            "tf.constant(texts)",
            "feed",
        )


def empty_dataset() -> InvalidArgument:
    return InvalidArgument("the dataset is empty: an epoch of it has no batch", "feed")

"""Batches of sequences for recurrent models that keep their state from batch to batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.conventions import name_of, shown
from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument
from .rows import columns_of, count_of, form_of, text_of

__all__ = ["Stateful", "StatefulBatch"]


class StatefulBatch(NamedTuple):
    """`window` steps of `batch_size` sequences side by side.

    Attributes
    ----------
    x
        A nest like a sequence, of arrays of shape (batch_size, window, ...). Zero after the end of
        a sequence and in lanes without a sequence.
    reset : ndarray of bool, (batch_size,)
        Lanes in which a sequence begins: reset their state.
    steps : ndarray of int64, (batch_size,)
        Valid steps of each lane.
    mask : ndarray of bool, (batch_size, window)
        Whether each step is valid.
    sequence : ndarray of int64, (batch_size,)
        Number of the feed's sequence in each lane; -1: none.
    """

    x: Any
    reset: npt.NDArray[np.bool_]
    steps: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    sequence: npt.NDArray[np.int64]


class Stateful:
    """Batches in which row i continues where row i of the last batch ended.

    Each lane takes the next sequence of the feed, gives `window` steps of it to each batch, and
    takes another sequence at its end. Sequences begin at a batch's first step; their last steps may
    fill only part of a window. The pass ends when no lane has a sequence.

    Parameters
    ----------
    sequences : iterable
        Nests of arrays of shape (steps, ...), with at least one step; the number of steps may
        differ between sequences.
    batch_size : int
        Lanes.
    window : int
        Steps of a batch.

    Raises
    ------
    InvalidArgument
        When iterating: a sequence without steps, with other fields, dtypes or shapes than the
        first, or with leaves of different lengths; the text names the sequence.

    Notes
    -----
    Each iteration iterates over `sequences`. At most `batch_size` sequences are in memory.

    Examples
    --------
    >>> for batch in train.Stateful(melodies, batch_size=32, window=64):
    ...     state[batch.reset] = 0
    ...     loss, state = step(batch.x, state, batch.mask)
    """

    def __init__(self, sequences: Iterable[Any], *, batch_size: int, window: int) -> None:
        for name, value in (("batch_size", batch_size), ("window", window)):
            if not isinstance(value, int) or value < 1:
                raise InvalidArgument(f"{name}={value!r}; a number of 1 or more", "Stateful")
        self._sequences = sequences
        self._lanes = batch_size
        self._window = window

    def __repr__(self) -> str:
        name = name_of(self._sequences)
        return shown(self, name, batch_size=self._lanes, window=self._window)

    def __iter__(self) -> Iterator[StatefulBatch]:
        waiting = enumerate(self._sequences)
        held: list[tuple[int, Any, int] | None] = [None] * self._lanes  # number, nest, next step
        like: Any = None
        while True:
            reset = np.zeros(self._lanes, np.bool_)
            for lane in range(self._lanes):
                if held[lane] is None and (taken := next(waiting, None)) is not None:
                    number, sequence = taken
                    sequence = mapped(np.array, sequence)  # the feed may reuse its memory
                    _check(number, sequence, like)
                    like = sequence if like is None else like
                    held[lane] = (number, sequence, 0)
                    reset[lane] = True
            if all(lane is None for lane in held):
                return
            yield self._batch(held, reset, like)

    def _batch(
        self, held: list[tuple[int, Any, int] | None], reset: npt.NDArray[np.bool_], like: Any
    ) -> StatefulBatch:
        def zeroes(leaf: Any) -> Any:
            return np.zeros((self._lanes, self._window, *leaf.shape[1:]), leaf.dtype)

        x = mapped(zeroes, like)
        steps = np.zeros(self._lanes, np.int64)
        numbers = np.full(self._lanes, -1, np.int64)
        for lane, holds in enumerate(held):
            if holds is None:
                continue
            number, sequence, at = holds
            length = len(leaves_of(sequence)[0])
            end = min(at + self._window, length)
            for to, leaf in columns_of([x, sequence], "sequences", "Stateful"):
                to[lane, : end - at] = leaf[at:end]
            steps[lane] = end - at
            numbers[lane] = number
            held[lane] = None if end == length else (number, sequence, end)
        mask = np.arange(self._window) < steps[:, None]
        return StatefulBatch(x, reset, steps, mask, numbers)


def _check(number: int, sequence: Any, like: Any) -> None:
    if count_of(sequence, f"sequence {number}") == 0:
        raise InvalidArgument(f"sequence {number} has no steps", "Stateful")
    if like is None:
        return
    if form_of(sequence, _step_form) != form_of(like, _step_form):
        text = f"sequence {number} has steps of {text_of(sequence)}, the first had {text_of(like)}"
        raise InvalidArgument(text, "Stateful")


def _step_form(leaf: Any) -> Any:
    return leaf.dtype, leaf.shape[1:]

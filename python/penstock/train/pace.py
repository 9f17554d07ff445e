"""How many steps a run has, and when Loop checks in: after each run, or by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from ..base.nests import leaves_of
from ..dataset import Dataset
from .loop_runs import RunResult

# Limits of a super-batch with seconds= and without steps=: the overhead of a run is negligible for
# so many steps, or for so many bytes.
MOST_STEPS = 128
MOST_BYTES = 8 << 20
_GROWTH = (
    16  # largest factor at a time: a single measurement is uncertain, and few lengths are compiled
)


class Pace(Protocol):
    """Decides on the steps of a run and on check-ins. One thread."""

    most: int  # largest number of steps of a run: those of a super-batch

    def begin(self) -> None:
        """Note a check-in."""

    def run_of(self, left: int) -> int:
        """Return the steps of the next run, of a super-batch with `left` steps left."""

    def due(self, result: RunResult) -> bool:
        """Return whether to check in, after a run was dispatched."""


class Counted:
    """A check-in after each run of N steps."""

    def __init__(self, steps: int) -> None:
        self.most = steps

    def begin(self) -> None:
        pass

    def run_of(self, left: int) -> int:
        return min(self.most, left)

    def due(self, result: RunResult) -> bool:
        return True


class Timed:
    """A check-in about every `seconds`, after as many runs as fit.

    A run has a power of two of steps, or `most`, so that JAX compiles few lengths. Runs grow until
    one takes a quarter of `seconds`, and shrink when two in a row took more than half of it (a
    single one may have been compiled). Each run is waited for, to measure it.
    """

    def __init__(
        self, seconds: float, most: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.most = most
        self._seconds = seconds
        self._clock = clock
        self._steps = 1
        self._was_slow = False
        self._last_check_in = self._waited = 0.0

    def begin(self) -> None:
        self._last_check_in = self._waited = self._clock()

    def run_of(self, left: int) -> int:
        return self._steps if left >= self._steps else _power_below(left)

    def due(self, result: RunResult) -> bool:
        result.wait()
        now = self._clock()
        took, self._waited = now - self._waited, now
        if result.steps == self._steps:
            self._adapt(took)
        return now + took / 2 - self._last_check_in >= self._seconds

    def _adapt(self, took: float) -> None:
        slow = took > self._seconds / 2
        if slow and self._was_slow:
            self._steps = max(1, _power_below(self._steps - 1))
            slow = False
        self._was_slow = slow
        fits = self._steps * (self._seconds / 4) / max(took, 1e-9)
        if fits >= 2 * self._steps:
            wanted = min(fits, self._steps * _GROWTH, self.most)
            self._steps = self.most if wanted == self.most else _power_below(int(wanted))


def _power_below(number: int) -> int:
    """Return the largest power of two up to `number`, at least 1."""
    return 1 << (max(number, 1).bit_length() - 1)


def super_batch_of(dataset: Dataset, size: int) -> int:
    """Return the batches of `size` samples per super-batch, from the bytes of one sample."""
    with dataset._alone().build(workers=0) as feed:  # one sample only, nothing ahead
        sample = next(iter(feed), ())
    return steps_of(size * bytes_of(sample))


def steps_of(batch_bytes: int) -> int:
    """Return the number of batches of so many bytes per super-batch."""
    return min(MOST_STEPS, _power_below(MOST_BYTES // max(batch_bytes, 1)))


def bytes_of(batch: Any) -> int:
    return sum(getattr(leaf, "nbytes", 8) for leaf in leaves_of(batch))

"""How many steps run as one, and when the host looks: after each run of N, or by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from ..base.nests import leaves_of
from ..dataset import Dataset
from .loop_runs import Said

# Of the runs that the clock paces, where nobody says how large a super-batch is. What a run costs
# besides its steps is shared by so many, and one of so many bytes takes longer than that anyhow.
MOST_STEPS = 128
MOST_BYTES = 8 << 20
_GROWTH = 16  # at a time: one measurement decides little, and few lengths are compiled


class Pace(Protocol):
    """Decides; of one thread."""

    most: int  # steps of a run: those of a super-batch

    def begin(self) -> None:
        """Note that the host looked just now."""

    def run_of(self, left: int) -> int:
        """Return how many steps are next, where a super-batch has `left` of them."""

    def due(self, said: Said) -> bool:
        """Return whether the host is to look, now that a run was dispatched."""


class Counted:
    """N steps, and a look."""

    def __init__(self, steps: int) -> None:
        self.most = steps

    def begin(self) -> None:
        pass

    def run_of(self, left: int) -> int:
        return min(self.most, left)

    def due(self, said: Said) -> bool:
        return True


class Timed:
    """A look about every `seconds`, after as many runs as fit in between.

    A run has a power of two of steps or `most`, so that JAX compiles few lengths. They grow until
    one takes a quarter of `seconds`, and shrink when two in a row took more than half of it: one
    may have been slow because it was compiled. Each is waited for, or nobody knew what it takes.
    """

    def __init__(
        self, seconds: float, most: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.most = most
        self._seconds = seconds
        self._clock = clock
        self._steps = 1
        self._was_slow = False
        self._looked = self._waited = 0.0

    def begin(self) -> None:
        self._looked = self._waited = self._clock()

    def run_of(self, left: int) -> int:
        return self._steps if left >= self._steps else _power_below(left)

    def due(self, said: Said) -> bool:
        said.wait()
        now = self._clock()
        took, self._waited = now - self._waited, now
        if said.steps == self._steps:
            self._adapt(took)
        return now + took / 2 - self._looked >= self._seconds

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
    """The largest power of two that is not above; of nothing, 1."""
    return 1 << (max(number, 1).bit_length() - 1)


def super_batch_of(dataset: Dataset, size: int) -> int:
    """Return how many batches of `size` samples are a super-batch, by the bytes of one sample."""
    with dataset._alone().build(workers=0) as feed:  # functions are called here, and not ahead
        sample = next(iter(feed), ())
    return steps_of(size * bytes_of(sample))


def steps_of(batch_bytes: int) -> int:
    """Return how many batches of so many bytes are a super-batch."""
    return min(MOST_STEPS, _power_below(MOST_BYTES // max(batch_bytes, 1)))


def bytes_of(batch: Any) -> int:
    return sum(getattr(leaf, "nbytes", 8) for leaf in leaves_of(batch))

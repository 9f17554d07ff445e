"""Which N: what a step takes in runs of so many, and which of them is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import InvalidArgument

_ROUNDS = 3
_NEAR = 1.05  # of the fastest: what more steps in a run gain is not worth later news of them


@dataclass(frozen=True)
class LoopMeasure:
    """What a step takes, by the number of steps in a run. Printed, it is a table.

    Attributes
    ----------
    step_seconds : dict of int to float
        Seconds a step for each N that was measured, the median of three rounds.
    best : int
        The smallest N whose steps take at most 5 % longer than the fastest: a larger one gains
        nothing but later news of the steps.
    left_out : tuple of int
        N of which one run takes longer than there was time for.
    """

    step_seconds: dict[int, float]
    best: int
    left_out: tuple[int, ...]

    def __str__(self) -> str:
        fastest = min(self.step_seconds.values())
        lines = ["    N     us a step   x the fastest"]
        for n, seconds in self.step_seconds.items():
            mark = "   <- enough" if n == self.best else ""
            lines.append(f"{n:5}  {seconds * 1e6:12.1f}  {seconds / fastest:14.2f}{mark}")
        if self.left_out:
            several = ", ".join(map(str, self.left_out))
            lines.append(f"one run takes too long to be measured: {several}")
        return "\n".join(lines)


def measured(
    step_seconds: Callable[[int, float | None], float], several: Sequence[int], seconds: float
) -> LoopMeasure:
    """Compare these N, in ascending order; `step_seconds` trains so long, or for one run if None.

    Rounds take turns, each in the other direction than the one before, so that a machine that
    becomes slower meanwhile is slower for all of them.
    """
    took: dict[int, list[float]] = {}
    left_out: list[int] = []
    known = 0.0  # seconds a step; in longer runs it takes no longer
    for n in several:
        if known * n > seconds:
            left_out.append(n)
            continue
        step_seconds(n, None)  # compiles, perhaps; so may the next one, of a CUDA graph
        known = min(step_seconds(n, None), step_seconds(n, None))
        took[n] = []
    if not took:
        raise InvalidArgument(f"one run takes longer than {seconds} s; give more", "measure")
    for turn in range(_ROUNDS):
        for n in [*took] if turn % 2 == 0 else [*took][::-1]:
            took[n].append(step_seconds(n, seconds / _ROUNDS))
    found = {n: median(each) for n, each in took.items()}
    best = min(n for n, each in found.items() if each <= _NEAR * min(found.values()))
    return LoopMeasure(found, best, tuple(left_out))

"""A run of a population: members in training, and their results."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import integer
from ..base.conventions import Closing, shown
from ..errors import Closed, InvalidArgument, OutOfMemory
from .steps import END, Source

if TYPE_CHECKING:
    from .population import Population

STRATEGIES = ("stacked", "concurrent")
_TRIALS = 3  # steps with each strategy, the first of which is not measured


@dataclass(frozen=True)
class MemberResult:
    """A member that finished its steps, or failed.

    Attributes
    ----------
    member : int
    hyper : dict
        Its hyper-parameters, with the seed.
    steps : int
        Updates of this run.
    losses : array of float32, shape (steps,)
        The loss of each step; with `error`, that of the failed step is the last.
    error : Exception, optional
        Why the member stopped early: a loss or gradient that is not finite, or an exception of the
        model, the loss, or data of its own. Its weights are those before the failed step.
    """

    member: int
    hyper: dict[str, Any]
    steps: int
    losses: np.ndarray[Any, Any]
    error: Exception | None = None

    def __repr__(self) -> str:
        last = f"{self.losses[-1]:.4g}" if len(self.losses) else "none"
        facts: dict[str, Any] = {"steps": self.steps, "loss": last, "hyper": self.hyper}
        if self.error is not None:
            facts["error"] = type(self.error).__name__
        return shown(self, self.member, **facts)


class PopulationRun(Closing):
    """Members in training. Made by `Population.train`."""

    def __init__(self, population: Population, data: Any) -> None:
        self._population = population
        self._own = callable(data) and not hasattr(data, "__iter__")
        self._data = data
        self._shared = None if self._own else Source(data, None)
        self._sources: dict[int, Source] = {}
        self._queue: deque[int] = deque()  # members without a row
        self._active: list[int] = []
        self._left: dict[int, int] = {}
        self._losses: dict[int, list[float]] = {}
        self._done: dict[int, int] = {}
        self._seconds: dict[str, list[float]] = {name: [] for name in STRATEGIES}
        self._closed = False

    def __repr__(self) -> str:
        return shown(self, self._population, active=len(self._active), waiting=len(self._queue))

    def add(self, member: int, steps: int) -> None:
        """Train a member for `steps` more steps: one that has not been in this run, or whose result
        was yielded."""
        self._check_open()
        number = self._population._number(member)
        if number in self._left:
            raise InvalidArgument(
                f"member {number} is in training already; add it after its result", "add"
            )
        steps = integer("steps", steps, 1, operation="add")
        if self._own and number not in self._sources:
            seed = self._population._hyper[number]["seed"]
            self._sources[number] = Source(self._data(number, seed), None)
        self._left[number] = steps
        self._losses[number] = []
        self._done[number] = 0
        if number in self._population._row_of:
            self._active.append(number)
        else:
            self._queue.append(number)

    def as_completed(self) -> Iterator[MemberResult]:
        """Train, and yield each member's result when it has finished or failed.

        Raises
        ------
        InvalidArgument
            The data that all members share gave no batch, or one that is no pair.
        """
        try:
            while self._active or self._queue:
                self._fill_rows()
                for number, error in self._step():
                    yield self._result(number, error)
                    if self._closed:
                        return
        finally:
            self.close()

    def close(self) -> None:
        """End the run. Members keep the weights of their last step."""
        self._closed = True
        self._active.clear()
        self._queue.clear()
        self._left.clear()
        self._sources.clear()  # ends the passes over the data
        self._shared = None
        run = self._population._run
        if run is not None and run() is self:
            self._population._run = None

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the run has ended", "Population")

    def _fill_rows(self) -> None:
        """Members that wait take the rows of those that do not train."""
        population = self._population
        idle = deque(n for n in population._row_of if n not in self._left)
        while self._queue and idle:
            number = self._queue.popleft()
            if number in population._waiting:
                population._bring(number, idle.popleft())
            self._active.append(number)

    def _step(self) -> list[tuple[int, Exception | None]]:
        """One step of all members with a row; returns those that have finished or failed."""
        population = self._population
        numbers = sorted(self._active, key=population._row_of.__getitem__)
        batches: Any
        over: list[tuple[int, Exception | None]] = []
        if self._shared is not None:
            batches = self._taken(self._shared)
        else:
            batches, over = self._own_batches(numbers)
            for number, _ in over:
                numbers.remove(number)
        if not numbers:
            return over
        rows = [population._row_of[number] for number in numbers]
        losses = self._compute(rows, batches)
        errors = self._update(numbers, rows, losses)
        return over + [
            (number, error)
            for number, error in zip(numbers, errors, strict=True)
            if error is not None or self._left[number] == 0
        ]

    def _own_batches(
        self, numbers: list[int]
    ) -> tuple[list[Any], list[tuple[int, Exception | None]]]:
        """The next batch of each member, and the members whose data failed."""
        batches: list[Any] = []
        failed: list[tuple[int, Exception | None]] = []
        for number in numbers:
            try:
                batches.append(self._taken(self._sources[number]))
            except Exception as error:
                failed.append((number, error))
        return batches, failed

    def _compute(self, rows: list[int], batches: Any) -> list[Any]:
        """A loss, or an exception, for each row."""
        population = self._population
        shared = self._shared is not None
        name = self._choose()
        begun = time.perf_counter()
        try:
            losses = population._strategy(name).step(rows, batches, shared)
        except (InvalidArgument, OutOfMemory):
            if population.strategy is not None:
                raise
            losses = []  # this model cannot be stacked, or its members do not fit together
        if population.strategy is None and all(isinstance(loss, Exception) for loss in losses):
            # vmap refuses an operation, or all members fail in the other way, too.
            population.strategy = "concurrent"
            return population._strategy("concurrent").step(rows, batches, shared)
        self._seconds[name].append(time.perf_counter() - begun)
        return losses

    def _update(
        self, numbers: list[int], rows: list[int], losses: list[Any]
    ) -> list[Exception | None]:
        """Apply the gradients of the rows whose loss is finite; an error for each row, or None."""
        errors = [self._error_of(*pair) for pair in zip(numbers, losses, strict=True)]
        fine = [n for n, error in enumerate(errors) if error is None]
        if fine:
            updated = self._population._rows.update([rows[n] for n in fine])
            for n, error in zip(fine, updated, strict=True):
                errors[n] = error
                self._left[numbers[n]] -= error is None
                self._done[numbers[n]] += error is None
        return errors

    def _error_of(self, number: int, loss: Any) -> Exception | None:
        if isinstance(loss, Exception):
            return loss
        self._losses[number].append(loss)
        if math.isfinite(loss):
            return None
        step = self._population.step(number)
        return InvalidArgument(f"the loss is {loss} in step {step}", "Population")

    def _taken(self, source: Source) -> Any:
        batch = source.take()
        if batch is END:
            raise InvalidArgument(
                "the data gave no batch; a pass must have at least one", "Population"
            )
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InvalidArgument(
                f"a batch is a {type(batch).__name__}; a population wants (inputs, targets). Let "
                "the feed's last function make a pair of it",
                "Population",
            )
        return self._population._architecture.pair(batch)

    def _choose(self) -> str:
        """The strategy of the next step."""
        population = self._population
        if population.strategy is not None:
            return population.strategy
        for name, seconds in self._seconds.items():
            if len(seconds) < _TRIALS:
                return name
        fastest = min(self._seconds, key=lambda name: min(self._seconds[name][1:]))
        population.strategy = fastest
        for name in set(population._strategies) - {fastest}:  # its threads would slow the other
            population._strategies.pop(name).close()
        return fastest

    def _result(self, number: int, error: Exception | None) -> MemberResult:
        self._active.remove(number)
        del self._left[number]
        losses = np.asarray(self._losses.pop(number), np.float32)
        hyper = self._population.hyper(number)
        return MemberResult(number, hyper, self._done.pop(number), losses, error)

"""A run of towers: their threads, and what is done between two rounds."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import _engine
from ..base.notes import add_note
from ..errors import InvalidArgument
from .parameters import copy_all
from .rounds import NONE
from .steps import OneThreadEach, Outcome, Part, Views, outcome_of
from .updater import Updater

# Below this many floats a thread more costs more than it adds up.
_WORTH_A_THREAD = 1 << 19
_MIXED = "a round has train.Rows and whole gradients; steps return one of the two"


@dataclass(frozen=True)
class TowersReport:
    """What a run came to, or has come to so far.

    Attributes
    ----------
    updates : int
        That were applied: rounds without those whose gradient was skipped.
    rounds, batches : int
        Rounds, and batches that were used in them.
    seconds : float
    loss, last_loss : float
        The mean of all that steps returned, and of the last round; weighted as gradients are. NaN
        if none.
    copied_bytes : int
        Of gradients that a framework could not leave in place.
    """

    updates: int
    rounds: int
    batches: int
    seconds: float
    loss: float
    last_loss: float
    copied_bytes: int

    @property
    def updates_per_second(self) -> float:
        return self.updates / self.seconds if self.seconds > 0 else 0.0


class Run:
    """Threads, one per tower, that live for a run.

    A tower waits for a job in its own queue, does it, and puts what came of it into the one queue
    of results. Whoever runs the towers waits for all results before it hands out more, so weights
    change only while all towers wait: that is the barrier.
    """

    def __init__(
        self, step: Callable[[Any, Any], Any], views: list[Views], updater: Updater
    ) -> None:
        self._step = step
        self._views = views
        self._updater = updater
        self._slabs = [each.gradients._slab for each in views]
        self._floats = self._slabs[0].all_floats
        self._jobs: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in views]
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._one_thread_each = OneThreadEach()
        self._working = 0
        self.rounds = self._batches = self._copied = 0
        self._applied = updater.step
        self._loss_sum = self._loss_weight = 0.0
        self._last_loss = math.nan

    def __enter__(self) -> Run:
        self._updater.parameters._settle()
        for slab in self._slabs:
            slab.zero()  # of a round that failed
        self._one_thread_each.__enter__()
        self._threads = [
            threading.Thread(target=self._work, args=(tower,), name=f"penstock tower {tower}")
            for tower in range(len(self._views))
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # those that run wait for jobs
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._one_thread_each.__exit__()

    def _work(self, tower: int) -> None:
        self._one_thread_each.here()
        while (job := self._jobs[tower].get()) is not None:
            try:
                result = job()
            except BaseException as error:
                result = error
            del job  # and its batch
            self._results.put((tower, result))
            del result

    def _together(self, jobs: dict[int, Callable[[], Any]]) -> None:
        self._working = len(jobs)
        for tower, job in jobs.items():
            self._jobs[tower].put(job)

    def _outcomes(self) -> list[Any]:
        """Wait for all; of several that failed raise the first tower's error."""
        outcomes: list[Any] = [None] * len(self._views)
        while self._working:
            tower, result = self._results.get()
            outcomes[tower] = result
            self._working -= 1
        for tower, outcome in enumerate(outcomes):
            if isinstance(outcome, BaseException):
                add_note(outcome, f"in tower {tower}, round {self.rounds}")
                raise outcome
        return outcomes

    def begin(self, batches: list[Any]) -> None:
        """Let the towers that have a batch compute."""
        jobs: dict[int, Callable[[], Any]] = {}
        for tower, batch in enumerate(batches):
            if batch is not NONE:
                jobs[tower] = partial(self._compute, self._views[tower], batch)
        self._together(jobs)

    def _compute(self, views: Views, batch: Any) -> Outcome:
        outcome = outcome_of(self._step(batch, views), views, "Towers")
        parts = outcome.parts
        if not parts or all(part.rows is not None for part in parts):
            return outcome
        if any(part.rows is not None for part in parts):
            raise InvalidArgument(_MIXED, "Towers")
        copy_all(views.gradients, {part.block: part.values for part in parts}, "Towers")
        return Outcome(outcome.loss, None, views.gradients.nbytes)

    def finish(self, weights: list[float]) -> None:
        """Wait for the towers; apply the mean of their gradients."""
        outcomes: list[Outcome | None] = self._outcomes()
        largest = max(weights)
        shares = [weight / largest for weight in weights]  # 1 where all are alike
        scale = largest / sum(weights)
        try:
            if self._are_rows(outcomes):
                self._apply_rows(outcomes, np.array(shares, np.float32), scale)
            else:
                self._add(shares)
                self._updater._engine.apply(self._slabs[0], scale)
                self._slabs[0].zero()
        except Exception as error:
            refused = [
                t for t, given in enumerate(outcomes) if shares[t] > 0 and self._refused(given)
            ]
            tower = f"tower {refused[0]}, " if refused else ""
            add_note(error, f"in {tower}round {self.rounds}")
            raise
        self._count(outcomes, weights)

    def _are_rows(self, outcomes: list[Outcome | None]) -> bool:
        kinds = {outcome.parts is not None for outcome in outcomes if outcome is not None}
        if len(kinds) > 1:
            raise InvalidArgument(_MIXED, "Towers")
        return kinds == {True}

    def _apply_rows(self, outcomes: list[Outcome | None], shares: Any, scale: float) -> None:
        """Apply one update of all blocks' rows."""
        given: dict[str, list[Part]] = {}
        for tower, outcome in enumerate(outcomes):
            # What weighs nothing need not be numbers.
            if outcome is not None and shares[tower] > 0:
                for part in outcome.parts or ():
                    weighed = part._replace(values=part.values * shares[tower])
                    given.setdefault(part.block, []).append(weighed)
        blocks = [_joined(parts) for parts in given.values()]
        self._updater._apply_parts([(part.block, part.rows, part.values) for part in blocks], scale)

    def _refused(self, outcome: Outcome | None) -> bool:
        """Whether there are such rows in what a tower gave."""
        parts = None if outcome is None else outcome.parts
        return any(self._refuses(part) for part in parts or ())

    def _refuses(self, part: Part) -> bool:
        """Whether the updater would raise at these rows."""
        count = self._updater.parameters[part.block].shape[0]
        if part.rows.size and not 0 <= part.rows.min() <= part.rows.max() < count:
            return True
        return self._updater._policy == "raise" and not _sums_finite(part)

    def _add(self, shares: list[float]) -> None:
        if self._floats < _WORTH_A_THREAD or len(self._views) == 1:
            _engine.add_towers(self._slabs, shares, 0, self._floats)
            return
        towers = len(self._views)
        cuts = [self._floats * i // towers for i in range(towers + 1)]
        jobs: dict[int, Callable[[], Any]] = {
            tower: partial(_engine.add_towers, self._slabs, shares, cuts[tower], cuts[tower + 1])
            for tower in range(towers)
        }
        self._together(jobs)
        self._outcomes()

    def _count(self, outcomes: list[Outcome | None], weights: list[float]) -> None:
        self.rounds += 1
        loss = total = 0.0
        for tower, outcome in enumerate(outcomes):
            if outcome is None:
                continue
            self._batches += 1
            self._copied += outcome.copied
            self._views[tower].step += 1
            # A part that weighs nothing may have no loss that is a number.
            if outcome.loss is not None and weights[tower] > 0:
                loss += outcome.loss * weights[tower]
                total += weights[tower]
        self._loss_sum += loss
        self._loss_weight += total
        self._last_loss = loss / total if total else math.nan

    def report(self, seconds: float) -> TowersReport:
        return TowersReport(
            updates=self._updater.step - self._applied,
            rounds=self.rounds,
            batches=self._batches,
            seconds=seconds,
            loss=self._loss_sum / self._loss_weight if self._loss_weight else math.nan,
            last_loss=self._last_loss,
            copied_bytes=self._copied,
        )


def _joined(parts: list[Part]) -> Part:
    rows, values = ([getattr(part, name) for part in parts] for name in ("rows", "values"))
    return parts[0]._replace(rows=np.concatenate(rows), values=np.concatenate(values))


def _sums_finite(part: Part) -> bool:
    """Whether what comes of a part is finite, once rows that come twice are added up."""
    largest = np.abs(part.values).max(initial=0)  # NaN if there is one
    if not np.isfinite(largest):
        return False
    if len(part.rows) * float(largest) < float(np.finfo(np.float32).max) / 2:
        return True
    rows, places = np.unique(part.rows, return_inverse=True)
    sums = np.zeros((len(rows), *part.values.shape[1:]), np.float32)
    with np.errstate(over="ignore"):
        np.add.at(sums, places, part.values)
    return bool(np.isfinite(sums).all())

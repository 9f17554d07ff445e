"""Hogwild's workers as threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _engine
from ..base.notes import add_note
from .parameters import Parameters, Slab
from .steps import END, OneThreadEach, Source, Views, as_parameters, outcome_of, views_of
from .updater import Updater


class WorkerLoop:
    """One worker: calls the step for each batch and applies the gradient. One thread."""

    def __init__(
        self,
        step: Callable[[Any, Any], Any],
        views: Views,
        engine: Any,
        snapshot: int,
    ) -> None:
        self._step = step
        self.views = views
        self.engine = engine  # an _engine.HogwildWorker, or for a device its like
        slab = views.gradients
        self._gradients: Any = slab._slab if slab.device is None else slab
        self._copied = views.weights.nbytes if snapshot else 0  # copied about once in a step

    def use(self, batch: Any) -> None:
        """Run one step."""
        views = self.views
        self.engine.read()
        outcome = outcome_of(self._step(batch, views), views, "Hogwild")
        if outcome.parts is None:
            self.engine.apply(self._gradients)
        else:
            self.engine.apply_parts(outcome.parts, 1.0)
        views.step += 1
        self.engine.finish_step(outcome.loss, outcome.copied + self._copied)


def weights_of(engine: _engine.HogwildWorker, parameters: Parameters, snapshot: int) -> Slab:
    return Slab(engine.weights) if snapshot else parameters


class Threads:
    """Workers that are threads of `engine`. Views, models and replicas are kept between runs.

    A run calls `begin`, then `ready`, and `work` on each thread; last `end`, also after an error.
    """

    restarts = torn = 0

    def __init__(
        self,
        step: Callable[[Any, Any], Any],
        updater: Updater,
        workers: int,
        model: Any,
        own_state: bool,
        snapshot: int,
        non_finite: int,
        replicas: int,
        merge_every: int,
    ) -> None:
        self.engine = _engine.Hogwild(
            updater._engine, workers, own_state, non_finite, snapshot, replicas, merge_every
        )
        self._counters = self.engine.counters
        self._replicas = replicas
        self._one_thread_each = OneThreadEach()
        self._loops: list[WorkerLoop] = []
        self._cores: list[list[int]] = []  # cores of each group; empty: one group
        self._source: Any = None
        for number in range(workers):
            engine = self.engine.worker(number)
            parameters = updater.parameters
            if replicas > 1:
                parameters = as_parameters(Slab(engine.parameters))
            weights = weights_of(engine, parameters, snapshot)
            replicate = number > 0 or snapshot > 0 or replicas > 1
            views = views_of(number, parameters, weights, model, replicate=replicate)
            self._loops.append(WorkerLoop(step, views, engine, snapshot))

    def begin(self, source: Source) -> None:
        self._source = source
        self._one_thread_each.__enter__()
        for loop in self._loops:
            loop.views.gradients.zero()  # from a step that failed
        self._cores = _engine.core_groups(self._replicas) if self._replicas > 1 else []

    def ready(self) -> None:
        pass

    def work(self, number: int) -> None:
        loop = self._loops[number]
        try:
            loop.engine.begin()
            self._one_thread_each.here()
            mine = self._cores[self.engine.group_of(number)] if self._cores else []
            anywhere = sorted(core for group in self._cores for core in group)
            while self._counters.claim_step():
                batch = self._source.take()
                if batch is END:
                    self._counters.return_step()
                    break
                if mine:
                    _engine.pin_to_cores(mine)
                loop.use(batch)
                if mine:  # threads that the feed starts would inherit these cores
                    _engine.pin_to_cores(anywhere)
                del batch  # the feed may reuse its memory
        except BaseException as error:
            add_note(error, f"in worker {number} of Hogwild, step {loop.views.step}")
            raise

    def end(self) -> None:
        self._source = None
        self._one_thread_each.__exit__()

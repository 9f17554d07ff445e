"""Hogwild's workers as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .. import _engine
from ..base.notes import add_note
from .optimizers import Optimizer
from .parameters import Parameters, Slab
from .steps import END, OneThreadEach, Source, Views, as_parameters, outcome_of, views_of
from .updater import Updater


class WorkerLoop:
    """One worker: takes batches, calls the step, applies. Its own thread's only."""

    def __init__(
        self,
        step: Callable[[Any, Any], Any],
        views: Views,
        engine: _engine.HogwildWorker,
        snapshot: int,
    ) -> None:
        self._step = step
        self.views = views
        self.engine = engine
        self._copied = views.weights.nbytes if snapshot else 0  # once a step, sooner or later

    def use(self, batch: Any) -> None:
        """Do one step."""
        views = self.views
        self.engine.read()
        outcome = outcome_of(self._step(batch, views), views, "Hogwild")
        if outcome.parts is None:
            self.engine.apply(views.gradients._slab)
        else:
            self.engine.apply_parts(outcome.parts, 1.0)
        views.step += 1
        self.engine.finish_step(outcome.loss, outcome.copied + self._copied)


def copies_of(state: list[_engine.Slab]) -> list[_engine.Slab]:
    copies = [slab.like(False) for slab in state]
    for copy, slab in zip(copies, state, strict=True):
        copy.copy_from(slab)
    return copies


def engine_worker(
    parameters: Parameters,
    optimizer: Optimizer,
    state: list[_engine.Slab],
    updates: int,
    board: Any,
    number: int,
    own_state: bool,
    non_finite: int,
    snapshot: int,
    replica: _engine.Replica | None = None,
    merge_every: int = 0,
) -> _engine.HogwildWorker:
    """Make the engine's part of a worker; states of their own begin as copies of that given."""
    if own_state and number > 0:
        state = copies_of(state)
    made = _engine.HogwildWorker(
        parameters._slab,
        optimizer._built,
        state,
        board,
        number,
        not own_state,
        non_finite,
        snapshot,
        replica,
        merge_every,
    )
    made.updates = updates
    return made


def seen_weights(engine: _engine.HogwildWorker, parameters: Parameters, snapshot: int) -> Slab:
    return Slab(engine.weights) if snapshot else parameters


class Runner:
    """Threads of this process, one per worker, until all have ended. One run at a time."""

    def __init__(self, board: Any, workers: int) -> None:
        self.restarts = 0  # of this run, as is torn
        self.torn = 0
        self._board = board
        self._workers = workers
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._working = 0
        self._error: BaseException | None = None

    def start(self, source: Source) -> None:
        self._error = None
        self.restarts = self.torn = 0
        self._threads = [
            threading.Thread(
                target=self._run, args=(number, source), name=f"penstock hogwild {number}"
            )
            for number in range(self._workers)
        ]
        self._working = 0
        for thread in self._threads:
            with self._changed:
                self._working += 1
            try:
                thread.start()
            except BaseException:
                with self._changed:
                    self._working -= 1
                raise

    def _run(self, number: int, source: Source) -> None:
        error: BaseException | None = None
        try:
            self._work(number, source)
        except BaseException as raised:
            error = raised
            self._board.stop()
        with self._changed:
            if self._error is None:
                self._error = error
            self._working -= 1
            self._changed.notify_all()

    def _work(self, number: int, source: Source) -> None:
        """Do what a worker does in a run; the first to raise ends it for all."""
        raise NotImplementedError

    def wait(self, timeout: float | None) -> bool:
        """Wait until all have ended, or for `timeout` seconds; whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: self._working == 0, timeout)

    def join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._threads = []

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class Threads(Runner):
    """Workers that are these threads. Views, models and replicas live on from run to run."""

    def __init__(
        self,
        step: Callable[[Any, Any], Any],
        updater: Updater,
        board: Any,
        workers: int,
        model: Any,
        own_state: bool,
        snapshot: int,
        non_finite: int,
        replicas: int,
        merge_every: int,
    ) -> None:
        super().__init__(board, workers)
        self._one_thread_each = OneThreadEach()
        self._loops: list[WorkerLoop] = []
        self._replicas: list[_engine.Replica] = []
        self._cores: list[list[int]] = []  # of each group
        parameters, state, replica = updater.parameters, list(updater._engine.state), None
        if replicas > 1:
            self._replicas = _engine.Replica.make(parameters._slab, replicas, updater.step)
        for number in range(workers):
            group = self._group(number)
            if replicas > 1 and (number == 0 or group != self._group(number - 1)):
                replica = self._replicas[group]
                parameters = as_parameters(Slab(replica.slab))
                state = state if group == 0 else copies_of(list(updater._engine.state))
            engine = engine_worker(
                parameters,
                updater.optimizer,
                state,
                updater.step,
                board,
                number,
                own_state,
                non_finite,
                snapshot,
                replica,
                merge_every,
            )
            weights = seen_weights(engine, parameters, snapshot)
            replicate = number > 0 or snapshot > 0 or replicas > 1
            views = views_of(number, parameters, weights, model, replicate=replicate)
            self._loops.append(WorkerLoop(step, views, engine, snapshot))

    def _group(self, number: int) -> int:
        return number * len(self._replicas) // self._workers

    def start(self, source: Source) -> None:
        self._one_thread_each.__enter__()
        for loop in self._loops:
            loop.views.gradients.zero()  # of a step that failed
        for replica in self._replicas:
            replica.begin()
        self._cores = _engine.near_cores(len(self._replicas)) if self._replicas else []
        super().start(source)

    def _work(self, number: int, source: Source) -> None:
        loop = self._loops[number]
        try:
            loop.engine.begin()
            self._one_thread_each.here()
            mine = self._cores[self._group(number)] if self._cores else []
            anywhere = sorted(core for group in self._cores for core in group)
            while self._board.take():
                batch = source.take()
                if batch is END:
                    self._board.untake()
                    break
                if mine:
                    _engine.stay_on(mine)
                loop.use(batch)
                if mine:  # what a feed starts while it is asked for a batch would stay there, too
                    _engine.stay_on(anywhere)
                del batch  # the feed may use its memory again
        except BaseException as error:
            add_note(error, f"in worker {number} of Hogwild, step {loop.views.step}")
            raise

    def join(self) -> None:
        try:
            super().join()
        finally:
            for replica in self._replicas:
                replica.merge()
            self._one_thread_each.__exit__()

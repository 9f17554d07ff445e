"""A population whose members train on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .. import train
from ..base.arguments import integer, real
from ..base.conventions import shown
from ..errors import InvalidArgument, System, WorkerLost, unpack_exception

if TYPE_CHECKING:
    from .population_actors import Assigned, Plan, Progress

_OPERATION = "ray.population"
_log = logging.getLogger("penstock")
# Seconds: without any actor that runs; for one wait, and until an actor is asked again.
_START, _PAUSE = 120.0, 0.5
_ENDS = 3  # of a member's actor, without a report in between: the member has failed
_AHEAD = 4  # reports of each member that an actor makes before the first is taken


class Population(train.Population):
    """A `train.Population` whose members train on the nodes of a Ray cluster.

    Actors train the members in groups, each group by a `train.Population` of its own. This process
    has all members' states, which the actors report as they train. When an actor or its node ends,
    its members continue elsewhere from their last reports.

    Parameters
    ----------
    model, members, hyper, optimizer, loss, seed, strategy, compile
        As of `train.Population`. The model, the loss and the data are pickled; their modules must
        be importable on the nodes.
    threads : int, optional
        Of each actor. Default: `num_cpus`.
    resident : int, optional
        Members that train at once in an actor. Default: `members` divided by `workers`.
    device : str or torch.device, optional
        Where the actors train, such as "cuda". The states here are in the host's memory.
    workers : int, optional
        How many actors, which Ray spreads over the nodes and restarts. Those for which no node has
        the resources start when one joins. Default: as many as fit on the nodes that are there.
    num_cpus, num_gpus : float
        What Ray reserves for each actor.
    snapshot_seconds : float
        Time between two reports of a member, so what the end of a node may cost.

    Raises
    ------
    InvalidArgument
        A wrong option or model; no node has the resources for an actor.

    Notes
    -----
    Methods are those of `train.Population`, with these differences. Members train on while the
    caller works on a result. `put`, `copy` to, and `perturb` are for members that are not in
    training. `take`, `step`, `module` and `copy` from a member in training see its last report.
    Each member has its own pass over the data: its n-th step of a run takes the n-th batch.

    Examples
    --------
    >>> networks = penstock.ray.population(LeNet5, members=300, hyper={"lr": rates})
    >>> for result in networks.train(data, steps=2000).as_completed():
    ...     print(result.member, result.losses[-1], result.error)
    """

    def __init__(
        self,
        model: Any,
        *,
        members: int,
        hyper: Mapping[str, Any] | None = None,
        optimizer: str = "adam",
        loss: Callable[[Any, Any], Any] | None = None,
        seed: int = 0,
        strategy: Literal["stacked", "concurrent"] | None = None,
        threads: int | None = None,
        compile: bool = False,
        resident: int | None = None,
        device: Any = None,
        workers: int | None = None,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        snapshot_seconds: float = 10.0,
    ) -> None:
        import ray

        from .population_actors import Plan

        self._reserved = {
            "num_cpus": _at_least_0("num_cpus", num_cpus),
            "num_gpus": _at_least_0("num_gpus", num_gpus),
        }
        seconds = real("snapshot_seconds", snapshot_seconds, _OPERATION)
        if not 0 < seconds < 1e9:
            raise InvalidArgument("snapshot_seconds must be above 0", _OPERATION)
        threads = integer("threads", threads or -int(-num_cpus // 1) or 1, 1, operation=_OPERATION)
        # This process keeps the states; the actors compute.
        own: dict[str, Any] = {"optimizer": optimizer, "strategy": strategy, "compile": compile}
        super().__init__(
            model,
            members=members,
            hyper=hyper,
            loss=loss,
            seed=seed,
            threads=threads,
            resident=1,
            **own,
        )
        if not ray.is_initialized():
            ray.init()
        if workers is None:
            workers = min(_actors_that_fit(ray.nodes(), self._reserved), len(self))
        workers = integer("workers", workers, 1, operation=_OPERATION)
        resident = -(-len(self) // workers) if resident is None else resident
        self._group = integer("resident", resident, 1, operation=_OPERATION)
        first = self.hyper(0)
        first.pop("seed")
        own |= {"threads": threads, "device": device, "hyper": first}
        plan = Plan(ray.put((model, loss)), self._group, own, seconds)
        self._workers = [_Worker(plan, self._reserved) for _ in range(workers)]

    def put(
        self, member: int, state: train.MemberState, hyper: Mapping[str, Any] | None = None
    ) -> None:
        """As `train.Population.put`, of a member that is not in training."""
        self._check_idle(member, "put")
        super().put(member, state, hyper)

    def perturb(self, member: int, **factors: Any) -> dict[str, Any]:
        """As `train.Population.perturb`, of a member that is not in training."""
        self._check_idle(member, "perturb")
        return super().perturb(member, **factors)

    def close(self) -> None:
        """End a run and the actors. The states stay readable."""
        super().close()
        for worker in self._workers:
            worker.end()

    def _check_idle(self, member: int, operation: str) -> None:
        run = None if self._run is None else self._run()
        if run is not None and self._number(member) in run._left:
            raise InvalidArgument(f"member {member} is in training: wait for its result", operation)

    def _run_of(self, data: Any) -> PopulationRun:
        return PopulationRun(self, data)


population = Population  # named as `feed`, `workers` and the others are


class PopulationRun(train.PopulationRun):
    """Members in training on a cluster. Made by `Population.train`."""

    _population: Population

    def __init__(self, population: Population, data: Any) -> None:
        import ray

        from .population_actors import has_own_data

        self._population = population
        self._shared_data = not has_own_data(data)
        try:
            self._data = ray.put(data)
        except Exception as error:
            raise InvalidArgument(
                f"the data cannot be pickled: {error}. Give a function data(member, seed) that "
                "makes it on the node",
                "train",
            ) from error
        self._queue: deque[int] = deque()  # members that no actor trains now
        self._left: dict[int, int] = {}
        self._losses: dict[int, list[Any]] = {}
        self._done: dict[int, int] = {}
        self._ends: dict[int, int] = {}  # of actors, since the member's last report
        self._position: dict[int, int] = {}
        self._feed: dict[int, dict[str, Any] | None] = {}
        self._seen = time.monotonic()  # when an actor was last known to run
        self._closed = False

    def __repr__(self) -> str:
        training = len(self._left) - len(self._queue)
        return shown(self, self._population, active=training, waiting=len(self._queue))

    def add(self, member: int, steps: int) -> None:
        """As `train.PopulationRun.add`."""
        self._check_open()
        number = self._population._number(member)
        if number in self._left:
            raise InvalidArgument(
                f"member {number} is in training already; add it after its result", "add"
            )
        self._left[number] = integer("steps", steps, 1, operation="add")
        self._losses[number] = []
        self._done[number] = self._ends[number] = 0
        self._position.setdefault(number, 0)
        self._queue.append(number)

    def as_completed(self) -> Iterator[train.MemberResult]:
        """Yield each member's result when it has finished or failed.

        A member whose actor ends three times before it reports anything has failed with
        `WorkerLost`: it may be what ends them.

        Raises
        ------
        InvalidArgument
            The data that all members share gave no batch, or one that is no pair.
        System
            No actor has run for two minutes.
        Exception
            What the model, or data that all members share, raised when it was made on a node.
        """
        try:
            while self._left:
                self._assign()
                for result in self._reported():
                    yield result
                    if self._closed:
                        return
        finally:
            self.close()

    def close(self) -> None:
        """End the run. Members keep the state of their last report."""
        if self._closed:
            return
        self._closed = True
        for worker in self._population._workers:
            if worker.members:
                worker.restart()
        self._queue.clear()
        self._left.clear()
        run = self._population._run
        if run is not None and run() is self:
            self._population._run = None

    def _assign(self) -> None:
        """Give members to the actors that train none."""
        while idle := [each for each in self._population._workers if each.idle]:
            if not self._queue:
                return
            idle[0].train(
                [self._assigned(number) for number in self._next_group(len(idle))],
                self._data,
            )

    def _next_group(self, idle: int) -> list[int]:
        size = min(self._population._group, -(-len(self._queue) // idle))
        first = self._queue[0]
        if self._ends[first] == _ENDS - 1:  # alone, so that no other fails with it
            size = 1
        group = [n for n in self._queue if n == first or self._may_join(n, first)][:size]
        for number in group:
            self._queue.remove(number)
        return group

    def _may_join(self, number: int, first: int) -> bool:
        """Whether a member can be in the group of another."""
        together = not self._shared_data or self._position[number] == self._position[first]
        return together and self._ends[number] < _ENDS - 1

    def _assigned(self, number: int) -> Assigned:
        from .population_actors import Assigned

        return Assigned(
            number,
            self._population.take(number),
            self._left[number],
            self._position[number],
            self._feed.get(number),
        )

    def _reported(self) -> Iterator[train.MemberResult]:
        """Wait for the actors; yield the results of members that have stopped."""
        import ray

        busy = [each for each in self._population._workers if each.pending() is not None]
        waited = [each.pending() for each in busy]
        if not waited:
            time.sleep(_PAUSE)
            return
        ray.wait(waited, num_returns=1, timeout=_PAUSE)
        ready, _ = ray.wait(waited, num_returns=len(waited), timeout=0)
        if ready or any(each.members for each in busy):
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > _START:
            raise System(
                f"Ray has started no actor of the population for {_START:.0f} s: are there "
                f"{self._population._reserved['num_cpus']:g} free CPUs? See `ray status`",
                _OPERATION,
            )
        for worker, pending in zip(busy, waited, strict=True):
            if any(pending is each or pending == each for each in ready):
                yield from self._report_of(worker)

    def _report_of(self, worker: _Worker) -> list[train.MemberResult]:
        import ray

        from .shard_actors import causes

        try:
            with causes():
                progress = worker.next()
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError):  # of the model, or of the data
                worker.restart()
                raise
            return self._ended(worker, error)
        except BaseException:
            worker.restart()
            raise
        if progress is None:
            return []
        results = self._took(progress)
        if results:
            worker.members.remove(progress.member)
        return results

    def _took(self, progress: Progress) -> list[train.MemberResult]:
        number = progress.member
        train.Population.put(self._population, number, progress.state)
        self._ends[number] = 0
        self._left[number] -= progress.steps
        self._done[number] += progress.steps
        self._position[number] += max(progress.steps, len(progress.losses))
        self._feed[number] = progress.feed
        self._losses[number].append(progress.losses)
        if progress.error is not None:
            error = unpack_exception(progress.error)
            assert isinstance(error, Exception)
            return [self._result(number, error)]
        return [] if self._left[number] else [self._result(number, None)]

    def _ended(self, worker: _Worker, error: Exception) -> list[train.MemberResult]:
        """The actor has ended, or its node: its members continue from their last reports."""
        lost = worker.members
        if lost:
            _log.warning("%d members continue elsewhere: %s", len(lost), _first_line(error))
        worker.restart()
        results = []
        for number in reversed(lost):
            self._ends[number] += 1
            if self._ends[number] < _ENDS:
                self._queue.appendleft(number)
                continue
            why = f"the actor of member {number} ended {_ENDS} times before it reported anything: "
            results.append(self._result(number, WorkerLost(why + _first_line(error), _OPERATION)))
        return results

    def _result(self, number: int, error: Exception | None) -> train.MemberResult:
        del self._left[number]
        losses = np.concatenate([*self._losses.pop(number), np.empty(0, np.float32)])
        return train.MemberResult(
            number, self._population.hyper(number), self._done.pop(number), losses, error
        )


class _Worker:
    """An actor, and the members that it trains."""

    def __init__(self, plan: Plan, reserved: Mapping[str, float]) -> None:
        import ray

        from .population_actors import Trainer

        self._plan = plan
        self._actor = (
            ray.remote(Trainer)
            .options(max_restarts=-1, scheduling_strategy="SPREAD", **reserved)
            .remote()
        )
        self.members: list[int] = []  # that it trains
        self.idle = False  # whether it waits for members
        self._reports: Any = None  # a generator of references, while it trains
        self._ready: Any = None  # a reference, while it starts
        self._again = 0.0  # when to ask again whether it has started

    def train(self, group: list[Assigned], data: Any) -> None:
        self.members = [each.member for each in group]
        self.idle = False
        self._reports = self._actor.train.options(
            num_returns="streaming", _generator_backpressure_num_objects=_AHEAD * len(group)
        ).remote(self._plan, group, data)

    def pending(self) -> Any:
        """What `ray.wait` takes to wait for the actor's next report; None: nothing is expected."""
        if self._reports is not None or self.idle:
            return self._reports
        if self._ready is None and time.monotonic() > self._again:
            self._ready = self._actor.ready.remote(self._plan)
        return self._ready

    def next(self) -> Progress | None:
        """The report that is there; None: the actor waits for members now."""
        import ray

        if self._reports is not None:
            with contextlib.suppress(StopIteration):
                progress: Progress = ray.get(next(self._reports))
                return progress
        else:
            ray.get(self._ready)
        self._reports = self._ready = None
        self.idle = True
        return None

    def restart(self) -> None:
        """End what the actor does; it starts again."""
        import ray

        if self._reports is not None:
            ray.kill(self._actor, no_restart=False)
        self._reports = self._ready = None
        self._again = time.monotonic() + _PAUSE
        self.members, self.idle = [], False

    def end(self) -> None:
        import ray

        if ray.is_initialized():
            ray.kill(self._actor)


def _at_least_0(name: str, value: float) -> float:
    if not 0 <= real(name, value, _OPERATION) < 1e6:
        raise InvalidArgument(f"{name} is {value}; give 0 or more", _OPERATION)
    return float(value)


def _actors_that_fit(nodes: list[dict[str, Any]], reserved: Mapping[str, float]) -> int:
    """How many actors fit on the nodes."""
    wanted = {"CPU": reserved["num_cpus"], "GPU": reserved["num_gpus"]}
    wanted = {name: each for name, each in wanted.items() if each}
    actors = sum(
        min((int(node["Resources"].get(k, 0) // v) for k, v in wanted.items()), default=1)
        for node in nodes
        if node["Alive"]
    )
    if actors == 0:
        text = " and ".join(f"{each:g} {name}s" for name, each in wanted.items())
        raise InvalidArgument(f"no node of Ray's cluster has {text} for an actor", _OPERATION)
    return actors


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]

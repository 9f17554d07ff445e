"""The actors of a population: each trains a group of its members at a time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray

from ..errors import InvalidArgument, pack_exception
from ..train.population import MemberState, Population
from ..train.steps import END, Source

__all__ = ["Assigned", "Plan", "Progress", "Trainer", "has_own_data"]

_LONGER = 10  # the steps between two reports grow by this factor at most


@dataclasses.dataclass
class Plan:
    """What an actor makes its population of.

    Attributes
    ----------
    model : ray.ObjectRef
        A pair: the model, the loss.
    resident : int
        Members that train at once.
    options : dict
        The others of `train.Population`.
    seconds : float
        Time between two reports of a member.
    """

    model: Any
    resident: int
    options: dict[str, Any]
    seconds: float


@dataclasses.dataclass
class Assigned:
    """A member that an actor is to train.

    Attributes
    ----------
    member : int
    state : MemberState
    steps : int
        The steps that are left.
    position : int
        How many batches the member has taken in its run.
    feed : dict, optional
        The state of its data there, if the data has states.
    """

    member: int
    state: MemberState
    steps: int
    position: int
    feed: dict[str, Any] | None


@dataclasses.dataclass
class Progress:
    """What a member has done since its last report.

    Attributes
    ----------
    member : int
    steps : int
        Updates since then.
    losses : array of float32
        One for each step, also for one that failed.
    state : MemberState
        Its state now.
    feed : dict, optional
        The state of its data now, if the data has states.
    error : bytes, optional
        The packed exception that stopped it.
    """

    member: int
    steps: int
    losses: np.ndarray[Any, Any]
    state: MemberState
    feed: dict[str, Any] | None
    error: bytes | None


def has_own_data(data: Any) -> bool:
    """Whether `data` is a function that makes an iterable for each member."""
    return callable(data) and not hasattr(data, "__iter__")


class Trainer:
    """An actor. Keeps no state of members between two calls of `train`."""

    def __init__(self) -> None:
        self._population: Population | None = None

    def ready(self, plan: Plan) -> None:
        """Return when the model is made; raise what it raises."""
        self._made(plan)

    def node(self) -> str:
        """The id of the actor's node."""
        return str(ray.get_runtime_context().get_node_id())

    def train(self, plan: Plan, group: list[Assigned], data: Any) -> Iterator[Progress]:
        """Train members to their ends; report each now and then, and when it stops.

        Members of data that all share begin at the same position.
        """
        population = self._made(plan)
        for row, each in enumerate(group):
            population.put(row, each.state)
        feeds = _Feeds(group, data)
        pace = _Pace(plan.seconds)
        left = [each.steps for each in group]
        reports = [0] * len(group)
        first = pace.steps(0)
        run = population.train(
            feeds.data,
            steps=[min(first, steps) for steps in left] + [1] * (len(population) - len(group)),
            members=range(len(group)),
        )
        for result in run.as_completed():
            row = result.member
            reports[row] += 1
            left[row] -= result.steps
            steps = min(pace.steps(reports[row]), left[row])
            yield Progress(
                group[row].member,
                result.steps,
                result.losses,
                population.take(row),
                feeds.state(row),
                None if result.error is None else pack_exception(result.error),
            )
            if result.error is None and steps:
                run.add(row, steps)

    def _made(self, plan: Plan) -> Population:
        # The first time, and again when the actor was restarted.
        if self._population is None:
            model, loss = ray.get(plan.model)
            self._population = Population(model, members=plan.resident, loss=loss, **plan.options)
        return self._population


class _Pace:
    """The steps of members between two reports.

    The members of a group take their steps together. The first of them that makes its n-th report
    determines the steps of all until the next.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._steps = [1]
        self._begun = time.monotonic()

    def steps(self, reports: int) -> int:
        """The steps of a member that has made so many reports."""
        if reports == len(self._steps):
            now = time.monotonic()
            longer = self._seconds / max(now - self._begun, 1e-9)
            self._steps.append(max(1, int(self._steps[-1] * min(longer, _LONGER))))
            self._begun = now
        return self._steps[reports]


class _Feeds:
    """The data of a group, from the members' positions on."""

    def __init__(self, group: list[Assigned], data: Any) -> None:
        self._group = group
        self._given = data
        self._sources: dict[int, Any] = {}  # by row; -1: data that all share
        self.data: Any
        if has_own_data(data):
            self.data = self._own
        else:
            self._sources[-1] = data
            self.data = _resumed(data, group[0])

    def _own(self, row: int, seed: int) -> Iterator[Any]:
        source = self._sources[row] = self._given(self._group[row].member, seed)
        return _resumed(source, self._group[row])

    def state(self, row: int) -> dict[str, Any] | None:
        """The state of a member's data now; None: it has none."""
        source: Any = self._sources.get(row, self._sources.get(-1))
        if not _has_states(source):
            return None
        try:
            state: dict[str, Any] = source.state_dict()
        except InvalidArgument:  # a stream without positions
            return None
        return state


def _has_states(source: Any) -> bool:
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def _resumed(source: Any, assigned: Assigned) -> Iterator[Any]:
    """The batches of an iterable that is begun again when it ends, from a position on."""
    skipped = assigned.position
    if assigned.feed is not None and _has_states(source):
        source.load_state_dict(assigned.feed)
        skipped = 0
    batches = Source(source, None)
    for _ in range(skipped):
        batches.take()
    while (batch := batches.take()) is not END:
        yield batch

"""Towers: several batches at a time, one update from the mean of their gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .. import _engine
from ..base.arguments import integer
from ..base.conventions import name_of, shown
from ..base.nests import mapped
from ..base.notes import add_note
from ..errors import InvalidArgument
from ..feeds import Feeds
from .hogwild import updater_for
from .optimizers import Optimizer
from .parameters import Parameters, Policy, copy_all
from .rows import count_of
from .steps import OneThreadEach, Outcome, outcome_of, views_of
from .updater import Updater

if TYPE_CHECKING:
    from .device_towers import DeviceTowers

__all__ = ["Towers", "TowersReport"]

NONE = object()  # the tower has no batch in this round


@dataclass(frozen=True)
class TowersReport:
    """Result of a run, or its progress so far.

    Attributes
    ----------
    updates : int
        Applied updates: rounds whose gradient was not skipped.
    rounds, batches : int
        Finished rounds, and the batches used in them.
    seconds : float
    loss, last_loss : float
        Mean of all losses, and of those of the last round; weighted as gradients are. NaN: none.
    copied_bytes : int
        Bytes of gradients that had to be copied for a framework.
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


class Towers:
    """Train by rounds: each tower computes a gradient from its own batch, their mean is applied.

    In round r tower t has batch ``r * towers + t`` of the feed. Gradients are added up as a tree
    over tower numbers, so the result has the same bits whatever the timing; it equals that of one
    large batch, except for the rounding of sums. In a round all towers see the same weights. While
    they compute, the next batches are taken and staged.

    The last round of a pass may have fewer batches than towers; its mean is over these batches. No
    batch is left out, and no round has batches of two passes.

    Parameters
    ----------
    step : callable
        ``step(batch, views) -> loss``, as for `Hogwild`: leaves the gradient of the mean over the
        batch in ``views.gradients``, or returns ``(loss, gradients)`` with all blocks, or with
        `Rows` of some. Called on one thread per tower.
    parameters : Parameters
        On a device (`penstock.torch.alias` of a module that is there): gradients are averaged and
        applied on it, each tower has a stream, and the host runs up to two rounds ahead. Steps may
        return the loss as a tensor, which is read when the run ends or `until` is called. The
        update waits for the device once a round, to see whether the gradient is finite; with
        ``non_finite="count"`` it does not. Gradients are of all blocks.
    optimizer : Optimizer or Updater
    feed : iterable
        A `Dataset`, a `Loader`, or any iterable of batches.
    towers : int
    devices : sequence, optional
        A device of torch or JAX for each tower, to which its batches are copied: ``views.device``.
        Devices may be equal. If the parameters are on a device, a tower on another one has a copy
        of them, which is renewed after each update. Default: the parameters' device.
    deal : {"batches", "parts", "feeds"}
        How batches are distributed. batches: in turns, as above. parts: each element of the feed is
        a tuple with a batch for each tower, as from ``dataset.split_batch(towers)``. feeds: `feed`
        is a list with a feed for each tower, such as ``[dataset.shard(t, towers) for t in ...]``;
        this is the default for ``dataset.feeds(towers)``.
    model : torch.nn.Module or callable, optional
        As for `Hogwild`.
    group : torch.distributed.ProcessGroup, optional
        For parameters on a device: the gradients of all processes of the group are averaged, by one
        collective of torch for each round. Weights begin as those of the group's first process.
        REQUIRED: every process has the same number of rounds. Losses are of this process.
    weigh : "rows" or callable
        The weight of a batch in the mean: its number of rows, or ``weigh(batch)``.
    stage : callable, optional
        ``stage(batch, device)``, called while the step before runs, returns the batch for the step.
    non_finite : {"raise", "skip", "count"}, optional
        As for `Hogwild`.

    Attributes
    ----------
    updater : Updater
    """

    def __init__(
        self,
        step: Callable[[Any, Any], Any],
        parameters: Parameters,
        optimizer: Optimizer | Updater,
        feed: Iterable[Any],
        *,
        towers: int | None = None,
        devices: Sequence[Any] | None = None,
        deal: Literal["batches", "parts", "feeds"] = "batches",
        model: Any = None,
        weigh: Literal["rows"] | Callable[[Any], float] = "rows",
        stage: Callable[[Any, Any], Any] | None = None,
        group: Any = None,
        non_finite: Policy | None = None,
    ) -> None:
        if not callable(step):
            raise InvalidArgument(f"step is a {type(step).__name__}; give a function", "Towers")
        if towers is None:
            towers = 2 if devices is None else len(devices)
        towers = integer("towers", towers, 1, 1024, operation="Towers")
        if devices is not None and len(devices) != towers:
            raise InvalidArgument(
                f"{len(devices)} devices for {towers} towers; give one for each", "Towers"
            )
        if weigh != "rows" and not callable(weigh):
            raise InvalidArgument(f"weigh is {weigh!r}; give 'rows' or a function", "Towers")
        if deal not in ("batches", "parts", "feeds"):
            raise InvalidArgument(f"deal is {deal!r}; there are batches, parts, feeds", "Towers")
        self.updater = updater_for(parameters, optimizer, "Towers", non_finite)
        self._step = step
        self._feed = feed
        self._feeds = Rounds(feed, towers, deal)
        self._weigh = _rows_of if weigh == "rows" else weigh
        places = [None] * towers if devices is None else list(devices)
        self._device: DeviceTowers | None = None
        if parameters.device is not None:
            from .device_slab import DeviceParameters
            from .device_towers import DeviceTowers

            assert isinstance(parameters, DeviceParameters)
            self._device = DeviceTowers(parameters, self.updater._engine, model, places, group)
            self._views = self._device.views
            self._engine = _engine.Towers(towers)
        elif group is not None:
            raise InvalidArgument(
                "group= is for parameters on a device: alias a module that is there", "Towers"
            )
        else:
            self._views = []
            for number in range(towers):
                views = views_of(number, parameters, parameters, model, replicate=number > 0)
                views.device = places[number]
                self._views.append(views)
            slabs = [views.gradients._slab for views in self._views]
            self._engine = _engine.Towers(self.updater._engine, slabs)
        self._stages = [
            stage_for(views.device) if stage is None else partial(_staged, stage, views.device)
            for views in self._views
        ]

    def __repr__(self) -> str:
        return shown(self, name_of(self._feed), towers=len(self._views), updater=self.updater)

    def run(
        self,
        *,
        epochs: int | None = 1,
        steps: int | None = None,
        seconds: float | None = None,
        until: Callable[[TowersReport], Any] | None = None,
    ) -> TowersReport:
        """Train until the first of these conditions is met.

        Parameters
        ----------
        epochs : int or None
            Passes over the feed. None: no limit.
        steps : int, optional
            Rounds, exactly.
        seconds : float, optional
            A round that has begun is finished.
        until : callable, optional
            ``until(report)``, called after each round on this thread; true ends the run.

        Raises
        ------
        Exception
            The exception of a step (of several towers, the first one's) or of the feed, with a note
            of the tower and the round. Nothing of that round was applied.
        """
        epochs = None if epochs is None else integer("epochs", epochs, 1, operation="Towers")
        steps = 2**64 - 1 if steps is None else integer("steps", steps, 0, operation="Towers")
        duration_ns = -1 if seconds is None else max(0, int(min(seconds, 1e9) * 1e9))
        enough = None if until is None else lambda report: bool(until(self._report(report)))
        device = self._device
        if device is not None:
            device.begin()
        self.updater.parameters._settle()
        with OneThreadEach() as one_thread:
            try:
                report = self._engine.run(
                    one_thread.here,
                    partial(_following, self._rounds(epochs)),
                    self._compute,
                    None if device is None else device.apply,
                    steps,
                    duration_ns,
                    enough,
                )
            except BaseException as error:
                if self._engine.failed is not None:
                    tower, number = self._engine.failed
                    of = "" if tower is None else f"tower {tower}, "
                    add_note(error, f"in {of}round {number}")
                raise
            finally:
                if device is not None:
                    device.end()
        return self._report(report)

    def _report(self, report: dict[str, Any]) -> TowersReport:
        made = TowersReport(**report)
        return made if self._device is None else self._device.report(made)

    def _rounds(self, epochs: int | None) -> Iterator[list[tuple[Any, float] | None]]:
        """Yield each round's staged batches with their weights; None: the tower has no batch."""
        for batches in self._feeds.rounds(epochs):
            made: list[tuple[Any, float] | None] = []
            for stage, batch in zip(self._stages, batches, strict=True):
                if batch is NONE:
                    made.append(None)
                else:
                    weight = float(self._weigh(batch))
                    made.append((stage(batch), weight))
            if self._device is not None:  # what the streams of this thread still do for the batches
                marks = self._device.marks()
                made = [each and ((each[0], marks), each[1]) for each in made]
            yield made

    def _compute(self, tower: int, step: int, batch: Any) -> Outcome:
        views = self._views[tower]
        views.step = step
        if self._device is not None:
            batch, marks = batch
            return self._device.compute(tower, batch, self._step, marks)
        outcome = outcome_of(self._step(batch, views), views, "Towers")
        parts = outcome.parts
        if parts is None or all(part.rows is not None for part in parts):
            return outcome
        if any(part.rows is not None for part in parts):
            raise InvalidArgument(
                "a step returned train.Rows and whole gradients; return only one kind", "Towers"
            )
        copy_all(views.gradients, {part.block: part.values for part in parts}, "Towers")
        return Outcome(outcome.loss, None, views.gradients.nbytes)


def _staged(stage: Callable[[Any, Any], Any], device: Any, batch: Any) -> Any:
    return stage(batch, device)


def _following(rounds: Iterator[Any]) -> Any:
    """Return the next round, or None."""
    try:
        return next(rounds, None)
    except Exception as error:
        add_note(error, "in the feed of Towers")
        raise


def _rows_of(batch: Any) -> float:
    try:
        return float(count_of(batch, "a batch"))
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{error}, or set its weight: weigh=lambda batch: 1", "Towers"
        ) from None


class Rounds:
    """The batches of each round."""

    def __init__(self, feed: Iterable[Any], towers: int, deal: str) -> None:
        self._feed = feed
        self._towers = towers
        self._parts = deal == "parts"
        self._each = deal == "feeds" or isinstance(feed, Feeds)
        if self._each:
            count = len(feed) if isinstance(feed, Sequence) else -1
            if count != towers:
                raise InvalidArgument(
                    f'deal="feeds" needs a list of {towers} feeds, one for each tower; this is '
                    + (f"one of {count}" if count >= 0 else f"a {type(feed).__name__}"),
                    "Towers",
                )

    def rounds(self, epochs: int | None) -> Iterator[list[Any]]:
        while epochs is None or epochs > 0:
            epochs = None if epochs is None else epochs - 1
            fresh = True
            for batches in self._pass():
                fresh = False
                yield batches
            if fresh:
                return  # an iterator has no second pass

    def _pass(self) -> Iterator[list[Any]]:
        if self._each:
            iterators: list[Any] = [iter(feed) for feed in self._feed]
            while True:
                batches = []
                for tower, iterator in enumerate(iterators):
                    batches.append(NONE if iterator is None else next(iterator, NONE))
                    if batches[-1] is NONE:
                        iterators[tower] = None  # do not call it again: it might begin another pass
                if iterators.count(None) == len(iterators):
                    return
                yield batches
        elif self._parts:
            for batches in self._feed:
                if not isinstance(batches, (tuple, list)) or len(batches) != self._towers:
                    raise InvalidArgument(
                        f"with deal='parts' the feed gives tuples of {self._towers} batches; this "
                        f"is a {type(batches).__name__}",
                        "Towers",
                    )
                yield list(batches)
        else:
            batches = []
            for batch in self._feed:
                batches.append(batch)
                if len(batches) == self._towers:
                    yield batches
                    batches = []
            if batches:
                yield batches + [NONE] * (self._towers - len(batches))


def stage_for(device: Any) -> Callable[[Any], Any]:
    """Return a function that copies a batch's arrays to a device; None: it returns the batch.

    Raises
    ------
    InvalidArgument
        The device is neither torch's nor JAX's.
    """
    if device is None:
        return lambda batch: batch
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(device, (str, torch.device)):
        place = torch.device(device)
        return lambda batch: mapped(lambda leaf: _to_torch(torch, leaf, place), batch)
    if jax is not None and isinstance(device, jax.Device):
        return lambda batch: mapped(lambda leaf: jax.device_put(leaf, device), batch)
    raise InvalidArgument(
        f"device {device!r} is no device of an imported torch or JAX; give "
        "stage=function(batch, device)",
        "Towers",
    )


def _to_torch(torch: Any, leaf: Any, place: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic)):
        leaf = torch.as_tensor(leaf)
    return leaf.to(place, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

"""Several batches at a time, one update from the mean of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from .. import _engine
from ..base.arguments import integer
from ..base.conventions import name_of, shown
from ..base.notes import add_note
from ..errors import InvalidArgument
from .devices import stage_for
from .hogwild import updater_for
from .optimizers import Optimizer
from .parameters import Parameters, copy_all
from .rounds import NONE, Rounds
from .rows import count_of
from .steps import OneThreadEach, Outcome, outcome_of, views_of
from .updater import Policy, Updater

__all__ = ["Towers", "TowersReport"]


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


class Towers:
    """Trains by rounds: each tower computes a gradient from its own batch, their mean is applied.

    In round r tower t has batch ``r * towers + t`` of the feed. Gradients are added up as a tree
    over tower numbers, so that the result is the same, bit for bit, however long each takes; it is
    that of one large batch but for the rounding of sums. All towers see the same weights in a
    round, and new ones in the next. While they compute, the next batches are taken and staged.

    The last round of a pass may have fewer batches than there are towers: those without one have
    no part in it. No batch is left out, and no round has batches of two passes.

    Parameters
    ----------
    step : callable
        ``step(batch, views) -> loss``, as for `Hogwild`: it leaves the gradient of the mean over
        its batch in ``views.gradients``, or returns ``(loss, gradients)`` with all blocks, or with
        `Rows` of some. Called on one thread per tower.
    parameters : Parameters
    optimizer : Optimizer or Updater
    feed : iterable
        A `Dataset`, a `Loader`, or anything that gives batches.
    towers : int
    devices : sequence, optional
        One for each tower, torch's or JAX's: where its batches are put, and ``views.device``.
    deal : {"batches", "parts", "feeds"}
        Who gets which batch. batches: in turns, as above. parts: each element of the feed is a
        tuple of one batch for each tower, as of ``dataset.split_batch(towers)``. feeds: `feed` is
        a list of one for each tower, such as ``[dataset.shard(t, towers) for t in ...]``; what
        ``dataset.feeds(towers)`` gives is known to be that.
    model : torch.nn.Module or callable, optional
        As for `Hogwild`.
    weigh : "rows" or callable
        How much a batch counts for in the mean: as many rows as it has, or ``weigh(batch)``.
    stage : callable, optional
        ``stage(batch, device)`` is called while the step before runs; what it returns is the batch.
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
        non_finite: Policy | None = None,
    ) -> None:
        if not callable(step):
            raise InvalidArgument(f"step is a {type(step).__name__}; give a function", "Towers")
        if towers is None:
            towers = 2 if devices is None else len(devices)
        towers = integer("towers", towers, 1, 1024, operation="Towers")
        if devices is not None and len(devices) != towers:
            raise InvalidArgument(f"{len(devices)} devices for {towers} towers", "Towers")
        if weigh != "rows" and not callable(weigh):
            raise InvalidArgument(f"weigh is {weigh!r}; give 'rows' or a function", "Towers")
        if deal not in ("batches", "parts", "feeds"):
            raise InvalidArgument(f"deal is {deal!r}; there are batches, parts, feeds", "Towers")
        self.updater = updater_for(parameters, optimizer, "Towers", non_finite)
        self._step = step
        self._feed = feed
        self._feeds = Rounds(feed, towers, deal)
        self._weigh = _rows_of if weigh == "rows" else weigh
        self._views = []
        self._stages = []
        for number in range(towers):
            views = views_of(number, parameters, parameters, model, replicate=number > 0)
            views.device = None if devices is None else devices[number]
            self._views.append(views)
            if stage is None:
                self._stages.append(stage_for(views.device))
            else:
                self._stages.append(partial(_staged, stage, views.device))
        slabs = [views.gradients._slab for views in self._views]
        self._engine = _engine.Towers(self.updater._engine, slabs)

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
        """Train until the first of these comes true; return what came of it.

        Parameters
        ----------
        epochs : int or None
            Passes over the feed. None: without end.
        steps : int, optional
            Rounds.
        seconds : float, optional
            The round that has begun is finished.
        until : callable, optional
            ``until(report)``, asked after each round on this thread; true ends the run.

        Raises
        ------
        Exception
            What a step or the feed raised, of several towers that of the first, with a note that
            says which tower's and in which round. Nothing of that round was applied.
        """
        epochs = None if epochs is None else integer("epochs", epochs, 1, operation="Towers")
        steps = 2**64 - 1 if steps is None else integer("steps", steps, 0, operation="Towers")
        duration_ns = -1 if seconds is None else max(0, int(min(seconds, 1e9) * 1e9))
        enough = None if until is None else lambda report: bool(until(TowersReport(**report)))
        self.updater.parameters._settle()
        with OneThreadEach() as one_thread:
            try:
                report = self._engine.run(
                    one_thread.here,
                    partial(_following, self._rounds(epochs)),
                    self._compute,
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
        return TowersReport(**report)

    def _rounds(self, epochs: int | None) -> Iterator[list[tuple[Any, float] | None]]:
        """Batches of each round, staged, with their weights; None where a tower has none."""
        for batches in self._feeds.rounds(epochs):
            made: list[tuple[Any, float] | None] = []
            for stage, batch in zip(self._stages, batches, strict=True):
                if batch is NONE:
                    made.append(None)
                else:
                    weight = float(self._weigh(batch))
                    made.append((stage(batch), weight))
            yield made

    def _compute(self, tower: int, step: int, batch: Any) -> Outcome:
        views = self._views[tower]
        views.step = step
        outcome = outcome_of(self._step(batch, views), views, "Towers")
        parts = outcome.parts
        if parts is None or all(part.rows is not None for part in parts):
            return outcome
        if any(part.rows is not None for part in parts):
            raise InvalidArgument(
                "a step returned train.Rows and whole gradients; return one of the two", "Towers"
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
            f"{error}, or say what it counts for: weigh=lambda batch: 1", "Towers"
        ) from None

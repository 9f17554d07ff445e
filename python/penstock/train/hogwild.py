"""Workers that change the same weights at the same time, with no lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..base.arguments import flag, integer, old_names
from ..base.conventions import name_of, shown
from ..errors import InvalidArgument
from .hogwild_threads import Threads
from .optimizers import Optimizer
from .parameters import Parameters
from .steps import Source
from .updater import _POLICIES, Policy, Updater

if TYPE_CHECKING:
    from .hogwild_processes import Processes

__all__ = ["Hogwild", "HogwildReport"]

_SNAPSHOTS = (False, True, "update")  # as the engine's


@dataclass(frozen=True)
class HogwildReport:
    """What a run came to, or has come to so far.

    Attributes
    ----------
    steps : int
        That were finished: batches that were used.
    updates : int
        That were applied: steps without those whose gradient was skipped.
    seconds : float
        Of the run, the start of worker processes left out.
    staleness : dict of int to int
        How many updates of others came between a worker's read and its write, and how often: exact
        below 32, then counted at 32, 64, 128, ... for all up to the next. Its values add up to
        `updates`. With ``snapshot="update"`` the write before is the read, if its copy was kept.
    loss, recent_loss : float
        The mean of all that steps returned; of the last hundred or so of each worker. NaN if none.
    skipped, non_finite : int
        Gradients that were not finite and not applied; all that were not finite.
    copied_bytes : int
        Of gradients that a framework could not leave in place, and of snapshots.
    workers : list of dict
        ``steps`` and ``updates`` of each.
    restarts : int
        Worker processes that were lost and replaced.
    torn : int
        Updates of lost workers of which a part may have been applied. Their batches count as used.
    """

    steps: int
    updates: int
    seconds: float
    staleness: dict[int, int]
    loss: float
    recent_loss: float
    skipped: int
    non_finite: int
    copied_bytes: int
    workers: list[dict[str, int]] = field(default_factory=list)
    restarts: int = 0
    torn: int = 0

    @property
    def updates_per_second(self) -> float:
        """Of all workers together, over the run's time; 0 of a run that took none."""
        return self.updates / self.seconds if self.seconds > 0 else 0.0

    @property
    def mean_staleness(self) -> float:
        """Where buckets are wider than one, of their least values."""
        return sum(s * n for s, n in self.staleness.items()) / max(sum(self.staleness.values()), 1)


class Hogwild:
    """Trains by workers that do not wait for each other (Niu et al. 2011).

    Each takes the next batch, computes a gradient from the weights as they are, and applies it at
    once. Updates are relaxed atomic loads and stores of floats, with no lock: of two that change
    the same number at the same time, one may be lost, and that is all.

    Parameters
    ----------
    step : callable
        ``step(batch, views) -> loss``. It reads `views.weights <Views>` and leaves its gradient in
        ``views.gradients``, or returns ``(loss, gradients)``, a dict from blocks to arrays of any
        framework or to `Rows`: then blocks and rows that are not in it are not touched. The loss
        may be None. Called on several threads, or in other processes.
    parameters : Parameters
        ``shared=True`` for processes.
    optimizer : Optimizer or Updater
        An updater goes on with the state that it has.
    feed : iterable
        A `Dataset`, a `Loader`, or anything that gives batches. Each goes to whichever worker is
        the first to be free, and to one only. An iterator has one pass.
    workers : int
    use_multiprocessing : bool
        Whether workers are processes. Threads are for steps that release the GIL most of the time:
        torch, JAX, NumPy with large arrays. Processes are for those that do not: ``step`` and
        ``model`` are pickled once, batches travel through shared memory, and their arrays are good
        until the step returns.
    model : torch.nn.Module or callable, optional
        A module of which each worker gets a replica on the same weights as ``views.model``; thread
        0 gets it itself. Or ``model(views)``, called once by each worker, which makes its own.
    on_lost : {"raise", "restart"}
        What happens when a worker process dies: `WorkerLost`, or another takes its place.
    state : {"shared", "own"}
        Whether workers share the optimizer's moments or have each their own, worker 0 that of
        `updater`.
    snapshot : bool or "update"
        True: each step sees a copy of the weights that does not change while it computes.
        ``"update"``: a copy, too, in which each update of all weights leaves what it wrote, so that
        the next step has nothing to copy, unless more than one update of others came since. Where
        several cores change weights that their caches hold, that is faster than no copy. What
        changes weights in another way than by an update is seen an update later.
    non_finite : {"raise", "skip", "count"}, optional
        As for `Updater`. None: that of the updater, where one is given, or else "raise". Another
        one than a given updater's is `InvalidArgument`.
    replicas : int
        Groups of workers, threads only, each with weights and moments of its own and on cores that
        share a cache, for machines on which many cores change the same few weights: cache lines
        then move between the cores of one group only. They are merged into ``parameters`` now and
        then, and when a run ends: what one group changed counts in full, what all did by one over
        their number, so raise the learning rate as much. ``views.weights`` and staleness are the
        group's own, and so are models: each worker has a replica of `model`. `updater` has the
        first group's moments; those of the others are copies of it from when this was made. 1: all
        change ``parameters``.
    merge_every : int, optional
        Updates of a worker between two merges. None: as often as takes a tenth of its time.

    Attributes
    ----------
    updater : Updater
        Its step and state are those of all workers after a run: save it, or apply with it.

    Examples
    --------
    >>> def step(batch, views):
    ...     x, y = batch
    ...     loss = torch.nn.functional.cross_entropy(views.model(x), y)
    ...     loss.backward()
    ...     return loss
    >>> parameters, _ = penstock.torch.alias(module)
    >>> hogwild = train.Hogwild(step, parameters, train.SGD(0.1), feed, workers=2, model=module)
    >>> report = hogwild.run(epochs=10)
    """

    @old_names({"threads": False, "processes": True}, kind="use_multiprocessing")
    def __init__(
        self,
        step: Callable[[Any, Any], Any],
        parameters: Parameters,
        optimizer: Optimizer | Updater,
        feed: Iterable[Any],
        *,
        workers: int = 2,
        use_multiprocessing: bool = False,
        model: Any = None,
        state: Literal["shared", "own"] = "shared",
        snapshot: bool | Literal["update"] = False,
        non_finite: Policy | None = None,
        on_lost: Literal["raise", "restart"] = "raise",
        replicas: int = 1,
        merge_every: int | None = None,
    ) -> None:
        if not callable(step):
            raise InvalidArgument(f"step is a {type(step).__name__}; give a function", "Hogwild")
        workers = integer("workers", workers, 1, 4096, operation="Hogwild")
        for name, value, known in (
            ("state", state, ("shared", "own")),
            ("on_lost", on_lost, ("raise", "restart")),
        ):
            if value not in known:
                raise InvalidArgument(
                    f"{name} is {value!r}; there are {', '.join(known)}", "Hogwild"
                )
        if snapshot not in _SNAPSHOTS:
            raise InvalidArgument(
                f'snapshot is {snapshot!r}; give False, True or "update"', "Hogwild"
            )
        shared = flag("use_multiprocessing", use_multiprocessing, "Hogwild")
        replicas = integer("replicas", replicas, 1, operation="Hogwild")
        merge_every = (
            0
            if merge_every is None
            else integer("merge_every", merge_every, 1, operation="Hogwild")
        )
        if replicas > workers or (shared and replicas > 1):
            raise InvalidArgument(
                f"{replicas} replicas for {workers} workers that are "
                f"{'processes' if shared else 'threads'}; replicas are for threads, one or more in "
                "each group",
                "Hogwild",
            )
        self.updater = updater_for(parameters, optimizer, "Hogwild", non_finite, shared=shared)
        self._parameters = parameters
        self._feed = feed
        self._workers = workers
        copies = _SNAPSHOTS.index(snapshot)
        policy = _POLICIES.index(self.updater._policy)
        given = (step, self.updater, workers, model, state == "own", copies, policy)
        self._runner: Threads | Processes
        if shared:
            from .hogwild_processes import Processes

            self._runner = Processes(*given, on_lost)
        else:
            self._runner = Threads(*given, replicas, merge_every)

    def __repr__(self) -> str:
        return shown(
            self,
            name_of(self._feed),
            workers=self._workers,
            use_multiprocessing=not isinstance(self._runner, Threads),
            updater=self.updater,
        )

    def run(
        self,
        *,
        epochs: int | None = 1,
        steps: int | None = None,
        seconds: float | None = None,
        until: Callable[[HogwildReport], Any] | None = None,
        interval: float = 0.1,
    ) -> HogwildReport:
        """Train until the first of these comes true; return what came of it.

        Parameters
        ----------
        epochs : int or None
            Passes over the feed. None: without end.
        steps : int, optional
            Batches, exactly, of all workers together. No batch more is taken from the feed.
        seconds : float, optional
            Then steps that have begun are finished. One or two batches for each worker process may
            have been taken and not used, also when `until` ends the run.
        until : callable, optional
            ``until(report)``, asked every `interval` seconds on this thread; true ends the run.

        Raises
        ------
        Exception
            What a step or the feed raised, with a note that says which worker's and in which step;
            the others have ended by then. Updates that were applied stay.
        InvalidArgument
            A gradient that is not finite, under ``non_finite="raise"``, or that lies in the weights
            which its update changes.
        WorkerLost
            A worker process died, under ``on_lost="raise"``, or three times in a row before it had
            finished a step.
        """
        if epochs is not None:
            epochs = integer("epochs", epochs, 1, operation="Hogwild")
        steps = 2**63 if steps is None else integer("steps", steps, 0, operation="Hogwild")
        duration_ns = -1 if seconds is None else max(0, int(min(seconds, 1e9) * 1e9))
        runner = self._runner

        def made(report: dict[str, Any]) -> HogwildReport:
            return HogwildReport(**report, restarts=runner.restarts, torn=runner.torn)

        def enough(report: dict[str, Any]) -> bool:
            return until is not None and bool(until(made(report)))

        self._parameters._settle()
        runner.begin(Source(self._feed, epochs))
        try:
            return made(
                runner.engine.run(
                    runner.work,
                    runner.ready,
                    steps,
                    duration_ns,
                    None if until is None else enough,
                    max(0, int(min(interval, 1e9) * 1e9)),
                )
            )
        finally:
            runner.end()


def updater_for(
    parameters: Parameters,
    optimizer: Optimizer | Updater,
    operation: str,
    non_finite: Policy | None,
    *,
    shared: bool = False,
) -> Updater:
    """Take an updater, or make one; processes need parameters and a state that they can share.

    An updater has a policy for what is not finite already: there is one for all that apply with it.
    """
    if non_finite not in (None, *_POLICIES):
        text = f"non_finite is {non_finite!r}; there are {', '.join(_POLICIES)}"
        raise InvalidArgument(text, operation)
    if not isinstance(parameters, Parameters):
        raise InvalidArgument(
            f"parameters is a {type(parameters).__name__}; give train.Parameters", operation
        )
    if shared and not parameters.shared:
        raise InvalidArgument(
            "processes need parameters that they can share: train.Parameters(..., shared=True) or "
            "penstock.torch.alias(module, shared=True)",
            operation,
        )
    if not isinstance(optimizer, Updater):
        return Updater(parameters, optimizer, non_finite=non_finite or "raise", shared=shared)
    if optimizer.parameters._slab is not parameters._slab:
        raise InvalidArgument("this updater is that of other parameters", operation)
    if non_finite not in (None, optimizer._policy):
        raise InvalidArgument(
            f"non_finite is {non_finite!r}, and the updater's is {optimizer._policy!r}; leave it "
            "out, or give it to train.Updater",
            operation,
        )
    if shared and not all(slab.shared for slab in optimizer.slabs):
        raise InvalidArgument(
            "processes need a state that they can share: train.Updater(..., shared=True)", operation
        )
    return optimizer

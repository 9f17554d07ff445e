"""Hogwild: workers that update the same weights at the same time, with no lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..base.arguments import flag, integer, old_names
from ..base.conventions import name_of, shown
from ..errors import InvalidArgument
from .hogwild_threads import Threads
from .optimizers import Optimizer
from .parameters import _POLICIES, Parameters, Policy
from .steps import Source
from .updater import Updater

if TYPE_CHECKING:
    from .hogwild_processes import Processes

__all__ = ["Hogwild", "HogwildReport"]

_SNAPSHOTS = (False, True, "update")  # as the engine's


@dataclass(frozen=True)
class HogwildReport:
    """Result of a run, or its progress so far.

    Attributes
    ----------
    steps : int
        Finished steps: used batches.
    updates : int
        Applied updates: steps whose gradient was not skipped.
    seconds : float
        Duration of the run, without the start of worker processes.
    staleness : dict of int to int
        Histogram of the updates by other workers between a worker's read and its write: exact below
        32, then in buckets that begin at 32, 64, 128, ... The counts add up to `updates`. With
        ``snapshot="update"`` a worker's last write counts as its read if the copy was kept.
    loss, recent_loss : float
        Mean of all losses, and of about the last hundred of each worker. NaN: none.
    skipped, non_finite : int
        Gradients that were not finite and not applied; all gradients that were not finite.
    copied_bytes : int
        Bytes of gradients that had to be copied for a framework, and of snapshots.
    workers : list of dict
        ``steps`` and ``updates`` of each worker.
    restarts : int
        Worker processes that died and were replaced.
    torn : int
        Updates of dead workers that may have been applied in part. Their batches count as used.
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
        """Updates of all workers per second; 0 if the run took no time."""
        return self.updates / self.seconds if self.seconds > 0 else 0.0

    @property
    def mean_staleness(self) -> float:
        """Mean staleness, with the smallest value of each bucket."""
        return sum(s * n for s, n in self.staleness.items()) / max(sum(self.staleness.values()), 1)


class Hogwild:
    """Train with workers that do not wait for each other (Niu et al. 2011).

    Each worker takes the next batch, computes a gradient from the current weights, and applies it
    at once. Updates are relaxed atomic loads and stores of floats, with no lock: if two workers
    change the same number at the same time, one change may be lost.

    Parameters
    ----------
    step : callable
        ``step(batch, views) -> loss``. Reads `views.weights <Views>` and leaves the gradient in
        ``views.gradients``; or returns ``(loss, gradients)`` with a dict from blocks to arrays of
        any framework or to `Rows`: other blocks and rows are then left untouched. The loss may be
        None. Called on several threads, or in other processes.
    parameters : Parameters
        With ``shared=True`` for processes. On a device (`penstock.torch.alias` of a module that is
        there) all workers are threads that train the same tensors, each on a stream of its own.
        Updates then come one after the other, so none is lost; a step may see a part of the updates
        that are applied while it computes, and sees all earlier ones of its own worker. Only
        ``use_multiprocessing=False``, ``state="shared"``, ``snapshot=False`` and ``replicas=1``.
    optimizer : Optimizer or Updater
        An updater keeps its state.
    feed : iterable
        A `Dataset`, a `Loader`, or any iterable of batches. Each batch goes to the first free
        worker. An iterator has one pass.
    workers : int
    use_multiprocessing : bool
        Whether workers are processes. Threads suit steps that release the GIL most of the time
        (torch, JAX, NumPy with large arrays); processes suit other steps. ``step`` and ``model``
        are pickled once, batches are sent through shared memory, and their arrays are valid until
        the step returns.
    model : torch.nn.Module or callable, optional
        A module: ``views.model`` is a replica of it on the same weights, and in thread 0 the module
        itself. Or a function ``model(views)``, called once by each worker, that returns
        ``views.model``.
    on_lost : {"raise", "restart"}
        What to do when a worker process dies: raise `WorkerLost`, or start another.
    state : {"shared", "own"}
        Whether workers share the optimizer's moments, or each has its own (worker 0 those of
        `updater`).
    snapshot : bool or "update"
        True: each step sees a copy of the weights that does not change while it computes.
        ``"update"``: each update of all weights also writes to that copy, so the next step copies
        nothing unless other workers applied more than one update since. If several cores change
        weights that fit into their caches, this is faster than no copy. Changes of the weights that
        are no updates are seen one update later.
    non_finite : {"raise", "skip", "count"}, optional
        As for `Updater`. None: the given updater's, or "raise". A value other than the given
        updater's is `InvalidArgument`.
    replicas : int
        Number of groups of workers (threads only), each with weights and moments of its own, on
        cores that share a cache. For machines on which many cores change the same few weights:
        cache lines then move between the cores of one group only. Groups are merged into
        ``parameters`` from time to time and when a run ends. A change by one group counts in full;
        changes by all groups are averaged, so raise the learning rate by the number of groups.
        ``views.weights``, staleness and models are the group's own: each worker has a replica of
        `model`. `updater` has the first group's moments; the other groups begin with copies of
        them. 1: all workers change ``parameters``.
    merge_every : int, optional
        Updates of a worker between two merges. None: merges take a tenth of the worker's time.

    Attributes
    ----------
    updater : Updater
        After a run, its step and state are those of all workers: it can be saved, or applied with.

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
        device = parameters.device if isinstance(parameters, Parameters) else None
        if device is not None:
            from .hogwild_device import check_options

            options = {
                "use_multiprocessing": (shared, False),
                "state": (state, "shared"),
                "snapshot": (snapshot, False),
                "replicas": (replicas, 1),
            }
            check_options(options, device)
        self.updater = updater_for(parameters, optimizer, "Hogwild", non_finite, shared=shared)
        self._parameters = parameters
        self._feed = feed
        self._workers = workers
        copies = _SNAPSHOTS.index(snapshot)
        policy = _POLICIES.index(self.updater._policy)
        given = (step, self.updater, workers, model, state == "own", copies, policy)
        self._runner: Threads | Processes
        if device is not None:
            from .hogwild_device import DeviceThreads

            self._runner = DeviceThreads(step, self.updater, workers, model)
        elif shared:
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
        """Train until the first of these conditions is met.

        Parameters
        ----------
        epochs : int or None
            Passes over the feed. None: no limit.
        steps : int, optional
            Batches of all workers together, exactly. No further batch is taken from the feed.
        seconds : float, optional
            Steps that have begun are finished. With worker processes, one or two batches of each
            may have been taken and not used, also when `until` ends the run.
        until : callable, optional
            ``until(report)``, called every `interval` seconds on this thread; true ends the run.

        Raises
        ------
        Exception
            The exception of a step or of the feed, with a note of the worker and the step; all
            workers have ended. Applied updates stay.
        InvalidArgument
            A gradient that is not finite, with ``non_finite="raise"``, or that lies in the weights
            that its update changes.
        WorkerLost
            A worker process died, with ``on_lost="raise"``, or three times in a row before it had
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
    """Return the given updater, or make one. Processes need shared parameters and state.

    A given updater's policy for non-finite gradients cannot be changed here.
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
            "processes need shared parameters: train.Parameters(..., shared=True) or "
            "penstock.torch.alias(module, shared=True)",
            operation,
        )
    if not isinstance(optimizer, Updater):
        return Updater(parameters, optimizer, non_finite=non_finite or "raise", shared=shared)
    if not optimizer.parameters._is_at(parameters):
        raise InvalidArgument(
            "the updater belongs to other parameters; make one for these", operation
        )
    if non_finite not in (None, optimizer._policy):
        raise InvalidArgument(
            f"non_finite is {non_finite!r}, but the updater's is {optimizer._policy!r}; omit it "
            "here, or give it to train.Updater",
            operation,
        )
    if shared and not all(slab.shared for slab in optimizer.slabs):
        raise InvalidArgument(
            "processes need a shared state: train.Updater(..., shared=True)", operation
        )
    return optimizer

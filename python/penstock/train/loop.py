"""Loop: training with a check-in of the host after N steps, or after a given time."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..base.arguments import flag, integer, integer_list
from ..base.conventions import name_of, shown
from ..base.notes import add_note
from ..dataset import Dataset
from ..errors import InvalidArgument
from ..loader import Loader
from .loop_runs import Runner, RunResult, Scan, Steps
from .pace import MOST_STEPS, Counted, Pace, Timed, bytes_of, steps_of, super_batch_of
from .super_batches import SuperBatch, super_batches

__all__ = ["Loop", "LoopMeasure", "LoopReport"]

Callback = Callable[[int, Any], Any]
_ROUNDS = 3
_NEAR = 1.05  # times the fastest: a larger N would only delay the metrics


@dataclass(frozen=True)
class LoopReport:
    """Result of a run.

    Attributes
    ----------
    steps : int
        Finished steps.
    check_ins : int
        Check-ins of the host.
    seconds : float
        Duration of the run.
    metrics : object
        Metrics of the last step; None if there was no step.
    stopped : bool
        Whether a callback ended the run.
    """

    steps: int
    check_ins: int
    seconds: float
    metrics: Any
    stopped: bool


@dataclass(frozen=True)
class LoopMeasure:
    """The time of a step by the number of steps in a run. Printed, it is a table.

    Attributes
    ----------
    step_seconds : dict of int to float
        Seconds per step for each measured N: the median of three rounds.
    best : int
        The smallest N whose steps take at most 5 % longer than the fastest: a larger N would only
        delay the metrics.
    left_out : tuple of int
        Values of N whose run takes longer than the given time.
    """

    step_seconds: dict[int, float]
    best: int
    left_out: tuple[int, ...]

    def __str__(self) -> str:
        fastest = min(self.step_seconds.values())
        lines = ["    N     us a step   x the fastest"]
        for n, seconds in self.step_seconds.items():
            mark = "   <- enough" if n == self.best else ""
            lines.append(f"{n:5}  {seconds * 1e6:12.1f}  {seconds / fastest:14.2f}{mark}")
        if self.left_out:
            values = ", ".join(map(str, self.left_out))
            lines.append(f"one run takes too long to be measured: {values}")
        return "\n".join(lines)


class Loop:
    """Train in runs of N steps, each run from one super-batch, with a check-in after each run.

    A step's costs on the host besides its computation (reading metrics, callbacks, a transfer, a
    dispatch) are paid once in N steps. The result is that of the plain loop: the same steps on the
    same batches in the same order. The last run of a pass may be smaller.

    Parameters
    ----------
    step : callable, or a compiled keras.Model
        ``step(batch)`` changes the weights and returns metrics: a number, an array, a nest of them,
        or None. Tensors are read at the check-in only, so do not call ``.item()``.

        With `state`: ``step(state, batch)`` returns ``(state, metrics)``. If the state has JAX
        arrays, the N steps are one jitted ``jax.lax.scan``: the step must be a pure function that
        JAX can trace, of constant shapes.

        A Keras model is trained by its own ``train_step``, with its compiled optimizer, loss and
        metrics. Batches are ``x``, ``(x, y)`` or ``(x, y, sample_weight)``. On JAX a run is one
        scan, on TensorFlow one graph, on torch a loop.
    feed : Dataset, Loader or iterable
        With `batch_size`: a `penstock.Dataset` of samples, from which the loop makes super-batches,
        or a feed of super-batches. Each is cut into steps of `batch_size` rows, as views without a
        copy. Without: a feed of batches, which are used one by one, or copied into one array for a
        scan; a batch of other names, shapes or dtypes begins another run.
    steps : int, optional
        N, the steps of a run. With `seconds`: the steps of a super-batch; default: a few MiB.
    seconds : float, optional
        Time between check-ins, which come after as many runs as fit: N follows the measured rate.
        With JAX few lengths are compiled, powers of two. Metrics are kept until the check-in.
    batch_size : int, optional
        Samples of a step; the last step of a pass may have fewer.
    state : nest of arrays, optional
        The state of the first step. `Loop.state` is the state after the last one.
    callbacks : callable, or a sequence of them
        ``callback(number, metrics)``, called at the check-in for every step in order, numbered from
        0; or an object with ``on_train_batch_end(number, metrics)``, as Keras' callbacks. Metrics
        are the step's result, with NumPy arrays and Python numbers. A callback that returns True
        ends the training after this check-in; so does ``stop_training`` of a Keras model.
    convert : callable, optional
        Converts each array of a super-batch or batch, such as ``torch.from_numpy``.
    workers : int, optional
        Workers of the feed that the loop makes of a `Dataset`.
    graph : bool
        The N steps are one CUDA graph, for torch steps whose batches are on torch's current CUDA
        device: of ``penstock.torch.feed(..., device=)``, copied into the graph's own memory as they
        arrive, or by `convert`. A check-in waits once. For each length and form of batch, the first
        run is executed normally, the second is captured, and later ones are replayed. Python code
        of the step runs only while it is captured, so a learning rate that changes must be a
        tensor. The step must not read values (``.item()``) and returns tensors of the device, or
        None; torch's optimizers need ``capturable=True``. Each graph's memory is kept with the
        loop.

    Raises
    ------
    InvalidArgument
        An invalid argument; `graph` without a CUDA device, or with `state` or a Keras model.

    Examples
    --------
    >>> def step(batch):
    ...     optimizer.zero_grad()
    ...     loss = loss_of(model(batch["x"]), batch["y"])
    ...     loss.backward()
    ...     optimizer.step()
    ...     return {"loss": loss.detach()}
    >>> samples = penstock.Dataset.arrays({"x": x, "y": y}).shuffle(seed=1)
    >>> loop = train.Loop(step, samples, steps=20, batch_size=32, convert=torch.from_numpy)
    >>> loop.run(epochs=3)
    """

    def __init__(
        self,
        step: Callable[..., Any],
        feed: Iterable[Any],
        *,
        steps: int | None = None,
        seconds: float | None = None,
        batch_size: int | None = None,
        state: Any = None,
        callbacks: Callback | Sequence[Any] = (),
        convert: Callable[[Any], Any] | None = None,
        workers: int | None = None,
        graph: bool = False,
    ) -> None:
        self._pace, self._sized = _pace_of(steps, seconds)
        self._size = (
            None if batch_size is None else integer("batch_size", batch_size, 1, operation="Loop")
        )
        self._feed = feed
        self._workers = workers
        self._convert = convert
        self._place: Any = None  # state of the feed that the loop makes of a Dataset, between runs
        self._runner: Runner = _runner_for(step, state, convert, flag("graph", graph, "Loop"))
        given: Any = callbacks
        if callable(callbacks) or hasattr(callbacks, "on_train_batch_end"):
            given = [callbacks]
        self._callbacks: list[Callback] = [_as_function(each, step) for each in given]
        self._done = self._steps_run = 0  # steps before the last check-in; all steps
        self._pending: list[RunResult] = []
        self._last: RunResult | None = None
        self._check_ins = 0
        self._first_check_in = (0.0, 0)  # time, and steps at that time
        self._ended_at = 0.0  # time at which the last run's steps were done
        self._measures = False
        self._last_pending: Any = None  # the last run, while measuring
        self._stopped = False

    def __repr__(self) -> str:
        return shown(
            self, name_of(self._feed), run=self._pace.most, batch_size=self._size, steps=self._done
        )

    @property
    def state(self) -> Any:
        """The state after the finished steps."""
        return self._runner.state

    @property
    def steps(self) -> int:
        """Finished steps of all runs: the next step's number."""
        return self._done

    def run(
        self,
        *,
        epochs: int | None = 1,
        steps: int | None = None,
        seconds: float | None = None,
    ) -> LoopReport:
        """Train until the first of these conditions is met.

        Parameters
        ----------
        epochs : int or None
            Passes over the feed. None: no limit.
        steps : int, optional
            Exactly so many steps; the rest of the last super-batch is not used.
        seconds : float, optional
            A run that has begun is finished.

        Returns
        -------
        LoopReport

        Raises
        ------
        Exception
            The exception of the step, of a callback or of the feed, with a note of the step.
            Callbacks have been called for the steps before it.
        """
        most = (
            math.inf if steps is None else self._done + integer("steps", steps, 0, operation="Loop")
        )
        passes = math.inf if epochs is None else integer("epochs", epochs, 1, operation="Loop")
        began, first = time.perf_counter(), self._done
        end = math.inf if seconds is None else began + seconds
        self._steps_run, self._pending, self._last = self._done, [], None
        self._check_ins, self._stopped = 0, False
        whole = False
        self._runner.begin()
        try:
            with self._opened() as feed:
                self._train(feed, passes, most, end)
                metrics = None
                if self._last is not None:
                    self._last.wait()
                    metrics = self._last.last()
                self._ended_at = time.perf_counter()
            whole = True
        finally:
            self._last = None
            self._runner.end(whole)
        took = time.perf_counter() - began
        return LoopReport(self._done - first, self._check_ins, took, metrics, self._stopped)

    def measure(
        self, steps: Sequence[int] = (1, 2, 5, 10, 20, 50, 100), *, seconds: float = 1.0
    ) -> LoopMeasure:
        """Train with values N in turns, and measure the time of a step with each.

        The training is real: its steps count, callbacks are called, and the times include the feed
        and the callbacks. Each N makes three runs, which may compile it, and is then measured three
        times, in turns with the others, each time from the start of a pass. The loop's own `steps`,
        `seconds` and place in the feed are not changed.

        Parameters
        ----------
        steps : sequence of int
            The values of N. A value whose run takes longer than `seconds` is left out.
        seconds : float
            Time for each N, in all.

        Returns
        -------
        LoopMeasure

        Raises
        ------
        InvalidArgument
            An invalid number; a callback ended the training; no run was short enough; a feed that
            can be read only once.
        Exception
            As `run`.

        Examples
        --------
        >>> print(train.Loop(step, samples, steps=1, batch_size=32).measure())
        """
        given = integer_list("steps", steps, 1, "measure")
        if not given or not 0 < seconds < math.inf:
            text = (
                f"steps is {steps!r} and seconds {seconds!r}; give values of N, and a time above 0"
            )
            raise InvalidArgument(text, "measure")
        mine = self._pace, self._sized, self._place
        try:
            return measured(self._step_seconds, sorted(set(given)), seconds)
        finally:
            self._pace, self._sized, self._place = mine

    def _step_seconds(self, n: int, seconds: float | None) -> float:
        """Train in runs of `n`, for some seconds or for one run; return the seconds of a step.

        Measures from the first check-in on, if there were values, to exclude the feed's start.
        """
        self._pace, self._sized, self._place = Counted(n), True, None
        self._measures = True
        try:
            report = self.run(epochs=None, steps=n if seconds is None else None, seconds=seconds)
        finally:
            self._measures, self._last_pending = False, None
        if report.stopped:
            raise InvalidArgument("a callback ended the training", "measure")
        begin, done = self._first_check_in
        if self._done == done:
            return report.seconds / report.steps
        return (self._ended_at - begin) / (self._done - done)

    def _train(self, feed: Iterable[Any], passes: float, most: float, end: float) -> None:
        self._pace.begin()
        over = most <= self._steps_run
        epoch = 0
        try:
            while epoch < passes and not over:
                epoch += 1
                before = self._steps_run
                self._runner.begin_pass()
                for batches in self._super_batches(feed):
                    self._run_steps(batches.first(int(min(most - self._steps_run, batches.steps))))
                    over = self._stopped or self._steps_run >= most or time.perf_counter() >= end
                    if over:
                        break
                if self._steps_run == before:
                    raise InvalidArgument(
                        "the feed gave no batch; a pass must have at least one", "Loop"
                    )
        except Exception:
            self._check_in()
            raise
        self._check_in()

    def _bounded(self, feed: Iterable[Any]) -> Iterator[Any]:
        """Set the largest run by the bytes of the first batch."""
        for batch in feed:
            if not self._sized:
                self._pace.most, self._sized = steps_of(bytes_of(batch)), True
            yield batch

    @contextmanager
    def _opened(self) -> Iterator[Iterable[Any]]:
        if not isinstance(self._feed, Dataset):
            yield self._feed
            return
        dataset = self._feed
        if self._size is not None:
            if not self._sized:
                self._pace.most, self._sized = super_batch_of(dataset, self._size), True
            dataset = dataset.batch(self._size * self._pace.most)
        with Loader(dataset, workers=self._workers) as feed:
            if self._place is not None:
                feed.restore(self._place)
            try:
                yield feed
            finally:
                self._place = feed.state()

    def _super_batches(self, feed: Iterable[Any]) -> Iterator[SuperBatch]:
        if self._size is None and not self._sized:
            feed = self._bounded(feed)
        try:
            given = self._pace, self._size, self._convert, self._runner.keep
            yield from super_batches(feed, *given)
        except Exception as error:
            add_note(error, f"in the feed of Loop, before step {self._steps_run}")
            raise

    def _run_steps(self, batches: SuperBatch) -> None:
        """Run steps, and check in if it is time to."""
        result = self._runner(batches)
        self._pending.append(result)
        self._steps_run += result.steps
        if result.error is not None or self._pace.due(result):
            self._check_in()

    def _check_in(self) -> None:
        """Check in: call the callbacks for all steps since the last check-in."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        self._check_ins += 1
        if self._callbacks:
            self._runner.sync_model()
        for result in pending:
            self._last = result
            if self._callbacks:
                for metrics in result.each():
                    self._stopped = self._call_back(metrics) or self._stopped
                    self._done += 1
            else:
                self._done += result.steps
            if result.error is not None:
                add_note(
                    result.error, f"in step {self._done} of Loop, or the run that begins there"
                )
                raise result.error
        self._stopped = self._runner.stop_requested() or self._stopped
        if self._measures:  # stay at most one run ahead of the device
            (pending[-1] if self._check_ins == 1 else self._last_pending).wait()
            self._last_pending = pending[-1]
            if self._check_ins == 1:
                self._first_check_in = (time.perf_counter(), self._done)
        self._pace.begin()

    def _call_back(self, metrics: Any) -> bool:
        stop = False
        for callback in self._callbacks:
            try:
                stop = callback(self._done, metrics) is True or stop
            except Exception as error:
                add_note(error, f"in a callback of Loop, for step {self._done}")
                raise
        return stop


def _pace_of(steps: int | None, seconds: float | None) -> tuple[Pace, bool]:
    """Return the pace, and whether the size of a super-batch was given."""
    most = MOST_STEPS if steps is None else integer("steps", steps, 1, operation="Loop")
    if seconds is not None:
        if not 0 < seconds < math.inf:
            raise InvalidArgument(f"seconds is {seconds!r}; give a number above 0", "Loop")
        return Timed(seconds, most), steps is not None
    if steps is None:
        raise InvalidArgument("give steps=, or seconds= between two check-ins", "Loop")
    return Counted(most), True


def _as_function(callback: Any, step: Any) -> Any:
    method = getattr(callback, "on_train_batch_end", None)
    if method is None and not callable(callback):
        raise InvalidArgument(f"a callback is a {type(callback).__name__}; give a function", "Loop")
    if method is not None and hasattr(callback, "set_model") and hasattr(step, "train_step"):
        callback.set_model(step)
    return method if method is not None else callback


def _runner_for(step: Callable[..., Any], state: Any, convert: object, graph: bool) -> Runner:
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(step, getattr(keras, "Model", ())):
        from .loop_keras import runner_for_model

        if state is not None or convert is not None:
            text = "a Keras model keeps its state and converts its batches; omit these"
            raise InvalidArgument(f"state= or convert= was given: {text}", "Loop")
        if graph:
            raise InvalidArgument(
                "graph=True is for torch steps; omit it for a Keras model", "Loop"
            )
        return runner_for_model(step)
    if hasattr(step, "train_step"):
        text = f"a {type(step).__module__} model is no Keras 3 model: give a step that trains it"
        raise InvalidArgument(text, "Loop")
    if not callable(step):
        raise InvalidArgument(f"step is a {type(step).__name__}; give a function", "Loop")
    if graph:
        from .loop_graph import graph_of

        return graph_of(step, state)
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state)):
        return Scan(step, state)
    return Steps(step, state)


def measured(
    step_seconds: Callable[[int, float | None], float], values: Sequence[int], seconds: float
) -> LoopMeasure:
    """Compare values of N, in ascending order; `step_seconds(n, None)` trains for one run.

    Rounds alternate in direction, so that a machine that becomes slower affects all N equally.
    """
    took: dict[int, list[float]] = {}
    left_out: list[int] = []
    known = 0.0  # seconds per step; longer runs are no slower
    for n in values:
        if known * n > seconds:
            left_out.append(n)
            continue
        step_seconds(n, None)  # may compile; so may the next run, for a CUDA graph
        known = min(step_seconds(n, None), step_seconds(n, None))
        took[n] = []
    if not took:
        raise InvalidArgument(f"one run takes longer than {seconds} s; give more", "measure")
    for turn in range(_ROUNDS):
        for n in [*took] if turn % 2 == 0 else [*took][::-1]:
            took[n].append(step_seconds(n, seconds / _ROUNDS))
    found = {n: median(each) for n, each in took.items()}
    best = min(n for n, each in found.items() if each <= _NEAR * min(found.values()))
    return LoopMeasure(found, best, tuple(left_out))

"""N steps for each time the host looks, or as many as a time allows; metrics of all after it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..base.arguments import flag, integer, integer_list
from ..base.conventions import name_of, shown
from ..base.notes import add_note
from ..dataset import Dataset
from ..errors import InvalidArgument
from ..loader import Loader
from .loop_measure import LoopMeasure, measured
from .loop_runs import Run, Said, Scan, Steps
from .pace import MOST_STEPS, Counted, Pace, Timed, bytes_of, steps_of, super_batch_of
from .super_batches import SuperBatch, super_batches

__all__ = ["Loop", "LoopMeasure", "LoopReport"]

Callback = Callable[[int, Any], Any]


@dataclass(frozen=True)
class LoopReport:
    """What a run came to.

    Attributes
    ----------
    steps : int
        That were finished.
    check_ins : int
        How often the host looked.
    seconds : float
        Of the run.
    metrics : object
        Those of the last step; None if there were none.
    stopped : bool
        A callback ended it.
    """

    steps: int
    check_ins: int
    seconds: float
    metrics: Any
    stopped: bool


class Loop:
    """Training in runs of N steps, each from one super-batch; or with a look about every second.

    What a step costs on the host besides its own computation (a look at metrics, callbacks, a
    transfer, a dispatch) is paid once in N steps. The result is that of the plain loop: the same
    steps on the same batches in the same order. What is left over at the end of a pass is a smaller
    run of its own.

    Parameters
    ----------
    step : callable, or a compiled keras.Model
        ``step(batch)`` changes the weights and returns metrics: a number, an array, a nest of them,
        or None. Tensors stay where they are until the check-in, so do not call ``.item()``.

        With `state`: ``step(state, batch)`` returns ``(state, metrics)``. Where the state has JAX
        arrays the N steps are one jitted ``jax.lax.scan``; so the step is a pure function that JAX
        can trace, and its shapes do not change.

        A model makes its own ``train_step``, with the optimizer, loss and metrics that it was
        compiled with, and has all of what came of it afterwards. Batches are ``x``, ``(x, y)`` or
        ``(x, y, sample_weight)``. On JAX a run is one scan, on TensorFlow one graph, on torch a
        loop.
    feed : Dataset, Loader or iterable
        With `batch_size`: a `penstock.Dataset` of samples, which the loop makes super-batches of,
        or a feed of super-batches, each of which is cut into steps of `batch_size` rows. These are
        views, no copies. Without: gives batches, which are used one by one, or stacked for a scan,
        which costs a copy; one of other names, shapes or dtypes begins a run of its own.
    steps : int, optional
        N, the steps of a run. With `seconds`: of a super-batch, if not what a few MiB hold.
    seconds : float, optional
        The host looks about so often, after as many runs as fit: N follows the measured rate. With
        JAX few lengths are compiled, powers of two. What is said of the steps is kept until then.
    batch_size : int, optional
        Samples of a step; a pass ends with a step of what is left over.
    state : nest of arrays, optional
        What the first step begins with. `Loop.state` is what the last one ended with.
    callbacks : callable, or a sequence of them
        ``callback(number, metrics)`` for every step in its order, numbered from 0 on, once a run is
        over; or an object with ``on_train_batch_end(number, metrics)``, as Keras' have. Metrics are
        what the step returned, with NumPy's arrays and Python's numbers in it. Returning True ends
        the training after the steps of this check-in were all replayed; so does ``stop_training``
        of a Keras model.
    convert : callable, optional
        What is to be made of each array, once for a super-batch: ``torch.from_numpy``.
    workers : int, optional
        Of the feed that the loop makes of a `Dataset`.
    graph : bool
        The N steps are one CUDA graph, for torch steps whose batches `convert` has put on torch's
        current CUDA device: the first run of a length and of a form of batch is made as it is, the
        second one is captured, all others are replayed. What the step does in Python happens while
        it is captured and never again, so a learning rate that changes is a tensor; it must not
        look at values (``.item()``); what it says are tensors of the device, or None; optimizers of
        torch's need ``capturable=True``. The memory that a graph works in is kept with the loop.

    Raises
    ------
    InvalidArgument
        An argument that cannot be; `graph` without a CUDA device, or with `state` or a Keras model.

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
        self._place: Any = None  # in the feed that the loop makes of a Dataset, between runs
        self._run: Run = _runner_for(step, state, convert, flag("graph", graph, "Loop"))
        given: Any = callbacks
        if callable(callbacks) or hasattr(callbacks, "on_train_batch_end"):
            given = [callbacks]
        self._callbacks: list[Callback] = [_as_function(each, step) for each in given]
        self._done = self._made = 0  # looked at, and those too that the host did not look at yet
        self._waiting: list[Said] = []
        self._last: Said | None = None
        self._looks = 0
        self._first_look = (0.0, 0)  # when, and how many steps were done by then
        self._made_all = 0.0  # when the last run's steps were done
        self._measures = False
        self._ahead: Any = None  # the last run, while it measures
        self._stopped = False

    def __repr__(self) -> str:
        return shown(
            self, name_of(self._feed), run=self._pace.most, batch_size=self._size, steps=self._done
        )

    @property
    def state(self) -> Any:
        """What the steps that are finished made of the state that was given."""
        return self._run.state

    @property
    def steps(self) -> int:
        """Steps that were finished, over all runs of this loop; the next one's number."""
        return self._done

    def run(
        self,
        *,
        epochs: int | None = 1,
        steps: int | None = None,
        seconds: float | None = None,
    ) -> LoopReport:
        """Train until the first of these comes true.

        Parameters
        ----------
        epochs : int or None
            Passes over the feed. None: without end.
        steps : int, optional
            Exactly so many; the last run is as small as it has to be, and what is left of its
            super-batch is not used.
        seconds : float, optional
            The run that has begun is finished.

        Returns
        -------
        LoopReport

        Raises
        ------
        Exception
            What the step, a callback or the feed raised, with a note that says at which step. The
            metrics of the steps before it have been replayed.
        """
        most = (
            math.inf if steps is None else self._done + integer("steps", steps, 0, operation="Loop")
        )
        passes = math.inf if epochs is None else integer("epochs", epochs, 1, operation="Loop")
        began, first = time.perf_counter(), self._done
        end = math.inf if seconds is None else began + seconds
        self._made, self._waiting, self._last = self._done, [], None
        self._looks, self._stopped = 0, False
        whole = False
        self._run.begin()
        try:
            with self._opened() as feed:
                self._train(feed, passes, most, end)
                metrics = None
                if self._last is not None:
                    self._last.wait()
                    metrics = self._last.last()
                self._made_all = time.perf_counter()
            whole = True
        finally:
            self._last = None
            self._run.end(whole)
        took = time.perf_counter() - began
        return LoopReport(self._done - first, self._looks, took, metrics, self._stopped)

    def measure(
        self, steps: Sequence[int] = (1, 2, 5, 10, 20, 50, 100), *, seconds: float = 1.0
    ) -> LoopMeasure:
        """Train with one N after the other, and tell what a step takes with each: which N?

        It is training: what the steps made is kept, callbacks are called, and what the feed and
        they cost is in the figures. Each N makes three runs, which may compile it, and is then
        measured three times, in turns with the others, each time from the start of a pass. The
        loop's own `steps`, `seconds` and place in the feed are left alone.

        Parameters
        ----------
        steps : sequence of int
            The N to compare. One of which a single run takes longer than `seconds` is left out.
        seconds : float
            For each N, in all.

        Returns
        -------
        LoopMeasure

        Raises
        ------
        InvalidArgument
            A number that cannot be; a callback ended the training; no run was short enough; a feed
            that can be read once only.
        Exception
            As of `run`.

        Examples
        --------
        >>> print(train.Loop(step, samples, steps=1, batch_size=32).measure())
        """
        given = integer_list("steps", steps, 1, "measure")
        if not given or not 0 < seconds < math.inf:
            text = f"steps is {steps!r} and seconds {seconds!r}; give some N, and a time above 0"
            raise InvalidArgument(text, "measure")
        mine = self._pace, self._sized, self._place
        try:
            return measured(self._step_seconds, sorted(set(given)), seconds)
        finally:
            self._pace, self._sized, self._place = mine

    def _step_seconds(self, n: int, seconds: float | None) -> float:
        """Train in runs of `n`, for some seconds or for one run, and tell what a step took.

        From the first check-in on, if there was more than one: what comes before is the start of a
        feed.
        """
        self._pace, self._sized, self._place = Counted(n), True, None
        self._measures = True
        try:
            report = self.run(epochs=None, steps=n if seconds is None else None, seconds=seconds)
        finally:
            self._measures, self._ahead = False, None
        if report.stopped:
            raise InvalidArgument("a callback ended the training", "measure")
        begin, done = self._first_look
        if self._done == done:
            return report.seconds / report.steps
        return (self._made_all - begin) / (self._done - done)

    def _train(self, feed: Iterable[Any], passes: float, most: float, end: float) -> None:
        self._pace.begin()
        over = most <= self._made
        epoch = 0
        try:
            while epoch < passes and not over:
                epoch += 1
                before = self._made
                self._run.begin_pass()
                for batches in self._super_batches(feed):
                    self._make(batches.first(int(min(most - self._made, batches.steps))))
                    over = self._stopped or self._made >= most or time.perf_counter() >= end
                    if over:
                        break
                if self._made == before:
                    raise InvalidArgument("the feed gave no batch", "Loop")
        except Exception:
            self._look()
            raise
        self._look()

    def _bounded(self, feed: Iterable[Any]) -> Iterator[Any]:
        """Let no more batches be one than the first one's bytes allow."""
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
            yield from super_batches(feed, self._pace, self._size, self._convert)
        except Exception as error:
            add_note(error, f"in the feed of Loop, before step {self._made}")
            raise

    def _make(self, batches: SuperBatch) -> None:
        """Make steps, and look at them and those before if it is time to."""
        said = self._run(batches)
        self._waiting.append(said)
        self._made += said.steps
        if said.error is not None or self._pace.due(said):
            self._look()

    def _look(self) -> None:
        """Replay what the steps said that nobody looked at."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._looks += 1
        if self._callbacks:
            self._run.show()
        for said in waiting:
            self._last = said
            if self._callbacks:
                for metrics in said.each():
                    self._stopped = self._replay(metrics) or self._stopped
                    self._done += 1
            else:
                self._done += said.steps
            if said.error is not None:
                add_note(said.error, f"in step {self._done} of Loop, or the run that begins there")
                raise said.error
        self._stopped = self._run.asks_to_stop() or self._stopped
        if self._measures:  # no further ahead of the device than by one run
            (waiting[-1] if self._looks == 1 else self._ahead).wait()
            self._ahead = waiting[-1]
            if self._looks == 1:
                self._first_look = (time.perf_counter(), self._done)
        self._pace.begin()

    def _replay(self, metrics: Any) -> bool:
        stop = False
        for callback in self._callbacks:
            try:
                stop = callback(self._done, metrics) is True or stop
            except Exception as error:
                add_note(error, f"in a callback of Loop, for step {self._done}")
                raise
        return stop


def _pace_of(steps: int | None, seconds: float | None) -> tuple[Pace, bool]:
    """What was asked for, and whether the size of a super-batch was."""
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


def _runner_for(step: Callable[..., Any], state: Any, convert: object, graph: bool) -> Run:
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(step, getattr(keras, "Model", ())):
        from .loop_keras import runner_for_model

        if state is not None or convert is not None:
            text = "a Keras model keeps its state and converts its batches; leave these out"
            raise InvalidArgument(f"state= or convert= was given: {text}", "Loop")
        if graph:
            raise InvalidArgument("graph=True is for steps of torch's, not for a model", "Loop")
        return runner_for_model(step)
    if hasattr(step, "train_step"):
        text = f"a {type(step).__module__} model is none of Keras 3: give a step that trains it"
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

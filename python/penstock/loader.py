"""Loader: any Python dataset, fed by all cores, in order, without a copy."""

from __future__ import annotations

import json
import math
import numbers
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import _engine
from ._arguments import MOST_QUEUED, MOST_ROWS, integer, one_of, shard_of
from ._crew import Crew
from ._plan import Plan, check_options, granule_of, hooks_of, length_of, plan_of
from ._state import read_state, state_of
from .errors import Closed, InvalidArgument

_MOST_WORKERS = 256
_LONGEST_S = 1e9  # in nanoseconds it fits into 64 bits


class Loader:
    """Makes a dataset's batches on idle cores and hands them over in order.

    Parameters
    ----------
    source : object
        What is fed:

        - an object with ``__len__`` and ``__getitem__`` (a Keras Sequence, a torch Dataset);
        - a generator function, called anew each epoch, or an iterable;
        - an array, or a tuple or dict of equally long arrays: their rows are samples;
        - a list of samples;
        - a `Dataset`, which says itself how it is batched, shuffled and sharded: `batch_size`,
          `shuffle`, `drop_last`, `collate` and `shard` are errors then.
    batch_size : int, optional
        None: an item is a whole batch already. n: items are samples, n of them make a batch.
    shuffle : bool
        A new global permutation each epoch, keyed by (seed, epoch), in no memory.
    seed : int
        Of the shuffle and of all that `penstock.rng` draws.
    drop_last : bool
        Leave out a last batch that is not full.
    workers : int, optional
        0: batches are made in line, when asked for. n: by n threads, or processes. None: as many
        as this process may use cores.
    use_multiprocessing : bool, optional
        Processes instead of threads. Arrays are gathered by native threads either way, and so is a
        Dataset run that has no Python function in it. None: for a Dataset that has.
    start_method : {"spawn", "forkserver", "fork"}
    max_queue_size : int
        Batches that may be made and not yet taken, beside the one in each worker's hands. A
        Dataset's own ``prefetch(n)`` counts more.
    max_bytes : int, optional
        Bytes of such batches. None: a quarter of the memory that this process may use.
    ordered : bool
        False: batches come as they get ready, which helps when some take much longer.
    on_error : {"raise", "skip", "replace"}
        What an exception in the dataset does: it is raised at the batch's place; or the sample (the
        item) is left out; or another sample of the epoch takes its place. ``stats()`` lists losses.
    retries : int
        Times that a sample is tried again after an exception.
    timeout : float, optional
        Seconds that a ticket may take. A process that takes longer is killed and replaced; a thread
        is abandoned.
    collate : callable, optional
        Makes a batch of a list of samples. By default arrays and numbers are stacked (written in
        place by the workers), and what is neither is collected in a list.
    shard : (int, int)
        (rank, world): this process's share of every epoch. Ranks are disjoint and have equally many
        batches; without `drop_last` the last round is padded with samples from the epoch's start.

    Raises
    ------
    InvalidArgument
        An argument that cannot be. Exceptions of the dataset come out of the iteration as they are,
        with a `WorkerTraceback` as their cause.

    Notes
    -----
    Batches are views of shared memory that nothing overwrites while they are held. One thread
    iterates at a time; `close`, `stats` and `report` may be called from any.

    Examples
    --------
    >>> feed = penstock.Loader(sequence, workers=8, use_multiprocessing=True)
    >>> for x, y in feed:          # one epoch
    ...     train(x, y)
    >>> for x, y in feed: ...      # the next one; the workers are still there
    """

    def __init__(
        self,
        source: Any,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        workers: int | None = None,
        use_multiprocessing: bool | None = None,
        start_method: str = "spawn",
        max_queue_size: int = 10,
        max_bytes: int | None = None,
        ordered: bool = True,
        on_error: str = "raise",
        retries: int = 0,
        timeout: float | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        plan = source if isinstance(source, Plan) else plan_of(source, batch_size is not None)
        rank, world = shard_of(shard)
        batch = integer("batch_size", 1 if batch_size is None else batch_size, 1, MOST_ROWS)
        workers = _engine.usable_cores() if workers is None else integer("workers", workers, 0)
        queue = integer("max_queue_size", max_queue_size, 1, MOST_QUEUED)
        if workers > _MOST_WORKERS:
            raise InvalidArgument(f"workers is {workers}; {_MOST_WORKERS} at most", "Loader")
        one_of("on_error", on_error, ("raise", "skip", "replace"))
        one_of("start_method", start_method, ("spawn", "forkserver", "fork"))
        if timeout is not None and not (isinstance(timeout, numbers.Real) and timeout > 0):
            raise InvalidArgument(f"timeout is {timeout!r}; give seconds above 0", "Loader")
        if max_bytes is None:
            max_bytes = max(_engine.memory_limit() // 4, 1 << 20)
        samples = batch_size is not None
        if collate is not None and not callable(collate):
            raise InvalidArgument(f"collate is {collate!r}; give a function", "Loader")
        if collate is not None and not samples:
            raise InvalidArgument("collate= needs batch_size=: items are whole batches", "Loader")
        if plan.kind == "columns" and collate is not None:
            plan.kind = "map"  # its rows, one by one
        if plan.kind == "stream":
            if shuffle:
                raise InvalidArgument(
                    "a stream cannot be shuffled as a whole: shuffle=True needs an object with "
                    "__len__ and __getitem__",
                    "Loader",
                )
            if world != 1:
                raise InvalidArgument(
                    "a stream is not sharded by index: let the generator of each rank yield its "
                    "own share",
                    "Loader",
                )
            workers = min(workers, plan.streams)  # a stream has one owner
        if plan.kind == "plan":
            check_options(batch_size, shuffle, drop_last, collate, (rank, world), on_error)
            queue = plan.built.queue or queue
            if use_multiprocessing is None:
                use_multiprocessing = plan.built.python
        mode = "inline" if workers == 0 else "processes" if use_multiprocessing else "threads"
        if workers and (plan.kind == "columns" or (plan.kind == "plan" and not plan.built.python)):
            mode = "threads"
        if mode == "processes":
            from ._launch import check_not_inheriting

            check_not_inheriting()
            if isinstance(plan.source, _one_shot()):
                plan.source.__reduce__()

        self._plan = plan
        self._rank, self._world = rank, world
        self._hooks = () if plan.paused else hooks_of(plan.hooked)
        self._edited = bool(self._hooks) or plan.paused  # between epochs, by hooks or by the user
        whole = not samples or collate is not None or hasattr(plan.source, "__getitems__")
        places = max(workers, 1)
        if mode == "threads" and timeout is not None:
            places = min(2 * places + 8, _MOST_WORKERS)  # for those who stand in for stuck threads
        rows = max(plan.most_rows, batch)
        self._settings: dict[str, Any] = {
            "source": plan.kind if plan.begin is None else "listed",
            "samples": samples,
            "length": plan.length,
            "batch_size": batch,
            "shuffle": bool(shuffle),
            "seed": integer("seed", seed, 0),
            "drop_last": bool(drop_last),
            "rank": rank,
            "world": world,
            "workers": workers,
            "places": places,
            "streams": plan.streams,
            "queue": queue,
            "max_bytes": integer("max_bytes", max_bytes, 1),
            "ordered": bool(ordered),
            "on_error": on_error,
            "retries": integer("retries", retries, 0, (1 << 32) - 1),
            "timeout": -1.0 if timeout is None else min(float(timeout), _LONGEST_S),
            "pause": self._edited or plan.kind in ("stream", "listed"),
            "granule_rows": granule_of(rows, max(workers, 1), plan, whole),
            "most_rows": rows,
            "plan": plan.built,
            "keep_freed_memory": True,
            "numpy_threshold": 1024,
        }
        self._mode = mode
        self._start_method = start_method
        core_settings = {
            **self._settings,
            "processes": mode == "processes",
            "begin": plan.begin,
        }
        self._core = _engine.Core(core_settings)
        del self._settings["plan"]  # a worker process builds its own
        self._crew = Crew(self._core, plan, collate, self._settings, mode, start_method)
        self._finalizer = weakref.finalize(self, self._crew.close)
        self._lock = threading.RLock()
        self._serial = 0
        self._resumed = False  # the position was set by restore() or steps(): `for` goes on there
        self._open_epoch: int | None = None  # whose on_epoch_begin was called, but not its end
        self._tracker: Any = None
        self._pid = os.getpid()

    # ---- iterating -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            self._enter()
            epoch, _, step = self._core.position()
            if self._plan.kind == "plan":
                epoch = self._core.begin_pass(self._resumed)
            elif (step or self._core.ahead()) and not self._resumed:
                self._end_epoch()
                self._core.seek(epoch + 1, 0, 0, [])
                epoch += 1
            self._resumed = False
            self._begin_epoch(epoch)
            self._serial += 1
            return _engine.EpochIterator(self._core, epoch, self._serial, self._finished)

    def _finished(self, epoch: int) -> None:
        """The last batch of `epoch` was taken, and the next one asked for."""
        self._end_epoch()

    def __len__(self) -> int:
        """Batches of an epoch.

        Raises
        ------
        TypeError
            Only running the stream tells.
        """
        plan = self._plan
        if plan.kind == "plan":
            return len(plan.source)
        if plan.kind == "listed" and plan.begin_length is not None:
            return plan.begin_length()
        if plan.kind in ("stream", "listed"):
            raise TypeError(f"the length of a stream is not known: {plan.title}")
        return int(self._core.steps(0))

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return int(self._core.position()[0])

    def steps(self, n: int) -> Iterator[Any]:
        """Iterate over the next `n` batches, across the ends of epochs.

        Hooks run where an epoch ends. A ``for`` over the Loader afterwards finishes the epoch.
        """
        n = integer("n", n, 0)
        return self._steps(n)

    def _steps(self, n: int) -> Iterator[Any]:
        with self._lock:
            self._enter()
            epoch = self._core.position()[0]
            self._serial += 1
            serial = self._serial
            self._core.set_serial(serial)
            self._resumed = True
            if n:
                self._begin_epoch(epoch)
        taken_at = epoch
        for _ in range(n):
            batch = self._core.next(epoch, serial)
            while batch is _engine.END:
                with self._lock:
                    if serial != self._serial:
                        return  # another iteration was begun since
                    if self._is_empty(taken_at):
                        raise InvalidArgument("the source is empty: it gave no batch", "Loader")
                    self._end_epoch()
                    epoch = self._core.position()[0]
                    self._begin_epoch(epoch)
                batch = self._core.next(epoch, serial)
            taken_at = epoch
            yield batch

    def _is_empty(self, taken_at: int) -> bool:
        """Whether a whole epoch gave nothing, since a batch of epoch `taken_at`."""
        if self._plan.kind == "plan":
            rounds = self._plan.built.rounds
            if self._plan.built.length == 0 or rounds == _engine.ENDLESS:
                return True
            return bool(self._core.position()[0] > taken_at + rounds)
        return bool(self._core.position()[0] > taken_at + 1)

    def _endless_or_unknown(self) -> bool:
        """Whether only running it tells how many batches there are."""
        if self._plan.kind != "plan":
            return self._plan.kind == "stream"
        built = self._plan.built
        return built.length is None or _engine.ENDLESS in (built.length, built.rounds)

    def _foreign(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return self._pid != os.getpid()

    def _pass_of(self, epoch: int) -> int:
        rounds = self._plan.built.rounds
        return epoch if rounds == _engine.ENDLESS else epoch // int(rounds)

    def _go_to_pass(self, number: int) -> None:
        """For a Dataset: the next ``for`` is this pass, counted from 0."""
        with self._lock:
            rounds = self._plan.built.rounds
            epoch = number if rounds == _engine.ENDLESS else number * rounds
            if not self._resumed and tuple(self._core.position()) != (epoch, 0, 0):
                self._core.begin_pass(False)
                self._core.seek(epoch, 0, 0, [])

    def _enter(self) -> None:
        if self._pid != os.getpid():
            raise Closed(
                "this Loader belongs to the process that made it; make another one here", "Loader"
            )
        self._core.check_open()
        plan = self._plan
        if not plan.replayable:
            epoch, _, step = self._core.position()
            if (epoch or step) and not self._resumed:
                raise InvalidArgument(
                    f"{plan.title} is a generator that was begun already: it can be consumed "
                    "once. Give the generator function, and it is called anew each epoch",
                    "Loader",
                )
        if self._edited and self._tracker is None and self._mode == "processes":
            from ._payload import Tracker

            if plan.hooked is not None:
                self._tracker = Tracker(plan.hooked)
        self._crew.start()

    # ---- epoch hooks -----------------------------------------------------------------------------

    def _begin_epoch(self, epoch: int) -> None:
        if self._edited and self._open_epoch != epoch:
            self._end_epoch()
            self._call("on_epoch_begin")
            self._publish()
            self._open_epoch = epoch
        self._core.begin_epoch()

    def _end_epoch(self) -> None:
        if self._edited and self._open_epoch is not None:
            self._open_epoch = None
            self._call("on_epoch_end")

    def _call(self, hook: str) -> None:
        if hook in self._hooks:
            self._core.settle()  # no thread is still reading what the hook may change
            getattr(self._plan.hooked, hook)()

    def _publish(self) -> None:
        length = length_of(self._plan)
        changed = None if self._tracker is None else self._tracker.changes()
        try:
            if changed is not None or length != self._crew.length:
                self._crew.publish(length, changed)
        finally:
            if changed is not None:
                changed.close()

    # ---- place -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the position, as a small JSON-able dict; exact, whatever is prefetched.

        It may be restored with any number and kind of workers and, for what is indexed, with
        another world size.
        """
        if self._plan.kind == "plan":
            state: dict[str, Any] = json.loads(self._core.plan_state())
            return state
        return state_of(self._core, self._settings, length_of(self._plan))

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises
        ------
        InvalidArgument
            The state is of another plan (the text says what differs), or the source is a generator
            that is running already.
        """
        if self._plan.kind == "plan":
            with self._lock:
                self._core.restore_plan(json.dumps(state))  # or it refuses, and nothing has changed
                self._serial += 1
                self._core.set_serial(self._serial)
                self._resumed = True
            return
        epoch, batches, ahead = read_state(state, self.state(), self._rank, self._world)
        if not self._plan.replayable:
            raise InvalidArgument(
                f"{self._plan.title} is a generator that runs already and cannot be brought back "
                "to a place; give the generator function",
                "restore",
            )
        with self._lock:
            indexed = self._settings["source"] in ("map", "columns")
            self._serial += 1
            self._core.set_serial(self._serial)
            if indexed:
                self._core.seek(epoch, batches, 0, ahead)
            else:
                self._core.seek(epoch, 0, batches, [batches + step for step in ahead])
            self._resumed = True
            if self._open_epoch != epoch:
                self._open_epoch = None

    # ---- looking ---------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return what was counted so far.

        Returns
        -------
        dict
            ``delivered``, ``skipped``, ``replaced``, ``restarts`` (counts), ``losses`` (a list of
            (epoch, index, reason)), ``wait_share`` (of the consumer's time, spent waiting),
            ``copies_avoided``, ``copies`` and ``bytes_copied`` by reason, and more; times are in
            nanoseconds. ``workers`` has the same per worker.
        """
        stats: dict[str, Any] = self._core.stats()
        spent = stats["wait_ns"] + stats["busy_ns"]
        stats["wait_share"] = stats["wait_ns"] / spent if spent else math.nan
        return stats

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained HTML page: what each worker did, and what the bottleneck is."""
        _write(path, self._core.report_html(self._about()))

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the same events for chrome://tracing and Perfetto."""
        _write(path, self._core.chrome_trace(self._about()))

    def analysis(self) -> dict[str, Any]:
        """Say what the bottleneck is and what to change, from the counters so far."""
        result: dict[str, Any] = self._core.analysis(self._about())
        return result

    def _about(self) -> dict[str, Any]:
        s = self._settings
        kind = {"inline": "inline", "threads": "thread", "processes": "process"}[self._mode]
        facts = {"order": "in order" if s["ordered"] else "as they come", "on_error": s["on_error"]}
        if self._mode == "processes":
            facts["start method"] = self._start_method
        return {
            "title": self._plan.title,
            "mode": self._mode,
            "kind": kind,
            "queue": s["queue"],
            "max_bytes": s["max_bytes"],
            "workers": max(s["workers"], 1),
            "facts": facts,
        }

    # ---- ending ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the workers had to give up."""
        return bool(self._core.closed())

    def close(self) -> None:
        """End the workers and give everything back. Batches that are held stay valid.

        May be called from any thread and more than once; an iteration in progress raises `Closed`.
        """
        self._finalizer()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write(path: str | os.PathLike[str], text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _one_shot() -> type:
    from .streams import OneShot

    return OneShot

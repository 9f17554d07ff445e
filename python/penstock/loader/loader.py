"""Loader: any Python dataset, fed by all cores, in order, without a copy."""

from __future__ import annotations

import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

from .. import _engine
from ..base.arguments import flag, integer
from ..base.conventions import Closing, Restorable, shown
from ..base.element_spec import spec_of_value, with_open_rows
from ..errors import Closed, InvalidArgument
from .epochs import Epochs
from .iterators import BatchIterator, LoaderIterator
from .options import Workers
from .progress import LossLog, check_bar, with_bar
from .settings import check_worker_init, settings_of
from .source import source_info
from .worker_pool import WorkerPool


class Loader(Restorable, Closing):
    """Makes a dataset's batches on idle cores and hands them over in order.

    Parameters
    ----------
    source : object
        The data set:

        - an object with ``__len__`` and ``__getitem__`` (a Keras Sequence, a torch Dataset);
        - a generator function, called again each epoch, or an iterable;
        - an array, or a tuple or dict of equally long arrays: their rows are samples;
        - a list of samples;
        - a `Dataset`, whose chain determines batching, shuffling and sharding: `batch_size`,
          `shuffle`, `drop_last`, `collate` and `shard` are errors then.
    batch_size : int, optional
        None: an item is a whole batch. n: items are samples, and n of them make a batch.
    shuffle : bool
        A new global permutation each epoch, keyed by (seed, epoch), which takes no memory.
    seed : int
        The seed of the shuffle and of `penstock.rng`.
    drop_last : bool
        Leave out a last batch that is not full.
    workers : int, RemoteWorkers, or list of these, optional
        0: batches are made in line, when they are requested. n: by n threads, or processes. None:
        one for each core that this process may use. Workers that add no throughput are parked,
        except threads with a `timeout`. `penstock.ray.workers` or `penstock.remote.workers`:
        processes on other hosts; ``[2, remote]``: and two of this host.
    use_multiprocessing : bool, optional
        Processes instead of threads. Arrays, and a Dataset without a Python function, are always
        run by native threads. None: only for a Dataset with a Python function.
    start_method : {"spawn", "forkserver", "fork"}
    max_queue_size : int, optional
        Batches that may be made and not yet taken, besides one in each worker. A Dataset's own
        ``prefetch(n)`` has precedence. None: 10; for a Dataset at first 10, or 256 MiB of batches
        if these are fewer, then tuned to the consumer's pace.
    max_bytes : int, optional
        Bytes of such batches. None: a quarter of the memory that this process may use.
    ordered : bool
        False: batches are delivered as they become ready, which helps if some take much longer.
    on_error : {"raise", "skip", "replace"}
        The policy for an exception of the dataset. raise: it is raised at the batch's place. skip:
        the sample (or item) is left out. replace: another sample of the epoch takes its place.
        ``stats()`` lists the losses.
    retries : int
        How many times a sample is tried again after an exception.
    timeout : float, optional
        Seconds that a ticket may take. A process that takes longer is killed and replaced; a
        thread, of Python or of the engine, is abandoned and replaced.
    progress : bool
        Show a progress bar (tqdm) for an epoch, or for `steps`.
    worker_init : callable, optional
        Called with the worker's number, from 0, in every worker process before its first batch,
        also in a replacement. With threads it is an error. In line (``workers=0``) it is unused.
    collate : callable, optional
        Makes a batch from a list of samples. By default arrays and numbers are stacked (workers
        write them in place), and other values become a list.
    streams : int, optional
        n: the generator function takes the number of its stream, from 0 to n - 1, and yields that
        stream's share. All n streams are open at once, each in one worker, and batches come from
        them in turn until all have ended. A batch's samples are of one stream.
    shard : (int, int) or "auto"
        (rank, world): this process's share of every epoch. Ranks are disjoint and have equally many
        batches; without `drop_last` the last round is padded with samples from the epoch's start.
        "auto": rank and world of this process, as in `Dataset.shard`.

    Raises
    ------
    InvalidArgument
        An invalid argument. Exceptions of the dataset are raised unchanged by the iteration, with a
        `WorkerTraceback` as their cause.

    Notes
    -----
    Batches are views of shared memory, which is not overwritten while they are held. One thread
    iterates at a time; `close`, `stats` and `report` may be called from any thread. The logger
    ``penstock`` gets warnings of lost and replaced workers at once, and of lost samples after each
    epoch.

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
        workers: Workers = None,
        use_multiprocessing: bool | None = None,
        start_method: str = "spawn",
        max_queue_size: int | None = None,
        max_bytes: int | None = None,
        ordered: bool = True,
        on_error: str = "raise",
        retries: int = 0,
        timeout: float | None = None,
        progress: bool = False,
        worker_init: Callable[[int], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        shard: tuple[int, int] | Literal["auto"] = (0, 1),
        streams: int | None = None,
    ) -> None:
        samples = batch_size is not None
        info = source_info(source, samples, on_error, streams)
        self._info = info
        self._settings, self._mode = settings_of(
            info,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            workers=workers,
            use_multiprocessing=use_multiprocessing,
            start_method=start_method,
            max_queue_size=max_queue_size,
            max_bytes=max_bytes,
            ordered=ordered,
            on_error=on_error,
            retries=retries,
            timeout=timeout,
            collate=collate,
            shard=shard,
        )
        if worker_init is not None:
            check_worker_init(worker_init, self._mode)
            info.initialise = worker_init
        self._start_method = start_method
        self._bar = flag("progress", progress, "Loader")
        if self._bar:
            check_bar()
        self._losses = LossLog(info.title)
        # Lanes of the report for the device that batches go to: names with events of the engine.
        self._device_lanes: Callable[[], list[Any]] = list
        self._closing: Callable[[Loader], None] | None = None  # is called before the workers end
        self._spec: Any = None
        core_settings = {
            **self._settings,
            "processes": self._mode == "processes",
            "shared_memory": info.for_device,
            "begin": info.begin,
            "plan": info.plan,  # a worker process builds its own plan
        }
        self._core = _engine.PythonLoader(core_settings)
        self._pool = WorkerPool(self._core, info, collate, self._settings, self._mode, start_method)
        self._epochs = Epochs(self._core, self._pool, info, self._mode)
        self._finalizer = weakref.finalize(self, self._pool.running.close)
        self._lock = threading.RLock()
        self._resumed = False  # restore() or steps() set the position: `for` continues there
        self._pid = os.getpid()

    # ---- iterating -------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator | BatchIterator:
        self._check_ours()
        with self._lock:
            failed = self._core.failed()
            if failed:
                self._resumed = False  # the next batch is the one that failed
            self._enter()
            epoch = self._core.begin_pass(self._resumed)
            self._resumed = False
            self._epochs.begin(epoch)
            batches = LoaderIterator(self, epoch)
            if not self._bar:
                return batches
            barred = with_bar(batches, f"epoch {epoch}", self._total(), self._done())
            return BatchIterator(self, barred, epoch=epoch)

    def _finished(self, epoch: int) -> None:
        """Called when `epoch` has ended: a batch after its last one was requested."""
        self._losses.write(epoch, self._core.stats())
        self._epochs.end()

    def __len__(self) -> int:
        """Batches of an epoch.

        Raises
        ------
        TypeError
            The length of the stream is unknown.
        """
        info = self._info
        if info.begin_length is not None:
            return info.begin_length()
        if info.kind == "chain" and info.arrays is None:
            return len(info.source)
        if info.kind == "stream" or info.begin is not None:
            raise TypeError(f"the length of a stream is not known: {info.title}")
        return int(self._core.steps())

    def _total(self) -> int | None:
        """The number of batches of a ``for``, if it is known."""
        try:
            return len(self)
        except TypeError:
            return None

    def _done(self) -> int:
        """How many of these batches were delivered before."""
        epoch, base, step = self._core.position()
        done = int(base) // int(self._settings["world"]) + int(step)
        info = self._info
        before = epoch - info.first_epoch_of(info.pass_of(epoch))  # a pass may have several epochs
        return done + (before * int(info.plan.length) if before else 0)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return int(self._core.position()[0])

    def steps(self, n: int) -> BatchIterator:
        """Iterate over the next `n` batches, across the ends of epochs.

        Hooks run at the ends of epochs. A later ``for`` over the Loader finishes the epoch.
        """
        n = integer("n", n, 0, operation="steps")
        batches = self._steps(n)
        batches = with_bar(batches, f"{n} steps", n) if self._bar else batches
        return BatchIterator(self, batches, steps=n)

    def _steps(self, n: int) -> Iterator[Any]:
        self._check_ours()
        with self._lock:
            self._enter()
            epoch = self._core.position()[0]
            serial = self._core.begin_iteration()
            self._resumed = True
            if n:
                self._epochs.begin(epoch)
        taken_at = epoch
        for _ in range(n):
            batch = self._core.next(serial)
            while batch is _engine.END:
                with self._lock:
                    if not self._core.is_current(serial):
                        return  # the user set the position
                    if self._is_empty(taken_at):
                        raise InvalidArgument("the source is empty: it gave no batch", "Loader")
                    self._finished(epoch)
                    epoch = self._core.position()[0]
                    self._epochs.begin(epoch)
                batch = self._core.next(serial)
            taken_at = epoch
            yield batch

    def _is_empty(self, taken_at: int) -> bool:
        """Whether a whole epoch had no batch, since a batch of epoch `taken_at`."""
        plan = self._info.plan
        if self._info.kind == "chain" and (plan.length == 0 or plan.rounds == _engine.ENDLESS):
            return True
        return bool(self._core.position()[0] > taken_at + plan.rounds)

    def _foreign(self) -> bool:
        """Whether the Loader belongs to the parent that forked this process."""
        return self._pid != os.getpid()

    def _go_to_pass(self, number: int) -> None:
        """For a Dataset: the next ``for`` is this pass, counted from 0."""
        self._check_ours()
        with self._lock:
            epoch = self._info.first_epoch_of(number)
            at = tuple(self._core.position())
            amid = self._core.holds() or self._core.failed()
            self._resumed = False
            if at != (epoch, 0, 0) or amid:
                self._core.begin_pass(False)
                self._core.seek(epoch, 0, 0, [])

    def _check_ours(self) -> None:
        # Before any lock: in a forked child, a lock may be held by a thread that does not exist.
        if self._foreign():
            raise Closed(
                "this Loader belongs to the process that made it; make another one here", "Loader"
            )

    def _enter(self) -> None:
        self._core.check_open()
        info = self._info
        if not info.replayable:
            epoch, _, step = self._core.position()
            if (epoch or step or self._core.failed()) and not self._resumed:
                raise InvalidArgument(
                    f"{info.title} is a generator that was begun already: it can be consumed "
                    "once. Give the generator function, and it is called anew each epoch",
                    "Loader",
                )
        self._epochs.watch()
        self._pool.start()

    # ---- place -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the position, as a small dict for JSON; prefetched batches do not count.

        It may be restored with any number and kind of workers and, for indexed sources, with
        another world size. Rows of ray.data have no position: an `InvalidArgument`.
        """
        self._info.check_has_states("state")
        try:
            state: dict[str, Any] = json.loads(self._core.state())
        except RecursionError:
            raise InvalidArgument(
                "this chain has so many stages of streams, one in the other, that Python "
                "cannot hold its state: put several functions into one stage",
                "state",
            ) from None
        return state

    def _check_state(self, state: Any) -> None:
        self._core.check_open()
        self._info.check_has_states("restore")
        self._core.check_state(_json_of(state))

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises
        ------
        InvalidArgument
            The state is of another plan (the text tells the difference), or the source is a
            generator object.
        """
        self._check_ours()
        self._check_state(state)
        if not self._info.replayable:
            raise InvalidArgument(
                f"{self._info.title} is a generator object and cannot be restarted "
                "to a place; give the generator function",
                "restore",
            )
        with self._lock:
            self._core.restore(_json_of(state))  # raises before anything has changed
            self._resumed = True
            self._epochs.moved_to(self._core.position()[0])

    # ---- looking ---------------------------------------------------------------------------------

    def __repr__(self) -> str:
        facts: dict[str, object] = {"batches": self._length_if_known()}
        facts |= {"workers": self._settings["shown_workers"], "mode": self._mode}
        if self.closed:
            facts["closed"] = True
        return shown(self, self._info.title, **facts)

    @property
    def element_spec(self) -> Any:
        """The schema of the batches: a nest of `penstock.TensorSpec`, as `Dataset.element_spec`.

        It is inferred from the first batch, which is made in line and apart from all epochs. If
        items are samples, the number of rows is None unless ``drop_last`` makes all batches full.
        If an item is a whole batch, lengths are those of the first one. None: the source is a
        generator object, whose schema is unknown before it is consumed.
        """
        info = self._info
        if info.kind == "chain" and info.arrays is None:
            return info.source.element_spec
        if self._spec is None and info.replayable:
            s = self._settings
            alone = replace(info, hooked=None)
            if info.arrays is not None:
                alone.kind, alone.plan = "map", None
            size = s["batch_size"] if s["samples"] else None
            options = {"seed": s["seed"], "workers": 0, "collate": self._pool.collate}
            with Loader(alone, batch_size=size, **options) as first:
                spec = spec_of_value(next(first.steps(1)))
            self._spec = with_open_rows(spec) if s["samples"] and not s["drop_last"] else spec
        return self._spec

    def _length_if_known(self) -> object:
        try:
            return len(self)
        except Exception:  # a sampler is user code
            return "unknown"

    def stats(self) -> dict[str, Any]:
        """Return the counters since the Loader was made. Times are in nanoseconds.

        Returns
        -------
        dict
            Deliveries: ``delivered`` (batches), ``samples``, ``bytes``, ``epochs`` (finished);
            ``wait_ns``, ``first_wait_ns`` (its part for the first batch), ``busy_ns`` (between two
            requests), ``wait_share``; ``first_ns``, ``last_ns`` (times of the first request and of
            the last delivery, by the monotonic clock).

            Failures: ``skipped``, ``replaced`` (samples), ``losses`` (a list of (epoch, index,
            reason) of these), ``errors`` (exceptions), ``retried``, ``timeouts``, ``reissued``
            (tickets), ``restarts`` (workers).

            Workers: ``workers``, a list with a dict of figures for each; ``copies`` and
            ``bytes_copied`` by reason, ``copies_avoided``, ``bytes_avoided``; ``stages`` that
            workers run, and ``stream_stages`` of a Dataset's stream, each with ``stage``, ``ns``
            and ``rows``; ``stream_bytes_copied``, of that stream's elements.

            Current values: ``active_workers``, ``queue_size`` (limit of batches made ahead),
            ``queue`` (batches requested and not taken, and the ready ones among these).

            docs/loader.md describes each key, the keys of a worker, and the reasons.
        """
        stats: dict[str, Any] = self._core.stats()
        spent = stats["wait_ns"] + stats["busy_ns"]
        stats["wait_share"] = stats["wait_ns"] / spent if spent else math.nan
        return stats

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained HTML page: the activity of each worker, and the bottleneck.

        Raises
        ------
        OSError
            The file could not be written.
        """
        _write(path, self._page())

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the same events for chrome://tracing and Perfetto. Raises `OSError` as `report`."""
        _write(path, self._core.chrome_trace(self._about()))

    def analysis(self) -> dict[str, Any]:
        """Return the bottleneck and what to change, from the counters so far."""
        result: dict[str, Any] = self._core.analysis(self._about())
        return result

    def _page(self) -> str:
        page: str = self._core.report_html(self._about())
        return page

    def _about(self) -> dict[str, Any]:
        s = self._settings
        kind = {"inline": "inline", "threads": "thread", "processes": "process"}[self._mode]
        facts = {"order": "in order" if s["ordered"] else "as they come", "on_error": s["on_error"]}
        if self._mode == "processes":
            facts["start method"] = self._start_method
        return {
            "title": self._info.title,
            "mode": self._mode,
            "kind": kind,
            "queue": s["queue"],
            "max_bytes": s["max_bytes"],
            "workers": max(s["workers"], 1),
            "facts": facts,
            "devices": self._device_lanes(),
        }

    # ---- ending ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the workers failed for good."""
        return bool(self._core.closed())

    def close(self) -> None:
        """End the workers and release all resources. Held batches stay valid.

        Any thread may call it, more than once; a running iteration raises `Closed`.
        """
        if self._finalizer.alive and not self._foreign():
            self._losses.write(self.epoch, self._core.stats())
            if self._closing is not None:
                self._closing(self)
        self._finalizer()


def _json_of(state: Any) -> str:
    try:
        return json.dumps(state)
    except (TypeError, ValueError):
        raise InvalidArgument("this is not a state of a Loader: it is no JSON", "restore") from None


def _write(path: str | os.PathLike[str], text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)

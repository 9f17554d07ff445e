"""The workers of one Loader: starting, replacing, updating and ending them.

States of the pool: made -> started (first batch asked for) -> closed. `start` and `close` happen
once; `close` may come from any thread, at exit, or from the garbage collector.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .. import _engine, errors
from .progress import LOG
from .source import SourceInfo

# A worker that dies this often in a row before it is ready for tickets is not restarted again.
# Before the first batch, all workers count together. Later each worker gets more attempts, because
# another process may be killing new workers.
_MOST_FALSE_STARTS = 3
_MOST_FALSE_STARTS_LATER = 10
# Engines with a native thread that is stuck past `timeout=`: the thread uses their memory when its
# call returns.
_stuck: list[Any] = []


class Update:
    """A change of the dataset before an epoch, for workers that start later."""

    def __init__(self, version: int, packed: Any, names: set[str] | None, kept: list[Any]) -> None:
        self.version = version
        self.packed = packed
        self.names = names  # attributes whose latest change this is; None: all
        self.kept = kept  # owners of the descriptors that it names

    def superseded_by(self, later: Update) -> bool:
        """Remove the attributes that `later` changes; return whether none is left."""
        if later.names is None:
            return True
        if self.names is not None:
            self.names -= later.names
        return self.names is not None and not self.names


class Running:
    """The threads, processes, descriptors and engine that a pool started and must end.

    References the user's objects only through the engine, so a Loader's finalizer can own it: a
    dataset that refers to its own Loader is collected, and its workers end.
    """

    def __init__(self, core: Any) -> None:
        self.core = core
        self.lock = threading.RLock()
        self.closed = False
        self.threads: list[threading.Thread] = []
        self.supervisor: threading.Thread | None = None
        self.processes: dict[int, Any] = {}
        self.launcher: Any = None
        self.payload: Any = None
        self.updates: list[Update] = []  # changes of the dataset in `payload`
        self.files = -1  # files and indices of a Dataset's sources
        self.hosts: Any = None  # of remote workers
        self._pid = os.getpid()

    def close(self, grace: float = 0.2) -> None:
        if self._pid != os.getpid():
            return  # in a forked child: all belongs to the parent
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self.core.close(grace)
        if self.hosts is not None:
            self.hosts.close()
        here = threading.current_thread()
        remote = [] if self.hosts is None else self.hosts.threads
        for thread in [*self.threads, self.supervisor, *remote]:
            if thread is not None and thread is not here and thread.is_alive():
                thread.join(0.5)  # one that runs user code is left to finish
        self.core.drain()
        _stuck[:] = [core for core in [*_stuck, self.core] if not core.ended()]
        for started in self.processes.values():
            with contextlib.suppress(Exception):
                started.wait(1.0)
            started.close()
        if self.launcher is not None:
            self.launcher.close()
        if self.payload is not None:
            self.payload.close()
        for update in self.updates:
            update.packed.close()
        self.updates.clear()
        if self.files >= 0:
            os.close(self.files)
            self.files = -1


class WorkerPool:
    """Starts and replaces the workers of a Loader. Depends on the core, not on the Loader."""

    def __init__(
        self,
        core: Any,
        info: SourceInfo,
        collate: Any,
        settings: dict[str, Any],
        mode: str,
        start_method: str,
    ) -> None:
        self.core = core
        self.info = info
        self.collate = collate
        self.settings = settings
        self.mode = mode
        self.start_method = start_method
        self.version = 0
        self.length = info.length
        self.started = False
        self.running = Running(core)
        self._lock = self.running.lock
        self._false_starts: dict[int, int] = {}  # by worker, in a row
        self._next_number = 0
        self._packed_as: dict[str, int] = {}  # version and length of the dataset in the payload

    # ---- starting --------------------------------------------------------------------------------

    def start(self) -> None:
        with self._lock:
            if self.started or self.running.closed:  # another thread may have closed it just now
                return
            try:
                self._start()
            except BaseException:
                # With only some of the workers the consumer might wait for ever.
                self.running.close()
                raise
            self.started = True

    def _start(self) -> None:
        workers = self.settings["workers"]
        if self.info.kind == "chain" and workers and self.info.plan.streamed:
            self._start_stream_reader()
        if self.info.kind == "chain" and (
            self.mode == "inline" or not (self.info.plan.python or self.info.remote)
        ):
            self.core.start_plan(workers)
            return
        if self.mode == "inline":
            self.core.set_inline(self.info.source, self.collate, self._changed)
            return
        if self.mode == "threads":
            for worker in range(workers):
                self._start_thread(worker)
            if self.settings["timeout"] >= 0:
                self._supervise()
            return
        from ..processes.launch import Launcher

        self.running.launcher = Launcher(self.start_method)
        local = workers - self.settings["remote_places"]
        for worker in range(local):
            self._start_process(worker)
        self._supervise()
        if self.info.remote:
            self._start_hosts(range(local, workers))

    def _start_hosts(self, places: range) -> None:
        from ..remote.hosts import Hosts
        from ..remote.routing import RoutedHosts

        chain = self.info.kind == "chain"
        # A Dataset is sent without its ranks, so that its bytes are equal for all of them.
        ranks = self.info.source._ranks() if chain else []
        settings = {**self.settings, "version": self.version, "length": self.length, "ranks": ranks}
        # The hosts do not refer to the user's objects; see `Running`.
        alive = weakref.ref(self)

        def pack() -> tuple[bytes, bytes]:
            pool = alive()
            if pool is None:
                raise errors.Closed("the Loader was closed", "Loader")
            return pool._for_hosts()

        arguments = (
            self.core,
            self.info.remote,
            places,
            pack,
            settings,
            self.info.title,
            not places.start,
        )
        locality = self.info.remote[0].locality
        self.running.hosts = (
            Hosts(*arguments) if locality is None else RoutedHosts(locality, *arguments)
        )
        self.running.hosts.start()

    def _for_hosts(self) -> tuple[bytes, bytes]:
        """The data set, and the files of a Dataset, for remote workers."""
        from ..processes.worker import WorkerPayload

        info = self.info
        source, files = info.source, b""
        if info.kind == "chain":
            source = source._with_ranks([0] * len(source._ranks()))
            fd = self._shared()["files"]
            files = os.pread(fd, os.fstat(fd).st_size, 0)
        with _pack(WorkerPayload(source, self.collate, info.initialise, info.hooked)) as packed:
            if packed.kept:
                raise errors.InvalidArgument(
                    f"{info.title} has memory, locks or queues that processes of one host share: "
                    "remote workers cannot open them",
                    "Loader",
                )
            return packed.tobytes(), files

    def _start_stream_reader(self) -> None:
        if not self.info.plan.python_stream:
            self.core.start_stream_reader()
            return
        # The thread refers to the core and not to the pool, so an unused Loader can be collected.
        thread = threading.Thread(
            target=self.core.run_stream_reader, name="penstock stream", daemon=True
        )
        self.running.threads.append(thread)
        thread.start()

    def _changed(self, version: int) -> int:
        return self.length

    def _start_thread(self, worker: int) -> None:
        info, collate, core = self.info, self.collate, self.core
        # A worker of a Dataset refers to the core and not to the pool; see `Running`.
        functions = info.functions
        serve = lambda w: core.run_plan_thread(w, functions)  # noqa: E731
        if info.kind != "chain":
            changed = self._changed
            serve = lambda w: core.run_thread(w, info.source, collate, changed)  # noqa: E731
        thread = threading.Thread(
            target=_run_thread,
            args=(core, serve, worker),
            name=f"penstock worker {worker}",
            daemon=True,
        )
        self.running.threads = [t for t in self.running.threads if t.is_alive()] + [thread]
        thread.start()

    def _stand_in(self, worker: int) -> None:
        """Start a replacement for an abandoned thread."""
        try:
            if self.info.kind == "stream":
                # A place's owner has a number, so the stuck thread sees that it lost its place.
                self.core.take_place()
            else:
                worker = self.core.take_place()
            self._start_thread(worker)
            self.core.count_restart()
        except Exception as error:
            self.core.set_fatal(error)

    def _payload(self) -> Any:
        """The data set as the first workers get it, in a memory file."""
        from ..processes.worker import WorkerPayload

        if self.running.payload is None:
            info = self.info
            self.running.payload = _pack(
                WorkerPayload(info.source, self.collate, info.initialise, info.hooked)
            )
            self._packed_as = {"version": self.version, "length": self.length}
        return self.running.payload

    def _start_process(self, worker: int) -> None:
        from ..processes.child import own_descriptors

        payload = self._payload()
        number = self._next_number
        self._next_number += 1
        ours, theirs = _engine.link_pair()
        own_descriptors.add(ours)
        started = None
        try:
            started = self.running.launcher.start(
                worker,
                {
                    "ring": self.core.ring_fd(),
                    "arena": self.core.arena_fd(),
                    "link": theirs,
                    "payload": payload.fd,
                    **self._shared(),
                },
                {
                    **self.settings,
                    "number": number,
                    **self._packed_as,
                },
                capture=True,
            )
            pidfd = os.dup(started.pidfd)
        except BaseException:
            own_descriptors.discard(ours)
            os.close(ours)
            if started is not None:
                started.kill()
                started.wait(1.0)
                started.close()
            raise
        finally:
            os.close(theirs)
        self.running.processes[worker] = started
        own_descriptors.discard(ours)  # the engine closes it
        self.core.attach(worker, pidfd, ours, started.pid)
        for update in self.running.updates:
            self.core.send_update(update.version, update.packed.fd, worker)

    def _shared(self) -> dict[str, int]:
        """The descriptors that all workers of a Dataset share: its files and its caches."""
        if self.info.kind != "chain":
            return {}
        if self.running.files < 0:
            self.running.files = self.info.plan.files_fd()
        caches = self.info.plan.cache_fds()
        return {"files": self.running.files, **{f"cache{i:04}": fd for i, fd in enumerate(caches)}}

    # ---- watching --------------------------------------------------------------------------------

    def _supervise(self) -> None:
        self.running.supervisor = threading.Thread(
            target=_watch,
            args=(weakref.ref(self), self.core),
            name="penstock supervisor",
            daemon=True,
        )
        self.running.supervisor.start()

    def handle(self, kind: str, worker: int, ready: bool, detail: bytes) -> None:
        """Handle an event of the engine's supervisor."""
        with self._lock:
            if self.running.closed or self.core.closed():
                return
            if kind == "failed":
                self.core.set_fatal(errors.unpack_exception(detail))
            elif kind == "abandoned":
                LOG.warning("worker thread %d of %s hangs: abandoned", worker, self.info.title)
                self._stand_in(worker)
            elif kind == "died":
                self._replace(worker, ready)

    def _replace(self, worker: int, ready: bool) -> None:
        from ..processes.child import describe_exit

        started = self.running.processes.pop(worker, None)
        how, said = "ended", ""
        if started is not None:
            how, said = describe_exit(started.wait(1.0) or 0), started.said()
            started.close()
        if self._hopeless(worker, ready):
            self.core.set_fatal(
                errors.WorkerLost(
                    f"worker processes die before their first batch ({how})"
                    + (f"; the last one said:\n{said}" if said else ""),
                    "Loader",
                )
            )
            return
        try:
            self._start_process(worker)
            self.core.count_restart()
            LOG.warning("worker process %d of %s %s: replaced", worker, self.info.title, how)
        except Exception as error:
            self.core.set_fatal(error)

    def _hopeless(self, worker: int, ready: bool) -> bool:
        """Count a worker's death; return whether its limit of false starts is reached."""
        counts = self._false_starts
        counts[worker] = 0 if ready else counts.get(worker, 0) + 1
        if self.core.stats()["delivered"]:
            return counts[worker] >= _MOST_FALSE_STARTS_LATER
        return sum(counts.values()) >= _MOST_FALSE_STARTS

    # ---- epochs ----------------------------------------------------------------------------------

    def publish(self, length: int, state: Any) -> None:
        """Publish a changed length or changed attributes (a payload) to all workers.

        They apply to every ticket that is posted from now on.
        """
        from ..processes import payload

        with self._lock:
            if self.started and any(each.shared for each in self.info.remote):
                error = errors.InvalidArgument(
                    f"{self.info.title} was changed after its workers started, and other ranks "
                    "share these workers and their one copy of it. Give workers=<number> of "
                    "processes, or penstock.ray.workers, which are of one Loader",
                    "Loader",
                )
                self.core.set_fatal(error)  # the change would be missing in every later epoch
                raise error
            self.version += 1
            self.length = length
            self.core.set_length(length, self.version)
            if self.mode != "processes" or not self.started:
                return
            # A replacement starts with the dataset of the first workers and gets all published
            # changes: changes that the user makes during an epoch are not among them.
            change = {"length": length, "state": None if state is None else state.tobytes()}
            packed = payload.pack(change)
            self.core.send_update(self.version, packed.fd, -1)
            names, kept = (set(), []) if state is None else (state.names, state.kept)
            update = Update(self.version, packed, names, kept)
            for earlier in list(self.running.updates):
                if earlier.superseded_by(update):
                    self.running.updates.remove(earlier)
                    earlier.packed.close()
            self.running.updates.append(update)
            if self.running.hosts is not None:
                kept_versions = {each.version for each in self.running.updates}
                self.running.hosts.update(self.version, packed.tobytes(), kept_versions)


def _pack(info: Any) -> Any:
    from ..processes import payload

    try:
        return payload.pack(info)
    except errors.InvalidArgument:
        # For an error in the user's terms.
        payload.pack(info.source, "dataset").close()
        payload.pack(info.collate, "collate").close()
        payload.pack(info.initialise, "worker_init").close()
        raise


def _run_thread(core: Any, serve: Callable[[int], None], worker: int) -> None:
    try:
        serve(worker)
    finally:
        core.give_back_place(worker)


def _watch(pool: weakref.ref[WorkerPool], core: Any) -> None:
    while True:
        try:
            kind, worker, ready, detail = core.supervise()
            if kind == "closed":
                return
            alive = pool()
            if alive is None:
                return
            alive.handle(kind, worker, ready, detail)
            del alive
        except Exception as error:
            core.set_fatal(error)  # the watcher ends: raise instead of waiting for ever
            return

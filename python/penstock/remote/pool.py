"""The worker processes of one data set on a server: started, watched, replaced and ended."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _engine
from ..errors import Closed, Error
from ..processes.child import Started, describe_exit, own_descriptors
from ..processes.launch import Launcher
from ..processes.memfile import memory_file

if TYPE_CHECKING:
    from .server import Session

_CHILD = "penstock.remote.child:main"
# A process that dies this often in a row before it is ready is not started again. More often once
# one of the Loader's was ready: another process may be killing new ones.
_MOST_FALSE_STARTS = 3
_MOST_FALSE_STARTS_LATER = 10
_RESTART_S = 1.0  # between two attempts to start a process

Buffer: TypeAlias = bytes | memoryview


class Worker:
    """A worker process of a pool."""

    def __init__(self, number: int, place: int) -> None:
        self.number = number  # unique in the pool
        self.place = place
        self.started: Started | None = None
        self.link = -1
        self.status = -1  # a file in memory: which ticket it runs
        self.port = 0  # 0: it is not ready
        self.local = ""

    def status_words(self) -> tuple[int, int, int]:
        """The ticket that it runs, or ran when it ended, and the call.

        The number of the ticket's session, and the ticket's place + 1 there; 0: no ticket.
        """
        running, call = struct.unpack("=QQ", os.pread(self.status, 16, 0))
        return running >> 32, running & 0xFFFFFFFF, call

    def close(self) -> None:
        if self.started is not None:
            self.started.close()
        own_descriptors.discard(self.link)
        for fd in (self.link, self.status):
            if fd >= 0:
                os.close(fd)


class Pool:
    """A data set, and the worker processes that have it: for one session, or several.

    States: made -> open (`open` got the data set) -> spent (its processes cannot start: it takes no
    other sessions) -> closed (behind its last session).

    A process: started -> ready (it has an address) -> ended; another one is started in its place.

    Lock order: the server's, then the pool's. Messages are queued with the pool's lock, so that
    each session gets those of a worker in their order. No message is sent with a lock.
    """

    def __init__(self, host: str, secret: bytes, title: str, size: int) -> None:
        self.title = title
        self.size = size
        self.is_open = self.spent = False
        self._host = host
        self._secret = secret
        self._lock = threading.RLock()
        self._closed = False
        self._sessions: dict[int, Session] = {}
        self._next_session = 0
        self._workers: dict[int, Worker] = {}
        self._next_number = 0
        self._false_starts: dict[int, int] = {}  # by place, in a row
        self._served = False  # one of its processes was ready
        self._updates: dict[int, int] = {}  # descriptors, by version
        self._launcher = Launcher("spawn", _CHILD)
        self._payload = self._files = -1
        self._settings: dict[str, Any] = {}
        self._first = 0

    def is_unlike(self, other: Pool) -> bool:
        """Whether the data sets may be meant to be equal, but are not."""
        return self.title == other.title and self.size == other.size

    def is_starting(self) -> bool:
        """Whether no process was ready yet, and the data set or a process is on its way."""
        with self._lock:
            return not self._served and (bool(self._workers) or not self.is_open)

    # ---- sessions --------------------------------------------------------------------------------

    def add(self, session: Session) -> bool:
        """Give a session a number and the workers that are ready; False: the pool is spent."""
        with self._lock:
            if self.spent:
                return False
            session.number = self._next_session
            self._next_session += 1
            self._sessions[session.number] = session
            for worker in self._workers.values():
                if worker.port:
                    session.name(worker)
            return True

    def remove(self, session: Session) -> bool:
        """Return whether the session was the last one."""
        with self._lock:
            self._sessions.pop(session.number)
            return not self._sessions

    # ---- processes -------------------------------------------------------------------------------

    def open(
        self, payload: Buffer, files: Buffer, first: int, count: int, settings: dict[str, Any]
    ) -> None:
        """Start the processes with this data set."""
        with self._lock:
            if self._closed or self.is_open:
                return
            self._payload = _memory_file("penstock-dataset", payload)
            self._files = _memory_file("penstock-files", files)
            self._first = first
            self._settings = {**settings, "host": self._host, "secret": self._secret.hex()}
            self.is_open = True
        try:
            for place in range(count):
                self._start(place)
        except BaseException:  # no memory, descriptors or threads: the Loaders try again
            with self._lock:
                self.spent = True
                for session in self._sessions.values():
                    session.cut()
            raise

    def _start(self, place: int) -> None:
        with self._lock:
            if self._closed:
                return
            worker = Worker(self._next_number, place)
            self._next_number += 1
            worker.link, theirs = _engine.link_pair()
            own_descriptors.add(worker.link)
            try:
                worker.status = _memory_file("penstock-status", bytes(_engine.REMOTE_STATUS_BYTES))
                worker.started = self._launcher.start(
                    self._first + place,
                    {
                        "link": theirs,
                        "payload": self._payload,
                        "files": self._files,
                        "status": worker.status,
                    },
                    self._settings,
                    capture=True,
                )
            except BaseException:
                worker.close()
                raise
            finally:
                os.close(theirs)
            self._workers[worker.number] = worker
            for version, fd in self._updates.items():
                _engine.link_send_update(worker.link, version, fd)
        threading.Thread(
            target=self._watch, args=(worker,), name="penstock watch", daemon=True
        ).start()

    def _watch(self, worker: Worker) -> None:
        """Pass on the messages of a worker process, until it ends; then start another one."""
        failed = False
        while (said := _engine.link_next(worker.link)) is not None:
            kind, data = said
            if kind == "address":
                network, _, local = data.decode().partition(" ")
                with self._lock:
                    self._served = True
                    worker.port, worker.local = int(network.rpartition(":")[2]), local
                    for session in self._sessions.values():
                        session.name(worker)
            elif kind == "failed":
                failed = True
                self._spend(data, do="failed", worker=worker.number)
        assert worker.started is not None
        status = worker.started.wait(10.0)
        how = describe_exit(status or 0)
        with self._lock:
            self._workers.pop(worker.number, None)
            last_words = worker.started.said()
            number, running, call = worker.status_words()
            worker.close()
            if self._closed or failed:
                return
            for session in self._sessions.values():
                ran = running if session.number == number else 0
                session.send(
                    do="ended", worker=worker.number, how=how, running=ran, call=call if ran else 0
                )
        count = 0 if worker.port else self._false_starts.get(worker.place, 0) + 1
        self._false_starts[worker.place] = count
        if count >= (_MOST_FALSE_STARTS_LATER if self._served else _MOST_FALSE_STARTS):
            self._spend(do="hopeless", how=how, said=last_words)
            return
        while True:
            try:
                self._start(worker.place)
                return
            except Exception:  # no memory, descriptors or threads now
                time.sleep(_RESTART_S)

    def _spend(self, body: bytes = b"", **message: Any) -> None:
        with self._lock:
            self.spent = True
            for session in self._sessions.values():
                session.send(body, **message)

    def update(self, version: int, keep: set[int], body: bytes) -> None:
        """Send changed attributes of the data set to the processes."""
        with self._lock:
            if self._closed:
                return
            for superseded in [v for v in self._updates if v not in keep]:
                os.close(self._updates.pop(superseded))
            fd = self._updates[version] = _memory_file("penstock-update", body)
            for worker in self._workers.values():
                _engine.link_send_update(worker.link, version, fd)

    def end(self, number: int) -> None:
        """Kill a worker process, unless it has ended: another one takes its place."""
        with self._lock:
            worker = self._workers.get(number)
            if worker is not None and worker.started is not None:
                worker.started.kill()

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._closed = True
            workers = list(self._workers.values())
            for worker in workers:
                if worker.started is not None:
                    worker.started.kill()
        for worker in workers:
            with contextlib.suppress(Closed):  # _watch has closed the handle
                if worker.started is not None:
                    worker.started.wait(2.0)
        self._launcher.close()
        with contextlib.suppress(Error):  # the next process that listens there removes them
            _engine.remove_dead_sockets()
        with self._lock:
            for fd in (self._payload, self._files, *self._updates.values()):
                if fd >= 0:
                    os.close(fd)
            self._payload = self._files = -1
            self._updates.clear()


def _memory_file(name: str, data: Buffer) -> int:
    fd = memory_file(name)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd

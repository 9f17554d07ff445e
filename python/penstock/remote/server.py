"""A server of remote workers: starts worker processes on this host for Loaders elsewhere."""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import threading
import time
from typing import Any, TypeAlias

from .. import _engine
from ..base.conventions import Closing
from ..errors import Closed, Error, InvalidArgument, Timeout
from ..processes.child import Started, describe_exit, own_descriptors
from ..processes.launch import Launcher
from ..processes.memfile import memory_file
from . import messages
from .places import checked_secret

_CHILD = "penstock.remote.child:main"
# A process that dies this often in a row before it is ready is not started again. More often once
# one of the Loader's was ready: another process may be killing new ones.
_MOST_FALSE_STARTS = 3
_MOST_FALSE_STARTS_LATER = 10
_OPEN_S = 30.0  # for the first message of a connection, and for a data set that was asked for
_RESTART_S = 1.0  # between two attempts to start a process
_STARTING_S = 10.0  # between two messages that workers are being started
_DRAIN_S = 30.0  # for Loaders to leave a server that drains


Buffer: TypeAlias = bytes | memoryview


class Server(Closing):
    """Runs worker processes on this host for Loaders on other hosts.

    A Loader connects, sends its data set, and gets worker processes, which end with its connection.
    Loaders that share workers (`penstock.ray.node_workers`) and have equal data sets use the same
    processes, which end with the last of these connections. A process that dies is replaced. Anyone
    with the secret can run code here, as this user: a data set is code.

    Parameters
    ----------
    address : str
        ``"tcp://host:port"``, the host as this machine's network names it. Port 0: a free one. The
        worker processes listen at free ports of the same host.
    secret : bytes
        At least 16 bytes that cannot be guessed (``secrets.token_bytes(32)``). Loaders give the
        same to `penstock.remote.workers`.

    Raises
    ------
    InvalidArgument
        The address or the secret is invalid.
    System
        The address cannot be listened at.

    Notes
    -----
    It starts in a thread of its own. Any thread may call its methods.

    Examples
    --------
    >>> server = penstock.remote.Server("tcp://10.0.0.7:7000", secret=secret)
    >>> server.wait()
    """

    def __init__(self, address: str = "tcp://127.0.0.1:0", *, secret: bytes) -> None:
        self._secret = checked_secret(secret, "remote.Server")
        if not isinstance(address, str) or not address.startswith("tcp://"):
            raise InvalidArgument(
                f'address is {address!r}; give "tcp://host:port"', "remote.Server"
            )
        self._listener = _engine.RemoteListener(address, self._secret)
        self._host = self._listener.address.rpartition(":")[0]
        self._changed = threading.Condition()
        self._sessions: set[_Session] = set()
        self._shared: dict[str, _Pool] = {}  # by the key of the data set
        self._stored: dict[str, tuple[Buffer, Buffer]] = {}
        self._idle_since = time.monotonic()
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self._accept, name="penstock remote server", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """The address, with the port that the system chose."""
        return str(self._listener.address)

    @property
    def closed(self) -> bool:
        """Whether `close` or `drain` was called."""
        return bool(self._listener.closed)

    def store(self, key: str, payload: Buffer, files: Buffer) -> None:
        """Keep a data set for a Loader that names its key instead of sending it."""
        self._stored[key] = (payload, files)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server is closed; False: the timeout in seconds passed first."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def drain(self, timeout: float = _DRAIN_S) -> None:
        """Accept no more Loaders, let the present ones finish their tickets here, then close.

        Parameters
        ----------
        timeout : float
            Seconds; then the remaining connections are closed.
        """
        self._listener.close()
        with self._changed:
            sessions = list(self._sessions)
        for session in sessions:
            session.leave()
        with self._changed:
            self._changed.wait_for(lambda: not self._sessions, timeout)
        self.close()

    def close(self) -> None:
        """End all worker processes. Loaders continue with other workers."""
        if self._pid != os.getpid():
            return  # in a forked child: all belongs to the parent
        self._listener.close()
        with self._changed:
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._sessions, 5.0)

    def close_if_idle(self, seconds: float) -> bool:
        """Close the server if no Loader was connected for so long; return whether it is closed."""
        with self._changed:
            idle = not self._sessions and time.monotonic() - self._idle_since >= seconds
        if idle:
            self.close()
        return self.closed

    def __repr__(self) -> str:
        return f"<Server {self.address}{', closed' if self.closed else ''}>"

    def _accept(self) -> None:
        while not self._listener.closed:
            try:
                connection = self._listener.accept()
            except Error:
                continue  # out of descriptors; the listener waits by itself
            if connection is not None:
                threading.Thread(
                    target=self._serve, args=(connection,), name="penstock session", daemon=True
                ).start()

    def _serve(self, connection: Any) -> None:
        session = _Session(connection, self)
        with self._changed:
            if self._listener.closed:
                connection.close()
                return
            self._sessions.add(session)
        try:
            session.run()
        finally:
            session.close()
            with self._changed:
                self._sessions.discard(session)
                self._idle_since = time.monotonic()
                self._changed.notify_all()

    # ---- sessions and pools ----------------------------------------------------------------------

    def stored(self, key: str) -> tuple[Buffer, Buffer] | None:
        """The data set of `store`. Internal."""
        return self._stored.get(key)

    def enter(self, session: _Session, key: str, title: str, size: int) -> bool:
        """Give a session a pool; return whether the session must open the pool. Internal.

        A session without a key has a pool of its own. While another session opens the pool of the
        key, this one waits.

        Raises
        ------
        Closed
            The session was closed.
        """
        with self._changed:
            while not session.closed:
                pool = self._shared.get(key)
                if pool is None or pool.spent:
                    session.pool = _Pool(self._host, self._secret, title, size)
                    session.pool.add(session)
                    if key:
                        session.unlike = any(map(session.pool.is_unlike, self._shared.values()))
                        self._shared[key] = session.pool
                    return True
                if pool.is_open and pool.add(session):
                    session.pool = pool
                    return False
                self._changed.wait()
            raise Closed("the server was closed", "remote")

    def opened(self) -> None:
        """Wake the sessions that wait for a pool. Internal."""
        with self._changed:
            self._changed.notify_all()

    def leave(self, session: _Session) -> None:
        """Take a session out of its pool, and close the pool behind the last one. Internal."""
        with self._changed:
            session.closed = True
            pool, session.pool = session.pool, None
            last = pool is not None and pool.remove(session)
            if last:
                self._shared = {k: each for k, each in self._shared.items() if each is not pool}
            self._changed.notify_all()
        if pool is not None and last:
            pool.close()


class _Worker:
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


class _Pool:
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
        self._sessions: dict[int, _Session] = {}
        self._next_session = 0
        self._workers: dict[int, _Worker] = {}
        self._next_number = 0
        self._false_starts: dict[int, int] = {}  # by place, in a row
        self._served = False  # one of its processes was ready
        self._updates: dict[int, int] = {}  # descriptors, by version
        self._launcher = Launcher("spawn", _CHILD)
        self._payload = self._files = -1
        self._settings: dict[str, Any] = {}
        self._first = 0

    def is_unlike(self, other: _Pool) -> bool:
        """Whether the data sets may be meant to be equal, but are not."""
        return self.title == other.title and self.size == other.size

    def is_starting(self) -> bool:
        """Whether no process was ready yet, and the data set or a process is on its way."""
        with self._lock:
            return not self._served and (bool(self._workers) or not self.is_open)

    # ---- sessions --------------------------------------------------------------------------------

    def add(self, session: _Session) -> bool:
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

    def remove(self, session: _Session) -> bool:
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
            worker = _Worker(self._next_number, place)
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

    def _watch(self, worker: _Worker) -> None:
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


class _Session:
    """The connection of one Loader.

    States: made -> in a pool (`run` read the Loader's first message) -> closed (the connection
    ended, or `close`). `pool` and `closed` change with the server's lock.

    A thread of its own sends the messages, so a Loader that reads none stops no other session. A
    Loader that has not sent its data set in time is disconnected, and another session is asked.
    """

    def __init__(self, connection: Any, server: Server) -> None:
        self.pool: _Pool | None = None
        self.number = 0  # in the pool
        self.closed = False
        self.unlike = False  # a pool of the server has a data set that may be meant to be equal
        self._connection = connection
        self._server = server
        # A body and a message; None: the last one.
        self._outbox: queue.SimpleQueue[tuple[bytes, dict[str, Any]] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve the Loader until its connection ends."""
        try:
            head, _ = messages.receive(self._connection, _OPEN_S)
            if not self._is_equal_version(head):
                return
            threading.Thread(target=self._deliver, name="penstock deliver", daemon=True).start()
            self._open(head)
            while (pool := self.pool) is not None:
                timeout = None if pool.is_open else _OPEN_S
                message, body = messages.receive(self._connection, timeout)
                if message.get("do") == "dataset":
                    size = int(message["size"])
                    self._fill(pool, head, memoryview(body)[:size], memoryview(body)[size:])
                elif message.get("do") == "update":
                    pool.update(int(message["version"]), set(message["keep"]), body)
                elif message.get("do") == "replace":
                    pool.end(int(message["worker"]))
                elif message.get("do") == "have":
                    paths = [str(path) for path in message["paths"]]
                    self.send(do="files", paths=paths, there=list(map(os.path.exists, paths)))
                del message, body  # a data set is large
        except (Error, OSError, KeyError, ValueError, TypeError):
            return  # the Loader has ended, or its bytes are no message

    def _is_equal_version(self, head: dict[str, Any]) -> bool:
        from .. import __version__

        if head.get("version") == __version__:
            return True
        messages.send(
            self._connection,
            do="refused",
            why=f"the server runs penstock {__version__}, and the Loader "
            f"{head.get('version')}: install the same version on all hosts",
        )
        return False

    def _open(self, head: dict[str, Any]) -> None:
        key, title, size = str(head["share"]), str(head["title"]), int(head["size"])
        opens = self._server.enter(self, key, title, size)
        pool = self.pool
        if not opens or pool is None:
            return
        if self.unlike:
            self.send(do="unlike")
        stored = self._server.stored(head["key"])
        if stored is None:
            self.send(do="send")
        else:
            self._fill(pool, head, *stored)

    def _fill(self, pool: _Pool, head: dict[str, Any], payload: Buffer, files: Buffer) -> None:
        pool.open(payload, files, int(head["first"]), int(head["workers"]), head["settings"])
        self._server.opened()

    def name(self, worker: _Worker) -> None:
        """Name a worker that is ready to the Loader."""
        self.send(
            do="worker",
            worker=worker.number,
            port=worker.port,
            local=worker.local,
            loader=self.number,
        )

    def cut(self) -> None:
        """End the connection: `run` returns."""
        self._connection.close()

    def leave(self) -> None:
        """Ask the Loader to give no more tickets."""
        self.send(do="leaving")

    def send(self, body: bytes = b"", **message: Any) -> None:
        """Queue a message. Never blocks."""
        self._outbox.put((body, message))

    def _deliver(self) -> None:
        """Send the queued messages until `close`. A thread of its own."""
        while True:
            try:
                queued = self._outbox.get(timeout=_STARTING_S)
            except queue.Empty:
                pool = self.pool
                if pool is not None and not pool.is_starting():
                    continue
                queued = b"", {"do": "starting"}
            if queued is None:
                return
            body, message = queued
            try:
                messages.send(self._connection, body, **message)
            except (Closed, Timeout):  # run() sees that the Loader has ended
                return

    def close(self) -> None:
        """Close the connection, and leave the pool. Any thread, more than once."""
        self.cut()
        self._outbox.put(None)
        self._server.leave(self)


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

"""A server of remote workers: starts worker processes on this host for Loaders elsewhere."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
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
_OPEN_S = 30.0  # for the first message of a connection
_DRAIN_S = 30.0  # for Loaders to leave a server that drains


Buffer: TypeAlias = bytes | memoryview


class Server(Closing):
    """Runs worker processes on this host for Loaders on other hosts.

    A Loader connects, sends its data set, and gets worker processes of its own, which end with its
    connection. A process that dies is replaced. Anyone with the secret can run code here, as this
    user: a data set is code.

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
        self._stored: dict[str, tuple[Buffer, Buffer]] = {}
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
        session = _Session(connection, self._host, self._secret, self._stored)
        with self._changed:
            self._sessions.add(session)
        try:
            session.run()
        finally:
            session.close()
            with self._changed:
                self._sessions.discard(session)
                self._changed.notify_all()


class _Worker:
    """One of a session's workers: a process, or the one that replaces it."""

    def __init__(self, number: int, place: int) -> None:
        self.number = number  # unique in the session
        self.place = place
        self.started: Started | None = None
        self.link = -1
        self.status = -1  # a file in memory: which ticket it runs
        self.ready = False

    def status_words(self) -> tuple[int, int]:
        """The place of the ticket that it runs, or ran when it ended, plus 1; and the call."""
        running, call = struct.unpack("=QQ", os.pread(self.status, 16, 0))
        return running, call

    def close(self) -> None:
        if self.started is not None:
            self.started.close()
        own_descriptors.discard(self.link)
        for fd in (self.link, self.status):
            if fd >= 0:
                os.close(fd)


class _Session:
    """One Loader's connection and worker processes.

    States: made -> open (``run`` got the data set) -> closed (the connection ended, or `close`).
    """

    def __init__(
        self, connection: Any, host: str, secret: bytes, stored: dict[str, tuple[Buffer, Buffer]]
    ) -> None:
        self._connection = connection
        self._host = host
        self._secret = secret
        self._stored = stored
        self._lock = threading.RLock()
        self._closed = False
        self._workers: dict[int, _Worker] = {}
        self._next_number = 0
        self._false_starts: dict[int, int] = {}  # by place, in a row
        self._served = False  # one of its processes was ready
        self._updates: dict[int, int] = {}  # descriptors, by version
        self._launcher = Launcher("spawn", _CHILD)
        self._payload = self._files = -1
        self._settings: dict[str, Any] = {}
        self._first = 0

    def run(self) -> None:
        """Serve the Loader until its connection ends."""
        try:
            message, body = messages.receive(self._connection, _OPEN_S)
            if not self._open(message, body):
                return
            while True:
                message, body = messages.receive(self._connection)
                if message.get("do") == "update":
                    self._update(int(message["version"]), set(message["keep"]), body)
                elif message.get("do") == "replace":
                    self._end(int(message["worker"]))
                elif message.get("do") == "have":
                    paths = [str(path) for path in message["paths"]]
                    self._tell(do="files", paths=paths, there=list(map(os.path.exists, paths)))
        except (Error, OSError, KeyError, ValueError, TypeError):
            return  # the Loader has ended, or what it sends is no message

    def _open(self, message: dict[str, Any], body: bytes) -> bool:
        from .. import __version__

        if message.get("version") != __version__:
            self._tell(
                do="refused",
                why=f"the server runs penstock {__version__}, and the Loader "
                f"{message.get('version')}: install the same version on all hosts",
            )
            return False
        if message["key"]:
            payload, files = self._stored[message["key"]]
        else:
            size = int(message["sizes"][0])
            payload, files = memoryview(body)[:size], memoryview(body)[size:]
        self._payload = _memory_file("penstock-dataset", payload)
        self._files = _memory_file("penstock-files", files)
        self._first = int(message["first"])
        self._settings = {
            **message["settings"],
            "host": self._host,
            "secret": self._secret.hex(),
        }
        for place in range(int(message["workers"])):
            self._start(place)
        return True

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
        """Pass on what a worker process says, until it ends; then start another one."""
        failed = False
        while (said := _engine.link_next(worker.link)) is not None:
            kind, data = said
            if kind == "address":
                worker.ready = self._served = True
                network, _, local = data.decode().partition(" ")
                port = int(network.rpartition(":")[2])
                self._tell(do="worker", worker=worker.number, port=port, local=local)
            elif kind == "failed":
                failed = True
                self._tell(data, do="failed", worker=worker.number)
        assert worker.started is not None
        status = worker.started.wait(10.0)
        how = describe_exit(status or 0)
        with self._lock:
            self._workers.pop(worker.number, None)
            last_words = worker.started.said()
            running, call = worker.status_words()
            worker.close()
            if self._closed or failed:
                return
        self._tell(do="ended", worker=worker.number, how=how, running=running, call=call)
        count = 0 if worker.ready else self._false_starts.get(worker.place, 0) + 1
        self._false_starts[worker.place] = count
        if count >= (_MOST_FALSE_STARTS_LATER if self._served else _MOST_FALSE_STARTS):
            self._tell(do="hopeless", how=how, said=last_words)
            return
        with contextlib.suppress(Exception):  # the Loader sees that the worker ended
            self._start(worker.place)

    def _update(self, version: int, keep: set[int], body: bytes) -> None:
        with self._lock:
            for superseded in [v for v in self._updates if v not in keep]:
                os.close(self._updates.pop(superseded))
            fd = self._updates[version] = _memory_file("penstock-update", body)
            for worker in self._workers.values():
                _engine.link_send_update(worker.link, version, fd)

    def _end(self, number: int) -> None:
        with self._lock:
            worker = self._workers.get(number)
            if worker is not None and worker.started is not None:
                worker.started.kill()

    def leave(self) -> None:
        """Tell the Loader to give no more tickets."""
        self._tell(do="leaving")

    def _tell(self, body: bytes = b"", **message: Any) -> None:
        with contextlib.suppress(Closed, Timeout):  # run() sees that the Loader is gone
            messages.send(self._connection, body, **message)

    def close(self) -> None:
        """Close the connection, and end the worker processes."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            workers = list(self._workers.values())
            for worker in workers:
                if worker.started is not None:
                    worker.started.kill()
        self._connection.close()
        for worker in workers:
            with contextlib.suppress(Closed):  # _watch has closed the handle
                if worker.started is not None:
                    worker.started.wait(2.0)
        self._launcher.close()
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

"""A server of remote workers: starts worker processes on this host for Loaders elsewhere."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any

from .. import _engine
from ..base.conventions import Closing
from ..errors import Closed, Error, InvalidArgument, Timeout
from . import messages
from .places import checked_secret
from .pool import Buffer, Pool, Worker

_OPEN_S = 30.0  # for the first message of a connection, and for a data set that was asked for
_STARTING_S = 10.0  # between two messages that workers are being started
_DRAIN_S = 30.0  # for Loaders to leave a server that drains


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
        self._sessions: set[Session] = set()
        self._shared: dict[str, Pool] = {}  # by the key of the data set
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
        session = Session(connection, self)
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

    def enter(self, session: Session, key: str, title: str, size: int) -> bool:
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
                    session.pool = Pool(self._host, self._secret, title, size)
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

    def leave(self, session: Session) -> None:
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


class Session:
    """The connection of one Loader.

    States: made -> in a pool (`run` read the Loader's first message) -> closed (the connection
    ended, or `close`). `pool` and `closed` change with the server's lock.

    A thread of its own sends the messages, so a Loader that reads none stops no other session. A
    Loader that has not sent its data set in time is disconnected, and another session is asked.
    """

    def __init__(self, connection: Any, server: Server) -> None:
        self.pool: Pool | None = None
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

    def _fill(self, pool: Pool, head: dict[str, Any], payload: Buffer, files: Buffer) -> None:
        pool.open(payload, files, int(head["first"]), int(head["workers"]), head["settings"])
        self._server.opened()

    def name(self, worker: Worker) -> None:
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

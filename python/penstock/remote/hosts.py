"""A Loader's remote workers: the connections to their hosts, and the threads that use them.

One thread per host keeps its connection (`_Host`). One thread per place of the engine's ring runs
tickets on a worker that has a free connection. A worker has ``in_flight`` of them (a setting).

States of a host::

    searching ──open──> open ──"leaving"──> leaving ──end──> searching
      │ ^                 └────────────────end──────────────────┘
      └──Host.find raises Closed──> lost

- searching: `Host.find` and the connection are tried again until they succeed.
- lost: the host never comes back. A Loader without other workers fails.
- open: its workers are used. At the end of the connection, those in use are cut.
- leaving: its workers get no more tickets. Once none is in use, this end closes the connection.

States of a worker: free or in use, as long as its host says that it lives; then forgotten. If a
connection to it fails, its host is asked to replace it, unless other Loaders share it: then it is
used again after a pause, because the failure may be of this process (such as no descriptors).

A connection to a worker begins with the Loader's settings, so Loaders of different shares can use
one worker. The pickled data set is equal for all shares.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import _engine, errors
from ..errors import Closed, Error, WorkerLost
from . import messages
from .locality import KnownFiles
from .places import Host, RemoteWorkers

LOG = logging.getLogger("penstock")
CONNECT_S = 5.0
_LEAVING_S = 0.1
# A host that is there says within this time how a worker ended.
_VERDICT_S = 10.0
_SHARED_PAUSE_S = 0.2  # before a shared worker is used again whose connection failed
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
# With no other worker, a Loader waits so long for a connection to a worker. A host that is starting
# its workers is waited for.
PATIENCE_S = 60.0


class Worker:
    def __init__(self, host: _Host, number: int, loader: int, address: str, local: str) -> None:
        self.host = host
        self.number = number
        self._loader = loader  # the number of this Loader there
        self._address = address
        self._local = local
        self.places: set[int] = set()  # of the ring, that use it
        self.lines: list[Any] = []  # open connections that no place uses
        # Once it ended: the ticket that was run, by its place + 1 (0: none), and the call; -1, as
        # long as the host has not said so.
        self.running = -1
        self.call = 0
        self.host_lost = False

    def connect(self) -> Any:
        """Connect to its Unix socket if it is on this host, so that memory can be shared."""
        connection = None
        if self._local:
            with contextlib.suppress(Error):  # it is on another host, or has ended
                connection = _engine.remote_connect(self._local, self.host.secret, CONNECT_S)
        if connection is None:
            connection = _engine.remote_connect(self._address, self.host.secret, CONNECT_S)
        messages.send(connection, loader=self._loader, settings=self.host.owner.settings)
        return connection


class _Host:
    """The connection to one host. All but `run` under the lock of `Hosts`."""

    def __init__(self, owner: Hosts, host: Host, first: int, shared: bool) -> None:
        self.owner = owner
        self.host = host
        self.shared = shared
        self.first = first
        self.connection: Any = None
        self.secret = b""
        self.leaving = False
        self.files = KnownFiles()
        self.workers: dict[int, Worker] = {}  # that get tickets
        self.all_workers: dict[int, Worker] = {}  # that have not ended

    def run(self) -> None:
        """Keep a connection to the host until the Loader closes. A thread of its own."""
        pause = _FIRST_PAUSE_S
        while not self.owner.closed:
            try:
                address, secret = self.host.find()
            except Closed as error:
                self.owner.lost(error)
                return
            except Exception as error:
                self.owner.unreachable(self, error)
                pause = self._pause(pause)
                continue
            try:
                connection = _engine.remote_connect(address, secret, CONNECT_S)
                if self.owner.joined(self, connection, secret):
                    pause = _FIRST_PAUSE_S
                    self._listen(connection, address.rpartition(":")[0])
            except Exception as error:
                self.owner.unreachable(self, error)
            finally:
                self.owner.left(self)
            pause = self._pause(pause)

    def _pause(self, seconds: float) -> float:
        """Wait before another attempt; return the seconds of the next pause."""
        self.owner.sleep(seconds)
        return min(2 * seconds, _LONGEST_PAUSE_S)

    def _listen(self, connection: Any, name: str) -> None:
        while True:
            try:
                message, body = messages.receive(connection, _LEAVING_S if self.leaving else None)
            except errors.Timeout:
                self.owner.leave(self)  # again: a place may have begun to use a worker just then
                continue
            kind = message.get("do")
            if kind == "worker":
                address = f"{name}:{int(message['port'])}"
                local, loader = str(message["local"]), int(message["loader"])
                self.owner.came(self, int(message["worker"]), loader, address, local)
            elif kind == "send":
                self.owner.send_dataset(self, connection)
            elif kind == "starting":
                self.owner.starting()
            elif kind == "unlike":
                self.owner.warn_of_unlike(self)
            elif kind == "ended":
                self.owner.ended(self, message)
            elif kind == "files":
                self.owner.answered(self, message["paths"], message["there"])
            elif kind == "leaving":
                self.owner.leave(self)
            elif kind == "failed":
                self.owner.fail(errors.unpack_exception(body))
            elif kind == "hopeless":
                said = str(message["said"])
                self.owner.fail(
                    WorkerLost(
                        f"worker processes of {self.host.title} die before they are ready "
                        f"({message['how']})" + (f"; the last one said:\n{said}" if said else ""),
                        "Loader",
                    )
                )
            elif kind == "refused":
                self.owner.fail(errors.InvalidArgument(str(message["why"]), "Loader"))


class Hosts:
    """The hosts of one Loader. Depends on the engine's core, not on the Loader.

    Parameters
    ----------
    core : _engine.PythonLoader
    specs : list of RemoteWorkers
    places : range
        The places of the ring that are for remote workers.
    pack : callable
        Returns the pickled data set, and the files of a Dataset, as bytes. Called here, and again
        in a thread of a host if a server of shared workers was lost.
    settings : dict
        The Loader's settings, for the workers. `pack` adds some.
    title : str
        The data set's, for messages.
    alone : bool
        The Loader has no other workers.
    """

    def __init__(
        self,
        core: Any,
        specs: list[RemoteWorkers],
        places: range,
        pack: Callable[[], tuple[bytes, bytes]],
        settings: dict[str, Any],
        title: str,
        alone: bool,
    ) -> None:
        self._core = core
        self._pack = pack
        self._dataset: tuple[bytes, bytes] | None = pack()
        self._size = sum(map(len, self._dataset))
        self.settings = settings
        self._title = title
        self._alone = alone
        self._changed = threading.Condition()
        self.closed = False
        self._free: list[Worker] = []  # each as often as it has free connections
        self._updates: dict[int, bytes] = {}  # by version
        self._used = 0  # places that have a connection
        self._lonely_since = time.monotonic()
        self._why = "no host has answered yet"
        self._opened = [(spec, spec.open(*self._dataset)) for spec in specs]
        self._share = _key_of(self._dataset) if any(spec.shared for spec in specs) else ""
        self._hosts: list[_Host] = []
        first = 0
        for spec, hosts in self._opened:
            for host in hosts:
                self._hosts.append(_Host(self, host, first, spec.shared))
                first += host.workers
        self._drop_dataset()
        self.threads = [
            threading.Thread(target=host.run, name=f"penstock {host.host.title}", daemon=True)
            for host in self._hosts
        ]
        self.threads += [
            threading.Thread(
                target=self._use, args=(place,), name=f"penstock remote {place}", daemon=True
            )
            for place in places
        ]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    # ---- the threads of places -------------------------------------------------------------------

    def _use(self, place: int) -> None:
        """Run tickets in this place, on one worker after the other."""
        while (worker := self._take(place)) is not None:
            why = ""
            try:
                connection = worker.connect()
                self._count_used(1)
                try:
                    why, had_ticket = self._core.run_remote(place, connection)
                finally:
                    self._count_used(-1)
                self._end(place, worker if why and had_ticket else None)
            except Error as error:  # the worker ended meanwhile
                why = self._why = str(error)
            except Exception as error:
                self.fail(error)
            self._give_back(worker, place, why)
            with self._changed:
                self._check_patience()

    def _end(self, place: int, lost: Worker | None) -> None:
        """Leave the ticket in hand to the supervisor. `lost`: the worker that had it."""
        charged, call = (False, 0) if lost is None else self._verdict(lost, place)
        self._core.end_remote(place, charged, call)

    def _verdict(self, worker: Worker, place: int) -> tuple[bool, int]:
        """Whether the ticket of a lost connection counts as lost by it, and the call in hand.

        It counts if the worker's process ended while it ran the ticket, or did not end. A ticket
        that waited there for its turn does not.
        """
        with self._changed:
            if not worker.host.shared:
                self._send(worker.host, do="replace", worker=worker.number)  # unless it has ended
            self._changed.wait_for(
                lambda: self.closed or worker.running >= 0 or worker.host_lost, _VERDICT_S
            )
            if worker.running >= 0:
                return worker.running == place + 1, worker.call
            return True, _engine.UNKNOWN_CALL

    def _take(self, place: int) -> Worker | None:
        with self._changed:
            while not (self.closed or self._core.closed()):
                if self._free:
                    worker = self._free.pop(0)
                    worker.places.add(place)
                    return worker
                self._changed.wait(1.0)
                self._check_patience()
            return None

    def _give_back(self, worker: Worker, place: int, why: str) -> None:
        if why and worker.host.shared:
            self.sleep(_SHARED_PAUSE_S)
        with self._changed:
            worker.places.discard(place)
            host = worker.host
            if self.closed or host.workers.get(worker.number) is not worker:
                self._close_if_left(host)
                return
            if host.leaving:
                if not worker.places:
                    host.workers.pop(worker.number)
                self._close_if_left(host)
            elif why and not host.shared:
                # The worker hangs, or the network failed: another process takes its place.
                self._forget(worker)
                self._send(host, do="replace", worker=worker.number)
            else:
                self._free.append(worker)
                self._freed()

    def _count_used(self, change: int) -> None:
        with self._changed:
            self._used += change
            self._lonely_since = time.monotonic()

    def _check_patience(self) -> None:
        if self._used or self._core.closed():
            self._lonely_since = time.monotonic()
        elif self._alone and time.monotonic() - self._lonely_since > PATIENCE_S:
            self.fail(
                WorkerLost(
                    f"no remote worker could be reached for {PATIENCE_S:.0f} s: {self._why}",
                    "Loader",
                )
            )

    # ---- the threads of hosts --------------------------------------------------------------------

    def joined(self, host: _Host, connection: Any, secret: bytes) -> bool:
        """Begin with a host; return False if the Loader was closed."""
        from .. import __version__

        head: dict[str, Any] = {
            "do": "open",
            "version": __version__,
            "workers": host.host.workers,
            "first": host.first,
            "settings": self.settings,
            "key": host.host.key,
            "share": self._share if host.shared else "",
            "title": self._title,
            "size": self._size,
        }
        messages.send(connection, **head)
        with self._changed:
            if self.closed:
                connection.close()
                return False
            host.connection = connection
            host.secret = secret
            host.leaving = False
            host.files = KnownFiles()
            self._changed.notify_all()  # places that wait for a host ask it for their files
            for version, body in self._updates.items():
                self._send(host, body, do="update", version=version, keep=list(self._updates))
        return True

    def send_dataset(self, host: _Host, connection: Any) -> None:
        """Send the data set to a host that asks for it."""
        dataset = self._dataset
        if dataset is None:  # an earlier server had it
            dataset = self._dataset = self._pack()
            self._size = sum(map(len, dataset))
            if host.shared and (key := _key_of(dataset)) != self._share:
                self._share = key
                raise Closed("the data set has changed: the host is asked again", "Loader")
        payload, files = dataset
        messages.send(connection, payload + files, do="dataset", size=len(payload))

    def starting(self) -> None:
        """A host has no worker ready yet, and starts some."""
        with self._changed:
            self._lonely_since = time.monotonic()

    def _drop_dataset(self) -> None:
        """Forget the pickled data set, if the hosts have it, or other Loaders could bring it."""
        if all(host.host.key or (host.shared and host.workers) for host in self._hosts):
            self._dataset = None

    def warn_of_unlike(self, host: _Host) -> None:
        LOG.warning(
            "another Loader shares workers of %s, and its %s has as many bytes and other values: "
            "this one gets processes of its own. Give all ranks the same data set, without the "
            "rank in it; sets of texts have another order in each process",
            host.host.title,
            self._title,
        )

    def came(self, host: _Host, number: int, loader: int, address: str, local: str) -> None:
        with self._changed:
            worker = host.workers[number] = Worker(host, number, loader, address, local)
            host.all_workers[number] = worker
            if not host.leaving:
                self._free += [worker] * self.settings["in_flight"]
                self._changed.notify_all()
            self._drop_dataset()

    def answered(self, host: _Host, paths: list[str], there: list[bool]) -> None:
        with self._changed:
            host.files.answered(paths, there)
            self._changed.notify_all()

    def ended(self, host: _Host, message: dict[str, Any]) -> None:
        number, how = int(message["worker"]), str(message["how"])
        with self._changed:
            worker = host.all_workers.pop(number, None)
            if worker is not None:
                worker.running, worker.call = int(message["running"]), int(message["call"])
                self._forget(worker)
                self._changed.notify_all()
        LOG.warning("a worker of %s on %s %s: replaced", self._title, host.host.title, how)
        self._core.count_restart()

    def leave(self, host: _Host) -> None:
        with self._changed:
            host.leaving = True
            self._free = [worker for worker in self._free if worker.host is not host]
            for number, worker in list(host.workers.items()):
                for place in worker.places:
                    self._core.retire_remote(place)
                if not worker.places:
                    host.workers.pop(number)
            self._close_if_left(host)

    def left(self, host: _Host) -> None:
        """Forget the workers of a host whose connection ended."""
        with self._changed:
            if host.connection is None:
                return
            host.connection.close()
            host.connection = None
            workers = list(host.all_workers.values())
            for worker in workers:
                worker.host_lost = True
                self._forget(worker)
            host.all_workers.clear()
            self._changed.notify_all()
            orderly = self.closed or host.leaving
        if not orderly:
            LOG.warning(
                "the connection to %s, with %d workers of %s, has ended",
                host.host.title,
                len(workers),
                self._title,
            )

    def unreachable(self, host: _Host, error: Exception) -> None:
        self._why = f"{host.host.title}: {error}"

    def lost(self, error: Closed) -> None:
        """A host never comes back."""
        if self._alone:
            self.fail(WorkerLost(str(error), "Loader"))

    def fail(self, error: BaseException) -> None:
        self._core.set_fatal(error)

    def sleep(self, seconds: float) -> None:
        """Wait, but not past `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed, seconds)

    def _forget(self, worker: Worker) -> None:
        worker.host.workers.pop(worker.number, None)
        self._free = [each for each in self._free if each is not worker]
        worker.lines.clear()
        for place in worker.places:
            self._cut(place)

    def _cut(self, place: int) -> None:
        """End the connection of a place. With the lock."""
        self._core.cut_remote(place)

    def _freed(self) -> None:
        """A worker has a free connection: wake a place. With the lock."""
        self._changed.notify()

    def _close_if_left(self, host: _Host) -> None:
        if host.leaving and not host.workers and host.connection is not None:
            host.connection.close()  # wakes its thread

    def _send(self, host: _Host, body: bytes = b"", **message: Any) -> None:
        if host.connection is not None:
            with contextlib.suppress(Closed, errors.Timeout):  # its thread sees the end
                messages.send(host.connection, body, **message)

    # ---- the Loader ------------------------------------------------------------------------------

    def update(self, version: int, change: bytes, keep: set[int]) -> None:
        """Send a change of the data set; `keep`: the versions that new workers need."""
        with self._changed:
            self._updates = {v: body for v, body in self._updates.items() if v in keep}
            self._updates[version] = change
            for host in self._hosts:
                self._send(host, change, do="update", version=version, keep=list(self._updates))

    def close(self) -> None:
        """End the connections: with them, the workers. After the core was closed."""
        with self._changed:
            self.closed = True
            for host in self._hosts:
                if host.connection is not None:
                    host.connection.close()
            self._changed.notify_all()
        for spec, hosts in self._opened:
            with contextlib.suppress(Exception):
                spec.close(hosts)


def _key_of(dataset: tuple[bytes, bytes]) -> str:
    """A hash of the pickled data set and the files of a Dataset."""
    digest = hashlib.blake2b(digest_size=16)
    for part in dataset:
        digest.update(b"%d:" % len(part))
        digest.update(_engine.digest(part))
    return digest.hexdigest()

"""A Loader's remote workers where only some hosts have a ticket's files: see `Locality`."""

from __future__ import annotations

import time
from typing import Any

from ..errors import Error, WorkerLost
from .hosts import PATIENCE_S, Hosts, Worker
from .locality import Locality, no_host_has


class RoutedHosts(Hosts):
    """As `Hosts`, but a place uses another worker for each ticket, over connections that stay open.

    A worker that is free is in ``_free`` as often as it has connections that no place uses.
    """

    def __init__(self, locality: Locality, *args: Any) -> None:
        self._locality = locality
        # By place: the worker of the ticket in hand, and the connection to it.
        self._routed: dict[int, tuple[Worker, Any]] = {}
        super().__init__(*args)

    def _use(self, place: int) -> None:
        """Run tickets in this place, each on a worker whose host has its files."""
        while not (self.closed or self._core.closed()):
            try:
                why, had_ticket = self._core.run_routed(place, self._route, self._done)
                worker, _ = self._routed.pop(place, (None, None))
                self._end(place, worker if why and had_ticket else None)
                if worker is not None:
                    self._give_back(worker, place, why)
            except Exception as error:
                self.fail(error)

    def _route(self, place: int, indices: list[int]) -> Any:
        """Return a connection to a worker for these samples; see RoutedWorker (bindings)."""
        try:
            paths = self._locality.paths_of(indices)
            while True:
                worker = self._take_routed(place, paths)
                if not isinstance(worker, Worker):
                    return worker
                why = self._connect(place, worker)
                if not why:
                    return self._routed[place][1]
                self._give_back(worker, place, why)
        except Exception as error:  # the user's, of locality=
            self.fail(error)
            return None

    def _connect(self, place: int, worker: Worker) -> str:
        """Give the place an open connection; return why there is none."""
        with self._changed:
            line = worker.lines.pop() if worker.lines else None
        if line is None:
            try:
                line = self._core.remote_line(worker.connect())
            except Error as error:  # the worker ended meanwhile
                return str(error)
        with self._changed:
            if worker.host.workers.get(worker.number) is not worker:
                return "it ended"
            self._routed[place] = worker, line
        return ""

    def _done(self, place: int) -> None:
        worker, line = self._routed.pop(place)
        with self._changed:
            worker.lines.append(line)
        self._give_back(worker, place, "")

    def _take_routed(self, place: int, paths: list[str]) -> Worker | str | None:
        """Take a worker whose host has these files; or say why there is none. None: closed."""
        since = time.monotonic()
        with self._changed:
            while not (self.closed or self._core.closed()):
                there = [host for host in self._hosts if host.connection is not None]
                for host in there:
                    if new := host.files.unasked(paths):
                        self._send(host, do="have", paths=new)
                having = [host for host in there if host.files.has(paths) and not host.leaving]
                free = [worker for worker in self._free if worker.host in having]
                if free:
                    counts = {host: sum(each.host is host for each in free) for host in having}
                    best = max(having, key=lambda host: counts[host])
                    worker = next(each for each in free if each.host is best)
                    self._free.remove(worker)
                    worker.places.add(place)
                    return worker
                if having:
                    since = time.monotonic()
                elif len(there) == len(self._hosts) and all(
                    host.files.has(paths) is False for host in there
                ):
                    return no_host_has(paths, {host.host.title: host.files for host in there})
                elif time.monotonic() - since > PATIENCE_S:
                    self.fail(
                        WorkerLost(
                            f"no remote worker that has {paths[0]} could be reached for "
                            f"{PATIENCE_S:.0f} s: {self._why}",
                            "Loader",
                        )
                    )
                self._changed.wait(1.0)
            return None

    # ---- hooks of Hosts --------------------------------------------------------------------------

    def _cut(self, place: int) -> None:
        if place in self._routed:
            self._routed[place][1].cut()

    def _freed(self) -> None:
        self._changed.notify_all()  # not every place can use this worker

"""The processes of a parameter server: a supervisor, and one process for each shard.

This process owns the shards' memory. The supervisor is a new interpreter with only the engine in
it; it forks the shards, and restarts shards that end. If the supervisor ends, this process starts
another. When this process ends, for any reason, the supervisor ends with its shards.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Iterator

from .. import _engine
from ..errors import Closed, Error, System
from ..processes.child import Started, spawn, start_child

__all__ = ["ShardProcesses"]

_START_TIMEOUT = 60.0
_DRAIN_MS = 1000
_log = logging.getLogger("penstock")
_alive: weakref.WeakSet[ShardProcesses] = weakref.WeakSet()


def _close_in_child() -> None:
    # A child's copy of the socket would keep the shards running after their server has ended.
    for processes in list(_alive):
        processes.close_in_child()
    _alive.clear()


def _close() -> None:
    # At exit, before threads are stopped.
    with contextlib.ExitStack() as closing:
        for processes in list(_alive):
            closing.callback(processes.close)


os.register_at_fork(after_in_child=_close_in_child)
atexit.register(_close)


class ShardProcesses:
    """Starts the processes, and knows their pids and addresses. Threads: any."""

    def __init__(self, plan: _engine.ShardProcesses) -> None:
        self._plan = plan
        self._changed = threading.Condition()
        self._pids = [0] * len(plan.listen)
        self._starts = 0
        self._failures: dict[int, str] = {}  # by shard: the reason why it cannot be started
        self._unsaved: Error | None = None
        self._closed = False
        self._ended = False
        self.addresses: list[str] = list(plan.listen)
        # The socket pair: this end, and the supervisor's until it has it.
        self._ends: tuple[socket.socket, ...] = ()
        self._process: Started | None = None
        _alive.add(self)
        self._watching = threading.Thread(target=self._watch, daemon=True)
        try:
            self._watching.start()
            with self._changed:
                self._changed.wait_for(lambda: all(self._pids) or self._failures, _START_TIMEOUT)
                ready = all(self._pids)
            if not ready:
                raise System(self.failure or "its processes did not start", "ParameterServer")
            plan.start_saving()
        except BaseException:  # also Ctrl-C: nothing else would end these processes
            self.close()
            raise

    def _watch(self) -> None:
        try:
            self._supervise()
            self._plan.end_saving()
        except Error as error:
            self._unsaved = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _supervise(self) -> None:
        """Run supervisors, one after the other, until close()."""
        pause = 0.0
        while True:
            before = self._starts
            try:
                self._run()
            except Exception as error:  # for callers that wait for the processes
                _warn(self._record_failure(0, str(error)))
            pause = 0.0 if self._starts > before else min(1.0, 2 * pause + 0.05)
            with self._changed:
                if not all(self._pids):  # the server never served
                    self._failures.setdefault(0, "the supervisor of its shards has ended")
                    self._changed.notify_all()
                    return
                if self._changed.wait_for(lambda: self._closed, pause):
                    return

    def _run(self) -> None:
        """Start a supervisor, and process its messages until all processes have ended."""
        fds = {str(n): fd for n, fd in enumerate(self._plan.descriptors())}
        if self._plan.lock >= 0:
            fds["lock"] = self._plan.lock
        with self._changed:
            if self._closed:
                return
            ours, theirs = self._ends = socket.socketpair()
        with ours, theirs:
            # In a session of its own: Ctrl-C goes to this process, which ends them in order.
            process = self._process = start_child(
                spawn,
                "penstock.processes.shard_supervisor:main",
                0,
                {**fds, "control": theirs.fileno()},
                {"text": self._plan.text(self.addresses)},
                session=True,
            )
            try:
                theirs.close()
                for line in _lines_of(ours, process):
                    self._on_message(line)
            finally:
                ours.close()  # ends the supervisor
                process.wait()
                process.close()

    def _on_message(self, line: str) -> None:
        number, pid, rest = line.split(" ", 2)
        shard, warning = int(number), ""
        with self._changed:
            if pid == "0":
                warning = self._record_failure(shard, rest)
            else:
                self._failures.pop(shard, None)
                self._starts += 1
                self._pids[shard] = int(pid)
                self.addresses[shard] = rest
            self._changed.notify_all()
        _warn(warning)

    def _record_failure(self, shard: int, why: str) -> str:
        """Record why a shard cannot be started; return a warning if the server was complete."""
        with self._changed:
            known = self._failures.get(shard) == why
            self._failures[shard] = why
            self._changed.notify_all()
            if known or self._closed or not all(self._pids):
                return ""
        return f"shard {shard} cannot be restarted; trying again: {why}"

    @property
    def failure(self) -> str:
        """The reasons why shards are missing; empty if all run."""
        with self._changed:
            return "; ".join(self._failures.values())

    @property
    def pids(self) -> list[int]:
        with self._changed:
            if self._closed:
                raise Closed("the server was closed", "ParameterServer")
            return list(self._pids)

    @property
    def restarts(self) -> int:
        with self._changed:
            return max(0, self._starts - len(self._pids))

    def close(self) -> None:
        """End all processes in order. Idempotent; after an interruption it can be called again.

        Raises
        ------
        System
            A last snapshot could not be written. Raised once.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            with contextlib.suppress(OSError, IndexError):
                self._ends[0].shutdown(
                    socket.SHUT_WR
                )  # the supervisor waits for this; _run() reads until it has ended
            if threading.current_thread() is self._watching or self._watching.ident is None:
                return
            if sys.is_finalizing():
                return
            # Not join() alone: after an interruption it returns at once.
            self._changed.wait_for(lambda: self._ended)
        self._watching.join()
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None:
            raise unsaved

    def close_in_child(self) -> None:
        """Close the socket in a forked child: it is the parent's."""
        self._changed = threading.Condition()  # a thread of the parent may hold the lock
        self._closed = True
        for end in self._ends:
            fd = end.detach()
            if fd >= 0:
                os.close(fd)


def _warn(text: str) -> None:
    # Without a lock, and ignoring exceptions: a handler may do anything.
    if text:
        with contextlib.suppress(Exception):
            _log.warning(text)


def _lines_of(line: socket.socket, supervisor: Started) -> Iterator[str]:
    """Yield the messages of the supervisor and its shards until they have ended.

    Does not wait for other holders of their end of the socket, such as a child forked meanwhile.
    Does not reap the supervisor.
    """
    unread, timeout = b"", -1
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(supervisor.pidfd, select.POLLIN)
    while ready := [fd for fd, _ in poll.poll(timeout)]:
        if supervisor.pidfd in ready:
            poll.unregister(supervisor.pidfd)
            # Kills shards that are stopped; the others have ended. The supervisor is not reaped
            # yet, so no other process group has its id.
            os.killpg(supervisor.pid, signal.SIGKILL)
            timeout = _DRAIN_MS
        if line.fileno() in ready:
            piece = line.recv(1 << 16)
            if not piece:
                return
            *lines, unread = (unread + piece).split(b"\n")
            for each in lines:
                yield each.decode(errors="replace")

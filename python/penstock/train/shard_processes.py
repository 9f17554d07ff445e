"""The processes of a parameter server: one that watches, and one for each shard.

The memory of the shards is this process's. The one that watches is a fresh interpreter with nothing
but the engine in it; it forks the shards, and forks again those that end. If it ends itself,
another is started here. It notices this process's end, however that came about, and ends with its
shards.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

from .. import _engine
from ..errors import Closed, Error, System

__all__ = ["ShardProcesses"]

_PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from penstock import _engine
control, memories = int(sys.argv[2]), [int(number) for number in sys.argv[3:]]
import socket
line = socket.socket(fileno=control)
text = line.makefile("r", encoding="utf-8", newline="\\n").readline()
if text.endswith("\\n"):
    _engine.supervise_shards(text, memories, control)
"""
_PATIENCE = 60.0
_LAST_WORDS_MS = 1000
_log = logging.getLogger("penstock")
_alive: weakref.WeakSet[ShardProcesses] = weakref.WeakSet()


def _forget() -> None:
    # A child's copy of the line would keep the shards when their server is gone.
    for processes in list(_alive):
        processes.forget()
    _alive.clear()


def _close() -> None:
    # Later no thread can watch any more.
    with contextlib.ExitStack() as closing:
        for processes in list(_alive):
            closing.callback(processes.close)


os.register_at_fork(after_in_child=_forget)
atexit.register(_close)


class ShardProcesses:
    """Starts them, and knows where they are. Any thread."""

    def __init__(self, plan: _engine.ShardProcesses) -> None:
        self._plan = plan
        self._changed = threading.Condition()
        self._pids = [0] * len(plan.listen)
        self._starts = 0
        self._failures: dict[int, str] = {}  # of a shard: why it cannot be started
        self._unsaved: Error | None = None
        self._closed = False
        self._ended = False
        self.addresses: list[str] = list(plan.listen)
        # Of the line: ours, and theirs until they have it.
        self._ends: tuple[socket.socket, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        _alive.add(self)
        self._watching = threading.Thread(target=self._watch, daemon=True)
        try:
            self._watching.start()
            with self._changed:
                self._changed.wait_for(lambda: all(self._pids) or self._failures, _PATIENCE)
                ready = all(self._pids)
            if not ready:
                raise System(self.failure or "its processes did not start", "ParameterServer")
        except BaseException:  # Ctrl-C, too: nobody else knows of these processes
            self.close()
            raise

    def _watch(self) -> None:
        try:
            self._keep()
            self._plan.save_rest()
        except Error as error:
            self._unsaved = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _keep(self) -> None:
        """Have them run until it is closed."""
        pause = 0.0
        while True:
            before = self._starts
            try:
                self._run()
            except Exception as error:  # who waits for them is to know
                _warn(self._note(0, str(error)))
            pause = 0.0 if self._starts > before else min(1.0, 2 * pause + 0.05)
            with self._changed:
                if not all(self._pids):  # it never served
                    self._failures.setdefault(0, "the process that starts its shards has ended")
                    self._changed.notify_all()
                    return
                if self._changed.wait_for(lambda: self._closed, pause):
                    return

    def _run(self) -> None:
        """Start them, and hear what they say until all have ended."""
        memories = self._plan.descriptors()
        text = self._plan.text(self.addresses).encode() + b"\n"
        path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        with self._changed:
            if self._closed:
                return
            ours, theirs = self._ends = socket.socketpair()
        with ours, theirs:
            number = theirs.fileno()
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, path, *map(str, (number, *memories))],
                pass_fds=(number, *memories),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process: it ends them in good order
            )
            try:
                theirs.close()
                with contextlib.suppress(BrokenPipeError):  # it has ended, or was told to
                    ours.sendall(text)
                for line in _lines_of(ours, process.pid):
                    self._hear(line)
            finally:
                ours.close()  # whatever went wrong, it ends now
                process.wait()

    def _hear(self, line: str) -> None:
        number, pid, rest = line.split(" ", 2)
        shard, warning = int(number), ""
        with self._changed:
            if pid == "0":
                warning = self._note(shard, rest)
            else:
                self._failures.pop(shard, None)
                self._starts += 1
                self._pids[shard] = int(pid)
                self.addresses[shard] = rest
            self._changed.notify_all()
        _warn(warning)

    def _note(self, shard: int, why: str) -> str:
        """Note why a shard is not there; return what is to be told of a server that was."""
        with self._changed:
            known = self._failures.get(shard) == why
            self._failures[shard] = why
            self._changed.notify_all()
            if known or self._closed or not all(self._pids):
                return ""
        return f"shard {shard} cannot be started again, and is tried on: {why}"

    @property
    def failure(self) -> str:
        """Why a shard that is to be there is not; empty if all are."""
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
        """End all of them, in good order. Any number of times; an interrupted one is gone on with.

        Raises
        ------
        System
            A last snapshot could not be written. Once.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            with contextlib.suppress(OSError, IndexError):
                self._ends[0].shutdown(socket.SHUT_WR)  # for this they wait; it hears them end
            if threading.current_thread() is self._watching or self._watching.ident is None:
                return
            if sys.is_finalizing():
                return
            # Not join() alone: one that was interrupted takes the thread to have ended.
            self._changed.wait_for(lambda: self._ended)
        self._watching.join()
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None:
            raise unsaved

    def forget(self) -> None:
        """Let go of the line, in a forked child: it is its parent's."""
        self._changed = threading.Condition()  # a thread that is not here may have had the lock
        self._closed = True
        for end in self._ends:
            fd = end.detach()
            if fd >= 0:
                os.close(fd)


def _warn(text: str) -> None:
    # With no lock held, and whatever it raises: a handler may do what it likes.
    if text:
        with contextlib.suppress(Exception):
            _log.warning(text)


def _lines_of(line: socket.socket, supervisor: int) -> Iterator[str]:
    """What the one that watches, and its shards, say until they have ended.

    Whoever else has their end of the line, such as a child that was forked meanwhile, does not
    matter. Who watches is not reaped here.
    """
    said, patience = b"", -1
    ended = os.pidfd_open(supervisor)
    try:
        poll = select.poll()
        poll.register(line, select.POLLIN)
        poll.register(ended, select.POLLIN)
        while ready := [fd for fd, _ in poll.poll(patience)]:
            if ended in ready:
                poll.unregister(ended)
                # They have ended with it, but for those that are stopped. It is not reaped yet, so
                # that nobody else's group has its number.
                os.killpg(supervisor, signal.SIGKILL)
                patience = _LAST_WORDS_MS
            if line.fileno() in ready:
                try:
                    piece = line.recv(1 << 16)
                except ConnectionResetError:  # it has not read all that it was told
                    piece = b""
                if not piece:
                    return
                *lines, said = (said + piece).split(b"\n")
                for each in lines:
                    yield each.decode(errors="replace")
    finally:
        os.close(ended)

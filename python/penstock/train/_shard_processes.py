"""The processes of a parameter server: one that watches, and one for each shard.

The memory of the shards is this process's. The one that watches is a fresh interpreter with nothing
but the engine in it; it forks the shards, and forks again those that end. If it ends itself,
another is started here. It notices this process's end, however that came about, and ends with its
shards.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import weakref

from .. import _engine
from ..errors import Closed, System

__all__ = ["ShardProcesses"]

_PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from penstock import _engine
control, memories = int(sys.argv[2]), [int(number) for number in sys.argv[3:]]
import socket
line = socket.socket(fileno=control)
text = line.makefile("r").readline()
_engine.supervise_shards(text, memories, control)
"""
_PATIENCE = 60.0
_log = logging.getLogger("penstock")
_alive: weakref.WeakSet[ShardProcesses] = weakref.WeakSet()


def _forget() -> None:
    # A child's copy of the line would keep the shards when their server is gone.
    for processes in list(_alive):
        processes.forget()


os.register_at_fork(after_in_child=_forget)


class ShardProcesses:
    """Starts them, and knows where they are. Any thread."""

    def __init__(self, plan: _engine.ShardProcesses) -> None:
        self._plan = plan
        self._changed = threading.Condition()
        self._pids = [0] * len(plan.listen)
        self._starts = 0
        self._failures: dict[int, str] = {}  # of a shard: why it cannot be started
        self._unsaved: list[str] = []
        self._closed = False
        self.addresses: list[str] = list(plan.listen)
        self._control, self._process = self._start()
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

    def _start(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        with theirs:
            memories = self._plan.descriptors()
            numbers = [str(number) for number in (theirs.fileno(), *memories)]
            path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, path, *numbers],
                pass_fds=(theirs.fileno(), *memories),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process: it ends them in good order
            )
        ours.sendall(self._plan.text(self.addresses).encode() + b"\n")
        return ours, process

    def _watch(self) -> None:
        pause = 0.0
        while True:
            heard = False
            with contextlib.suppress(OSError), self._control.makefile("r") as lines:
                for line in lines:
                    self._hear(line)
                    heard = True
            self._process.wait()
            pause = 0.0 if heard else min(1.0, 2 * pause + 0.05)
            with self._changed:
                if not all(self._pids):  # it never served
                    self._failures.setdefault(0, "the process that starts its shards has ended")
                    self._changed.notify_all()
                    return
                if self._changed.wait_for(lambda: self._closed, pause):
                    return
                self._control.close()
                try:
                    self._control, self._process = self._start()
                except OSError as error:
                    self._say(0, str(error))

    def _hear(self, line: str) -> None:
        number, pid, rest = line.rstrip("\n").split(" ", 2)
        shard = int(number)
        with self._changed:
            if pid == "-1":
                self._unsaved.append(rest)
            elif pid == "0":
                self._say(shard, rest)
            else:
                self._failures.pop(shard, None)
                self._starts += 1
                self._pids[shard] = int(pid)
                self.addresses[shard] = rest
            self._changed.notify_all()

    def _say(self, shard: int, why: str) -> None:
        """Note why a shard is not there, and tell whoever looks at a server that was."""
        if all(self._pids) and not self._closed and self._failures.get(shard) != why:
            text = f"shard {shard} cannot be started again, and is tried on: {why}"
            _log.warning(text)
        self._failures[shard] = why

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
            process = self._process
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)  # they may have a last word
        process.wait()
        if threading.current_thread() is not self._watching and self._watching.ident is not None:
            self._watching.join()
        self._control.close()
        unsaved, self._unsaved = self._unsaved, []
        if unsaved:
            text = "the last snapshot could not be written: " + "; ".join(unsaved)
            raise System(text, "ParameterServer")

    def forget(self) -> None:
        """Let go of the line, in a forked child: it is its parent's."""
        self._changed = threading.Condition()  # a thread that is not here may have had the lock
        self._closed = True
        fd = self._control.detach()
        if fd >= 0:
            os.close(fd)

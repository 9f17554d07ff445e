"""The parent's end of the fork server; the other end is `zygote`."""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import socket
import threading
from typing import Any, ClassVar

from .. import errors
from . import child

_PATIENCE = 60.0  # seconds for an answer; the first answer waits for NumPy's import


class ForkServer:
    """One per process, shared by all Loaders that use it; ends with the last of them."""

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _shared: ClassVar[ForkServer | None] = None

    def __init__(self) -> None:
        self._users = 0
        self._pid = os.getpid()
        self._launch()

    @classmethod
    def shared(cls) -> ForkServer:
        """Return the process's server, which is started if needed, and add a user."""
        with cls._lock:
            if cls._shared is None or cls._shared._pid != os.getpid():
                cls._shared = ForkServer()
            cls._shared._users += 1
            return cls._shared

    def release(self) -> None:
        """Remove a user; the server ends with the last one."""
        with self._lock:
            self._users -= 1
            if self._users <= 0:
                if ForkServer._shared is self:
                    ForkServer._shared = None
                self._end()

    def start(self, config: dict[str, Any], descriptors: dict[str, int]) -> child.Started:
        """Start a worker; waits until the server has forked, not for the worker."""
        if self._pid != os.getpid():
            raise errors.InvalidArgument(
                "this process was forked from the one that made the Loader; make a new one", "start"
            )
        config_fd = child.write_config(
            {**config, "order": ["config", *descriptors], "environment": dict(os.environ)}
        )
        fds = [config_fd, *descriptors.values()]
        try:
            with self._lock:
                if self._process.wait(0) is not None:  # killed; workers do not need it
                    self._end()
                    self._launch()
                answer, received = self._ask(("start",), fds)
                process = self._process
                if answer[0] != "error" and not received:
                    self._ask(("kill", answer[0]), [])
                    answer = ("error", "no descriptor left for its handle")
        finally:
            os.close(config_fd)
        if answer[0] == "error":
            raise errors.System(f"the fork server cannot start a worker: {answer[1]}", "start")
        serial, pid = answer
        return child.Started(pid, received[0], lambda: self._status(process, serial))

    def _status(self, process: child.Started, serial: int) -> int:
        with self._lock, contextlib.suppress(OSError, errors.System, errors.Timeout):
            if process is self._process:
                (status,), _ = self._ask(("status", serial), [])
                if status is not None:
                    return os.waitstatus_to_exitcode(status)
        return child.UNKNOWN_STATUS

    def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link = ours
        try:
            self._process = child.start_child(
                child.spawn,
                "penstock.processes.zygote:main",
                0,
                {"socket": theirs.fileno()},
                {},
                capture=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child.own_descriptors.add(ours.fileno())

    def _end(self) -> None:
        child.own_descriptors.discard(self._link.fileno())
        self._link.close()
        # It ends by itself when the link ends. If it hangs, do not wait longer.
        if self._process.wait(1.0) is None:
            self._process.kill()
            self._process.wait()
        self._process.close()

    def _ask(self, request: tuple[Any, ...], fds: list[int]) -> tuple[Any, list[int]]:
        try:
            socket.send_fds(self._link, [marshal.dumps(request)], fds)
            poll = select.poll()
            poll.register(self._link, select.POLLIN)
            if not poll.poll(_PATIENCE * 1000):
                raise errors.Timeout(f"no answer in {_PATIENCE:.0f} s", "fork server")
            message, received, _, _ = socket.recv_fds(self._link, 4096, 1, socket.MSG_CMSG_CLOEXEC)
        except (BrokenPipeError, ConnectionResetError):
            message = b""
        if not message:
            status = self._process.wait(1.0)
            how = "closed its link" if status is None else child.describe_exit(status)
            raise errors.System(f"the fork server {how}\n{self._process.said()}".rstrip(), "start")
        return marshal.loads(message), received


def _forget() -> None:
    # In a forked child, the lock may be held by a thread that does not exist.
    ForkServer._lock = threading.RLock()


os.register_at_fork(after_in_child=_forget)

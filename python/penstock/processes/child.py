"""A child process: starting a fresh interpreter, its handle, and its exit status."""

from __future__ import annotations

import contextlib
import errno
import functools
import marshal
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..errors import Closed, Error, InvalidArgument, System
from . import bootstrap
from .memfile import memory_file

UNKNOWN_STATUS = 1 << 16  # another thread or library reaped the process
_STDERR_TAIL = 4096
Starter = Callable[[dict[str, Any], dict[str, int]], "Started"]  # of configuration, descriptors

own_descriptors: set[int] = set()  # descriptors of this process that forked workers close


def describe_exit(status: int) -> str:
    """Describe how a process ended: ``"killed by SIGSEGV"``, ``"exited with 3"``.

    Parameters
    ----------
    status : int
        The result of `Started.wait`: the exit code, or minus the signal's number.
    """
    if status == UNKNOWN_STATUS:
        return "ended with unknown status"
    if status >= 0:
        return f"exited with {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status == signal.SIGKILL:
        name += " (by another process, or by the system because memory was exhausted)"
    return f"killed by {name}"


class Started:
    """A worker process. Any thread may call; owns the process's handle and captured output.

    Attributes
    ----------
    pid : int
    pidfd : int
        Readable when the process has ended. -1 once closed.
    """

    def __init__(self, pid: int, pidfd: int, reap: Callable[[], int]) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self._captured = -1  # a memory file; see start_child()
        self._reap = reap
        self._status: int | None = None
        self._lock = threading.Lock()
        own_descriptors.add(pidfd)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the process; return its status, for `describe_exit`.

        Parameters
        ----------
        timeout : float, optional
            Seconds. None: no limit.

        Returns
        -------
        int or None
            The exit code, minus the number of the signal that killed it, `UNKNOWN_STATUS`, or
            None after the timeout.
        """
        if self._status is None:
            if self.pidfd < 0:
                raise Closed("the worker's handle was closed", "wait")
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if not poll.poll(None if timeout is None else max(0.0, timeout) * 1000):
                return None
            with self._lock:
                if self._status is None:
                    self._status = self._reap()
        return self._status

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal. It never reaches another process, even if this one has ended."""
        with self._lock:
            if self._status is None and self.pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, number)

    def keep(self, captured: int) -> None:
        """Own the memory file to which the process writes its standard error."""
        self._captured = captured

    def said(self) -> str:
        """Return the end of the captured standard error; empty without a capture."""
        with self._lock:
            if self._captured < 0:
                return ""
            size = os.fstat(self._captured).st_size
            tail = os.pread(self._captured, _STDERR_TAIL, max(0, size - _STDERR_TAIL))
        return tail.decode(errors="replace")

    def close(self) -> None:
        """Close the handle, and drop the captured output. The process continues."""
        with self._lock:
            pidfd, self.pidfd = self.pidfd, -1
            captured, self._captured = self._captured, -1
            if pidfd >= 0:
                own_descriptors.discard(pidfd)
                os.close(pidfd)
            if captured >= 0:
                os.close(captured)

    def __del__(self) -> None:
        # At the interpreter's end, modules such as contextlib may be unloaded.
        try:  # noqa: SIM105
            self.close()
        except Exception:
            pass


def start_child(
    start: Starter,
    main: str,
    index: int,
    fds: dict[str, int],
    settings: dict[str, object],
    capture: bool = False,
    session: bool = False,
) -> Started:
    """Start a process that calls ``main(index, fds, settings)``; see `Launcher.start`.

    session : the process leads a session of its own, and continues when this one ends: it must
    notice that by a descriptor. Only for `spawn`.
    """
    if session:
        start = functools.partial(spawn, session=True)
    if not capture:
        return _start(start, main, index, fds, settings, session)
    captured = memory_file("penstock-stderr")
    try:
        started = _start(start, main, index, {**fds, "stderr": captured}, settings, session)
    except BaseException:
        os.close(captured)
        raise
    started.keep(captured)
    return started


def _start(
    start: Starter,
    main: str,
    index: int,
    fds: dict[str, int],
    settings: dict[str, object],
    survives: bool,
) -> Started:
    descriptors = dict(fds)
    if "stderr" in fds and _is_open(2):
        descriptors["original stderr"] = 2
    config = {
        "main": main,
        "index": index,
        "settings": settings,
        "captures": "stderr" in fds,
        "path": [entry for entry in sys.path if isinstance(entry, str)],
        "argv": [str(word) for word in getattr(sys, "argv", [])],
        "recursion": sys.getrecursionlimit(),
        "folder": _folder(),
        "environment": None,
    }
    try:
        if survives:
            return start(config, descriptors)
        descriptors["parent"] = os.pidfd_open(os.getpid())
        try:
            return start(config, descriptors)
        finally:
            os.close(descriptors["parent"])
    except OSError as error:
        if isinstance(error, Error):
            raise
        used_up = error.errno in (errno.EMFILE, errno.ENFILE, errno.EBADF)  # EBADF: of dup2
        raise System(
            f"cannot start a worker process: {error}"
            + ("; raise the limit on open files (ulimit -n)" if used_up else ""),
            "start",
        ) from error


def spawn(config: dict[str, Any], descriptors: dict[str, int], session: bool = False) -> Started:
    """Start a fresh interpreter with `descriptors` at 3, 4, ... behind its configuration."""
    descriptors = dict(descriptors)
    capture = descriptors.pop("stderr", -1)
    config = {**config, "order": ["config", *descriptors]}
    config_fd = write_config(config)
    try:
        sources = [config_fd, *descriptors.values()]
        # First to numbers that no source has, then down: no source is overwritten before its use.
        high = max(*sources, capture, 2 + len(sources)) + 1
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, source, high + i) for i, source in enumerate(sources)
        ]
        if capture >= 0:
            actions.append((os.POSIX_SPAWN_DUP2, capture, 2))
        for i in range(len(sources)):
            actions.append((os.POSIX_SPAWN_DUP2, high + i, 3 + i))
        for i in range(len(sources)):
            actions.append((os.POSIX_SPAWN_CLOSE, high + i))
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
        command = [_interpreter(), *_flags(), "-c", bootstrap.COMMAND]
        # SIGINT waits until the bootstrap ignores it.
        pid = os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=actions,
            setsid=session,
            setsigmask=[signal.SIGINT],
            setsigdef=[signal.SIGTERM, signal.SIGCHLD],
        )
    finally:
        os.close(config_fd)
    return child_of(pid)


def write_config(config: dict[str, Any]) -> int:
    try:
        data = marshal.dumps(config)
    except ValueError as error:
        raise InvalidArgument(f"settings of a worker are small and plain: {error}") from error
    fd = memory_file("penstock-config")
    os.pwrite(fd, data, 0)  # the offset stays at the start, where the worker reads
    return fd


def _interpreter() -> str:
    # Programs that embed Python set the interpreter's path in multiprocessing.
    multiprocessing = sys.modules.get("multiprocessing.spawn")
    found = multiprocessing.get_executable() if multiprocessing is not None else sys.executable
    if not found:
        raise InvalidArgument(
            "sys.executable is empty, so worker processes cannot be started; "
            "name the interpreter with multiprocessing.set_executable(...)",
            "start",
        )
    return os.fsdecode(found)


def _flags() -> list[str]:
    import subprocess

    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # the folder was deleted


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def child_of(pid: int) -> Started:
    """Return the handle of a process that this one forked or spawned."""

    def reap() -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return UNKNOWN_STATUS

    try:
        return Started(pid, os.pidfd_open(pid), reap)
    except OSError:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the id is still this process's
        reap()
        raise

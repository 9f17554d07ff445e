"""Starts worker processes. Used in the parent only.

Three ways, one behaviour: a worker gets descriptors and small settings, runs
``penstock.processes.worker.main`` and ends. None imports the user's ``__main__`` a second time.

- ``"spawn"``: a fresh interpreter. Always safe.
- ``"forkserver"``: forked from a process of ours that has only imported NumPy and the engine.
- ``"fork"``: a copy of this process. Unsafe once any library has started threads, as most have.

Environment variables that libraries read (``OMP_NUM_THREADS`` and its like) are passed on as they
are; under ``"forkserver"`` those read when NumPy is imported count as they were when the first
worker started.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import Closed, Error, InvalidArgument, System
from . import bootstrap
from .bootstrap import restore_stderr
from .memfile import memory_file

__all__ = [
    "UNKNOWN_STATUS",
    "Launcher",
    "Started",
    "check_not_inheriting",
    "describe_exit",
    "restore_stderr",
]

UNKNOWN_STATUS = 1 << 16  # somebody else reaped the process
START_METHODS = ("spawn", "forkserver", "fork")

_GUARD = """\
This Loader is being made while a process started by multiprocessing imports your script again.
Its workers would start again and again. Put what is to run once under this guard:

    if __name__ == "__main__":
        feed = penstock.Loader(...)
        for batch in feed:
            ...
"""


def check_not_inheriting() -> None:
    """Refuse to start workers from a script that another process is importing.

    Raises
    ------
    InvalidArgument
        multiprocessing is importing the parent's ``__main__`` in this process.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise InvalidArgument(_GUARD, "Loader")


def describe_exit(status: int) -> str:
    """Say how a process ended: ``"killed by SIGSEGV"``, ``"exited with 3"``.

    Parameters
    ----------
    status : int
        What `Started.wait` returned: the exit code, or minus the signal's number.
    """
    if status == UNKNOWN_STATUS:
        return "ended, and nobody knows how"
    if status >= 0:
        return f"exited with {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status == signal.SIGKILL:
        name += " (by somebody, or by the system for want of memory)"
    return f"killed by {name}"


class Started:
    """A worker process. Any thread may call; owns the process's handle.

    Attributes
    ----------
    pid : int
    pidfd : int
        Readable when the process has ended. -1 once closed.
    """

    def __init__(self, pid: int, pidfd: int, reap: Callable[[], int]) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self._reap = reap
        self._status: int | None = None
        self._lock = threading.Lock()
        _own.add(pidfd)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the process; return how it ended, for `describe_exit`.

        Parameters
        ----------
        timeout : float, optional
            Seconds. None waits for ever.

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
        """Send a signal; none reaches another process, also when this one has ended."""
        with self._lock:
            if self._status is None and self.pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Close the handle. The process goes on."""
        with self._lock:
            pidfd, self.pidfd = self.pidfd, -1
            if pidfd >= 0:
                _own.discard(pidfd)
                os.close(pidfd)

    def __del__(self) -> None:
        # At the interpreter's end modules are half gone, contextlib too.
        try:  # noqa: SIM105
            self.close()
        except Exception:
            pass


class Launcher:
    """Starts the worker processes of one Loader. Any thread may call.

    Parameters
    ----------
    start_method : {"spawn", "forkserver", "fork"}
    main : str
        Which ``module:function`` workers run, called with (index, fds, settings).
    """

    def __init__(self, start_method: str, main: str = "penstock.processes.worker:main") -> None:
        if start_method not in START_METHODS:
            raise InvalidArgument(
                f"start_method is {start_method!r}; there are {', '.join(START_METHODS)}", "Loader"
            )
        self.start_method = start_method
        self._main = main
        self._server: Any = None
        self._closed = False
        if start_method == "forkserver":
            from .fork_server import ForkServer

            self._server = ForkServer.shared()

    def start(self, index: int, fds: dict[str, int], settings: dict[str, object]) -> Started:
        """Start a worker; returns without waiting for it to be ready.

        Parameters
        ----------
        index : int
            The worker's number.
        fds : dict of str to int
            Descriptors to hand over; the caller keeps its own. The worker sees the same names
            with numbers of its own. What it writes to standard error before it calls
            `restore_stderr` goes to the one named ``"stderr"``, if there is one.
        settings : dict
            Numbers, strings, None, and lists and dicts of them.

        Raises
        ------
        System
            The process could not be started.
        """
        if self._closed:
            raise Closed("the launcher was closed", "start")
        descriptors = dict(fds)
        if "stderr" in fds and _is_open(2):
            descriptors["original stderr"] = 2
        config = {
            "main": self._main,
            "index": index,
            "settings": settings,
            "captures": "stderr" in fds,
            "path": [entry for entry in sys.path if isinstance(entry, str)],
            "argv": [str(word) for word in getattr(sys, "argv", [])],
            "recursion": sys.getrecursionlimit(),
            "folder": _folder(),
            "environment": dict(os.environ) if self._server is not None else None,
        }
        try:
            descriptors["parent"] = os.pidfd_open(os.getpid())
            try:
                if self._server is not None:
                    return self._server.start(config, descriptors)  # type: ignore[no-any-return]
                return (spawn if self.start_method == "spawn" else _fork)(config, descriptors)
            finally:
                os.close(descriptors["parent"])
        except OSError as error:
            if isinstance(error, Error):
                raise
            used_up = error.errno in (errno.EMFILE, errno.ENFILE, errno.EBADF)  # EBADF: by dup2
            raise System(
                f"cannot start a worker process: {error}"
                + ("; raise the limit on open files (ulimit -n)" if used_up else ""),
                "start",
            ) from error

    def close(self) -> None:
        """Start no more. Workers go on."""
        self._closed = True
        server, self._server = self._server, None
        if server is not None:
            server.release()


# ---- spawn --------------------------------------------------------------------------------------


def spawn(config: dict[str, Any], descriptors: dict[str, int]) -> Started:
    """Start a fresh interpreter with `descriptors` at 3, 4, ... behind its configuration."""
    descriptors = dict(descriptors)
    capture = descriptors.pop("stderr", -1)
    config = {**config, "order": ["config", *descriptors]}
    config_fd = write_config(config)
    try:
        sources = [config_fd, *descriptors.values()]
        # First to numbers that no source has, then down: so none is overwritten before it is read.
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
            setsigmask=[signal.SIGINT],
            setsigdef=[signal.SIGTERM, signal.SIGCHLD],
        )
    finally:
        os.close(config_fd)
    return _child(pid)


def write_config(config: dict[str, Any]) -> int:
    try:
        data = marshal.dumps(config)
    except ValueError as error:
        raise InvalidArgument(f"settings of a worker are small and plain: {error}") from error
    fd = memory_file("penstock-config")
    os.pwrite(fd, data, 0)  # the offset stays at the start, where the worker reads
    return fd


def _interpreter() -> str:
    # Programs that embed Python tell multiprocessing where the interpreter is.
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
        return None  # it was deleted


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


# ---- fork ---------------------------------------------------------------------------------------

_own: set[int] = set()  # descriptors of this process that no forked worker should keep


def own(fd: int) -> None:
    """Note a descriptor that forked workers must not keep."""
    _own.add(fd)


def disown(fd: int) -> None:
    """Forget it again; to be called before it is closed."""
    _own.discard(fd)


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(config: dict[str, Any], descriptors: dict[str, int]) -> Started:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # what waits here would be written by the copy as well
    with _no_interrupts():
        with warnings.catch_warnings():
            # Python >= 3.12 warns of threads; whoever asks for fork was told in the docs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            bootstrap.after_fork(config, descriptors, set(_own))
    return _child(pid)


# ---- our own children ---------------------------------------------------------------------------


def _child(pid: int) -> Started:
    def reap() -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return UNKNOWN_STATUS

    try:
        return Started(pid, os.pidfd_open(pid), reap)
    except OSError:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        reap()
        raise

"""The first code that runs in a worker process, with any start method.

At first, a worker's standard error goes to a memory file, so that the parent can quote it if the
worker dies before it is ready; `restore_stderr` ends that. Imports only fast modules.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any, NoReturn

# The program of `python -c`. The configuration is at descriptor 3.
COMMAND = (
    "import marshal,os,sys;_c=marshal.loads(os.read(3,os.fstat(3).st_size));"
    "sys.path[:]=_c['path'];from penstock.processes.bootstrap import run as _r;_r(_c)"
)

_original_stderr = -1
_captures = False


def run(config: dict[str, Any]) -> NoReturn:
    """Run a worker that `python -c` has started, with its descriptors at 3, 4, ..."""
    _take_signals()
    first, count = 3, len(config["order"])
    close_all_but(set(range(first + count)))
    os.close(first)
    numbers = {name: first + i for i, name in enumerate(config["order"]) if i > 0}
    vars(sys.modules["__main__"]).pop("_c", None)
    vars(sys.modules["__main__"]).pop("_r", None)
    run_in(config, numbers)


def run_in(config: dict[str, Any], numbers: dict[str, int], forked: bool = False) -> NoReturn:
    """Call ``config["main"]`` in this process, then end it.

    Parameters
    ----------
    config : dict
        The configuration that `launch` wrote for this worker.
    numbers : dict of str to int
        The descriptors in this process. Standard error already goes to the memory file.
    forked : bool
        Whether this process is a copy of the user's, with the user's exit functions.
    """
    global _original_stderr, _captures
    code = 1
    try:
        for fd in numbers.values():
            os.set_inheritable(fd, False)
        _original_stderr = numbers.pop("original stderr", -1)
        _captures = config["captures"]
        if not forked:
            _become(config)
        parent = numbers.pop("parent", -1)
        if parent >= 0:
            from .. import _engine

            _engine.die_with_parent(parent)
        module, _, function = config["main"].partition(":")
        main = getattr(__import__(module, fromlist=[function]), function)
        main(config["index"], numbers, config["settings"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        # sys.excepthook may be user code.
        sys.__excepthook__(*sys.exc_info())
    finally:
        _finish(code, forked)


def restore_stderr() -> None:
    """Restore the parent's standard error, and write the captured output to it."""
    global _original_stderr, _captures
    if not _captures:
        return
    _captures = False
    _flush(sys.stderr)
    captured = os.pread(2, os.fstat(2).st_size, 0)
    if _original_stderr < 0:
        _original_stderr = os.open(os.devnull, os.O_WRONLY)
    os.dup2(_original_stderr, 2)
    os.close(_original_stderr)
    _original_stderr = -1
    with contextlib.suppress(OSError):  # the other end is closed
        while captured:
            captured = captured[os.write(2, captured) :]


def after_server_fork(config: dict[str, Any], numbers: dict[str, int]) -> NoReturn:
    """Make a fork of the fork server a worker, with the descriptors it was sent."""
    try:
        _redirect(numbers)
        close_all_but(set(numbers.values()))
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
        os._exit(1)
    run_in(config, numbers)


def after_fork(config: dict[str, Any], descriptors: dict[str, int], ours: set[int]) -> NoReturn:
    """Make a fork of the user's process a worker.

    Parameters
    ----------
    descriptors : dict of str to int
        The worker's descriptors, with their numbers in the parent.
    ours : set of int
        Other descriptors of penstock, which are closed here. The user's descriptors stay open,
        because the dataset may need them.
    """
    try:
        _take_signals()
        signal.set_wakeup_fd(-1)  # it belongs to an event loop of the parent
        numbers = {name: os.dup(fd) for name, fd in descriptors.items()}
        nothing = _redirect(numbers)
        # The numbers stay in use, so that their owners, which were copied with the process, do not
        # close another file.
        for fd in ours | _memory_files() | set(descriptors.values()):
            if fd > 2 and fd not in numbers.values():
                os.dup2(nothing, fd, inheritable=False)
        os.close(nothing)
        _own_stderr()
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
        os._exit(1)
    run_in(config, numbers, forked=True)


def _redirect(numbers: dict[str, int]) -> int:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    capture = numbers.pop("stderr", -1)
    if capture >= 0:
        os.dup2(capture, 2)
        os.close(capture)
    return nothing


def close_all_but(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):  # the descriptor of the directory itself is closed
                os.close(fd)


def _memory_files() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:penstock"):
                found.add(int(name))
        except OSError:
            continue
    return found


def _take_signals() -> None:
    # Ctrl-C goes to all processes of the terminal; the parent handles it for the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _become(config: dict[str, Any]) -> None:
    """Take over the parent's folder, paths and arguments for the user's modules."""
    sys.path[:] = config["path"]
    sys.argv[:] = config["argv"]
    sys.setrecursionlimit(config["recursion"])
    environment = config["environment"]
    if environment is not None and environment != dict(os.environ):
        os.environ.clear()
        os.environ.update(environment)
    if config["folder"] is not None:
        try:
            os.chdir(config["folder"])
        except OSError as error:
            print(f"penstock: the worker stays in {os.getcwd()}: {error}", file=sys.stderr)


def _own_stderr() -> None:
    """Replace a sys.stderr of the parent's notebook or test by descriptor 2."""
    try:
        if sys.stderr.fileno() == 2:
            return
    except Exception:
        pass
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115


def _flush(stream: Any) -> None:
    with contextlib.suppress(Exception):
        stream.flush()


def _finish(code: int, forked: bool) -> NoReturn:
    # Not the interpreter's normal exit: it would wait for threads that the user left running.
    try:
        if not forked:
            import atexit

            atexit._run_exitfuncs()
        _flush(sys.stdout)
        _flush(sys.stderr)
    finally:
        os._exit(code & 0xFF)

"""Starts worker processes. Used in the parent only.

All three start methods behave alike: a worker gets descriptors and small settings, runs
``penstock.processes.worker.main`` and ends. None imports the user's ``__main__`` a second time.

- ``"spawn"``: a fresh interpreter. Always safe.
- ``"forkserver"``: a fork of a process that has only imported NumPy and the engine.
- ``"fork"``: a copy of this process. Unsafe once any library has started threads, as most do.

Environment variables that libraries read (such as ``OMP_NUM_THREADS``) are passed on. With
``"forkserver"``, variables that are read when NumPy is imported have their values of the time when
the first worker started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from ..errors import Closed, InvalidArgument
from . import bootstrap
from .child import Started, Starter, child_of, own_descriptors, spawn, start_child
from .fork_server import ForkServer

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
    """Raise an error if this process is importing a script for multiprocessing.

    Raises
    ------
    InvalidArgument
        multiprocessing is importing the parent's ``__main__`` in this process.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise InvalidArgument(_GUARD, "Loader")


class Launcher:
    """Starts the worker processes of one Loader. Any thread may call.

    Parameters
    ----------
    start_method : {"spawn", "forkserver", "fork"}
    main : str
        The ``module:function`` that workers run, called with (index, fds, settings).
    """

    def __init__(self, start_method: str, main: str = "penstock.processes.worker:main") -> None:
        if start_method not in START_METHODS:
            raise InvalidArgument(
                f"start_method is {start_method!r}; there are {', '.join(START_METHODS)}", "Loader"
            )
        self.start_method = start_method
        self._main = main
        self._server = ForkServer.shared() if start_method == "forkserver" else None
        self._closed = False

    def start(
        self,
        index: int,
        fds: dict[str, int],
        settings: dict[str, object],
        capture: bool = False,
    ) -> Started:
        """Start a worker; returns without waiting for it to be ready.

        Parameters
        ----------
        index : int
            The worker's number.
        fds : dict of str to int
            Descriptors to hand over; the caller keeps its own. The worker gets the same names with
            other numbers. Until it calls `restore_stderr`, its standard error goes to the
            descriptor named ``"stderr"``, if there is one.
        settings : dict
            Numbers, strings, None, and lists and dicts of them.
        capture : bool
            The handle captures the worker's standard error until the worker calls `restore_stderr`,
            for `Started.said`.

        Raises
        ------
        System
            The process could not be started.
        """
        if self._closed:
            raise Closed("the launcher was closed", "start")
        start: Starter = spawn if self.start_method == "spawn" else _fork
        if self._server is not None:
            start = self._server.start
        return start_child(start, self._main, index, fds, settings, capture)

    def close(self) -> None:
        """Start no more workers. Running workers continue."""
        self._closed = True
        server, self._server = self._server, None
        if server is not None:
            server.release()


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
            stream.flush()  # otherwise the child would write the buffered output, too
    with _no_interrupts():
        with warnings.catch_warnings():
            # Python >= 3.12 warns of threads; the documentation of "fork" has this warning.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            bootstrap.after_fork(config, descriptors, set(own_descriptors))
    return child_of(pid)

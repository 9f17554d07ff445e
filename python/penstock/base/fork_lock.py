"""A lock for what a forked child may go on using."""

from __future__ import annotations

import os
import threading
from typing import Any


class ForkLock:
    """A reentrant lock that a forked child has anew: threads that held it are not there.

    ``with lock.here(): ...``. It is no context manager itself: one that is written in Python stays
    locked for ever if a signal's handler raises where it was locked and ``with`` has not begun.
    """

    def __init__(self) -> None:
        self._locks: dict[int, Any] = {}  # by process

    def here(self) -> Any:
        """Return this process's lock, a `threading.RLock`."""
        pid = os.getpid()
        # In one step: the first threads of a child may come at once.
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.RLock())

"""A lock for objects that stay usable in a forked child."""

from __future__ import annotations

import os
import threading
from typing import Any


class ForkLock:
    """A reentrant lock that a forked child gets unlocked, without the threads that held it.

    ``with lock.here(): ...``. The class is not a context manager: one written in Python would stay
    locked for ever if a signal handler raised between locking and the start of the block.
    """

    def __init__(self) -> None:
        self._locks: dict[int, Any] = {}  # by process

    def here(self) -> Any:
        """Return this process's lock, a `threading.RLock`."""
        pid = os.getpid()
        # In one atomic step: several threads of a child may arrive at the same time.
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.RLock())

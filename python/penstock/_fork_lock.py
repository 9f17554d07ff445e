"""A lock for what a forked child may go on using."""

from __future__ import annotations

import os
import threading


class ForkLock:
    """A reentrant lock that a forked child has anew: threads that held it are not there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._pid = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

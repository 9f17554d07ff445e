"""Calls in other threads, for callers that look at times whether the result is there."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import DataLoss, Error, InvalidArgument, NotFound, System

_IDLE_S = 1.0  # after which a thread ends

# The errors that a call may raise; any other one is a System.
KINDS: dict[str, type[Error]] = {
    kind.__name__: kind for kind in (DataLoss, InvalidArgument, NotFound, System)
}


class Job:
    """A call in another thread. Never raises the call's exception."""

    def __init__(self, call: Callable[[], Any], then: Callable[[Any], Any] | None = None) -> None:
        self._call = call
        self._then = then  # with the call's result, in the thread that polls
        self._done = threading.Event()
        self._result: tuple[str, Any] = ("", None)

    def run(self) -> None:
        try:
            self._result = ("", self._call())
        except Error as error:
            kind = type(error).__name__
            self._result = (kind if kind in KINDS else "System", str(error))
        except BaseException as error:
            self._result = ("System", f"{type(error).__name__}: {error}")
        self._done.set()

    def poll(self, seconds: float) -> tuple[str, Any] | None:
        """Return the name of the error's class ("": none) and its text or the result.

        None: not after `seconds`.
        """
        if not self._done.wait(seconds):
            return None
        if self._then is None or self._result[0]:
            return self._result
        try:
            return "", self._then(self._result[1])
        except Error as error:
            return type(error).__name__, str(error)

    def value(self) -> Any:
        self._done.wait()
        kind, value = self._result
        if kind:
            raise KINDS[kind](value, "read")
        return value


class Threads:
    """Daemon threads that run jobs in order. They do not delay the end of the program."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._started = self._idle = 0

    def submit(self, job: Job) -> Job:
        with self._changed:
            self._jobs.append(job)
            if len(self._jobs) > self._idle and self._started < self._most:
                self._started += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._changed.notify()
        return job

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs, _IDLE_S)
                self._idle -= 1
                if not self._jobs:
                    self._started -= 1
                    return
                job = self._jobs.popleft()
            job.run()
            del job  # its result may be large

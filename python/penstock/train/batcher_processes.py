"""A batcher's calls of other processes, through channels.

A batcher with a name has a channel of requests. Each calling thread of another process has a
channel of replies, whose name comes with each request. Both carry nests of arrays; nothing is
pickled.

- request: ``{"to": name of the replies, "call": number, "x": input}``, or ``{"to": ...,
  "withdraw": number}``
- reply: ``{"call": number, "y": row}``, or ``{"call": ..., "error": class, "text": ..., "trace":
  ...}``
"""

from __future__ import annotations

import builtins
import contextlib
import os
import threading
import time
import traceback
import uuid
import weakref
from typing import TYPE_CHECKING, Any

from .. import _engine, errors
from ..base.arguments import text
from ..base.conventions import Closing
from ..base.nests import mapped
from ..errors import Closed, Error, InvalidArgument, RemoteError, Timeout, WorkerTraceback
from .channel import Channel, Producer, attach_channel, channel
from .rows import array_of

if TYPE_CHECKING:
    from .batcher import Batcher

__all__ = ["BatcherClient", "Requests", "attach_batcher"]

_LOOK = 0.05  # seconds between two looks whether the other end lives
_MEETING = 0.05  # seconds to reach a channel of replies, which exists already


def _requests_of(name: str) -> str:
    text(name, "Batcher")
    if not 0 < len(name.encode()) <= 56:
        raise InvalidArgument(f"the name is {name!r}; give 1 to 56 bytes", "Batcher")
    return f"batcher/{name}"


# ---- the batcher's end


class Requests:
    """Takes the calls of other processes, in a thread of its own."""

    def __init__(self, name: str, max_queue: int) -> None:
        self._channel = channel(_requests_of(name))
        self._max_queue = max_queue
        self._replies: dict[str, _Replies] = {}

    def start(self, end: _engine.ValueBatcher, batcher: weakref.ref[Batcher]) -> None:
        thread = threading.Thread(
            target=self._serve, args=(end, batcher), name="penstock.train.Batcher", daemon=True
        )
        thread.start()

    def close(self) -> None:
        self._channel.close()

    def _serve(self, end: _engine.ValueBatcher, batcher: weakref.ref[Batcher]) -> None:
        looked = time.monotonic()
        while batcher() is not None:
            space = self._max_queue - end.waiting
            try:
                items = self._channel.get(max(space, 1), _LOOK, stack=False) if space > 0 else None
            except Closed:
                return
            except Error:  # an invalid item: its process was disconnected
                continue
            for item in items or ():
                self._take(item, end)
            if space <= 0:
                time.sleep(0.001)
            if time.monotonic() - looked >= _LOOK:
                self._drop_ended(end)
                looked = time.monotonic()

    def _take(self, item: Any, end: _engine.ValueBatcher) -> None:
        try:
            to, withdrawn = str(item["to"]), "withdraw" in item
            number = int(item["withdraw" if withdrawn else "call"])
            x = None if withdrawn else item["x"]
        except (LookupError, TypeError, ValueError):
            return  # not of a BatcherClient
        replies = self._replies.get(to)
        if replies is None:
            try:
                replies = self._replies[to] = _Replies(attach_channel(to, _MEETING))
            except Error:  # it has ended, or is stopped
                return
        if withdrawn:
            call = replies.calls.pop(number, None)
            if call is not None:
                end.withdraw(call)
            return
        replies.calls[number] = None  # before the call can end
        try:
            call = end.submit(x, replies, number)
        except Error as error:
            replies.take([(number, None, error)])
            return
        if number in replies.calls:
            replies.calls[number] = call

    def _drop_ended(self, end: _engine.ValueBatcher) -> None:
        for to, replies in list(self._replies.items()):
            if replies.producer.alive:
                continue
            del self._replies[to]
            for call in list(replies.calls.values()):
                if call is not None:
                    end.withdraw(call)
            replies.producer.close()


class _Replies:
    """Where the results for one caller of another process go."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.calls: dict[int, _engine.BatcherCall | None] = {}  # that have no result yet

    def take(self, items: list[tuple[int, Any, BaseException | None]]) -> None:
        for number, value, error in items:
            self.calls.pop(number, None)
            try:
                self._send(number, value, error)
            except (Closed, Timeout):  # nobody waits for it
                continue

    def _send(self, number: int, value: Any, error: BaseException | None) -> None:
        if error is None:
            try:
                self.producer.put({"call": number, "y": mapped(array_of, value)}, timeout=0)
                return
            except (Closed, Timeout):
                raise
            except Exception as unfit:  # a row that is no nest of arrays, or is too large
                error = unfit
        self.producer.put({"call": number, **_told(error)}, timeout=0)


def _told(error: BaseException) -> dict[str, str]:
    kind = type(error)
    builtin = kind.__module__ in ("builtins", errors.__name__)
    try:
        only = error.args[0] if len(error.args) == 1 else None
        said = only if isinstance(only, str) else str(error)
        trace = "".join(traceback.format_exception(kind, error, error.__traceback__))
    except Exception as broken:  # from its own methods
        said = trace = f"<no text: {type(broken).__name__}>"
    name = kind.__name__ if builtin else f"{kind.__module__}.{kind.__qualname__}"
    return {"error": name, "text": said, "trace": trace}


def _rebuilt(reply: dict[str, str], server: str) -> BaseException:
    name, said = reply["error"], reply["text"]
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    made: BaseException | None = None
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            made = kind(said)
        except Exception:  # its constructor takes other arguments
            made = None
    made = made or RemoteError(f"{name}: {said}", name)
    made.__cause__ = WorkerTraceback(reply["trace"], server)
    return made


# ---- the callers' end


class BatcherClient(Closing):
    """Calls the `Batcher` of another process. `attach_batcher` makes one.

    Threads: any. Each thread has a line of its own to the batcher, from its first call on; so has a
    forked child. A context manager that closes.
    """

    def __init__(self, name: str, timeout: float | None) -> None:
        self._name = name
        self._timeout = timeout
        self._lines = threading.local()
        self._all: weakref.WeakSet[_Line] = weakref.WeakSet()
        self._closed = False
        self._line()

    def __call__(self, x: Any, timeout: float | None = None) -> Any:
        """Return the function's row for ``x``: a nest of NumPy arrays.

        Parameters
        ----------
        x : nest of arrays
            As for `Batcher`. Copied twice: into shared memory, and into the batch.
        timeout : float, optional
            Seconds to wait for the result; None: no limit.

        Raises
        ------
        Timeout
            There was no result for so long. The call is withdrawn.
        Closed
            The batcher was closed, or its process has ended; or this client was closed.
        Exception
            What the function raised, if its class is Python's or penstock's; others are a
            `RemoteError` with the same text. The cause has the traceback.
        """
        return self._line().call(x, timeout)

    @property
    def name(self) -> str:
        """The name of the batcher."""
        return self._name

    @property
    def alive(self) -> bool:
        """Whether the batcher's process is connected now."""
        return not self._closed and self._line().requests.alive

    def close(self) -> None:
        """End all waits; later calls raise `Closed`."""
        self._closed = True
        for line in list(self._all):
            line.close()

    def __repr__(self) -> str:
        return f"<penstock.train.BatcherClient of {self._name!r}>"

    def _line(self) -> _Line:
        if self._closed:
            raise Closed(f"the client of {self._name!r} was closed", "Batcher")
        line: _Line | None = getattr(self._lines, "line", None)
        if line is None or line.pid != os.getpid():
            line = self._lines.line = _Line(self._name, self._timeout)
            self._all.add(line)
        return line


class _Line:
    """The two channels of one thread."""

    def __init__(self, name: str, timeout: float | None) -> None:
        self._name = name
        self.pid = os.getpid()
        self.requests = attach_channel(_requests_of(name), timeout)
        self._to = f"batcher-replies/{uuid.uuid4().hex}"
        self._replies: Channel = channel(self._to)
        self._number = 0

    def call(self, x: Any, timeout: float | None) -> Any:
        end = None if timeout is None else time.monotonic() + timeout
        self._number = number = self._number + 1
        self.requests.put({"to": self._to, "call": number, "x": x}, timeout)
        try:
            reply = self._reply(number, end)
        except BaseException:
            self._withdraw(number)
            raise
        if "error" in reply:
            raise _rebuilt(reply, f"the process of batcher {self._name!r}")
        return reply["y"]

    def _reply(self, number: int, end: float | None) -> Any:
        while True:
            alive = self.requests.alive  # before the look for a reply
            wait = _LOOK if end is None else min(_LOOK, end - time.monotonic())
            for reply in self._replies.get(1, max(wait, 0) if alive else 0, stack=False) or ():
                if reply["call"] == number:
                    return reply
                break  # of a call that was withdrawn
            else:
                if not alive:
                    raise Closed(
                        f"the batcher {self._name!r} was closed, or its process has ended",
                        "Batcher",
                    )
                if end is not None and time.monotonic() >= end:
                    raise Timeout(f"the batcher {self._name!r} did not answer", "Batcher")

    def _withdraw(self, number: int) -> None:
        with contextlib.suppress(Error):  # the batcher has ended, or is stopped
            self.requests.put({"to": self._to, "withdraw": number}, timeout=0)

    def close(self) -> None:
        self.requests.close()
        self._replies.close()


def attach_batcher(name: str, timeout: float | None = 60.0) -> BatcherClient:
    """Connect to the `Batcher` with this name, of any process of this user.

    Parameters
    ----------
    name : str
        The name given to `Batcher`.
    timeout : float, optional
        Seconds to wait for the batcher; None: no limit, 0: do not wait.

    Raises
    ------
    Timeout
        No process has a batcher with this name.

    Examples
    --------
    >>> policy = train.attach_batcher("policy")
    >>> action = policy(state)
    """
    return BatcherClient(name, timeout)

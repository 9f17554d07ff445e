"""One function for many callers: calls that are there at the same time become one batch."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .. import _engine
from ..base.arguments import integer, real
from ..base.conventions import Closing, name_of, shown
from ..base.nests import leaves_of, mapped
from ..base.notes import add_note
from ..errors import InvalidArgument
from .batcher_processes import Requests
from .publish import _nanoseconds

__all__ = ["Batcher"]


class Batcher(Closing):
    """Make one call of a function out of calls that are there at the same time.

    ``f(x)`` from any thread, ``await f.call_async(x)`` from any asyncio task and, with a name,
    `attach_batcher` in other processes return what ``function`` returns for ``x`` alone. The first
    caller that finds nobody calling the function calls it itself, for all calls that are there; the
    others sleep until their row is made. Then the oldest call that still waits is next. So a lone
    call costs no switch of threads, and each call waits only for the batches before it. For calls
    of tasks and of other processes, a thread of the batcher's calls the function.

    Threads: any. A context manager that closes. A forked child can use it, without the calls of
    other threads and processes.

    Parameters
    ----------
    function : callable
        ``function(batch)``, with the inputs stacked: a nest of arrays of shape (calls, ...), and
        `penstock.Ragged` for strings and ragged leaves. Returns an array or tensor of any
        framework, or a nest of them, with a row for each call. Called in one thread at a time, but
        in different ones. Should return new memory: rows are views of it.
    max_batch : int
        The largest number of calls in a batch.
    max_wait : float
        Seconds to wait for a full batch, from the arrival of its first call. 0: take the calls that
        are there.
    max_queue : int
        The number of calls that may be queued; others wait for space, in the order of their
        arrival. Calls of other processes wait in memory of their own.
    name : str, optional
        Other processes of this user call the function by this name (`attach_batcher`). At most 56
        bytes. Reserved until this process closes the batcher or ends.

    Raises
    ------
    InvalidArgument
        ``max_batch`` below 1, ``max_queue`` below ``max_batch``, a negative ``max_wait``; another
        process has the name (the text has its pid).

    Examples
    --------
    >>> def act(states):
    ...     with torch.inference_mode():
    ...         return model(torch.as_tensor(states)).argmax(dim=1)
    >>> policy = train.Batcher(act, max_batch=64, max_wait=0.002)
    >>> action = policy(state)  # from any thread
    >>> action = await policy.call_async(state)  # from any asyncio task
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        max_batch: int = 64,
        max_wait: float = 0.0,
        max_queue: int = 1024,
        name: str | None = None,
    ) -> None:
        if not callable(function):
            raise InvalidArgument(f"function is {function!r}; give a function", "Batcher")
        wait = real("max_wait", max_wait, "Batcher")
        if not 0 <= wait <= 1e9:
            raise InvalidArgument(f"max_wait is {max_wait!r}; give seconds, 0 or more", "Batcher")
        self._function = function
        self._max_batch = integer("max_batch", max_batch, 1, 1 << 24, operation="Batcher")
        self._max_wait = wait
        queue = integer("max_queue", max_queue, 1, operation="Batcher")
        self._end = _engine.ValueBatcher(self._max_batch, int(wait * 1e9), queue)
        self._lock = threading.Lock()
        self._helper: tuple[int, threading.Thread] | None = None  # with its process
        self._name = name
        self._requests = None if name is None else Requests(name, queue)
        weakref.finalize(self, _close, self._end, self._requests)
        if self._requests is not None:
            self._start_helper()
            self._requests.start(self._end, weakref.ref(self))

    def __call__(self, x: Any, timeout: float | None = None) -> Any:
        """Return the function's row for ``x``.

        Parameters
        ----------
        x : nest of arrays
            Dicts, tuples, lists and named tuples of arrays, numbers, str, bytes. Names, shapes and
            dtypes must be those of the first call that the function answered. Copied once, into
            the batch.
        timeout : float, optional
            Seconds to wait for the result; None: no limit. The caller that runs the function waits
            for it without limit.

        Returns
        -------
        nest of arrays
            The row, as the function's result gives it: a view, which keeps the whole result alive.
            Copy what you keep for long.

        Raises
        ------
        InvalidArgument
            The input differs from those before; the function returned another number of rows; the
            function calls its own batcher.
        Timeout
            There was no result for so long. The call is withdrawn; if its batch runs already, the
            result is dropped.
        Closed
            The batcher was closed before the call's turn.
        Exception
            What the function raised. Each caller of the batch gets a copy of its own.

        Notes
        -----
        Ctrl-C withdraws a call that waits. If it interrupts the function, only the caller that runs
        it is interrupted; the function is called again for the others.
        """
        return self._end.call(self._function, x, -1 if timeout is None else _nanoseconds(timeout))

    async def call_async(self, x: Any) -> Any:
        """Return the function's row for ``x``, without blocking the event loop.

        Cancelling the task withdraws its call. Errors as for ``f(x)``.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._start_helper()
        call = self._end.submit(x, _Loop(loop), future)
        try:
            return await future
        except asyncio.CancelledError:
            self._end.withdraw(call)
            raise

    def stats(self) -> dict[str, Any]:
        """Return counts and latencies.

        Returns
        -------
        dict
            ``calls`` (that ended with a result or an error of their batch), ``batches``,
            ``mean_batch`` (calls in a batch), ``failed`` (calls with an error), ``withdrawn``
            (calls that left before), ``queued`` and ``blocked`` (calls that wait now, in the queue
            and for space in it). ``waited`` (until the batch begins) and ``total`` (until the
            result) are dicts of seconds: ``mean``, ``p50``, ``p99`` (at most an eighth too long),
            ``max``, and ``histogram``, a list of (longest duration, count).
        """
        stats = self._end.stats()
        stats["mean_batch"] = stats["waited"]["count"] / stats["batches"] if stats["batches"] else 0
        return stats

    def close(self) -> None:
        """End waiting calls with `Closed`; later calls raise it. A batch that runs is completed."""
        _close(self._end, self._requests)

    @property
    def name(self) -> str | None:
        """The name that other processes attach to."""
        return self._name

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._end.closed

    def __repr__(self) -> str:
        facts: dict[str, object] = {"max_batch": self._max_batch, "max_wait": self._max_wait}
        if self._name is not None:
            facts["name"] = repr(self._name)
        return shown(self, name_of(self._function), **facts)

    def _start_helper(self) -> None:
        # A forked child has no helper.
        if self._helper is not None and self._helper[0] == os.getpid():
            return
        with self._lock:
            if self._helper is not None and self._helper[0] == os.getpid():
                return
            thread = threading.Thread(
                target=_help,
                args=(self._end, weakref.ref(self)),
                name="penstock.train.Batcher",
                daemon=True,
            )
            thread.start()
            self._helper = os.getpid(), thread


class _Loop:
    """Where results of tasks go: their event loop."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Loop) and other._loop is self._loop

    def __hash__(self) -> int:
        return hash(self._loop)

    def take(self, items: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: no task waits
            self._loop.call_soon_threadsafe(_resolve, items)


def _resolve(items: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, value, error in items:
        if future.done():
            continue
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration):  # no future accepts one
            future.set_exception(RuntimeError("the function raised StopIteration"))
        else:
            future.set_exception(error)


def _close(end: _engine.ValueBatcher, requests: Requests | None) -> None:
    end.close()
    if requests is not None:
        requests.close()


def _help(end: _engine.ValueBatcher, batcher: weakref.ref[Batcher]) -> None:
    """Lead batches whose oldest call is a task's. Keeps no reference to the batcher meanwhile."""
    while end.wait_to_lead():
        found = batcher()
        if found is None:
            return
        end.lead(found._function)
        del found


def _rows_of(result: Any, count: int) -> list[Any]:
    """Cut a function's result into rows. Called by the extension."""
    if not isinstance(result, (dict, tuple, list)):
        return _leaf_rows(result, count)
    columns = [_leaf_rows(leaf, count) for leaf in leaves_of(result)]
    if not columns:
        raise InvalidArgument("the function returned no array; return a row for each", "Batcher")
    return [_nest_of(iter(row), result) for row in zip(*columns, strict=True)]


def _nest_of(leaves: Iterator[Any], like: Any) -> Any:
    return mapped(lambda _: next(leaves), like)


def _leaf_rows(leaf: Any, count: int) -> list[Any]:
    try:
        rows = list(leaf)
    except TypeError:  # a number, None, an array without axes
        raise InvalidArgument(
            f"the function returned a {type(leaf).__name__} without rows for {count} calls; "
            "return an array with a row for each",
            "Batcher",
        ) from None
    if len(rows) != count:
        raise InvalidArgument(
            f"the function returned {len(rows)} rows for {count} calls; return a row for each",
            "Batcher",
        )
    return rows


def _copy_of(error: BaseException, count: int) -> BaseException:
    """An exception for another caller of the batch. Called by the extension."""
    try:
        made = copy.copy(error)
        if type(made) is not type(error) or str(made) != str(error):
            raise TypeError
    except Exception:  # from its own methods
        add_note(error, f"The batch had {count} calls; all got this one exception.")
        return error
    made.__traceback__ = error.__traceback__
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    return made

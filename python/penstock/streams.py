"""Generators as sources: one stream that any number of threads may read."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

Item = TypeVar("Item")
Args = ParamSpec("Args")


class _Serialised(Generic[Item]):
    """An iterator whose ``next`` calls are serialised."""

    def __init__(self, iterator: Iterator[Item]) -> None:
        self._iterator = iterator
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        with self._lock:
            return next(self._iterator)


def threadsafe(function: Callable[Args, Iterable[Item]]) -> Callable[Args, Iterator[Item]]:
    """Make a generator function whose generators can be used by any number of threads.

    ``next`` calls are serialised: every item is returned once, to the thread that calls first.

    Examples
    --------
    >>> @penstock.threadsafe
    ... def batches():
    ...     yield from make_batches()
    """

    @functools.wraps(function)
    def make(*args: Args.args, **kwargs: Args.kwargs) -> Iterator[Item]:
        return _Serialised(iter(function(*args, **kwargs)))

    make.__penstock_stream__ = True  # type: ignore[attr-defined]
    return make


def is_stream_function(source: Any) -> bool:
    """Whether calling `source` starts a stream."""
    if getattr(source, "__penstock_stream__", False):
        return True
    function = source
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isgeneratorfunction(function):
        return True
    call = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.isgeneratorfunction(call)


def may_begin_stream(source: Any) -> bool:
    """Whether `source` is a user's function, which may return an iterator when it is called."""
    while isinstance(source, functools.partial):
        source = source.func
    return inspect.isfunction(source) or inspect.ismethod(source)


class FunctionStream:
    """Calls a generator function each epoch; if `numbered`, with the stream's number."""

    def __init__(self, function: Any, numbered: bool = False) -> None:
        self.function = function
        self.numbered = numbered

    def __call__(self, stream: int, epoch: int) -> Iterable[Any]:
        items: Iterable[Any] = self.function(stream) if self.numbered else self.function()
        if not hasattr(items, "__iter__"):
            from .errors import InvalidArgument

            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise InvalidArgument(
                f"{name}() returned {type(items).__name__}; a function that is fed must return an "
                "iterator, or be a generator function",
                "Loader",
            )
        return items


class IterableStream:
    """Starts a new iterator of an iterable each epoch."""

    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable

    def __call__(self, stream: int, epoch: int) -> Iterable[Any]:
        stream_of_items: Iterable[Any] = iter(self.iterable)
        return stream_of_items


class OneShot:
    """An existing iterator: it is consumed once."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self.begun = False

    def __call__(self, stream: int, epoch: int) -> Iterable[Any]:
        items: Iterable[Any] = iter(self.iterator)
        return items

    def __reduce__(self) -> Any:
        from .errors import InvalidArgument

        raise InvalidArgument(
            f"{type(self.iterator).__name__} is a stream that runs already and cannot go to a "
            "worker process; give the function that makes it, or use threads",
            "Loader",
        )

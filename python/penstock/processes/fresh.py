"""What a worker has one of its own of: locks of `threading`, and generators that were not begun.

A lock guards what threads of one process share, so a worker's copy of the dataset needs a lock of
its own, which nobody holds: who holds the one here does not work there.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())


def _lock(_: Any) -> Any:
    return threading.Lock, ()


def _rlock(_: Any) -> Any:
    return threading.RLock, ()


def _condition(condition: Any) -> Any:
    """Who waits here, does not wait there. Others that share the lock do so there, too."""
    return threading.Condition, (condition._lock,)


def _event(event: threading.Event) -> Any:
    return _set_event, (event.is_set(),)


def _set_event(is_set: bool) -> threading.Event:
    event = threading.Event()
    if is_set:
        event.set()
    return event


def _generator(generator: Any) -> Any:
    """A method's generator of which nothing was taken yet is one that calling it again makes."""
    import inspect

    if inspect.getgeneratorstate(generator) == inspect.GEN_CREATED:
        given = dict(generator.gi_frame.f_locals)
        code = generator.gi_code
        first = code.co_varnames[0] if code.co_argcount else ""
        method = getattr(given.pop(first, None), code.co_name, None)
        variadic = code.co_flags & 0x0C  # *args, **kwargs
        if getattr(method, "__code__", None) is code and not variadic:
            return _begun_anew, (method, given)
    return NotImplemented


def _begun_anew(method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return method(**arguments)


REDUCERS: dict[type, Callable[[Any], Any]] = {
    _LOCK: _lock,
    _RLOCK: _rlock,
    threading.Condition: _condition,
    threading.Event: _event,
    types.GeneratorType: _generator,
}

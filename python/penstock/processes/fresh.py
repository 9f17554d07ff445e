"""Objects that each worker creates anew: locks of `threading`, and generators not started yet.

A lock protects data of the threads of one process, so a worker's copy of the dataset needs an
unlocked lock of its own: a thread that holds the parent's lock does not run in the worker.
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
    """Reduce a condition without its waiters. Conditions that share a lock still share it."""
    return threading.Condition, (condition._lock,)


def _event(event: threading.Event) -> Any:
    return _set_event, (event.is_set(),)


def _set_event(is_set: bool) -> threading.Event:
    event = threading.Event()
    if is_set:
        event.set()
    return event


def _generator(generator: Any) -> Any:
    """Reduce a method's generator that was not started to another call of the method."""
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

"""Takes containers of users' own classes apart, and rebuilds them with other parts."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np


def parts_of(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """Take a container of a class that the engine does not handle apart; None: not a container.

    Returns
    -------
    parts, make : list, callable
        ``make(parts)`` is a container of the same class with these parts. At most the class's own
        code for copying is run: other methods may fail, or do more than store a part.

    Notes
    -----
    Attributes of a dict, list or deque, including a dataclass's fields, are parts if they are
    arrays or also items of the container. This holds for arrays in tuples and built-in containers,
    too, unless one of them leads to more than 10,000 objects. All other attributes stay shared:
    they may own `value`, or lead to any other object of the program.
    """
    cls: Any = type(value)
    base: Any = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
    if base is None and not hasattr(cls, "__dataclass_fields__"):
        return None
    keys, parts = [], []
    if base in (list, deque):
        parts += base.__iter__(value)
    elif base is not None:
        for key, part in list(base.items(value)):
            keys.append(key)
            parts.append(part)
    items = len(parts)
    own, slots = _attributes(value)
    is_own_dict = own is value
    own = {} if is_own_dict else dict(own)
    attributes = [*own.values(), *slots.values()]
    plans: dict[int, Any] = {}  # of attributes that are or contain parts: where to put them
    if attributes:
        # An item that is also an attribute stays one object.
        places = {id(p): place for place, p in enumerate(parts) if type(p) not in _SCALARS}
        done: dict[int, Any] = {}

        def is_part(part: Any) -> bool:
            return base is None or id(part) in places or _is_array(part)

        def placed(part: Any) -> Any:
            if not is_part(part):
                return part
            place = places.setdefault(id(part), len(parts))
            if place == len(parts):
                parts.append(part)
            return _Place(place)

        for number, attribute in enumerate(attributes):
            if _leads_to(is_part, attribute):
                plans[number] = _mapped(placed, attribute, done)

    def make(parts: list[Any]) -> Any:
        made = _bare(value, base)
        if base is list:
            list.__init__(made, parts[:items])
        elif base is deque:
            deque.__init__(made, parts[:items], value.maxlen)
        for key, part in zip(keys, parts[: len(keys)], strict=True):
            base.__setitem__(made, key, part)
        if is_own_dict:
            object.__setattr__(made, "__dict__", made)
        found = list(attributes)
        done: dict[int, Any] = {}
        for number, plan in plans.items():
            found[number] = _mapped(
                lambda part: parts[part] if type(part) is _Place else part, plan, done
            )
        if own:
            fields = zip(own, found[: len(own)], strict=True)
            object.__getattribute__(made, "__dict__").update(fields)
        for name, part in zip(slots, found[len(own) :], strict=True):
            object.__setattr__(made, name, part)  # it may be frozen
        return made

    return parts, make


_CONTAINERS: tuple[Any, ...] = (OrderedDict, dict, list, deque)
_BUILT_IN = frozenset((*_CONTAINERS, defaultdict))
_COPIED_HERE = (None, defaultdict.__copy__, deque.__copy__)
_SCALARS = frozenset((type(None), bool, int, float, complex, str, bytes))
_MAX_DEPTH = 64  # as in the engine
_MOST = 10_000


class _Place(int):
    """A placeholder for a part: its index among the parts."""


def _held(value: Any) -> Any:
    """The items of a tuple or a built-in container; nothing for other values."""
    kind: Any = type(value)
    if kind in _BUILT_IN:
        return value.values() if issubclass(kind, dict) else value
    return value if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_make")) else ()


def _leads_to(wanted: Callable[[Any], bool], value: Any) -> bool:
    """Whether `value` is or contains a wanted object; False if there are too many objects."""
    seen: dict[int, Any] = {}
    found, ahead, left = False, [value], _MOST
    while ahead:
        each = ahead.pop()
        if wanted(each):
            found = True
        elif id(each) not in seen:
            items = _held(each)
            left -= len(items)
            if left < 0:
                return False
            if items:
                seen[id(each)] = each
                ahead += items
    return found


def _mapped(
    function: Callable[[Any], Any], value: Any, done: dict[int, Any], depth: int = 0
) -> Any:
    """Apply `function` to `value`, or to the contents of tuples and built-in containers.

    Returns `value` itself if nothing changes. `done` maps the ids of visited objects to their
    results, so objects may occur twice or contain themselves.
    """
    made = function(value)
    if made is not value:
        return made
    if not _held(value) or depth == _MAX_DEPTH:
        return value
    if id(value) in done:
        return done[id(value)][1]
    kind: Any = type(value)
    changed = False
    if issubclass(kind, tuple):
        items = [_mapped(function, item, done, depth + 1) for item in value]
        changed = any(item is not old for item, old in zip(items, value, strict=True))
        made = tuple(items) if kind is tuple else kind._make(items)
    else:
        made = copy.copy(value)  # a copy: other threads may change it
        done[id(value)] = value, made
        for key, old in list(made.items() if issubclass(kind, dict) else enumerate(made)):
            item = _mapped(function, old, done, depth + 1)
            if item is not old:
                made[key] = item
                changed = True
    done[id(value)] = value, made if changed else value  # keeps the id
    return done[id(value)][1]


def _bare(value: Any, base: Any) -> Any:
    """An empty object to rebuild `value` from, if its class leaves copying to its base."""
    cls = type(value)
    if getattr(cls, "__copy__", None) not in _COPIED_HERE:
        return copy.copy(value)
    kind: Any = defaultdict if isinstance(value, defaultdict) else base or object
    args = ()
    if isinstance(value, BaseException):
        kind = next(kind for kind in cls.__mro__ if kind.__module__ == "builtins")
        args = value.args
    try:
        made = kind.__new__(cls, *args)  # the class's own __new__ may need other arguments
    except TypeError:  # it has more bases: a set
        return copy.copy(value)
    if kind is defaultdict:
        object.__setattr__(made, "default_factory", value.default_factory)
    return made


def _is_array(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, (np.ndarray, getattr(torch, "Tensor", np.ndarray)))


def _attributes(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its ``__dict__``, and the values of its slots, including an exception's ``args``."""
    cls = type(value)
    own = object.__getattribute__(value, "__dict__") if cls.__dictoffset__ else {}
    slots = {"args": value.args} if isinstance(value, BaseException) else {}
    if cls not in _BUILT_IN:  # Python would look up their slots each time
        for name in copyreg._slotnames(cls):  # type: ignore[attr-defined]
            with contextlib.suppress(AttributeError):
                slots[name] = object.__getattribute__(value, name)
    return own, slots

"""Finds the part of an object that cannot be pickled."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from .pickler import Pickler

_ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, range, type(...))
_MOST_OBJECTS = 100_000
# Attributes of callables whose values appear in their pickle without a name.
_CALLABLE_PARTS = (
    "__self__",
    "__func__",
    "func",
    "args",
    "keywords",
    "__wrapped__",
    "__closure__",
    "cell_contents",
    "__defaults__",
    "__kwdefaults__",
)


class Culprit(NamedTuple):
    path: str
    type_name: str
    reason: str


class _Null:
    def write(self, data: Any, /) -> int:
        return len(data)


class _Shallow(Pickler):
    """Pickles one object and records the objects that it refers to, without pickling them."""

    def __init__(self, root: Any) -> None:
        super().__init__(_Null(), lambda _: None)
        self.root = root
        self.parts: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        if obj is self.root or isinstance(obj, _ATOMS):
            return None
        self.parts.append(obj)
        return 0


class _Node(NamedTuple):
    obj: Any
    path: str
    owner: Any  # the object whose state includes this container; None: a separate container


def find_culprit(obj: Any, name: str, root: Any = None) -> Culprit | None:
    """Return the part nearest to `obj` whose own pickling fails, or None if none does.

    Visits exactly the objects that pickling would visit, breadth first, so `__getstate__` and
    `__reduce__` are respected and cycles end. `root` is not visited, because it is not sent.
    """
    queue = deque([_Node(obj, name, None)])
    seen: dict[int, Any] = {id(obj): obj}  # the values keep temporary state dicts alive
    if root is not None:
        seen[id(root)] = root
    while queue:
        node = queue.popleft()
        with _Shallow(node.obj) as pickler:
            try:
                pickler.dump(node.obj)
            except Exception as error:
                return Culprit(node.path, type_name(node.obj), _reason(error))
        for part in pickler.parts:
            if id(part) in seen or len(seen) > _MOST_OBJECTS:
                continue
            seen[id(part)] = part
            queue.append(_label(node, part))
    return None


def type_name(obj: Any) -> str:
    kind = type(obj)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _reason(error: Exception) -> str:
    text = str(error)
    return text if text else type(error).__name__


def _label(node: _Node, part: Any) -> _Node:
    parent, path, owner = node
    is_container = type(parent) in (dict, list, tuple, set, frozenset)
    subject = owner if is_container and owner is not None else parent
    if not is_container or owner is not None:
        found = _attribute(subject, part)
        if found is not None:
            return _Node(part, f"{path}.{found}", None)
    if type(parent) is dict:
        for key, value in parent.items():
            if value is part:
                here = f"[{_short(key)}]" if owner is None else f".{key}"
                return _Node(part, path + here, None)
        return _Node(part, path, None)
    if type(parent) in (list, tuple) and owner is None:
        index = next((i for i, value in enumerate(parent) if value is part), "?")
        return _Node(part, f"{path}[{index}]", None)
    # A container that pickling made (arguments, state) has no name of its own.
    unnamed = type(part) in (dict, tuple) and (owner is not None or not is_container)
    return _Node(part, path, subject if unnamed else None)


def _attribute(owner: Any, part: Any) -> str | None:
    for names in (getattr(owner, "__dict__", None), _slots(owner)):
        if names is part:
            return None
        for key in names or ():
            try:
                if (names[key] if isinstance(names, dict) else getattr(owner, key)) is part:
                    return str(key)
            except Exception:
                continue
    if (callable(owner) and type(owner) is not type) or type(owner).__name__ == "cell":
        for key in _CALLABLE_PARTS:
            try:
                if getattr(owner, key) is part:
                    return key
            except Exception:
                continue
    return "__class__" if part is type(owner) and part is not type else None


def _slots(obj: Any) -> tuple[str, ...]:
    names: list[str] = []
    for base in type(obj).__mro__:
        slots = vars(base).get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _short(key: Any) -> str:
    text = repr(key) if isinstance(key, (*_ATOMS, np.generic)) else f"a {type_name(key)}"
    return text if len(text) <= 40 else text[:37] + "..."

"""How a Dataset or an operation was made, so that a worker process can make it again.

What was made belongs to the engine and cannot travel; the call that made it can: a method of the
engine's, its arguments, and the Datasets that it was applied to.
"""

from __future__ import annotations

from typing import Any

from .. import _engine


class Operation:
    """What `Dataset.map` applies natively: made by `penstock.parse_example` and its like.

    Immutable; any thread. Pickles.
    """

    def __init__(self, name: str, *arguments: Any) -> None:
        self._recipe = (name, arguments)
        self._native = getattr(_engine, name)(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        name, arguments = self._recipe
        return Operation, (name, *arguments)

    def __repr__(self) -> str:
        return str(self._native.title())


def title_of(function: Any) -> str:
    """What a function is called in messages and states."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        inner = getattr(function, "func", None)  # functools.partial
        name = title_of(inner) if inner is not None else type(function).__qualname__
    return str(name).replace("<locals>.", "")

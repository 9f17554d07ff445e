"""The calls that made a Dataset or an operation, so that a worker process can repeat them.

Engine objects cannot be pickled, but the call that made one can: a method of the engine, its
arguments, and its input Datasets.
"""

from __future__ import annotations

from typing import Any

from .. import _engine


class Operation:
    """A native operation for `Dataset.map`, such as the result of `penstock.parse_example`.

    Immutable. Threads: any. Can be pickled.
    """

    def __init__(self, name: str, *arguments: Any) -> None:
        self._recipe = (name, arguments)
        given = [each._native if isinstance(each, Operation) else each for each in arguments]
        self._native: Any = getattr(_engine, name)(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        name, arguments = self._recipe
        return Operation, (name, *arguments)

    def __repr__(self) -> str:
        return str(self._native.title())


def title_of(function: Any) -> str:
    """The name of a function in messages and states."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        inner = getattr(function, "func", None)  # functools.partial
        name = title_of(inner) if inner is not None else type(function).__qualname__
    return str(name).replace("<locals>.", "")

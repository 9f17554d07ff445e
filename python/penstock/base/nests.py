"""Nests of tuples, lists and dicts."""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Callable
from typing import Any


def leaves_of(nest: Any) -> list[Any]:
    """Return the leaves of a nest, in order."""
    if isinstance(nest, dict):
        return [leaf for value in nest.values() for leaf in leaves_of(value)]
    if isinstance(nest, (tuple, list)):
        return [leaf for value in nest for leaf in leaves_of(value)]
    return [nest]


def mapped(function: Callable[[Any], Any], nest: Any) -> Any:
    """Return the same nest, with `function` applied to its leaves."""
    if isinstance(nest, dict):
        return {key: mapped(function, value) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        values = [mapped(function, value) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else type(nest)(values)
    return function(nest)


def named_tuple(module: str, name: str, fields: tuple[str, ...]) -> Any:
    """Find the class of a named tuple, or make one like it. Called by the extension.

    The names may come from a file, so nothing is imported: a class is used only if its module is
    already imported and it has these fields.
    """
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    same = isinstance(found, type) and issubclass(found, tuple)
    if same and getattr(found, "_fields", None) == fields:
        return found
    return _like(name.rpartition(".")[2], fields)


@functools.lru_cache(maxsize=1024)
def _like(name: str, fields: tuple[str, ...]) -> Any:
    # Named tuples of NumPy and pandas have fields such as "_0", made by rename=True.
    made = collections.namedtuple(name, fields, rename=True)  # type: ignore[misc]
    if made._fields != fields:
        raise ValueError(f"no fields of a named tuple: {fields}")
    return made

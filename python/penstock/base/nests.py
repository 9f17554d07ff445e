"""Nests of tuples, lists and dicts."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
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


def mapped_through(
    function: Callable[[Any], Any], nest: Any, is_leaf: Callable[[type], bool]
) -> Any:
    """Return the same nest as `mapped`, and go into dataclasses and all kinds of mappings, too.

    Objects are copied, not changed. A mapping that cannot be copied becomes a dict.

    Parameters
    ----------
    is_leaf : callable
        Tells by its class whether a tuple, a dataclass or a mapping other than a dict is a leaf.
    """
    if type(nest) is dict:
        return {key: mapped_through(function, value, is_leaf) for key, value in nest.items()}
    kind: Any = type(nest)
    if kind is tuple or kind is list:
        return kind([mapped_through(function, value, is_leaf) for value in nest])
    if not (is_nest := _is_nest(kind)) or is_leaf(kind):
        return function(nest)
    if is_nest == "tuple":
        values = [mapped_through(function, value, is_leaf) for value in nest]
        return kind(*values) if hasattr(nest, "_fields") else kind(values)
    if is_nest == "mapping":
        made = {key: mapped_through(function, nest[key], is_leaf) for key in nest}
        return _mapping_like(nest, made)
    clone = copy.copy(nest)
    for field in dataclasses.fields(nest):
        if hasattr(nest, field.name):
            value = mapped_through(function, getattr(nest, field.name), is_leaf)
            object.__setattr__(clone, field.name, value)  # also of a frozen one
    return clone


@functools.lru_cache(maxsize=1024)
def _is_nest(kind: type) -> str:
    """Return how the objects of a class hold others; empty: they do not."""
    if issubclass(kind, (tuple, list)):
        return "tuple"
    if issubclass(kind, Mapping):
        return "mapping"
    return "dataclass" if dataclasses.is_dataclass(kind) else ""


def _mapping_like(old: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    try:
        if not hasattr(old, "__setitem__"):
            return type(old)(values)  # type: ignore[call-arg]
        clone: Any = copy.copy(old)
        for key, value in values.items():
            clone[key] = value
        return clone
    except TypeError:
        return values


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

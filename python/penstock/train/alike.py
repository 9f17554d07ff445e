"""Nests that are put together: what they must have in common, and what goes with what.

Fields of dicts go by their names, in whatever order each dict has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.ragged import Ragged
from ..errors import InvalidArgument


def form_of(nest: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return what is equal for nests of the same names and places, and of leaves alike.

    ``leaf`` returns what of a leaf counts.
    """
    if isinstance(nest, dict):
        return {name: form_of(value, leaf) for name, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        return _kind(nest), [form_of(value, leaf) for value in nest]
    return leaf(nest)


def array_form(leaf: Any) -> tuple[Any, Any]:
    """Return shape and dtype."""
    if isinstance(leaf, Ragged):
        return (len(leaf),), dtype_form(leaf)
    shape = getattr(leaf, "shape", None)
    return np.shape(leaf) if shape is None else shape, dtype_form(leaf)


def dtype_form(leaf: Any) -> Any:
    """Return the dtype: of texts what they are, and not how long; of what has none its type."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return leaf.kind if isinstance(leaf, Ragged) else type(leaf)
    if isinstance(leaf, Ragged):
        return leaf.kind, dtype
    return dtype.kind if getattr(dtype, "kind", "") in ("S", "U") else dtype


def columns_of(nests: list[Any], what: str, operation: str) -> list[tuple[Any, ...]]:
    """Return which leaves of several nests belong together, in the order of the first one's.

    Raises
    ------
    InvalidArgument
        They have other names or places; it says which nest, what it has and what the first had.
    """
    first = nests[0]
    names = form_of(first, _anything)
    for number, nest in enumerate(nests):
        if form_of(nest, _anything) != names:
            text = f"number {number} is {text_of(nest)}, number 0 was {text_of(first)}"
            raise InvalidArgument(f"{what} are not alike: {text}", operation)
    return list(zip(*(_ordered(first, nest) for nest in nests), strict=True))


def _ordered(first: Any, nest: Any) -> list[Any]:
    if isinstance(first, dict):
        return [leaf for name in first for leaf in _ordered(first[name], nest[name])]
    if isinstance(first, (tuple, list)):
        return [leaf for pair in zip(first, nest, strict=True) for leaf in _ordered(*pair)]
    return [nest]


def text_of(nest: Any) -> str:
    """Say what is in a nest: ``{x: float32 (3,), y: int64 ()}``, with the shapes of rows."""
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{name}: {text_of(value)}" for name, value in nest.items()) + "}"
    if isinstance(nest, (tuple, list)):
        left, right = "[]" if isinstance(nest, list) else "()"
        return left + ", ".join(map(text_of, nest)) + right
    if isinstance(nest, Ragged):
        return f"ragged {nest.dtype if nest.kind == 'array' else nest.kind}"
    if not hasattr(nest, "dtype"):
        return type(nest).__name__
    return f"{nest.dtype} {tuple(nest.shape[1:])}"


def _kind(nest: Any) -> Any:
    return getattr(nest, "_fields", None) or ("list" if isinstance(nest, list) else "tuple")


def _anything(_: Any) -> None:
    return None

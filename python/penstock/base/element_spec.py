"""The schema of elements and batches: a nest of `penstock.TensorSpec`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .nests import mapped
from .ragged import Ragged, RaggedArray

__all__ = ["TensorSpec"]

_KINDS: dict[str, type] = {"bytes": bytes, "str": str}


@dataclass(frozen=True)
class TensorSpec:
    """Shape, type and name of a leaf of elements or batches.

    Attributes
    ----------
    shape : tuple of int or None
        None: a length that differs between elements.
    dtype : numpy.dtype or type
        `bytes`, `str` or `object` if the leaf is not an array.
    name : str, optional
        The leaf's path in its nest: ``"image"``, ``"meta/id"``, ``"0"``. None: the element itself.
    """

    shape: tuple[int | None, ...]
    dtype: Any
    name: str | None = None

    def __repr__(self) -> str:
        dtype = self.dtype.__name__ if isinstance(self.dtype, type) else self.dtype
        return f"TensorSpec(shape={self.shape}, dtype={dtype}, name={self.name!r})"


def leaf_spec(name: str, kind: str, dtype: Any, shape: tuple[int | None, ...]) -> TensorSpec | None:
    """The spec of a leaf from the engine's schema; None: unknown. Called by the engine."""
    if kind == "array":
        return None if dtype is None else TensorSpec(shape, dtype, name or None)
    if kind in _KINDS:
        return TensorSpec((), _KINDS[kind], name or None)
    return None


def spec_of_value(value: Any, path: str = "") -> Any:
    """The nest of specs of a value, with its lengths; ragged lengths are None."""
    if isinstance(value, dict):
        return {key: spec_of_value(part, _below(path, key)) for key, part in value.items()}
    if isinstance(value, (tuple, list)) and not _is_column(value):
        fields = getattr(value, "_fields", range(len(value)))
        pairs = zip(fields, value, strict=True)
        parts = [spec_of_value(part, _below(path, name)) for name, part in pairs]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return TensorSpec(*_form_of(value), path or None)


def with_rows(spec: Any, rows: int | None) -> Any:
    """The spec of a batch of elements of `spec`."""
    return mapped(lambda leaf: replace(leaf, shape=(rows, *leaf.shape)), spec)


def with_open_rows(spec: Any) -> Any:
    """The spec of a batch, for any number of rows."""

    def opened(leaf: TensorSpec) -> TensorSpec:
        return replace(leaf, shape=(None, *leaf.shape[1:])) if leaf.shape else leaf

    return mapped(opened, spec)


def with_types(spec: Any, type_of: Callable[[Any], Any]) -> Any:
    """The same spec, with `type_of` applied to each array's type."""

    def changed(leaf: TensorSpec) -> TensorSpec:
        if not isinstance(leaf.dtype, np.dtype):
            return leaf
        return replace(leaf, dtype=type_of(leaf.dtype))

    return mapped(changed, spec)


def _below(path: str, name: object) -> str:
    return f"{path}/{name}" if path else str(name)


def _is_column(values: Any) -> bool:
    """Whether a list has one object for each sample, and no arrays or nests."""
    if type(values) is not list or not values:
        return False
    return not isinstance(values[0], (dict, tuple, list)) and not hasattr(values[0], "shape")


def _form_of(value: Any) -> tuple[tuple[int | None, ...], Any]:
    lengths: list[int | None]
    if isinstance(value, Ragged):
        if value.kind != "array":
            return (len(value),), _KINDS[value.kind]
        if value.dims is None:
            lengths = [None, *value.values.shape[1:]]
        else:
            varies = value.axes if len(value) else range(value.dims.shape[1])
            lengths = [
                None if axis in varies else int(value.dims[0, axis])
                for axis in range(value.dims.shape[1])
            ]
        return (len(value), *lengths), value.dtype
    if isinstance(value, (bytes, str)):
        return (), type(value)
    if isinstance(value, list):
        return (len(value),), type(value[0]) if isinstance(value[0], (bytes, str)) else object
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        number = isinstance(value, (bool, int, float, complex))
        return (), np.asarray(value).dtype if number else object
    axes = value.axes if isinstance(value, RaggedArray) else ()
    return tuple(None if axis in axes else int(n) for axis, n in enumerate(shape)), dtype

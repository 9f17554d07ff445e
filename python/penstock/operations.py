"""Native operations, for `penstock.Dataset.map`."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base.arguments import dtype_of, integer_list, leaf, several
from .dataset.recipe import Operation
from .errors import InvalidArgument


def normalize(
    mean: float | Sequence[float],
    std: float | Sequence[float],
    *,
    fields: str | Sequence[str] | None = None,
) -> Operation:
    """Convert arrays of numbers to float32: ``(x - mean) / std``.

    Labels are numbers, too, and labels of IDX and CIFAR files are uint8: name the images in
    `fields`.

    Parameters
    ----------
    mean, std : float, or one for each place of the last axis (channel)
    fields : str or list of str, optional
        Names of leaves, such as ``"image"`` or ``"0"``. None: all arrays and numbers of uint8,
        float32 and float64, including labels.

    Examples
    --------
    >>> digits.map(penstock.normalize(33.3, 78.6, fields="image"))  # {"image": ..., "label": ...}
    """
    names = _names(fields, "normalize")
    return Operation("normalize", _floats("mean", mean), _floats("std", std), names)


def cast(dtype: Any, *, fields: str | Sequence[str] | None = None) -> Operation:
    """Convert arrays of numbers to another dtype, as C does: fractions are truncated.

    Parameters
    ----------
    dtype : dtype
        A numeric dtype that is not complex.
    fields : str or list of str, optional
        Names of leaves, such as ``"image"`` or ``"0"``. None: all arrays and numbers, including
        labels.
    """
    return Operation("cast", _dtype(dtype, "cast").name, _names(fields, "cast"))


def select(*fields: str) -> Operation:
    """Keep the named fields, as a tuple in this order; one name gives the field itself.

    Nothing is copied. Frameworks that want ``(x, y)`` get it from elements with names.

    Parameters
    ----------
    *fields : str
        Names of leaves, such as ``"image"`` or ``"0"``.

    Examples
    --------
    >>> pictures.map(penstock.select("image", "label"))  # (image, label)
    """
    if not fields:
        raise InvalidArgument("no fields are named; give at least one", "select")
    return Operation("select", _names(fields, "select"))


def decode_raw(field: str, dtype: Any, shape: int | Sequence[int]) -> Operation:
    """Convert a byte string to the array of its values, in C order.

    Parameters
    ----------
    field : str
        The leaf's name; ``""`` if the element is only the string.
    dtype : dtype
        The dtype of the values in the string, with any byte order (``">i4"``); the array has the
        machine's byte order. For bool, every byte except 0 is True.
    shape : tuple of int
        A string of another length is an error.
    """
    kind = _dtype(dtype, "decode_raw")
    given = [shape] if isinstance(shape, numbers.Integral) else shape
    axes = integer_list("shape", given, 0, "decode_raw")
    name = leaf("field", field, "decode_raw")
    return Operation("decode_raw", name, kind.name, axes, not kind.isnative)


def _names(fields: Any, operation: str) -> list[str]:
    if fields is None:
        return []
    given = [fields] if isinstance(fields, str) else several("fields", fields, "names", operation)
    return [leaf("fields", name, operation) for name in given]


def _floats(name: str, value: Any) -> list[float]:
    try:
        with np.errstate(over="ignore"):
            each = np.atleast_1d(np.asarray(value, np.float32))
    except (TypeError, ValueError, OverflowError):
        each = np.array([np.nan])
    if not np.isfinite(each).all():
        raise InvalidArgument(
            f"{name} is {value!r}; give finite numbers, one or one for each channel", "normalize"
        )
    if each.ndim != 1:
        raise InvalidArgument(f"{name} has shape {each.shape}; give numbers", "normalize")
    return [float(number) for number in each]


def _dtype(dtype: Any, operation: str) -> np.dtype[Any]:
    kind = dtype_of(dtype)
    if kind is None:
        raise InvalidArgument(f'dtype is {dtype!r}; give a dtype, such as "float32"', operation)
    return kind

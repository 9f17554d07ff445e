"""Native operations, for `penstock.Dataset.map`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._recipe import Operation
from .errors import InvalidArgument


def normalize(
    mean: float | Sequence[float],
    std: float | Sequence[float],
    *,
    fields: str | Sequence[str] | None = None,
) -> Operation:
    """Turn arrays of numbers into float32: ``(x - mean) / std``.

    Parameters
    ----------
    mean, std : float, or one for each place of the last axis (channel)
    fields : str or list of str, optional
        Names of leaves, such as ``"image"`` or ``"0"``. None: all arrays of uint8, float32 and
        float64.
    """
    return Operation("normalize", _floats("mean", mean), _floats("std", std), _names(fields))


def cast(dtype: Any, *, fields: str | Sequence[str] | None = None) -> Operation:
    """Turn arrays of numbers into another dtype, as C does: a fraction is cut off.

    Parameters
    ----------
    dtype : dtype
        A number's, not complex.
    fields : str or list of str, optional
        Names of leaves. None: all arrays.
    """
    return Operation("cast", _name_of(dtype), _names(fields))


def decode_raw(field: str, dtype: Any, shape: int | Sequence[int]) -> Operation:
    """Turn a byte string into the array whose values it is, in C order.

    Parameters
    ----------
    field : str
        The leaf's name; ``""`` where the element is nothing but the string.
    dtype : dtype
        In the machine's byte order.
    shape : tuple of int
        A string of another length is an error.
    """
    axes = [shape] if isinstance(shape, int) else [int(length) for length in shape]
    return Operation("decode_raw", field, _name_of(dtype), axes)


def _names(fields: str | Sequence[str] | None) -> list[str]:
    if fields is None:
        return []
    return [fields] if isinstance(fields, str) else list(fields)


def _floats(name: str, value: Any) -> list[float]:
    numbers = np.atleast_1d(np.asarray(value, np.float32))
    if numbers.ndim != 1:
        raise InvalidArgument(f"{name} has shape {numbers.shape}; give numbers", "normalize")
    return [float(number) for number in numbers]


def _name_of(dtype: Any) -> str:
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise InvalidArgument(f"{dtype!r} is no dtype", "cast") from None

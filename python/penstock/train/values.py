"""What a user gives for a block, as a NumPy array; errors name the block."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..errors import InvalidArgument

_TOO_LONG = 1 << 63

Array = np.ndarray[Any, np.dtype[np.float32]]


def shape_of(name: str, shape: Any) -> list[int] | None:
    """The lengths of a shape (an integer, or a tuple or list of them), None if it is no shape."""
    if not isinstance(shape, (tuple, list)):
        shape = (shape,) if hasattr(shape, "__index__") and not hasattr(shape, "shape") else None
    if shape is None:
        return None
    try:
        lengths = [operator.index(length) for length in shape]
    except TypeError:
        lengths = [_TOO_LONG]
    if any(abs(length) >= _TOO_LONG for length in lengths):
        raise InvalidArgument(
            f"block {name!r} is {shape!r}; give a shape, such as (784, 10), or an array",
            "Parameters",
        )
    return lengths


def numbers(name: str, values: Any, operation: str) -> np.ndarray[Any, Any]:
    """Any framework's array of real numbers, without a copy where that can be had."""
    detach = getattr(values, "detach", None)
    try:
        if callable(detach):
            values = detach()
            # Which torch makes no array of NumPy's of.
            if str(getattr(values, "dtype", "")) == "torch.bfloat16":
                values = values.float()
        array = np.asarray(values)
    except Exception as error:
        raise InvalidArgument(
            f"block {name!r} is a {type(values).__name__} that NumPy cannot read: {error}",
            operation,
        ) from error
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise InvalidArgument(
            f"block {name!r} has dtype {array.dtype}; give real numbers", operation
        )
    return array


def copy_block(name: str, into: Array, values: Any, operation: str) -> None:
    """Write values of the block's own shape into it, rounded to float32."""
    array = numbers(name, values, operation)
    if array.shape != into.shape:
        raise InvalidArgument(
            f"block {name!r} is {into.shape}; these values are {array.shape}", operation
        )
    np.copyto(into, array, casting="unsafe")

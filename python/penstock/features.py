"""Declarations of the features of tf.Examples, for `parse_example`."""

from __future__ import annotations

import builtins
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .base.arguments import dtype_of, leaf, text
from .dataset.recipe import Operation
from .errors import InvalidArgument

_BYTES, _FLOAT32, _INT64 = 1, 2, 3
_MOST = (1 << 63) - 1  # bytes of a feature
_FIXED, _RAGGED, _STRING, _STRINGS = 0, 1, 2, 3


@dataclass(frozen=True)
class Feature:
    """A feature's type and shape; made by `int64`, `float32` and `bytes`."""

    type: int
    form: int
    count: int = 1
    shape: tuple[int, ...] | None = None
    narrow: bool = False  # int64 in the record, int32 in the output
    default: tuple[builtins.bytes, list[int]] | None = None

    def __repr__(self) -> str:
        name = {_BYTES: "bytes", _FLOAT32: "float32", _INT64: "int64"}[self.type]
        parts = [str(self.count)] if self.type == _BYTES and self.form == _FIXED else []
        parts += [str(self.shape)] if self.shape else []
        parts += ["ragged=True"] if self.form == _RAGGED else []
        parts += ["many=True"] if self.form == _STRINGS else []
        parts += ["dtype='int32'"] if self.narrow else []
        parts += ["default=..."] if self.default is not None else []
        return f"{name}({', '.join(parts)})"


def int64(
    shape: tuple[int, ...] | int = (),
    *,
    ragged: bool = False,
    dtype: Any = "int64",
    default: Any = None,
) -> Feature:
    """Declare integers: an array of `shape` in every record; if `ragged`, any number of values.

    Parameters
    ----------
    shape : tuple of int
        Shape of the values of one record. ``()``: one number.
    ragged : bool
        Any number of values; a batch of them is a `penstock.Ragged`.
    dtype : {"int64", "int32"}
        The dtype of the output. A value that does not fit is an error.
    default : number or array, optional
        Value for records without the feature. None: such a record is an error.
    """
    return _numbers(_INT64, shape, ragged, _integers(dtype), default, "int64")


def float32(
    shape: tuple[int, ...] | int = (), *, ragged: bool = False, default: Any = None
) -> Feature:
    """Declare floats: an array of `shape` in every record; if `ragged`, any number of values.

    The parameters are those of `int64`.
    """
    return _numbers(_FLOAT32, shape, ragged, np.dtype("float32"), default, "float32")


def bytes(
    length: int | None = None, *, many: bool = False, default: builtins.bytes | None = None
) -> Feature:
    """Declare a byte string of any length; or of `length` bytes: a uint8 array ``(length,)``.

    Parameters
    ----------
    length : int, optional
        The length of every record's string; other lengths are an error.
    many : bool
        Any number of strings: their bytes one after the other, and the leaf ``name/lengths``.
    default : bytes, optional
        Value for records without the feature. None: such a record is an error.
    """
    if default is not None and not isinstance(default, (builtins.bytes, bytearray)):
        raise InvalidArgument(f"default is {default!r}; give bytes, or None", "bytes")
    value = None if default is None else (builtins.bytes(default), [len(default)] if many else [])
    if length is None:
        return Feature(_BYTES, _STRINGS if many else _STRING, default=value)
    if many:
        raise InvalidArgument("give length or many, not both", "bytes")
    return Feature(_BYTES, _FIXED, _whole(length, "bytes"), default=value)


def parse_example(features: dict[str, Feature], *, field: str = "") -> Operation:
    """Parse features of tf.Examples, for `Dataset.map` over byte strings.

    Parameters
    ----------
    features : dict
        Name to `int64`, `float32` or `bytes`. Other features of a record are ignored.
    field : str
        The leaf with the record, such as ``"record"`` or ``"1"``, if elements have several leaves.
        Default: the only byte string of an element.

    Returns
    -------
    Operation
        Replaces the record by a dict with these names; the element's other leaves do not change:
        ``(7, record)`` becomes ``(7, {"image": ..., "label": ...})``. A record that is not a
        tf.Example, or whose features differ from their declaration, is a `DataLoss` that names the
        feature and the byte of the record.

    Examples
    --------
    >>> ds = penstock.Dataset.tfrecord("train-*.tfrecord").map(
    ...     penstock.parse_example({"image": penstock.bytes(), "label": penstock.int64()}))
    """
    if not isinstance(features, dict) or not features:
        raise InvalidArgument("give a dict of names and features", "parse_example")
    operation = "parse_example"
    return Operation(operation, _wanted(features, operation), leaf("field", field, operation))


def parse_sequence_example(
    context: dict[str, Feature] | None = None,
    sequences: dict[str, Feature] | None = None,
    *,
    field: str = "",
) -> Operation:
    """Parse features of tf.SequenceExamples, for `Dataset.map` over byte strings.

    Parameters
    ----------
    context : dict, optional
        Features of the whole record, declared as for `parse_example`.
    sequences : dict, optional
        Lists by name, each with the declaration of its steps. `int64` or `float32` with a shape
        become a ragged array with a row for each step. For ``ragged=True`` or `bytes()`, the
        output has the values of all steps one after the other, and the leaf ``name/lengths``. A
        list with any default may be missing, and then has no steps.
    field : str
        As for `parse_example`.

    Returns
    -------
    Operation
        Replaces the record by one dict with both. A record that is not a tf.SequenceExample, or
        whose features differ from their declaration, is a `DataLoss` that names feature, step and
        byte.

    Examples
    --------
    >>> penstock.parse_sequence_example(
    ...     {"label": penstock.int64()}, {"frames": penstock.float32(16)})
    """
    operation = "parse_sequence_example"
    each = [{} if features is None else features for features in (context, sequences)]
    if not all(isinstance(features, dict) for features in each) or not any(each):
        raise InvalidArgument("give dicts of names and features", operation)
    lists = {
        name: replace(step, default=(b"", []))
        if isinstance(step, Feature) and step.default is not None
        else step
        for name, step in each[1].items()
    }
    name = leaf("field", field, operation)
    return Operation(operation, _wanted(each[0], operation), _wanted(lists, operation), name)


def _wanted(features: dict[str, Feature], operation: str) -> list[tuple[Any, ...]]:
    """Convert features to the engine's form."""
    wanted = []
    for name, feature in features.items():
        if not isinstance(name, str) or not isinstance(feature, Feature):
            raise InvalidArgument(
                f"{name!r} is {feature!r}; give penstock.int64(), penstock.float32() or "
                "penstock.bytes()",
                operation,
            )
        wanted.append(
            (
                text(name, operation),
                feature.type,
                feature.form,
                feature.count,
                None if feature.shape is None else list(feature.shape),
                feature.narrow,
                feature.default,
            )
        )
    return wanted


def _numbers(
    type: int, shape: Any, ragged: bool, dtype: np.dtype[Any], default: Any, name: str
) -> Feature:
    axes = tuple(_whole(n, name) for n in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    narrow = dtype == np.int32
    if ragged and axes:
        raise InvalidArgument("give shape or ragged, not both", name)
    if math.prod(axes) * dtype.itemsize > _MOST:
        raise InvalidArgument(f"shape is {axes}; give one that fits into memory", name)
    value: tuple[builtins.bytes, list[int]] | None = None
    if default is not None:
        array = _default(default, dtype, name)
        if not ragged:
            array = _broadcast(array, axes, name)
        try:
            value = (array.tobytes(), [])
        except MemoryError:
            text = f"shape is {axes}; give one that fits into memory"
            raise InvalidArgument(text, name) from None
    if ragged:
        return Feature(type, _RAGGED, narrow=narrow, default=value)
    return Feature(type, _FIXED, math.prod(axes), axes, narrow, value)


def _default(default: Any, dtype: np.dtype[Any], name: str) -> np.ndarray[Any, Any]:
    """Convert a default value to `dtype`, if that loses nothing."""
    kinds = "biu" if dtype.kind == "i" else "biuf"
    try:
        given = np.asarray(default)
    except (TypeError, ValueError):  # rows of different lengths, ...
        given = np.empty((), object)
    if given.size == 0 and given.dtype == np.float64:  # an empty list fits any type
        given = given.astype(dtype)
    if given.dtype.kind in kinds:
        with np.errstate(over="ignore"):
            array = given.astype(dtype)
        lost = array != given if dtype.kind == "i" else np.isinf(array) & ~np.isinf(given)
        if not lost.any():
            return array
    raise InvalidArgument(
        f"default is {default!r}; give numbers that {dtype.name} has, or None", name
    )


def _broadcast(
    array: np.ndarray[Any, Any], axes: tuple[int, ...], name: str
) -> np.ndarray[Any, Any]:
    try:
        return np.broadcast_to(array, axes)
    except ValueError:
        raise InvalidArgument(
            f"default has shape {array.shape}, and the feature {axes}: give one number, or an "
            "array of that shape",
            name,
        ) from None


def _integers(dtype: Any) -> np.dtype[Any]:
    kind = dtype_of(dtype)
    for known in (np.dtype("int64"), np.dtype("int32")):
        if kind is not None and kind.name == known.name:
            return known
    raise InvalidArgument(f"dtype is {dtype!r}; give int64 or int32", "int64")


def _whole(number: Any, name: str) -> int:
    try:
        length = int(number.__index__())
    except (AttributeError, TypeError):
        text = f"{number!r} is no length"
        if name != "bytes":
            text += "; give whole numbers, or ragged=True for any number of values"
        raise InvalidArgument(text, name) from None
    if length < 0:
        raise InvalidArgument(f"a length is {length}; give 0 or more", name)
    if length > _MOST:
        raise InvalidArgument(f"a length is {length}; give {_MOST} at most", name)
    return length

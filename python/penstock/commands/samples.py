"""Columns of the samples of tar archives: arrays in NumPy's format, and whole numbers as text."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np

from ..base.element_spec import TensorSpec
from ..dataset import Dataset
from ..writers import Row, Spec

_SUFFIX = ".npy"


class SampleColumns:
    """The columns that the fields of samples become. All samples are read once for it.

    A field ``x.npy`` becomes the column ``x``, and ``npy`` an array, if it has numbers of one dtype
    in all samples, of one shape or with one axis. Other fields stay bytes.

    Parameters
    ----------
    dataset : Dataset
        Of `Dataset.tar`. Samples that fail are passed over.
    numbers : bool
        The output has numbers only: fields whose values are whole numbers as text become int64, and
        ``__key__`` is left out.
    """

    def __init__(self, dataset: Dataset, numbers: bool) -> None:
        fields: Any = dataset.element_spec
        forms: dict[str, set[Any]] = {name: set() for name in fields if _is_array(name, fields)}
        texts = set(fields) - {"__key__", *forms} if numbers else set()
        with dataset.build(on_error="skip") as feed:
            for sample in feed:
                for name, found in forms.items():
                    found.add(_form(sample[name]))
                texts = {name for name in texts if _whole(sample[name]) is not None}
        self._made = {name: TensorSpec((), np.dtype(np.int64), name) for name in texts}
        for name, found in forms.items():
            column = _column(name.removesuffix(_SUFFIX), found)
            if column is not None:
                self._made[name] = column
        self.said = [
            f"{name} stays bytes: not all samples have numbers of one dtype and shape in it"
            for name in forms
            if name not in self._made
        ]
        self._left_out = "__key__" if numbers else ""
        if numbers:
            self.said.append("left out: __key__, which is text")
        self.spec: Spec = {
            self._name(name): self._made.get(name, leaf)
            for name, leaf in fields.items()
            if name != self._left_out
        }

    def row(self, sample: Row) -> Row:
        """The columns of one sample."""
        return {
            self._name(name): self._value(name, value)
            for name, value in sample.items()
            if name != self._left_out
        }

    def _name(self, field: str) -> str:
        return field.removesuffix(_SUFFIX) if field in self._made else field

    def _value(self, field: str, value: Any) -> Any:
        if field not in self._made:
            return value
        if _is_array(field):
            return np.load(io.BytesIO(value), allow_pickle=False)
        return np.int64(int(value))


def _is_array(field: str, fields: Any = ()) -> bool:
    return field == "npy" or (field.endswith(_SUFFIX) and field.removesuffix(_SUFFIX) not in fields)


def _form(value: bytes) -> Any:
    """The dtype and shape of an array in NumPy's format; None: it is none, or not of numbers."""
    with contextlib.suppress(ValueError, EOFError, OSError):
        array = np.load(io.BytesIO(value), allow_pickle=False)
        if isinstance(array, np.ndarray) and array.dtype.kind in "biufc":
            return array.dtype.newbyteorder("="), array.shape
    return None


def _column(name: str, forms: set[Any]) -> TensorSpec | None:
    """The spec of arrays of these forms; None: they have none in common."""
    if None in forms or len({dtype for dtype, _ in forms}) != 1:
        return None
    shapes = {shape for _, shape in forms}
    dtype = next(iter(forms))[0]
    if len(shapes) == 1:
        return TensorSpec(next(iter(shapes)), dtype, name)
    if {len(shape) for shape in shapes} == {1}:
        return TensorSpec((None,), dtype, name)
    return None


def _whole(value: bytes) -> int | None:
    """The whole number that a text is, if an int64 has it."""
    with contextlib.suppress(ValueError):
        number = int(value.strip())
        if value.strip().lstrip(b"+-").isdigit() and -(2**63) <= number < 2**63:
            return number
    return None

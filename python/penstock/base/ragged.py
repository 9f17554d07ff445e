"""Values whose lengths differ between elements: `penstock.Ragged`, `penstock.ragged`."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NoReturn, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Ragged", "RaggedArray", "ragged"]

Kind = Literal["array", "bytes", "str"]


class RaggedArray(np.ndarray[Any, Any]):
    """An array whose lengths may differ between elements: a row of a `Ragged`, or of `ragged`.

    It is an ordinary array that also stores the axes along which elements may differ. Views and
    results with the same number of axes keep them; other results are dense.

    Attributes
    ----------
    axes : tuple of int
        The axes along which elements may differ; empty for a dense array.
    """

    axes: tuple[int, ...] = ()

    def __array_finalize__(self, source: object) -> None:
        if isinstance(source, RaggedArray) and source.ndim == self.ndim and source.axes:
            self.axes = source.axes

    def __reduce__(self) -> tuple[Any, ...]:
        return _ragged_array, (np.asarray(self), self.axes)


def _ragged_array(array: npt.NDArray[Any], axes: tuple[int, ...]) -> RaggedArray:
    marked = array.view(RaggedArray)
    marked.axes = axes
    return marked


def ragged(array: npt.ArrayLike, axes: int | Sequence[int] = 0) -> RaggedArray:
    """Declare that an array's lengths may differ between elements.

    Elements with such arrays batch to a `Ragged`, even if their lengths are equal.

    Parameters
    ----------
    array : array_like
        Any array of at least one axis. It is not copied.
    axes : int or sequence of int
        The axes along which elements may differ: 0 for tokens of shape (length, features), (0, 1)
        for images of shape (height, width, channels).

    Returns
    -------
    RaggedArray
        A view of the array that stores these axes.

    Raises
    ------
    ValueError
        For axes that the array does not have.

    Examples
    --------
    >>> penstock.Dataset.source(texts).map(lambda text: {"tokens": penstock.ragged(tokenize(text))})
    """
    plain = np.asarray(array)
    wanted = axes if isinstance(axes, Sequence) else [axes]
    chosen = sorted({operator.index(axis) + (plain.ndim if axis < 0 else 0) for axis in wanted})
    if not chosen or chosen[0] < 0 or chosen[-1] >= plain.ndim:
        raise ValueError(
            f"axes={axes!r}; an array of {plain.ndim} axes is ragged along one or more of these"
        )
    return _ragged_array(plain, tuple(chosen))


class Ragged:
    """Rows of different lengths, one after the other in one array: a batch of ragged values.

    Rows are arrays, ``bytes`` or ``str``. ``batch["text"][3]`` is the row, a slice is a `Ragged` of
    the same memory, a list or array of integers or booleans picks rows (a copy).

    Parameters
    ----------
    values : ndarray
        All rows, one after the other along the first axis; the UTF-8 of texts as uint8. With
        `dims`, a flat array.
    offsets : ndarray
        int64 of shape (rows + 1,): row i is ``values[offsets[i]:offsets[i + 1]]``.
    kind : {"array", "bytes", "str"}
        The type of the rows.
    dims : ndarray, optional
        int64 of shape (rows, axes): the rows' shapes, if they differ in a later axis.
    axes : tuple of int
        The axes along which rows may differ.

    Raises
    ------
    ValueError
        For offsets that do not ascend from 0 to ``len(values)``, or shapes that do not fit them.
    """

    __slots__ = ("axes", "dims", "kind", "offsets", "values")
    __array_ufunc__ = None  # operators of arrays raise TypeError at once

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    kind: Kind
    dims: npt.NDArray[np.int64] | None
    axes: tuple[int, ...]

    def __init__(
        self,
        values: npt.ArrayLike,
        offsets: npt.ArrayLike,
        kind: Kind = "array",
        dims: npt.ArrayLike | None = None,
        axes: tuple[int, ...] = (0,),
    ) -> None:
        self.values = np.asarray(values)
        self.offsets = np.asarray(offsets, np.int64)
        self.kind = kind
        self.dims = None if dims is None else np.asarray(dims, np.int64)
        self.axes = tuple(axes)
        self._check()

    def _check(self) -> None:
        values, offsets, dims = self.values, self.offsets, self.dims
        if self.kind not in ("array", "bytes", "str"):
            raise ValueError(f"kind={self.kind!r}; use 'array', 'bytes' or 'str'")
        if self.kind != "array" and (values.dtype != np.uint8 or values.ndim != 1):
            raise ValueError(f"values of kind={self.kind!r} must be uint8 with one axis")
        if values.ndim == 0 or offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError("values must have at least one axis, and offsets rows + 1 numbers")
        if offsets[0] != 0 or offsets[-1] != len(values) or np.any(np.diff(offsets) < 0):
            raise ValueError("offsets must ascend from 0 to len(values)")
        if dims is not None:
            if values.ndim != 1 or dims.ndim != 2 or len(dims) != len(self):
                raise ValueError(
                    "dims must have the shape (rows, axes), and values beside dims one axis"
                )
            if np.any(dims < 0) or np.any(dims.prod(axis=1) != np.diff(offsets)):
                raise ValueError("dims and offsets do not agree")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Length of each row's first axis, int64 of shape (rows,); for texts, bytes of UTF-8."""
        return np.diff(self.offsets) if self.dims is None else self.dims[:, 0]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice | list[int] | npt.NDArray[Any]) -> Ragged: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            if step == 1:
                return self._between(begin, max(begin, end))
            return self._pick(np.arange(begin, end, step))
        if isinstance(index, (list, np.ndarray)) and np.ndim(index) > 0:
            return self._pick(self._rows(np.asarray(index)))
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"row {place} of {len(self)}")
        return self._row(place % len(self))

    def _row(self, place: int) -> Any:
        part = self.values[self.offsets[place] : self.offsets[place + 1]]
        if self.kind == "bytes":
            return part.tobytes()
        if self.kind == "str":
            return str(part.data, "utf-8")
        if self.dims is not None:
            part = part.reshape(self.dims[place])
        return _ragged_array(part, self.axes) if self.axes else part

    def _rows(self, index: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if index.ndim != 1 or (index.size and index.dtype.kind not in "biu"):
            raise IndexError("rows are picked by one axis of integers or booleans")
        if index.dtype.kind == "b":
            if len(index) != len(self):
                raise IndexError(f"{len(index)} booleans for {len(self)} rows")
            return np.flatnonzero(index)
        places = index.astype(np.int64)
        if np.any(places < -len(self)) or np.any(places >= len(self)):
            raise IndexError(f"rows out of {len(self)}")
        return np.where(places < 0, places + len(self), places)

    def _between(self, begin: int, end: int) -> Ragged:
        offsets = self.offsets[begin : end + 1]
        values = self.values[offsets[0] : offsets[-1]]
        if offsets[0] != 0:
            offsets = offsets - offsets[0]
        dims = None if self.dims is None else self.dims[begin:end]
        return of_block(values, offsets, self.kind, dims, self.axes)

    def _pick(self, places: npt.NDArray[np.int64]) -> Ragged:
        lengths = np.diff(self.offsets)[places]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        # The indices of the values: those of each row count up from the row's begin.
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[places] - offsets[:-1], lengths)
        dims = None if self.dims is None else self.dims[places]
        return of_block(self.values[at], offsets, self.kind, dims, self.axes)

    def __iter__(self) -> Iterator[Any]:
        return (self._row(place) for place in range(len(self)))

    def to_list(self) -> list[Any]:
        """Rows as ``bytes``, ``str`` or nested lists of Python numbers."""
        if self.kind != "array":
            return list(self)
        return [row.tolist() for row in self]

    def to_padded(self, value: Any = 0) -> npt.NDArray[Any]:
        """Pad the rows to equal lengths.

        Parameters
        ----------
        value : scalar
            The padding at the rows' ends.

        Returns
        -------
        ndarray
            Of shape (rows, longest, ...) and the values' dtype; texts and bytes are uint8.
        """
        if self.dims is None:
            longest = int(self.lengths.max(initial=0))
            padded = np.full((len(self), longest, *self.values.shape[1:]), value, self.dtype)
            if padded.size:
                padded[np.arange(longest) < self.lengths[:, np.newaxis]] = self.values
            return padded
        padded = np.full((len(self), *self.dims.max(axis=0, initial=0)), value, self.dtype)
        for place, row in enumerate(self):
            corner: Any = (place, *map(slice, row.shape))
            padded[corner] = row
        return padded

    def equals(self, other: Any, equal_nan: bool = False) -> bool:
        """Whether `other` is a Ragged of the same kind, dtype, lengths and values."""
        return (
            isinstance(other, Ragged)
            and (self.kind, self.dtype) == (other.kind, other.dtype)
            and np.array_equal(self.offsets, other.offsets)
            and (self.dims is None) == (other.dims is None)
            and (self.dims is None or np.array_equal(self.dims, other.dims))  # type: ignore[arg-type]
            and np.array_equal(self.values, other.values, equal_nan=equal_nan)
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise TypeError(
            "rows of different lengths are no array: use .to_padded(), .values and .offsets, or a "
            "row at a time"
        )

    def __repr__(self) -> str:
        rows = f"{len(self)} row{'' if len(self) == 1 else 's'}"
        if self.kind != "array":
            return f"Ragged({rows} of {self.kind}, {len(self.values)} bytes)"
        lengths = ["?", *map(str, self.values.shape[1:])]
        if self.dims is not None:
            known = range(self.dims.shape[1]) if self.axes and len(self) > 0 else ()
            lengths = ["?"] * self.dims.shape[1]
            for axis in set(known) - set(self.axes):
                lengths[axis] = str(self.dims[0, axis])
        shape = f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"
        return f"Ragged({rows} of {self.dtype} {shape}, {self.values.size} values)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self.values, self.offsets, self.kind, self.dims, self.axes)


def of_block(
    values: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    kind: Kind,
    dims: npt.NDArray[np.int64] | None,
    axes: tuple[int, ...],
) -> Ragged:
    """Make a Ragged of parts that were checked already. Called by the extension."""
    made = Ragged.__new__(Ragged)
    made.values = values
    made.offsets = offsets
    made.kind = kind
    made.dims = dims
    made.axes = axes
    return made

"""The sources of columnar data that other libraries hold in memory in Arrow's format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _engine
from ..base.arguments import several
from ..errors import InvalidArgument
from .chain import Chain

if TYPE_CHECKING:
    from .dataset import Dataset


class ArrowSources(Chain):
    """The class methods of `Dataset` that read columnar data."""

    @classmethod
    def arrow(
        cls,
        data: Any,
        *,
        columns: Sequence[str] | None = None,
        nulls: str | Mapping[str, Any] = "error",
    ) -> Dataset:
        """Rows of a table in Arrow's format, as dicts of its columns. Indexed.

        Parameters
        ----------
        data : object with ``__arrow_c_stream__`` or ``__arrow_c_array__``
            A table of pyarrow, polars, pandas (2.2 and later) or DuckDB, a data set of pyarrow,
            which is read into memory, or a data set of Hugging Face's ``datasets``, with its
            selected rows in its order. The data is not copied, and
            memory-mapped files stay mapped. A stream of batches is read to its end at once.
            Numbers and fixed-size lists become arrays, lists ragged arrays, strings ``str``,
            binary ``bytes``, structs dicts. Dictionaries are decoded. Dates, times and durations
            are int64 in the column's unit. A single column gives its values, without a dict.
        columns : list of str, optional
            The columns to read, in this order; ``"a/b"`` is the field b of the struct a. None: all.
        nulls : {"error"} or dict
            "error": a row with a null fails with an `InvalidArgument` that names column and row;
            ``on_error`` can skip it. Or values for the nulls of columns: ``{"price": 0.0,
            "a/b": ""}``. In lists of varying lengths the value replaces null items, and null lists
            become empty.

        Raises
        ------
        InvalidArgument
            No such data or column; a column of a type that elements cannot have (decimal, union,
            map, lists of strings, ...).
        DataLoss
            The data contradicts its schema, or the stream failed.
        """
        names = column_names(columns, "arrow")
        data, rows = _selected(data)
        table = _imported(data, names)
        return cls._make("arrow", (table, fills_of(table, nulls, "arrow"), rows))


def _selected(data: Any) -> tuple[Any, Any]:
    """The table behind a data set of Hugging Face, and the row numbers that it selects."""
    if not type(data).__module__.startswith("datasets."):
        return data, None
    if not hasattr(data, "_indices") or not hasattr(data, "data"):
        remedy = (
            "give one of its splits, such as data['train']"
            if isinstance(data, dict)
            else "load it without streaming=True, or feed Dataset.generator(lambda: iter(data))"
        )
        raise InvalidArgument(f"{type(data).__name__} is no table: {remedy}", "arrow")
    rows = None
    if data._indices is not None:
        rows = np.ascontiguousarray(data._indices.column(0).to_numpy(), np.int64)
    return getattr(data.data, "table", data.data), rows


def _imported(data: Any, names: list[str]) -> Any:
    try:
        if hasattr(data, "scanner"):  # a data set of pyarrow: without the columns not wanted
            wanted = {name.partition("/")[0] for name in names}
            columns = [name for name in data.schema.names if not names or name in wanted]
            data = data.scanner(columns=columns)
        if hasattr(data, "to_reader") and not hasattr(data, "__arrow_c_stream__"):
            data = data.to_reader()
        stream = data.__arrow_c_stream__() if hasattr(data, "__arrow_c_stream__") else None
    except (TypeError, ValueError, NotImplementedError) as error:  # pyarrow's errors are of these
        raise InvalidArgument(
            f"a {type(data).__name__} is no Arrow table: {'; '.join(map(str, error.args))}", "arrow"
        ) from error
    if stream is not None:
        return _engine.ArrowTable.from_stream(stream, names)
    if hasattr(data, "__arrow_c_array__"):
        schema, array = data.__arrow_c_array__()
        return _engine.ArrowTable.from_array(schema, array, names)
    hint = "give a table, such as pyarrow.table({...})"
    if hasattr(data, "to_table"):
        hint = "give its to_table()"
    elif hasattr(data, "collect"):
        hint = "give its collect()"
    elif type(data).__module__.startswith(("pandas.", "polars.", "duckdb")):
        hint = "a newer version of its library has it"
    raise InvalidArgument(
        f"a {type(data).__name__} has no __arrow_c_stream__ and no __arrow_c_array__: {hint}",
        "arrow",
    )


def column_names(columns: Any, operation: str) -> list[str]:
    """The argument `columns`, checked; empty: all."""
    names = [] if columns is None else several("columns", columns, "names", operation)
    if not all(isinstance(name, str) for name in names) or (columns is not None and not names):
        raise InvalidArgument("columns must be names of columns", operation)
    return names


def fills_of(table: Any, nulls: Any, operation: str) -> list[tuple[str, str, list[int], bytes]]:
    """The values for nulls: leaf, dtype, shape, bytes each."""
    if isinstance(nulls, str) and nulls == "error":
        return []
    if not isinstance(nulls, Mapping):
        raise InvalidArgument(
            f'nulls is {nulls!r}; give "error", or a dict from columns to values', operation
        )
    leaves = {name: (kind, dtype, shape) for name, kind, dtype, shape in table.leaves()}
    fills = []
    for name, value in nulls.items():
        if name not in leaves:
            known = ", ".join(repr(leaf) for leaf in leaves)
            raise InvalidArgument(f"nulls has {name!r}, and the columns are {known}", operation)
        fills.append((name, *_fill(name, *leaves[name], value, operation)))
    return fills


def _fill(
    name: str, kind: str, dtype: str, shape: list[int], value: Any, operation: str
) -> tuple[str, list[int], bytes]:
    wanted = {"str": "a str", "bytes": "bytes", "ragged": f"one number of {dtype}"}.get(
        kind, f"{dtype} of shape {tuple(shape)}"
    )
    wrong = InvalidArgument(f"nulls[{name!r}] is {value!r}; give {wanted}", operation)
    if kind in ("str", "bytes"):
        if not isinstance(value, str if kind == "str" else (bytes, bytearray)):
            raise wrong
        encoded = value.encode() if isinstance(value, str) else bytes(value)
        return "uint8", [len(encoded)], encoded
    if kind == "ragged":
        shape = []
    try:
        given = np.asarray(value)
        with np.errstate(all="ignore"):
            made = np.ascontiguousarray(np.broadcast_to(given, shape)).astype(dtype)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if not _fits(given, made):
        raise wrong
    return dtype, list(shape), made.tobytes()


def _fits(given: Any, made: Any) -> bool:
    """Whether a conversion kept the numbers, but for a float's precision."""
    kinds = {"b": "b", "f": "iuf"}.get(made.dtype.kind, "iu")
    if given.dtype.kind not in kinds:
        return False
    if made.dtype.kind != "f":
        return bool(np.all(given == made))
    return all(math.isfinite(a) == math.isfinite(b) for a, b in np.nditer([given, made]))

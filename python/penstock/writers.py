"""Files that the elements of a Dataset are written to. Each appears when it is complete."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from .base.arguments import path as path_of
from .base.element_spec import TensorSpec
from .base.file_kinds import kind_of
from .base.hdf5_output import Hdf5Columns
from .base.output_file import OutputFile
from .dataset import Dataset
from .dataset.parquet import pyarrow_parquet
from .errors import InvalidArgument
from .files import TarWriter, TFRecordWriter, example

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .loader.options import RunOptions

__all__ = ["write"]

Row = Mapping[str, Any]
Spec = Mapping[str, Any]  # of TensorSpec, nested as the rows are

# Decompressed bytes of a row group: small enough that a window of several fits into memory.
_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 16
# Types of the values in an IDX file, and their numbers in its header.
_IDX_TYPES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def write(dataset: Dataset, path: str | os.PathLike[str], **options: Unpack[RunOptions]) -> int:
    """Write the elements of one pass to a file, in the format that its name says.

    - ``.tfrecord``, and names that say no other format: a tf.Example of each element; elements
      that are bytes are records as they are. ``.gz`` compresses.
    - ``.tar``, ``.tar.gz``, ``.tgz``: files as WebDataset names them. Single integers are text,
      arrays and other numbers NumPy's files: the field ``x`` is named ``x.npy``. The field
      ``__key__``, or the number, is the key.
    - ``.parquet``, ``.pq``: columns, by pyarrow, in row groups of about 32 MiB.
    - ``.npy``: one array, of elements with one field. ``.npz``: an array for each field.
    - ``.idx``, ``-idx3-ubyte`` and the like, also ``.gz``: one array of numbers, big-endian.
    - ``.h5``, ``.hdf5``: a data set for each field, of numbers or text, by h5py, compressed.

    Parameters
    ----------
    dataset : Dataset
        Elements are dicts, or arrays, strings or tuples: then the fields are ``"value"``, or
        ``"0"``, ``"1"``, ...
    path : path
        Appears when it is complete; then it replaces a file of that name. After an error nothing is
        left of it.
    **options
        Those of `penstock.Loader`, for the pass: ``workers``, ``on_error="skip"``,
        ``progress=True``, ...

    Returns
    -------
    int
        The number of elements written.

    Raises
    ------
    InvalidArgument
        The name says a format that is not written (``.csv``, ``.zip``, ...); the elements are
        batches, do not fit into such a file, or are none; the Dataset is endless;
        an element has other lengths than the first one where the file needs equal ones.
    NotFound, System
        The file cannot be written.

    Examples
    --------
    >>> small = photographs.map(penstock.image.decode()).map(penstock.image.resize(64, 64))
    >>> penstock.write(small.map(penstock.image.encode("jpeg")), "small.tfrecord", progress=True)
    """
    operation = "write"
    to = path_of(path, operation)
    if not isinstance(dataset, Dataset):
        raise InvalidArgument(f"a {type(dataset).__name__}; give a Dataset", operation)
    if dataset._batching() is not None:
        raise InvalidArgument(
            "the elements are batches; write what is in front of batch(), or unbatch()", operation
        )
    if dataset.cardinality() == float("inf"):
        raise InvalidArgument("the Dataset is endless; take(n) ends it", operation)
    spec = dataset.element_spec
    raw = spec == TensorSpec((), bytes) and kind_of(to) == "tfrecord"
    compression = "gzip" if to.endswith(".gz") else "none"
    number = 0
    with contextlib.ExitStack() as stack:
        feed = stack.enter_context(dataset.build(**options))
        records = TFRecordWriter(to, compression=compression) if raw else None
        writer: Any = records or open_output(to, _named(spec))
        stack.callback(writer.discard)
        for element in feed:
            writer.write(element if raw else _named(element))
            number += 1
        writer.close()
    return number


def _named(nest: Any) -> Mapping[str, Any]:
    """An element, or its spec, as a dict of its fields."""
    if isinstance(nest, Mapping):
        return {str(key): _parts(value) for key, value in nest.items()}
    parts = _parts(nest)
    return parts if isinstance(parts, dict) else {"value": parts}


def _parts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _parts(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return {str(key): _parts(part) for key, part in enumerate(value)}
    return value


def open_output(path: str, spec: Spec) -> Any:
    """The writer of an output for rows of `spec`: ``write(row)``, ``close()``, ``discard()``.

    Raises
    ------
    InvalidArgument
        Such rows do not fit into such a file; the text says why.
    """
    compression = "gzip" if path.endswith((".gz", ".tgz")) else "none"
    makers: dict[str, Callable[[], Any]] = {
        "tfrecord": lambda: Examples(path, compression, spec),
        "tar": lambda: Samples(path, compression, spec),
        "parquet": lambda: ParquetRows(path, spec),
        "npy": lambda: Arrays(path, "none", spec),
        "npz": lambda: Arrays(path, "none", spec),
        "idx": lambda: Arrays(path, compression, spec),
        "hdf5": lambda: Hdf5Columns(path, flat(spec)),
    }
    return makers[kind_of(path)]()


def flat(nest: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The leaves of a nest of dicts by their paths, such as ``"image/bytes"``."""
    leaves: dict[str, Any] = {}
    for name, value in nest.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{path}{name}/")
        else:
            leaves[f"{path}{name}"] = value
    return leaves


def is_picture(spec: TensorSpec) -> bool:
    """Whether a tf.Example has the values as bytes, for `penstock.decode_raw`."""
    return spec.dtype == np.uint8 and len(spec.shape) > 0


class Examples:
    """TFRecord: a tf.Example of each row."""

    def __init__(self, path: str, compression: str, spec: Spec) -> None:
        self._pictures = {name for name, leaf in flat(spec).items() if is_picture(leaf)}
        self._writer = TFRecordWriter(path, compression=compression)
        self.close, self.discard = self._writer.close, self._writer.discard

    def write(self, row: Row) -> None:
        leaves = flat(row)
        for name in self._pictures & leaves.keys():
            leaves[name] = np.ascontiguousarray(leaves[name]).tobytes()
        self._writer.write(example(leaves))


class Samples:
    """A tar archive: the row's ``__key__``, or its number, and a file for each other column.

    Arrays, and numbers that are no integers, are files in NumPy's format, ``.npy``.
    """

    def __init__(self, path: str, compression: str, spec: Spec) -> None:
        names = set()
        self._arrays = set()
        for name, leaf in flat(spec).items():
            bare = isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "iu" and not leaf.shape
            if leaf.dtype not in (bytes, str) and not bare:
                if not isinstance(leaf.dtype, np.dtype) or leaf.dtype.kind not in "biufcSU":
                    raise InvalidArgument(
                        f"an archive has files of bytes, text and arrays, and {name!r} is "
                        f"{_said(leaf)}",
                        "write",
                    )
                self._arrays.add(name)
            names.add(self._file(name))
            if "/" in name:
                raise InvalidArgument(
                    f"an archive has no fields in fields, and {name!r} is one: leave it out "
                    "(penstock.select, --columns), or write .tfrecord, .parquet, .npz or .h5",
                    "write",
                )
        if len(names) < len(flat(spec)):
            raise InvalidArgument(
                f"two of the fields would be one file: {', '.join(map(repr, flat(spec)))}", "write"
            )
        self._writer = TarWriter(path, compression=compression)
        self.close, self.discard = self._writer.close, self._writer.discard

    def _file(self, name: str) -> str:
        return f"{name}.npy" if name in self._arrays else name

    def write(self, row: Row) -> None:
        sample: dict[str, Any] = {"__key__": f"{self._writer.samples:09}"}
        for name, value in flat(row).items():
            if name in self._arrays:
                file = io.BytesIO()
                np.save(file, value, allow_pickle=False)
                sample[self._file(name)] = file.getvalue()
            else:
                sample[name] = value if isinstance(value, (bytes, str)) else str(int(value))
        self._writer.write(sample)


class ParquetRows:
    """A Parquet file, in row groups of about 32 MiB, with the checksums of its pages."""

    def __init__(self, path: str, spec: Spec) -> None:
        import pyarrow

        self._pa = pyarrow
        fields = [pyarrow.field(name, _type_of(name, leaf)) for name, leaf in spec.items()]
        self._schema = pyarrow.schema(fields)
        self._sink = OutputFile(path)
        self._writer = pyarrow_parquet("write").ParquetWriter(
            pyarrow.PythonFile(self._sink, mode="w"),
            self._schema,
            compression="zstd",
            write_page_checksum=True,
        )
        self._path = path
        self._written = 0
        self._rows: list[Row] = []
        self._bytes = 0

    def write(self, row: Row) -> None:
        self._rows.append(row)
        self._bytes += sum(_size_of(value) for value in flat(row).values())
        if self._bytes >= _GROUP_BYTES or len(self._rows) == _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        try:
            columns = [
                _column([row[field.name] for row in self._rows], field.type)
                for field in self._schema
            ]
        except (TypeError, ValueError) as error:
            last = self._written + len(self._rows) - 1
            raise InvalidArgument(
                f"{self._path}, elements {self._written} to {last}: they are not as the first one: "
                f"{error}",
                "write",
            ) from None
        self._written += len(self._rows)
        self._writer.write_table(
            self._pa.Table.from_arrays(columns, schema=self._schema),
            row_group_size=max(len(self._rows), 1),
        )
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()
        self._sink.publish()

    def discard(self) -> None:
        self._sink.discard()
        with contextlib.suppress(OSError, ValueError):  # it failed before
            self._writer.close()


class Arrays:
    """An .npy, .npz or IDX file. The values wait in unnamed files until their number is known."""

    def __init__(self, path: str, compression: str, spec: Spec) -> None:
        self._path = path
        self._kind = kind_of(path)
        self._leaves = flat(spec)
        self._dtypes = {name: self._dtype_of(name, leaf) for name, leaf in self._leaves.items()}
        if self._kind != "npz" and len(self._leaves) != 1:
            names = ", ".join(map(repr, self._leaves))
            raise InvalidArgument(
                f"a file like {path} has one array, and there are the columns {names}: choose one "
                "(penstock.select, --columns), or write an .npz",
                "write",
            )
        self._count = 0
        self._sink = OutputFile(path, compression)
        self._parts: dict[str, IO[bytes]] = {}
        for name in self._leaves:
            self._parts[name] = tempfile.TemporaryFile(dir=Path(path).absolute().parent)  # noqa: SIM115

    def _dtype_of(self, name: str, leaf: TensorSpec) -> np.dtype[Any]:
        fits = isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "biufcSU"
        if not fits or None in leaf.shape:
            raise InvalidArgument(
                f"an array has numbers, and equally many in each row; {name!r} is {_said(leaf)}: "
                "leave it out (penstock.select, --columns), or write .tar, .parquet or .tfrecord",
                "write",
            )
        dtype: np.dtype[Any] = np.dtype(leaf.dtype)
        if self._kind != "idx":
            return dtype
        if dtype.str[1:] not in _IDX_TYPES:
            raise InvalidArgument(
                f"an IDX file has uint8, int8, int16, int32, float32 or float64; {name!r} is "
                f"{_said(leaf)}",
                "write",
            )
        big: np.dtype[Any] = dtype.newbyteorder(">")
        return big

    def write(self, row: Row) -> None:
        for name, value in flat(row).items():
            array = np.asarray(value)
            wanted = self._leaves[name]
            dtype = self._dtypes[name]
            longer = dtype.kind in "SU" and array.dtype.itemsize > dtype.itemsize
            if array.shape != wanted.shape or array.dtype.kind != dtype.kind or longer:
                raise InvalidArgument(
                    f"element {self._count}: {name!r} is {array.dtype} {array.shape}, and the "
                    f"first one {_said(wanted)}: an array has equally many numbers in each row",
                    "write",
                )
            self._parts[name].write(np.ascontiguousarray(array, dtype).tobytes())
        self._count += 1

    def close(self) -> None:
        if self._kind == "npz":
            with zipfile.ZipFile(self._sink, "w") as archive:
                for name in self._leaves:
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        self._put(name, member)
        else:
            self._put(next(iter(self._leaves)), self._sink)
        self._sink.publish()
        self._close_parts()

    def _put(self, name: str, to: Any) -> None:
        dtype, shape = self._dtypes[name], (self._count, *self._leaves[name].shape)
        if self._kind == "idx":
            number = _IDX_TYPES[dtype.str[1:]]
            to.write(bytes((0, 0, number, len(shape))) + np.array(shape, ">u4").tobytes())
        else:
            head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
            np.lib.format.write_array_header_2_0(to, {**head, "shape": shape})
        part = self._parts[name]
        part.seek(0)
        shutil.copyfileobj(part, to, 1 << 20)

    def discard(self) -> None:
        self._sink.discard()
        self._close_parts()

    def _close_parts(self) -> None:
        for part in self._parts.values():
            part.close()


def _said(leaf: TensorSpec) -> str:
    if not isinstance(leaf.dtype, np.dtype):
        return f"{leaf.dtype.__name__} of any length"
    return (
        f"{leaf.dtype} {leaf.shape}".replace("None", "any length")
        if leaf.shape
        else str(leaf.dtype)
    )


def _size_of(value: Any) -> int:
    return int(getattr(value, "nbytes", 0)) or (
        len(value) if isinstance(value, (bytes, str)) else 8
    )


def _type_of(name: str, leaf: Any) -> Any:
    """The Arrow type of values of a spec."""
    import pyarrow

    if isinstance(leaf, Mapping):
        return pyarrow.struct(
            [(key, _type_of(f"{name}/{key}", part)) for key, part in leaf.items()]
        )
    if leaf.dtype in (bytes, str):
        return pyarrow.string() if leaf.dtype is str else pyarrow.binary()
    if isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "SU":
        return pyarrow.string() if leaf.dtype.kind == "U" else pyarrow.binary()
    if not isinstance(leaf.dtype, np.dtype) or leaf.dtype.kind not in "biuf":
        raise InvalidArgument(f"Parquet has no type for {name!r}, which is {_said(leaf)}", "write")
    item = pyarrow.from_numpy_dtype(leaf.dtype.newbyteorder("="))
    if None not in leaf.shape and len(leaf.shape) > 1 and 0 not in leaf.shape:
        return pyarrow.fixed_shape_tensor(item, leaf.shape)
    for length in reversed(leaf.shape):
        item = pyarrow.list_(item, -1 if length is None else length)
    return item


def _column(values: list[Any], kind: Any) -> Any:
    """The values of a column, of the type that `_type_of` chose."""
    import pyarrow

    if isinstance(kind, pyarrow.FixedShapeTensorType):
        flat_values = np.stack(values).reshape(-1)
        storage = pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(flat_values, kind.value_type), kind.storage_type.list_size
        )
        return pyarrow.ExtensionArray.from_storage(kind, storage)
    if pyarrow.types.is_struct(kind):
        fields = list(kind)
        parts = [_column([value[f.name] for value in values], f.type) for f in fields]
        return pyarrow.StructArray.from_arrays(parts, fields=fields)
    if values and isinstance(values[0], np.ndarray) and values[0].ndim > 1:
        values = [value.tolist() for value in values]
    if values and isinstance(values[0], np.generic):
        values = np.array(values)  # type: ignore[assignment]
    return pyarrow.array(values, kind)

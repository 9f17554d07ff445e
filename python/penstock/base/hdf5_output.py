"""Rows as an HDF5 file: a data set for each column."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .element_spec import TensorSpec
from .output_file import OutputFile

# A chunk has at most so many rows and bytes: a batch takes one or a few of them.
_CHUNK_ROWS = 256
_CHUNK_BYTES = 1 << 20


class Hdf5Columns:
    """An HDF5 file, compressed by gzip after the shuffle filter. It waits in an unnamed file.

    Parameters
    ----------
    path : str
    leaves : dict of TensorSpec
        Numbers of one shape, and text; ``"g/x"`` is the data set x in the group g.

    Raises
    ------
    InvalidArgument
        h5py is not installed; a column is bytes, its length varies, or an axis has no
        values.
    """

    def __init__(self, path: str, leaves: Mapping[str, TensorSpec]) -> None:
        try:
            import h5py
        except ImportError as error:
            raise InvalidArgument("HDF5 files need h5py: pip install h5py", "write") from error
        dtypes = {name: _dtype_of(name, leaf, h5py) for name, leaf in leaves.items()}
        self._leaves = dict(leaves)
        self._sink = OutputFile(path)
        self._file = tempfile.TemporaryFile(dir=Path(path).absolute().parent)  # noqa: SIM115
        self._hdf5 = h5py.File(self._file, "w")
        shapes = {
            name: tuple(length or 0 for length in leaf.shape) for name, leaf in leaves.items()
        }
        largest = max(
            (dtypes[name].itemsize * math.prod(shape) for name, shape in shapes.items()), default=1
        )
        self._rows = min(max(_CHUNK_BYTES // max(largest, 1), 1), _CHUNK_ROWS)
        self._data = {
            name: self._hdf5.create_dataset(
                name,
                (0, *shape),
                dtypes[name],
                maxshape=(None, *shape),
                chunks=(self._rows, *shape),
                compression="gzip",
                shuffle=True,
            )
            for name, shape in shapes.items()
        }
        self._waiting: dict[str, list[Any]] = {name: [] for name in leaves}
        self._count = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        for name, leaf in self._leaves.items():
            value = _at(row, name)
            if isinstance(leaf.dtype, np.dtype):
                value = np.asarray(value)
                if value.shape != leaf.shape or value.dtype.kind != leaf.dtype.kind:
                    raise InvalidArgument(
                        f"element {self._count}: {name!r} is {value.dtype} {value.shape}, and the "
                        f"first one {leaf.dtype} {leaf.shape}: a data set has equally many numbers "
                        "in each row",
                        "write",
                    )
            self._waiting[name].append(value)
        self._count += 1
        if self._count % self._rows == 0:
            self._flush()

    def _flush(self) -> None:
        for name, data in self._data.items():
            rows, self._waiting[name] = self._waiting[name], []
            if rows:
                data.resize(self._count, axis=0)
                data[self._count - len(rows) :] = rows

    def close(self) -> None:
        """Write what is left; then the file appears."""
        self._flush()
        self._hdf5.close()
        self._file.seek(0)
        shutil.copyfileobj(self._file, self._sink, 1 << 20)
        self._sink.publish()
        self._file.close()

    def discard(self) -> None:
        """Leave no file. Does nothing after `close`."""
        self._sink.discard()
        self._hdf5.close()
        self._file.close()


def _at(row: Mapping[str, Any], name: str) -> Any:
    value: Any = row
    for part in [name] if name in row else name.split("/"):
        value = value[part]
    return value


def _dtype_of(name: str, leaf: TensorSpec, h5py: Any) -> Any:
    if leaf.dtype is str:
        return h5py.string_dtype()
    if isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "biufc" and all(leaf.shape):
        return leaf.dtype.newbyteorder("=")
    kind = leaf.dtype if isinstance(leaf.dtype, np.dtype) else leaf.dtype.__name__
    raise InvalidArgument(
        f"an HDF5 file has numbers, equally many in each row, and text; {name!r} is {kind} of the "
        f"shape {leaf.shape}: leave it out (penstock.select, --columns), or write .tar, .parquet "
        "or .tfrecord",
        "write",
    )

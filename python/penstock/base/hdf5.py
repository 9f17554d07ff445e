"""Finds the data sets of an HDF5 file in its bytes.

h5py, and so libhdf5 with its global lock, is used here to find the chunks. The engine then reads
and decompresses them in any number of threads.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from ..errors import DataLoss, InvalidArgument, NotFound, System
from .nests import leaves_of, mapped
from .remote import Identity, local_copy, without_query

__all__ = ["Hdf5Rows", "hdf5_call", "is_hdf5", "only_hdf5", "opened", "refuse_groups", "rows_of"]

CACHE_BYTES = 256 << 20
# HDF5's numbers of filters, as the engine numbers them.
_FILTERS = {2: 0, 1: 1, 3: 2}  # shuffle, deflate, fletcher32


def is_hdf5(value: Any) -> bool:
    """Whether it is an open `h5py.Dataset`."""
    h5py: Any = sys.modules.get("h5py")
    return h5py is not None and isinstance(value, h5py.Dataset)


def refuse_groups(leaves: Iterable[Any], operation: str) -> None:
    """Raise an error for an open file or group, whose items would be the names of its data sets.

    Raises
    ------
    InvalidArgument
        The text has the call that feeds its data sets.
    """
    h5py: Any = sys.modules.get("h5py")
    if h5py is None:
        return
    for leaf in leaves:
        if not isinstance(leaf, h5py.Group):
            continue
        if not leaf:
            raise InvalidArgument("the HDF5 file is closed: open it, or give its path", operation)
        prefix = leaf.name.strip("/")
        names = {
            name: f"{prefix}/{name}".strip("/")
            for name in sorted(leaf)
            if _holds_data_set(leaf, name)
        }
        raise InvalidArgument(
            f"an open HDF5 {'group' if prefix else 'file'} is no data set: name those to feed, "
            f"penstock.Dataset.hdf5({leaf.file.filename!r}, {names!r:.200})",
            operation,
        )


def _holds_data_set(group: Any, name: str) -> bool:
    """Return False for a link that leads nowhere, too."""
    try:
        return group.get(name, getclass=True) is sys.modules["h5py"].Dataset
    except (OSError, RuntimeError, KeyError):
        return False


def only_hdf5(nest: Any, operation: str) -> Any:
    """Return the nest if all of its leaves are open data sets.

    Raises
    ------
    InvalidArgument
        Others are among them.
    """
    others = [type(leaf).__name__ for leaf in leaves_of(nest) if not is_hdf5(leaf)]
    if others:
        raise InvalidArgument(
            f"data sets of an HDF5 file are fed together with others of that file; here is "
            f"{others[0]}, too: read it into memory (dataset[:]) or zip two Datasets",
            operation,
        )
    return nest


class Hdf5Rows:
    """Rows of data sets through h5py, one at a time: for what the engine does not read itself.

    Opens the file again in each process. Threads: any; h5py lets one in at a time.
    """

    def __init__(
        self, path: str, names: Any, length: int, identity: Identity | None = None
    ) -> None:
        self._path = path
        self._identity = identity  # of a URL's file
        self._names = names
        self._length = length
        self._opened: tuple[int, Any] | None = None  # the process, and the data sets

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            import h5py

            path = self._path
            if self._identity is not None:
                path, _ = local_copy(path, self._identity)
            place = without_query(self._path)
            file = _in_words(lambda: h5py.File(path, "r"), place, "hdf5")
            opened = self._opened = (
                os.getpid(),
                mapped(lambda name: _in_words(lambda: file[name], place, "hdf5"), self._names),
            )
        return mapped(lambda data: self._row(data, index), opened[1])

    def _row(self, data: Any, index: int) -> Any:
        place = f"{without_query(self._path)}: row {index} of '{data.name}'"
        return _in_words(lambda: data[index], place, "hdf5")

    def __getstate__(self) -> tuple[Any, ...]:
        return self._path, self._names, self._length, self._identity

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._path, self._names, self._length, self._identity = state
        self._opened = None


def _in_words(call: Callable[[], Any], place: str, operation: str, damage: str = "") -> Any:
    """Return the result of a call of h5py, whose errors become penstock's.

    `damage`: in front of what h5py says about damage; otherwise it is the place.
    """
    try:
        return call()
    except FileNotFoundError:
        raise NotFound(f"no such file: {place}", operation) from None
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        number = getattr(error, "errno", None)
        if number == errno.EAGAIN or "already open for write" in str(error):
            raise System(
                f"{place}: another program has this file open for writing; close it there. Of a "
                "file in SWMR mode, h5py.File(path, 'r', swmr=True)[name] is a data set for "
                "Dataset.arrays",
                operation,
                errno.EAGAIN,
            ) from None
        if number:
            raise System(f"{place}: {os.strerror(number)}", operation, number) from None
        raise DataLoss(f"{damage or place}: {error}", operation) from None


def opened(file: Any, names: Any, operation: str, url: str | None = None) -> Any:
    """Return the open data sets of a file, in the nest of their names.

    Parameters
    ----------
    file : path, or open h5py.File or h5py.Group
    names : str, or tuple or dict of str
        Paths of data sets within the file.
    url : str, optional
        The file's name in errors, if `file` is the local copy of a URL's file.

    Raises
    ------
    InvalidArgument
        h5py is not installed; a name is not that of a data set.
    DataLoss
        The file is damaged, or no HDF5 file.
    NotFound, System
    """
    try:
        import h5py
    except ImportError as error:
        raise InvalidArgument("HDF5 files need h5py: pip install h5py", operation) from error
    if not leaves_of(names) or not all(isinstance(name, str) for name in leaves_of(names)):
        raise InvalidArgument(
            f"{names!r:.100}: give the name of a data set, or a tuple or dict of names", operation
        )
    if not isinstance(file, h5py.Group):
        try:
            path = os.fspath(file)
        except TypeError:
            raise InvalidArgument(
                f"{file!r:.100} is not the path of one HDF5 file; several are "
                "Dataset.hdf5(one, names).concatenate(Dataset.hdf5(another, names))",
                operation,
            ) from None
        place = url or os.fsdecode(path)
        file = _in_words(
            lambda: h5py.File(path, "r"),
            place,
            operation,
            f"{place} is no HDF5 file, or its header is damaged",
        )

    def find(name: str) -> Any:
        about = f"{url or file.file.filename}: '{name}'"
        found = _in_words(lambda: file.get(name), about, operation)
        if not isinstance(found, h5py.Dataset):
            there = _in_words(lambda: ", ".join(sorted(file)), about, operation)
            raise InvalidArgument(
                f"{url or file.file.filename} has no data set {name!r}; it has {there:.200}",
                operation,
            )
        return found

    return mapped(find, names)


def hdf5_call(nest: Any, operation: str, cache_bytes: int = CACHE_BYTES) -> tuple[Any, ...] | None:
    """Return the arguments of the engine's source for open data sets of one file.

    Parameters
    ----------
    nest : h5py.Dataset, or tuple or dict of them
        All of one file, with equally many rows.

    Returns
    -------
    tuple or None
        None: h5py itself has to read these (`rows_of`), because of their dtype, their filters, or
        how the file was opened.

    Raises
    ------
    InvalidArgument
        They are of several files, are single values, or differ in their number of rows.
    """
    leaves = leaves_of(nest)
    files = {leaf.file.filename for leaf in leaves}
    if len(files) != 1:
        raise InvalidArgument(
            f"data sets that are fed together are of one file; these are of {sorted(files)}",
            operation,
        )
    lengths = {leaf.name: leaf.shape for leaf in leaves}
    if any(not shape for shape in lengths.values()) or len({s[0] for s in lengths.values()}) != 1:
        raise InvalidArgument(
            f"data sets that are fed together have equally many rows; their shapes are {lengths}",
            operation,
        )
    file = leaves[0].file
    if file.driver not in ("sec2", "stdio") or file.userblock_size:
        return None
    if file.mode != "r":
        file.flush()
    fields = [
        _in_words(partial(_field, leaf), f"{file.filename}: '{leaf.name}'", operation)
        for leaf in leaves
    ]
    if None in fields:
        return None
    path = os.path.abspath(os.fsdecode(file.filename))
    about = os.stat(path)
    sample = mapped(lambda leaf: np.zeros(0, leaf.dtype.newbyteorder("=")), nest)
    return path, (about.st_dev, about.st_ino), sample, fields, cache_bytes


def rows_of(nest: Any, copy_of: tuple[str, Identity] | None = None) -> Hdf5Rows:
    """Return the rows of open data sets of one file, read by h5py.

    `copy_of`: the URL, and the version, of which the file is the copy.

    Raises
    ------
    InvalidArgument
        Chunks are compressed by a filter that libhdf5 does not find here.
    """
    first = leaves_of(nest)[0]
    for leaf in leaves_of(nest):
        _check_filters(leaf, copy_of[0] if copy_of else leaf.file.filename)
    path, identity = copy_of or (os.path.abspath(os.fsdecode(first.file.filename)), None)
    return Hdf5Rows(path, mapped(lambda leaf: leaf.name, nest), int(first.shape[0]), identity)


def _check_filters(data: Any, place: str) -> None:
    import h5py

    create = data.id.get_create_plist()
    if create.get_layout() != h5py.h5d.CHUNKED:
        return
    for i in range(create.get_nfilters()):
        number, _, _, name = create.get_filter(i)
        if h5py.h5z.filter_avail(number):
            continue
        # An optional filter that was missing when the chunks were written was left out of them.
        chunks = map(data.id.get_chunk_info, range(data.id.get_num_chunks()))
        if all(chunk.filter_mask >> i & 1 for chunk in chunks):
            continue
        known = f" ({os.fsdecode(name)})" if name else ""
        raise InvalidArgument(
            f"{place}: '{data.name}' is compressed by HDF5's filter {number}{known}, which is not "
            "installed here; most filters are in one package: pip install hdf5plugin, and import "
            "hdf5plugin before this",
            "hdf5",
        )


def _field(data: Any) -> tuple[Any, ...] | None:
    """Say where a data set lies; None if the engine cannot read it."""
    import h5py

    dtype = data.dtype
    if dtype.kind not in "biufc" or dtype.itemsize > 16 or dtype.name in ("float128", "longdouble"):
        return None
    create = data.id.get_create_plist()
    layout = create.get_layout()
    if create.get_external_count():
        return None
    filters = [_FILTERS.get(create.get_filter(i)[0]) for i in range(create.get_nfilters())]
    if None in filters:
        return None
    fill = np.asarray(data.fillvalue, dtype.newbyteorder("=")).tobytes()
    shape = list(data.shape)
    chunk: list[int] = []
    if layout == h5py.h5d.CONTIGUOUS:
        offset = data.id.get_offset()
        places = [(0 if offset is None else offset, 0 if offset is None else data.nbytes, 0)]
    elif layout == h5py.h5d.CHUNKED:
        chunk = list(data.chunks)
        places = _places(data, shape, chunk)
    else:
        return None
    offsets, sizes, skipped = (
        np.array([place[i] for place in places], np.uint64).tobytes() for i in range(3)
    )
    reverse = dtype.newbyteorder("=") != dtype
    return data.name, bool(reverse), shape, chunk, filters, offsets, sizes, skipped, fill


def _places(data: Any, shape: list[int], chunk: list[int]) -> list[tuple[int, int, int]]:
    """Return (offset, bytes, skipped filters) of each chunk, in row-major order of the grid."""
    grid = [-(-length // each) for length, each in zip(shape, chunk, strict=True)]
    places = [(0, 0, 0)] * int(np.prod(grid))

    def put(about: Any) -> None:
        number = 0
        for axis, length in enumerate(grid):
            at = about.chunk_offset[axis] // chunk[axis]
            if at >= length:
                return  # of rows that were cut off
            number = number * length + at
        places[number] = (about.byte_offset, about.size, about.filter_mask)

    if hasattr(data.id, "chunk_iter"):
        data.id.chunk_iter(put)
    else:
        for i in range(data.id.get_num_chunks()):
            put(data.id.get_chunk_info(i))
    return places

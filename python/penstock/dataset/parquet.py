"""Parquet files: their footers, and pyarrow's decoding of their row groups."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from .. import _engine
from ..base.remote import is_url, local_copy
from ..errors import DataLoss, Error, InvalidArgument, NotFound, System

# Files whose footers are read at a time.
_FOOTERS = 16
# Of fetching a copy that is removed before it is opened.
_ATTEMPTS = 5
# Row groups of at least so many bytes are also decoded by several of pyarrow's threads. For smaller
# ones, handing the columns over takes longer than decoding them.
_SHARED_BYTES = 16 << 20


def pyarrow_parquet(operation: str) -> Any:
    """The module `pyarrow.parquet`.

    Raises
    ------
    InvalidArgument
        pyarrow is not installed.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InvalidArgument(
            "Parquet files need pyarrow: pip install pyarrow", operation
        ) from error
    return pq


@dataclass(frozen=True)
class Stamp:
    """Says whether a file has changed."""

    size: int  # of a URL's file the two numbers of its version
    modified_ns: int

    @classmethod
    def of(cls, path: str) -> Stamp:
        """The stamp of a file that can be opened.

        Raises
        ------
        InvalidArgument
            It is a folder.
        NotFound, System
            It cannot.
        """
        try:
            with open(path, "rb") as file:
                about = os.fstat(file.fileno())
                file.read(1)
        except FileNotFoundError:
            raise NotFound(f"there is no file {path}", "parquet") from None
        except IsADirectoryError:
            raise InvalidArgument(
                f"{path} is a folder: give its files, {os.path.join(path, '**', '*.parquet')!r} "
                "through glob.glob(..., recursive=True); columns that only the names of folders "
                "hold are not read",
                "parquet",
            ) from None
        except OSError as error:
            failure = System(f"{path}: {error.strerror}", "parquet")
            failure.errno = error.errno
            raise failure from None
        return cls(about.st_size, about.st_mtime_ns)


def _read(path: str, stamp: Stamp | None, read: Callable[[str, Stamp], Any]) -> Any:
    """The result of `read(path, stamp)`; of a URL, of the path of its local copy.

    Parameters
    ----------
    stamp : Stamp, optional
        The version of a URL's file that is wanted. None: the newest.

    Raises
    ------
    DataLoss
        The server has another version by now.
    NotFound, System
    """
    if not is_url(path):
        return read(path, Stamp.of(path))
    wanted = None if stamp is None else (stamp.size, stamp.modified_ns)
    for attempt in range(_ATTEMPTS):
        local, identity = local_copy(path, wanted)
        try:
            return read(local, Stamp(*identity))
        except FileNotFoundError:  # removed to free space for other copies
            if attempt == _ATTEMPTS - 1:
                raise


@dataclass(frozen=True)
class Footer:
    """A file's footer."""

    path: str
    stamp: Stamp
    file_bytes: int
    metadata: Any  # pyarrow.parquet.FileMetaData
    schema: Any  # pyarrow.Schema

    @classmethod
    def read(cls, path: str) -> Footer:
        """Read the footer of a file.

        Raises
        ------
        DataLoss
            It is damaged, or the file is no Parquet file.
        NotFound, System
        """
        pq = pyarrow_parquet("parquet")

        def read(local: str, stamp: Stamp) -> Footer:
            with pq.ParquetFile(local) as file:
                size = os.path.getsize(local)
                return cls(path, stamp, size, file.metadata, file.schema_arrow)

        try:
            return cast(Footer, _read(path, None, read))
        except (Error, MemoryError):
            raise
        except Exception as error:
            raise DataLoss(
                f"{path} is no Parquet file, or its footer is damaged: {error}", "parquet"
            ) from None


def footers_of(paths: list[str]) -> list[Footer]:
    """The footers of files, read side by side; errors are those of `Footer.read`."""
    if len(paths) == 1:
        return [Footer.read(paths[0])]
    with ThreadPoolExecutor(min(len(paths), _FOOTERS)) as pool:
        return list(pool.map(Footer.read, paths))


class RowGroups:
    """The row groups of files of one schema. Calling it with a number decodes one.

    Threads: any. A pickled one has no footers: a worker process reads those that it needs.

    Parameters
    ----------
    footers : list of Footer
    columns : list of str
        As of `Dataset.parquet`; empty: all.
    convert : bool
        False: only `decode` is used, for columns of any types.

    Raises
    ------
    InvalidArgument
        A file lacks a column, or has it with another type than the first file; a column of a type
        that elements cannot have.
    """

    def __init__(self, footers: list[Footer], columns: list[str], convert: bool = True) -> None:
        first = footers[0]
        self._chosen = columns or list(first.schema.names)
        fields = [_field_of(first, name) for name in self._chosen]
        for footer in footers[1:]:
            _check_alike(first, footer, self._chosen, whole=not columns)
        # pyarrow's names of nested columns.
        self._read = [
            field.name + name[len(field.name) :].replace("/", ".")
            for name, field in zip(self._chosen, fields, strict=True)
        ]
        self.paths = [footer.path for footer in footers]
        self._stamps = [footer.stamp for footer in footers]
        self._footers = {number: footer.metadata for number, footer in enumerate(footers)}
        self.groups: list[tuple[int, int, int, int]] = []  # file, number there, rows, bytes
        tops = {field.name for field in fields}
        for number, footer in enumerate(footers):
            for group in range(footer.metadata.num_row_groups):
                about = footer.metadata.row_group(group)
                size = about.total_byte_size if not columns else _bytes_of(about, tops)
                self.groups.append((number, group, about.num_rows, size))
        if not convert:
            return
        try:
            self.schema = self._table(_only(first.schema, tops).empty_table())
        except InvalidArgument as error:
            raise InvalidArgument(f"{first.path}: {error}", "parquet") from None

    @property
    def rows(self) -> int:
        """Of all groups."""
        return sum(rows for _, _, rows, _ in self.groups)

    def __call__(self, number: int) -> Any:
        """Decode a row group to an `_engine.ArrowTable`; errors are those of `decode`."""
        return self._table(self.decode(number))

    def decode(self, number: int) -> Any:
        """Decode a row group to a `pyarrow.Table`.

        Raises
        ------
        DataLoss
            The file changed since its footer was read, or the row group is damaged.
        NotFound, System
        """
        pq = pyarrow_parquet("parquet")
        file, group, _, size = self.groups[number]
        path = self.paths[file]
        shared = size >= _SHARED_BYTES

        def read(local: str, stamp: Stamp) -> Any:
            if stamp != self._stamps[file]:
                raise DataLoss(
                    f"{path} changed since this Dataset was made: make the Dataset again", "parquet"
                )
            metadata = self._footers.get(file)
            with pq.ParquetFile(
                local, metadata=metadata, pre_buffer=shared, page_checksum_verification=True
            ) as opened:
                if metadata is None:
                    self._footers[file] = opened.metadata
                return opened.read_row_group(group, columns=self._read, use_threads=shared)

        try:
            return _read(path, self._stamps[file], read)
        except (Error, MemoryError):
            raise
        except Exception as error:
            raise DataLoss(f"{path}, row group {group}: {error}", "parquet") from None

    def _table(self, table: Any) -> Any:
        return _engine.ArrowTable.from_stream(table.__arrow_c_stream__(), self._chosen)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_footers": {}}


def _only(schema: Any, names: set[str]) -> Any:
    """The schema's fields of these names."""
    import pyarrow

    return pyarrow.schema([field for field in schema if field.name in names])


def _field_of(footer: Footer, name: str) -> Any:
    """The top-level field that a column is in."""
    fields = [field for field in footer.schema if f"{name}/".startswith(f"{field.name}/")]
    if not fields:
        there = ", ".join(map(repr, footer.schema.names))
        raise InvalidArgument(
            f"{footer.path} has no column {name!r}; it has {there:.1000}", "parquet"
        )
    return max(fields, key=lambda field: len(field.name))


def _check_alike(first: Footer, other: Footer, columns: list[str], whole: bool) -> None:
    remedy = "; give columns= that all files have alike, or write the files with one schema"
    for name in columns:
        one, two = _field_of(first, name), _field_of(other, name)
        if not one.type.equals(two.type):
            raise InvalidArgument(
                f"column {one.name!r} is {two.type} in {other.path} and {one.type} in "
                f"{first.path}{remedy}",
                "parquet",
            )
    if whole and len(other.schema.names) != len(first.schema.names):
        more = next(name for name in other.schema.names if name not in first.schema.names)
        raise InvalidArgument(
            f"{other.path} has a column {more!r}, and {first.path} has none{remedy}", "parquet"
        )


def _bytes_of(group: Any, tops: set[str]) -> int:
    """The decompressed bytes of the columns in these fields."""
    columns = (group.column(i) for i in range(group.num_columns))
    return sum(
        column.total_uncompressed_size
        for column in columns
        if column.path_in_schema in tops or column.path_in_schema.split(".")[0] in tops
    )

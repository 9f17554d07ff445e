"""Passes over Parquet files: their footers, and every row group."""

from __future__ import annotations

import os
from typing import Any

from .. import _engine
from ..base.remote import local_path
from ..dataset.parquet import Footer, RowGroups
from ..errors import DataLoss


class Pass:
    """A pass over one file, as `Survey` has its results.

    Parameters
    ----------
    path : str
    decode : bool
        Decode every row group, and verify the checksums of its pages. Otherwise only the footer is
        read.
    """

    def __init__(self, path: str, decode: bool) -> None:
        self._path = path
        self._decode = decode
        self._stopped = False
        self.bytes = 0  # twice those that were read, as of passes that read a file twice

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> dict[str, Any]:
        """Make the pass.

        Raises
        ------
        NotFound, System
            The file cannot be read. Damage is no error.
        """
        found: dict[str, Any] = {"damage": [], "features": {}, "records": 0}
        try:
            footer = Footer.read(self._path)
        except DataLoss as error:
            size = os.path.getsize(local_path(self._path))
            _lose(found, 0, 0, size, _why(error, self._path))
            return found | {"file_bytes": size}
        metadata = footer.metadata
        sizes = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        found |= {
            "file_bytes": footer.file_bytes,
            "records": metadata.num_rows,
            "columns": {field.name: str(field.type) for field in footer.schema},
            "row_groups": len(sizes),
            "group_rows": max((group.num_rows for group in sizes), default=0),
            "group_bytes": max((group.total_byte_size for group in sizes), default=0),
        }
        if self._decode:
            self._verify(footer, found)
        return found

    def _verify(self, footer: Footer, found: dict[str, Any]) -> None:
        groups = RowGroups([footer], [], convert=False)
        first = 0
        for number, (_, _, rows, _) in enumerate(groups.groups):
            if self._stopped:
                return
            begin, size = _extent(footer.metadata.row_group(number))
            try:
                decoded = groups.decode(number)
                if decoded.num_rows != rows:
                    raise DataLoss(f"it has {decoded.num_rows} rows, and the footer says {rows}")
                decoded.validate(full=True)
            except (DataLoss, ValueError) as error:
                why = _why(error, f"{self._path}, row group {number}")
                _lose(found, first, begin, size, f"row group {number}, {rows} rows: {why}")
                found["records"] -= rows
            first += rows
            self.bytes += 2 * size


def _extent(group: Any) -> tuple[int, int]:
    """The first byte of a row group, and the number of its bytes."""
    columns = [group.column(i) for i in range(group.num_columns)]
    begins = [
        column.data_page_offset
        if column.dictionary_page_offset is None
        else min(column.dictionary_page_offset, column.data_page_offset)
        for column in columns
    ]
    return min(begins, default=0), sum(column.total_compressed_size for column in columns)


def _lose(found: dict[str, Any], record: int, byte: int, size: int, why: str) -> None:
    found["damage"].append({"record": record, "byte": byte, "bytes": size, "why": why})
    found["lost_places"] = found.get("lost_places", 0) + 1
    found["lost_bytes"] = found.get("lost_bytes", 0) + size


def _why(error: Exception, place: str) -> str:
    return str(error).removeprefix(_engine.without_secrets(place)).lstrip(": ")

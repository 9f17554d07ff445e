"""Passes over Parquet files: their footers, and every row group."""

from __future__ import annotations

from typing import Any

from .. import _engine
from ..dataset.parquet import Footer, RowGroups
from ..errors import DataLoss
from . import size_of
from .passes import FilePass


class Pass(FilePass):
    """A pass over the footer, or one that decodes every row group and verifies its pages."""

    def run(self) -> dict[str, Any]:
        """Make the pass.

        Raises
        ------
        NotFound, System
            The file cannot be read. Damage is no error.
        """
        found = self._found
        try:
            footer = Footer.read(self._path)
        except DataLoss as error:
            found["file_bytes"] = size = size_of(self._path)
            self._lose(0, 0, size, _why(error, self._path))
            return found
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
        if self._read:
            self._verify(footer)
        return found

    def _verify(self, footer: Footer) -> None:
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
                self._lose(first, begin, size, f"row group {number}, {rows} rows: {why}")
                self._found["records"] -= rows
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


def _why(error: Exception, place: str) -> str:
    return str(error).removeprefix(_engine.without_secrets(place)).lstrip(": ")

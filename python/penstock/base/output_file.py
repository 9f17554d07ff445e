"""A file that appears under its name when it is complete."""

from __future__ import annotations

import io
from typing import Any

from .. import _engine


class OutputFile(io.RawIOBase):
    """An `_engine.FileWriter` as a file of Python's. Closing it alone publishes nothing.

    Raises
    ------
    System
        When it is made, written to or published: a full disk, no permission.
    """

    def __init__(self, path: str, compression: str = "none") -> None:
        self._file: Any = _engine.FileWriter(path, compression)
        self._written = 0

    def publish(self) -> None:
        """Flush the file to disk, and give it its name. A file of this name is replaced whole."""
        self._file.close()
        self._file = None

    def discard(self) -> None:
        """Leave nothing of the file, and of what is written from now on."""
        if self._file is not None:
            self._file.discard()
        self._file = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self._file is not None:
            self._file.write(data)
        self._written += size
        return size

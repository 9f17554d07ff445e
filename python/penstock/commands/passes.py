"""What the passes over files have in common that Python makes."""

from __future__ import annotations

from typing import Any


class FilePass:
    """A pass over one file or folder, as `files.Survey` has its results. A subclass has ``run()``.

    Parameters
    ----------
    path : str
    read : bool
        Read all of it, and find all damage. Otherwise only what describes it: a header, a footer.
    """

    def __init__(self, path: str, read: bool) -> None:
        self._path = path
        self._read = read
        self._stopped = False
        self.bytes = 0  # twice those that were read, as of passes that read a file twice
        self._found: dict[str, Any] = {"damage": [], "features": {}, "records": 0}

    def stop(self) -> None:
        """End `run` soon. Any thread may call it."""
        self._stopped = True

    def _lose(self, record: int, byte: int, size: int, why: str) -> None:
        """Add a damaged place, which is counted."""
        found = self._found
        self._list(record, byte, size, why)
        found["lost_places"] = found.get("lost_places", 0) + 1
        found["lost_bytes"] = found.get("lost_bytes", 0) + size

    def _list(self, record: int, byte: int, size: int, why: str) -> None:
        self._found["damage"].append({"record": record, "byte": byte, "bytes": size, "why": why})

"""The commands of the command line, one module each, and their common code."""

from __future__ import annotations

import os

from ..base.remote import is_url, local_path


class Failed(Exception):
    """Ends a command with a sentence for the user and an exit code.

    Parameters
    ----------
    text : str
        What failed and what to do.
    code : int
        1: failure; 2: wrong usage.
    """

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def bytes_text(count: float) -> str:
    """Return a number of bytes as text: ``"1.5 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def size_of(path: str) -> int:
    """The bytes of a file, or of all files in a folder."""
    if is_url(path) or not os.path.isdir(path):
        return os.path.getsize(local_path(path))
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(os.path.getsize(file) for file in files if os.path.exists(file))  # not dead links

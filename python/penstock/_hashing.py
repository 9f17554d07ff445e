"""A hash of many bytes, for finding out whether an attribute changed."""

from __future__ import annotations

import hashlib
from typing import Any


class Hasher:
    """128 bits of what was written; a sink for a pickler."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        self._hash.update(view)
        return view.nbytes

    def digest(self) -> bytes:
        return self._hash.digest()

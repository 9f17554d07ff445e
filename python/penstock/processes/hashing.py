"""A hash of many bytes, for finding out whether an attribute changed."""

from __future__ import annotations

import hashlib
from typing import Any

from .. import _engine

_LARGE = 4096


class Hasher:
    """128 bits of what was written; a sink for a pickler.

    Large pieces are reduced by the engine first, at the speed of memory.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        size = view.nbytes
        if size >= _LARGE:
            self._hash.update(b"%d:" % size)
            self._hash.update(_engine.digest(view))
        else:
            self._hash.update(view)
        return size

    def digest(self) -> bytes:
        return self._hash.digest()

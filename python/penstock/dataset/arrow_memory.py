"""Sends Arrow data to worker processes: mapped files by name, other memory as bytes, once."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _engine
from ..errors import DataLoss

_Span = tuple[int, int]  # first and last address + 1


def reduce(table: Any) -> tuple[Any, ...]:
    """Return how to rebuild an `ArrowTable` in another process.

    Buffers that overlap are sent as one piece of memory.
    """
    schema, chunks = table.parts()
    spans = _merged(sorted(set(_spans(chunks))))
    begins = [begin for begin, _ in spans]
    mappings = _mappings()
    files: list[tuple[str, int]] = []
    numbers: dict[str, int] = {}
    pieces: list[Any] = []
    for begin, end in spans:
        place = _place_in_file(mappings, begin, end)
        if place is None:
            pieces.append(table.memory(begin, end - begin))
            continue
        name, offset = place
        number = numbers.setdefault(name, len(files))
        if number == len(files):
            files.append((name, os.stat(name).st_ino))
        pieces.append((number, offset, end - begin))

    def located(address: int, size: int) -> tuple[int, int, int]:
        number = bisect_right(begins, address) - 1
        return number, address - begins[number], size

    return rebuild, (schema, _with_buffers(chunks, located), files, pieces)


def rebuild(schema: Any, chunks: Any, files: list[tuple[str, int]], pieces: list[Any]) -> Any:
    maps = []
    for name, inode in files:
        file = np.memmap(name, np.uint8, "r")
        if os.stat(name).st_ino != inode:
            raise DataLoss(f"{name} was replaced after it was mapped", "arrow")
        maps.append(file)
    memory = [
        maps[piece[0]][piece[1] : piece[1] + piece[2]] if isinstance(piece, tuple) else piece
        for piece in pieces
    ]
    return _engine.ArrowTable.from_parts(schema, chunks, memory)


def _spans(columns: Any) -> Iterator[_Span]:
    """The address ranges of all buffers of columns and of the columns in them."""
    for _, _, _, buffers, children, dictionary in columns:
        for buffer in buffers:
            if buffer is not None:
                yield buffer[0], buffer[0] + buffer[1]
        yield from _spans(children)
        yield from _spans(dictionary)


def _with_buffers(columns: Any, located: Any) -> list[Any]:
    return [
        (
            *numbers,
            [buffer and located(*buffer) for buffer in buffers],
            _with_buffers(children, located),
            _with_buffers(dictionary, located),
        )
        for *numbers, buffers, children, dictionary in columns
    ]


def _merged(spans: list[_Span]) -> list[_Span]:
    """The union of sorted spans; spans that only touch stay apart."""
    merged: list[_Span] = []
    for begin, end in spans:
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _mappings() -> list[tuple[int, int, int, int, str]]:
    """The mapped files of this process: begin, end, offset, inode, name. Sorted."""
    found = []
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        for line in maps:
            parts = line.rstrip("\n").split(maxsplit=5)
            if len(parts) < 6 or not parts[5].startswith("/") or "\\" in parts[5]:
                continue
            if parts[1][1] == "w" and parts[1][3] == "p":
                continue  # pages may differ from the file
            begin, end = (int(part, 16) for part in parts[0].split("-"))
            found.append((begin, end, int(parts[2], 16), int(parts[4]), parts[5]))
    return sorted(found)


def _place_in_file(
    mappings: list[tuple[int, int, int, int, str]], begin: int, end: int
) -> tuple[str, int] | None:
    """The file and the offset in it of a span; None: the span is no part of a mapped file."""
    number = bisect_right(mappings, begin, key=lambda mapping: mapping[0]) - 1
    if number < 0:
        return None
    first, last, offset, inode, name = mappings[number]
    if not first <= begin < end <= last:
        return None
    try:
        file = os.stat(name)
    except OSError:
        return None
    if file.st_ino != inode or file.st_size < offset + end - first:
        return None
    return name, offset + begin - first

"""Pickles in anonymous memory: one pickle stream and the large buffers it refers to.

Byte layout, in the machine's byte order, because the file stays on the machine::

    0    8 bytes   magic "PNSTPKL1"
    8    u64       n, the number of buffers
    16   u64       total, the size of the file
    24   u64       offset of the pickle stream, then u64 its length
    40   n x (u64 offset, u64 length)
    ...            the pickle stream, then the buffers, each at a multiple of 64; those of
                   64 KiB or more at a multiple of the page size
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Sequence

from ..errors import DataLoss, OutOfMemory, System

_MAGIC = b"PNSTPKL1"
_HEADER = struct.Struct("=8sQQQQ")
_PAGE_ALIGNED = 64 << 10
_MOST_VECTORS = 1024  # Linux's limit for one call
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def memory_file(name: str) -> int:
    """Open an anonymous file in memory, close-on-exec, freed with its last descriptor."""
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise System(
                f"no descriptor for {name}: {error}", "memory_file", error.errno
            ) from error
    from .. import _engine  # a Python built against an old C library has no such function

    return int(_engine.memory_file(name))


def write_new(name: str, pickled: bytes, buffers: Sequence[memoryview]) -> tuple[int, int]:
    """Write a sealed memory file; returns its descriptor, which the caller owns, and its size.

    Raises
    ------
    OutOfMemory
        The system has no space for it.
    """
    offset = _HEADER.size + 16 * len(buffers)
    parts: list[tuple[int, bytes | memoryview]] = [(offset, pickled)]
    offset += len(pickled)
    table: list[int] = []
    for buffer in buffers:
        offset = _aligned(offset, buffer.nbytes)
        parts.append((offset, buffer))
        table += (offset, buffer.nbytes)
        offset += buffer.nbytes
    header = _HEADER.pack(_MAGIC, len(buffers), offset, parts[0][0], len(pickled))
    parts.insert(0, (0, header + struct.pack(f"={len(table)}Q", *table)))

    fd = memory_file(name)
    try:
        os.ftruncate(fd, offset)
        _write(fd, parts)
        _seal(fd)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise OutOfMemory(
                f"no space for the {offset / 1e6:.0f} MB of {name} in shared memory: {error}",
                "pack",
            ) from error
        raise
    return fd, offset


def read(source: int | bytes | bytearray | memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return the pickle stream and the buffers of a memory file.

    A descriptor is mapped copy-on-write: its pages exist once for all processes, and writes through
    the buffers are visible only in this process. Bytes are copied. The descriptor may be closed
    afterwards.

    Raises
    ------
    DataLoss
        The lengths in the header do not match the file.
    """
    if isinstance(source, int):
        size = os.fstat(source).st_size
        if size < _HEADER.size:
            raise DataLoss(f"{size} bytes are too few to hold a header", "unpack")
        try:
            mapping = mmap.mmap(
                source,
                size,
                flags=mmap.MAP_PRIVATE | _NO_RESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        except OSError as error:
            raise OutOfMemory(f"cannot map {size} bytes: {error}", "unpack") from error
        whole = memoryview(mapping)
    else:
        whole = memoryview(bytearray(source))
        size = whole.nbytes
        if size < _HEADER.size:
            raise DataLoss(f"{size} bytes are too few to hold a header", "unpack")
    magic, count, total, start, length = _HEADER.unpack_from(whole)
    if magic != _MAGIC:
        raise DataLoss(f"starts with {magic!r} and not with {_MAGIC!r}", "unpack")
    if total != size or count > (size - _HEADER.size) // 16 or not _inside(start, length, size):
        raise DataLoss(f"the header's lengths are not those of its {size} bytes", "unpack")
    table = struct.unpack_from(f"={2 * count}Q", whole, _HEADER.size)
    buffers = []
    for at, bytes_ in zip(table[::2], table[1::2], strict=True):
        if not _inside(at, bytes_, size):
            raise DataLoss(f"a buffer at [{at}, +{bytes_}) ends after byte {size}", "unpack")
        buffers.append(whole[at : at + bytes_])
    return whole[start : start + length], buffers


def _inside(at: int, length: int, size: int) -> bool:
    return at <= size and length <= size - at


def _aligned(offset: int, length: int) -> int:
    alignment = mmap.PAGESIZE if length >= _PAGE_ALIGNED else 64
    return -(-offset // alignment) * alignment


def _write(fd: int, parts: Sequence[tuple[int, bytes | memoryview]]) -> None:
    """Write parts in order of offset, many in one call; gaps are zeroes or holes."""
    batch: list[bytes | memoryview] = []
    begin = end = 0
    for offset, part in parts:
        gap = offset - end
        if batch and (gap > 4096 or len(batch) > _MOST_VECTORS - 2):
            _write_all(fd, batch, begin)
            batch = []
        if not batch:
            begin = offset
        elif gap:
            batch.append(bytes(gap))
        batch.append(part)
        end = offset + len(part)
    _write_all(fd, batch, begin)


def _write_all(fd: int, batch: list[bytes | memoryview], offset: int) -> None:
    left = [memoryview(part) for part in batch if len(part)]
    while left:
        written = os.pwritev(fd, left, offset)
        offset += written
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]


def _seal(fd: int) -> None:
    """Forbid later changes, so that no worker can change the data of the others."""
    import fcntl

    if hasattr(fcntl, "F_ADD_SEALS"):
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        )

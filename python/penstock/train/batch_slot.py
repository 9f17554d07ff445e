"""Shared memory that carries batches from one process to another.

A batch that needs no pickle is written by the engine: a tree, then arrays at multiples of 64 bytes
(bindings/codec.h). Layout of a pickled batch: u64 count, count pairs of u64 (offset, bytes) of
buffers, the pickle stream, then the buffers at multiples of 64 bytes. The message has the end of
the stream.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
from typing import Any

from .. import _engine
from ..processes.memfile import memory_file
from ..processes.pickler import Pickler

_PICKLES = 16  # batches that are pickled without another attempt: batches of a feed are alike


class Slot:
    """A mapped memory file that grows with its batches. One writer, one reader.

    A batch that is read consists of views of the slot, valid until the next one is written.
    """

    def __init__(self, fd: int = -1) -> None:
        self.fd = memory_file("penstock-batch") if fd < 0 else fd
        self._memory = memoryview(bytearray())
        self._pickles = 0  # batches to pickle before the next attempt without a pickle

    def write(self, batch: Any) -> tuple[int, int]:
        """Write a batch; return the arguments of `read`: stream end (0: no pickle), end."""
        self._pickles = max(self._pickles - 1, 0)
        while self._pickles == 0:
            end = _engine.write_batch(batch, self._memory)
            if end is None:
                self._pickles = _PICKLES
                break
            if end <= self._memory.nbytes:
                return 0, end
            self._grow(end)
        return self._write_pickled(batch)

    def _write_pickled(self, batch: Any) -> tuple[int, int]:
        buffers: list[memoryview] = []

        def take(buffer: pickle.PickleBuffer) -> None:
            buffers.append(buffer.raw())

        stream = io.BytesIO()
        with Pickler(stream, take) as pickler:
            pickler.dump(batch)
        pickled = stream.getbuffer()
        table = 8 + 16 * len(buffers)
        end = table + len(pickled)
        places = []
        for buffer in buffers:
            at = -(-end // 64) * 64
            places.append((at, buffer.nbytes))
            end = at + buffer.nbytes
        if end > self._memory.nbytes:
            self._grow(end)
        memory = self._memory
        struct.pack_into(f"={1 + 2 * len(places)}Q", memory, 0, len(places), *sum(places, ()))
        memory[table : table + len(pickled)] = pickled
        for buffer, (at, size) in zip(buffers, places, strict=True):
            memory[at : at + size] = buffer
        return table + len(pickled), end

    def read(self, stream_end: int, end: int) -> Any:
        """Return the batch for which `write` returned these numbers."""
        if end > self._memory.nbytes:
            self._map()
        memory = self._memory
        if stream_end == 0:
            return _engine.read_batch(memory[:end])
        (count,) = struct.unpack_from("=Q", memory, 0)
        table = struct.unpack_from(f"={2 * count}Q", memory, 8)
        buffers = [memory[at : at + size] for at, size in zip(table[::2], table[1::2], strict=True)]
        return pickle.loads(memory[8 + 16 * count : stream_end], buffers=buffers)

    def _grow(self, size: int) -> None:
        os.ftruncate(self.fd, -(-size * 5 // 4 // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._map()

    def _map(self) -> None:
        # The old mapping is released with the last view of it.
        self._memory = memoryview(mmap.mmap(self.fd, os.fstat(self.fd).st_size))

    def close(self) -> None:
        self._memory = memoryview(bytearray())
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

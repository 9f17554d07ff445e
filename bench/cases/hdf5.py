"""8,192 rows of 3 x 64 x 64 uint8 in an HDF5 file, in chunks of 64 rows, in batches of 128.

One file is compressed by gzip (level 4), one is not. In order; and the same blocks of 128 rows in
a random order. An epoch goes through the file several times, and penstock's cache of decoded
chunks is too small for it, as with a file larger than memory. The first batches, which may have
been made before the clock started, do not count. The limit reads and inflates the stored chunks on
two threads without HDF5: compressed ones one after the other to the same memory, others to as much
memory as a loader's batches take, because memory that stays in the cache is written faster.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    BEST_LIMIT,
    BEST_PEER,
    WORKERS,
    Case,
    Figure,
    Figures,
    Size,
    Target,
    best_of,
    closing,
    epochs,
    expect,
    once,
)

BATCH, CHUNK, SHAPE = 128, 64, (3, 64, 64)
ROW = 3 * 64 * 64
WARM = 24  # batches that do not count
IN_FLIGHT = 12  # batches: a queue of ten, and one for each worker
CACHE = 16 << 20
OURS = "penstock, 2 threads"


def images(numbers: Any) -> Any:
    """Smooth images with some noise: gzip makes them about half as large. Row n knows n."""
    numbers = np.asarray(numbers, np.int64).reshape(-1, 1, 1, 1)
    y, x = np.mgrid[0:64, 0:64]
    smooth = (numbers * 13 + y * 2 + x * 3 + np.arange(3).reshape(3, 1, 1) * 40) % 240
    noise = (numbers * 2654435761 + y * 40503 + x * 30011 + y * x * 7919) >> 7 & 7
    return (smooth + noise).astype(np.uint8)


def path_of(size: Size, compressed: bool) -> Path:
    return size.path(f"images-{size.count}-{'gzip' if compressed else 'plain'}.h5")


def prepare(size: Size) -> None:
    import h5py

    def make(path: Path, **more: Any) -> None:
        with h5py.File(path, "w") as file:
            x = file.create_dataset(
                "X", (size.count, *SHAPE), np.uint8, chunks=(CHUNK, *SHAPE), **more
            )
            file["Y"] = np.arange(size.count)
            for begin in range(0, size.count, 1024):
                x[begin : begin + 1024] = images(range(begin, min(begin + 1024, size.count)))

    once(path_of(size, False), make)
    gzip = {"compression": "gzip", "compression_opts": 4}
    once(path_of(size, True), functools.partial(make, **gzip))


def case(key: str, title: str, targets: list[Target]) -> Case:
    return Case(
        key,
        f"HDF5, {title}: 3x64x64 uint8, 64 rows a chunk, batches of 128",
        {
            "rate": Figure("MB/s of X", 1e-6, more_is_better=True),
            "first": Figure("ms to the first batch", 1e3),
        },
        full={"count": 8192, "rounds": 4, "seconds": 3.0},
        quick={"count": 2048, "rounds": 8, "seconds": 0.8},
        prepare=prepare,
        targets=targets,
    )


GZIP = case(
    "hdf5-gzip",
    "gzip, in order",
    [
        Target("rate", OURS, BEST_PEER, at_least=2),
        Target("rate", OURS, BEST_LIMIT, at_least=0.9, says="90 % of inflating alone"),
    ],
)
BLOCKS = case(
    "hdf5-blocks",
    "gzip, blocks in random order",
    [
        Target("rate", OURS, BEST_PEER, at_least=2),
        Target("rate", OURS, BEST_LIMIT, at_least=0.9, says="90 % of inflating alone"),
    ],
)
PLAIN = case(
    "hdf5-plain",
    "not compressed, in order",
    [Target("rate", OURS, BEST_LIMIT, at_least=0.7, says="70 % of pread alone")],
)


def measure(size: Size, start: Callable[[], Any], began: float) -> Figures:
    def check(kept: list[Any], last: Any) -> None:
        numbers = np.concatenate(kept)
        expect(
            (np.bincount(numbers, minlength=size.count) == size.rounds).all(), "rows are missing"
        )
        expect(np.array_equal(last[0], images(last[1])), "X is of other rows")

    def look(batch: Any) -> Any:
        return np.array(batch[1])

    figures = epochs(start, look, check, size.seconds, WARM, began)
    return {"rate": BATCH * ROW / figures["steady"], "first": figures["first"]}


def ours(size: Size, compressed: bool, shuffled: bool) -> Figures:
    import h5py  # noqa: F401  an import of the user's, as for the peers

    import penstock

    began = time.perf_counter()
    data = penstock.Dataset.hdf5(path_of(size, compressed), ("X", "Y"), cache_bytes=CACHE)
    if shuffled:
        data = data.shuffle(seed=1, block=BATCH, window=1)
    with closing(data.batch(BATCH).repeat(size.rounds).build(workers=WORKERS)) as feed:
        return measure(size, lambda: feed, began)


def blocks(size: Size, shuffled: bool) -> list[int]:
    begins = np.arange(0, size.count, BATCH)
    if shuffled:
        np.random.default_rng().shuffle(begins)
    return [int(begin) for begin in begins]


def h5py_loop(size: Size, compressed: bool, shuffled: bool) -> Figures:
    import h5py

    began = time.perf_counter()
    with h5py.File(path_of(size, compressed)) as file:
        x, y = file["X"], file["Y"]

        def start() -> Any:
            for _ in range(size.rounds):
                for begin in blocks(size, shuffled):
                    yield x[begin : begin + BATCH], y[begin : begin + BATCH]

        return measure(size, start, began)


class Blocks:
    """Batches by number; each worker opens the file itself."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count, self.file = path, count, None

    def __len__(self) -> int:
        return -(-self.count // BATCH)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path)
        begin = number * BATCH
        return self.file["X"][begin : begin + BATCH], self.file["Y"][begin : begin + BATCH]


def torch_workers(size: Size, compressed: bool, shuffled: bool) -> Figures:
    import torch

    began = time.perf_counter()
    loader = torch.utils.data.DataLoader(
        Blocks(path_of(size, compressed), size.count),
        batch_size=None,
        shuffle=shuffled,
        num_workers=WORKERS,
        persistent_workers=True,
        prefetch_factor=4,
    )

    def start() -> Any:
        for _ in range(size.rounds):
            for x, y in loader:
                yield x.numpy(), y.numpy()

    return measure(size, start, began)


def stored_chunks(size: Size, compressed: bool, inflate: Callable[[Any], Any]) -> Figures:
    import h5py

    path = path_of(size, compressed)
    with h5py.File(path) as file:
        data = file["X"].id
        places = [data.get_chunk_info(i) for i in range(data.get_num_chunks())]
    descriptor = os.open(path, os.O_RDONLY)

    largest = max(place.size for place in places)
    count = 1 if compressed else IN_FLIGHT * BATCH // CHUNK // WORKERS
    memory = [[memoryview(bytearray(largest)) for _ in range(count)] for _ in range(WORKERS)]

    def part(worker: int) -> None:
        for i, place in enumerate(places[worker::WORKERS] * size.rounds):
            buffer = memory[worker][i % count][: place.size]
            os.preadv(descriptor, [buffer], place.byte_offset)
            expect(len(inflate(buffer)) == CHUNK * ROW, "a chunk of another size")

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        seconds = best_of(
            lambda: list(pool.map(part, range(WORKERS))),
            size.seconds,
        )
    os.close(descriptor)
    return {"rate": size.count * size.rounds * ROW / seconds}


def libdeflate(stored: Any) -> Any:
    import deflate

    return deflate.zlib_decompress(stored, CHUNK * ROW)


for of, compressed, shuffled in ((GZIP, True, False), (BLOCKS, True, True), (PLAIN, False, False)):
    how = {"compressed": compressed, "shuffled": shuffled}
    of.entry(OURS, "ours", "Dataset.hdf5.batch")(functools.partial(ours, **how))
    of.entry("h5py in the loop", "peer", "X[a:b]")(functools.partial(h5py_loop, **how))
    of.entry("torch DataLoader, 2 workers + h5py", "peer", "a file of its own in each worker")(
        functools.partial(torch_workers, **how)
    )
    if compressed:
        of.entry("limit: pread and libdeflate, 2 threads", "limit")(
            functools.partial(stored_chunks, compressed=True, inflate=libdeflate)
        )
    else:
        of.entry("limit: pread of the chunks, 2 threads", "limit")(
            functools.partial(stored_chunks, compressed=False, inflate=lambda stored: stored)
        )

CASES = (GZIP, BLOCKS, PLAIN)

"""A soak: feeds at full speed for a while and watches memory, descriptors and threads.

    python tests/python/soak.py --seconds 600

prints a line a second and fails if anything grew. `test_soak.py` runs a minute of it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

import penstock

ITEMS = 400


class Items:
    """Whole batches of varying size; some are new arrays, some are views that must be copied."""

    def __init__(self) -> None:
        self.kept = np.arange(1 << 18, dtype=np.float32)

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        rows = 1 + index * 37 % 600
        fresh = np.full((rows, 1024), index, np.float32)
        return fresh, self.kept[index:], str(index), {"index": index}


class Samples:
    """Samples for batches of 64."""

    def __len__(self) -> int:
        return ITEMS * 64

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.full((32, 32, 3), index % 251, np.uint8), index


@dataclass
class Reading:
    """Values that must not grow; bytes of this process and its children, shared pages once."""

    bytes: int
    descriptors: int
    threads: int

    @staticmethod
    def take() -> Reading:
        here = psutil.Process()
        total = descriptors = threads = 0
        for process in [here, *here.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
                threads += process.num_threads()
            except psutil.NoSuchProcess:
                continue
            if process.pid == here.pid:
                descriptors = process.num_fds()
        return Reading(total, descriptors, threads)


def forever(feed: penstock.Loader) -> Any:
    """Iterate over epochs, and check that each is complete."""
    while True:
        before = feed.stats()["delivered"]
        yield from feed
        if feed.stats()["delivered"] - before != len(feed):
            raise AssertionError("an epoch was not whole")


def check(batch: Any) -> None:
    """Compare a batch with its dataset's values."""
    if len(batch) == 4:
        fresh, kept, name, fields = batch
        index = fields["index"]
        if fresh[-1, -1] != index or kept[0] != index or name != str(index):
            raise AssertionError(f"item {index} is not what it was")
        return
    images, labels = batch
    if not np.array_equal(images[:, 5, 5, 1], labels % 251):
        raise AssertionError("samples and labels do not belong together")


def soak(seconds: float, kill_every: float) -> tuple[list[Reading], dict[str, int]]:
    """Feed for `seconds`, sometimes killing a worker process; return a reading per second."""
    feeds = [
        penstock.Loader(Items(), workers=2, use_multiprocessing=True, shuffle=True),
        penstock.Loader(Samples(), batch_size=64, workers=2, use_multiprocessing=True),
        penstock.Loader(Samples(), batch_size=64, workers=2, shuffle=True),
        penstock.Loader((np.arange(64000), np.ones((64000, 16))), batch_size=64, workers=1),
    ]
    streams = [forever(feed) for feed in feeds]
    readings: list[Reading] = []
    held: list[Any] = []
    begin = time.monotonic()
    next_reading, next_kill = begin + 1, begin + kill_every
    checked = 0
    victims = itertools.count()
    for stream in itertools.cycle(streams):
        batch = next(stream)
        checked += 1
        if isinstance(batch, tuple) and batch[0].dtype != np.int64:
            check(batch)
        held = [*held[-20:], batch]  # some are kept for a while
        now = time.monotonic()
        if now >= next_kill:
            victim = next(victims)
            workers = feeds[victim % 2].stats()["workers"]
            os.kill(workers[victim // 2 % 2]["pid"], signal.SIGKILL)
            next_kill = now + kill_every
        if now >= next_reading:
            readings.append(Reading.take())
            next_reading = now + 1
        if now - begin >= seconds:
            break
    counts = {
        "batches": checked,
        "restarts": sum(feed.stats()["restarts"] for feed in feeds),
    }
    del batch, held
    for stream in streams:
        stream.close()
    for feed in feeds:
        feed.close()
    return readings, counts


def growth(readings: list[Reading]) -> list[str]:
    """The values that grew: the maximum of the last third against that of the middle third."""
    third = len(readings) // 3
    middle, last = readings[third : 2 * third], readings[2 * third :]
    found = []
    for name, slack in (("bytes", 32 << 20), ("descriptors", 4), ("threads", 4)):
        before = max(getattr(reading, name) for reading in middle)
        after = max(getattr(reading, name) for reading in last)
        if after > before * 1.05 + slack:
            found.append(f"{name} grew from {before} to {after}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--kill-every", type=float, default=5)
    args = parser.parse_args()
    readings, counts = soak(args.seconds, args.kill_every)
    for at, reading in enumerate(readings):
        if at % 30 == 0 or at == len(readings) - 1:
            print(
                f"{at + 1:5d} s  {reading.bytes / 1e6:8.1f} MB  "
                f"{reading.descriptors} descriptors  {reading.threads} threads"
            )
    print(f"{counts['batches']} batches, {counts['restarts']} workers replaced")
    found = growth(readings)
    print("; ".join(found) or "nothing grew")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Items that wait, as for a file on another machine: many workers, of which most sleep."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from harness import Case, Figure, Figures, Size, Target, closing, epochs, expect
from peers import torch_loader

FLOATS = 1024
# Most of them wait at any time, so the number of cores does not matter.
WORKERS = int(os.environ.get("BENCH_WORKERS", "32"))


class Items:
    """Item k: an array of 4 KiB that begins with k; making it takes `wait` seconds of sleep."""

    def __init__(self, count: int, wait: float) -> None:
        self.count, self.wait = count, wait

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        time.sleep(self.wait)
        made = np.full(FLOATS, 0.5, np.float32)
        made[0] = k
        return made


def first_number(batch: Any) -> float:
    return float(batch[0])


def measure(size: Size, start: Any) -> Figures:
    def check(kept: list[Any], last: Any) -> None:
        expect(kept == list(range(size.count)), "items were lost, repeated or out of order")

    return epochs(start, first_number, check, size.seconds, began=time.perf_counter())


THREADS, PROCESSES = "penstock, threads", "penstock, processes"
LIMIT = "limit: the waits alone"
CASE = Case(
    "waiting",
    "4 KiB items that each wait 2 ms, 32 workers",
    {"steady": Figure("us per item", 1e6)},
    full={"count": 8_000, "wait": 0.002, "seconds": 2.0},
    quick={"count": 4_000, "wait": 0.002, "seconds": 0.5},
    targets=[
        Target("steady", THREADS, LIMIT, at_least=0.8, says="80 % of the waits alone"),
        Target("steady", PROCESSES, LIMIT, at_least=0.8, says="80 % of the waits alone"),
    ],
)


def ours(size: Size, processes: bool) -> Figures:
    import penstock

    loader = penstock.Loader(
        Items(size.count, size.wait),
        workers=WORKERS,
        use_multiprocessing=processes,
        max_queue_size=256,
    )
    with closing(loader) as feed:
        return measure(size, lambda: feed)


CASE.entry(THREADS, "ours", "queue of 256")(lambda size: ours(size, False))
CASE.entry(PROCESSES, "ours", "queue of 256")(lambda size: ours(size, True))


@CASE.entry("torch DataLoader, processes", "peer", "the array as it is, prefetch_factor 8")
def torch_processes(size: Size) -> Figures:
    loader = torch_loader(
        Items(size.count, size.wait),
        batch_size=None,
        prefetch_factor=8,
        num_workers=WORKERS,
        collate_fn=as_it_is,
    )
    return measure(size, lambda: loader)


def as_it_is(x: Any) -> Any:
    return x


@CASE.entry(LIMIT, "limit")
def waits(size: Size) -> Figures:
    began = time.perf_counter()
    for _ in range(200):
        time.sleep(size.wait)
    return {"steady": (time.perf_counter() - began) / 200 / WORKERS}


CASES = [CASE]

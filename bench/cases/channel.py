"""Experience of two foreign processes, taken by a learner in batches.

`rate` is items per second from the learner's first batch to its last, `bytes` the bytes of their
arrays per second, and `cpu` the CPU time of an item in all processes together. The limit is the
speed of one process's copies: each item into a buffer, and from there into a row of a batch. Every
item is numbered, and each must come once.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from harness import BEST_PEER, Case, Figure, Figures, Size, Target, cpu_seconds, exactly_once

PRODUCERS = 2
TAKE = 128
OURS, QUEUE, LIMIT = "penstock.train.channel", "multiprocessing.Queue", "limit: two copies"

# A separate process that puts its items as fast as they are taken.
PRODUCER = """
import signal
import sys

import numpy as np
from penstock import train

name, who, count, side = sys.argv[1], *map(int, sys.argv[2:])
state = np.zeros((side, side), np.float32)
experience = train.attach_channel(name)
for i in range(count):
    experience.put({"id": who * count + i, "state": state, "reward": 1.0})
signal.pause()  # what an interpreter's end costs is not the channel's
"""


def item(number: int, state: Any) -> dict[str, Any]:
    return {"id": number, "state": state, "reward": 1.0}


class Clock:
    """From the first batch to the last."""

    def __init__(self) -> None:
        self.began, self.cpu = time.perf_counter(), cpu_seconds()

    def figures(self, ids: list[Any], size: Size) -> Figures:
        count = PRODUCERS * size.items
        rate = count / (time.perf_counter() - self.began)
        cpu = (cpu_seconds() - self.cpu) / count
        exactly_once(ids, count)
        return {"rate": rate, "bytes": rate * (size.side * size.side * 4 + 16), "cpu": cpu}


@contextmanager
def channel_producers(name: str, size: Size) -> Iterator[None]:
    command = [sys.executable, "-c", PRODUCER, name]
    processes = [
        subprocess.Popen([*command, str(who), str(size.items), str(size.side)])
        for who in range(PRODUCERS)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def ours(size: Size) -> Figures:
    from penstock import train

    name = f"bench-{uuid.uuid4().hex}"
    with train.channel(name) as channel, channel_producers(name, size):
        # Wait until both have started; then the ring of the first one is full.
        while sum(each["put"] > 0 for each in channel.stats()["producers"]) < PRODUCERS:
            time.sleep(0.001)
        ids = [channel.get(1)["id"]]
        clock, count = Clock(), 1
        while count < PRODUCERS * size.items:
            batch = channel.get(TAKE)
            ids.append(batch["id"])
            count += len(batch["id"])
        return clock.figures(ids, size)


def put_into(queue: Any, who: int, count: int, side: int) -> None:
    state = np.zeros((side, side), np.float32)
    for i in range(count):
        queue.put(item(who * count + i, state))


def queue(size: Size) -> Figures:
    """Stacked by the learner, because it trains on batches."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    shared = context.Queue(1024)
    processes = [
        context.Process(target=put_into, args=(shared, who, size.items, size.side), daemon=True)
        for who in range(PRODUCERS)
    ]
    for process in processes:
        process.start()
    ids = [shared.get()["id"]]
    clock, count = Clock(), 1
    while count < PRODUCERS * size.items:
        items = [shared.get() for _ in range(min(TAKE, PRODUCERS * size.items - count))]
        batch = {key: np.stack([each[key] for each in items]) for key in items[0]}
        ids.append(batch["id"])
        count += len(items)
    result = clock.figures(ids, size)
    for process in processes:
        process.join()
    return result


def copies(size: Size) -> Figures:
    state = np.zeros((size.side, size.side), np.float32)
    ring = np.zeros((TAKE, size.side, size.side), np.float32)
    total = PRODUCERS * size.items
    clock = Clock()
    for first in range(0, total, TAKE):
        batch = np.empty_like(ring)
        for row in range(min(TAKE, total - first)):
            ring[row] = state
            batch[row] = ring[row]
    return clock.figures([np.arange(total)], size)


def case(key: str, title: str, targets: list[Target], **sizes: Any) -> Case:
    made = Case(
        key,
        title,
        {
            "rate": Figure("items/s", more_is_better=True),
            "bytes": Figure("MB/s", 1e-6, more_is_better=True),
            "cpu": Figure("us of CPU an item", 1e6),
        },
        full=sizes,
        quick={**sizes, "items": sizes["items"] // 4},
        targets=targets,
    )
    made.entry(OURS, "ours", f"{PRODUCERS} producers")(ours)
    made.entry(QUEUE, "peer", "and numpy.stack")(queue)
    made.entry(LIMIT, "limit", "one process")(copies)
    return made


CASES = [
    case(
        "channel_small",
        "items of 80 bytes from 2 processes",
        [Target("rate", OURS, BEST_PEER, at_least=10)],
        items=40_000,
        side=4,
    ),
    case(
        "channel_large",
        "items of 64 KiB from 2 processes",
        [Target("rate", OURS, BEST_PEER, at_least=1.5)],
        items=4_000,
        side=128,
    ),
]

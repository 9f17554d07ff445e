"""Batches of 38 MB and items of 4 KiB from worker processes on another host, over loopback.

Nothing is computed: the cost is the way from the process that has the array to the loop.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import (
    BEST_PEER,
    WORKERS,
    Case,
    Figure,
    Figures,
    Size,
    Target,
    closing,
    epochs,
    expect,
)
from peers import Program, ray_end, ray_head

from .remote_program import SECRET

PROGRAM = "cases.remote_program"
HERE = "penstock, 2 workers of a server on this host"
OURS, LIMIT = "penstock, 2 remote workers", "limit: send() and recv() of the same bytes"
LIMIT_MADE = "limit: the same, each batch made anew"


def item(shape: tuple[int, ...], k: int) -> Any:
    """A new array of ones, whose first number is k."""
    made = np.ones(shape, np.float32)
    made.reshape(-1)[0] = k
    return made


class Items:
    def __init__(self, size: Size) -> None:
        self.shape, self.count = tuple(size.shape), size.count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        return item(self.shape, int(k))


class Maker(Items):
    """An actor of Ray."""

    def make(self, k: int) -> Any:
        return self[k]


def first_number(batch: Any) -> Any:
    return batch.reshape(-1)[0]


def measure(size: Size, start: Callable[[], Any], numbered: bool = True) -> Figures:
    def check(kept: list[Any], last: Any) -> None:
        expect(len(kept) == size.count, f"{len(kept)} batches came, not {size.count}")
        if numbered:
            expect(kept == list(range(size.count)), "batches were lost, repeated or out of order")
        expect(float(last.reshape(-1)[-1]) == 1, "a batch is not what was made")

    figures = epochs(start, first_number, check, size.seconds, warm=size.queue)
    figures["rate"] = int(np.prod(size.shape)) * 4 / figures["steady"]
    return figures


LARGE = Case(
    "remote_large",
    "batches of 38 MB from two processes of another host, over loopback",
    {
        "steady": Figure("ms per batch", 1e3),
        "rate": Figure("GB/s", 1e-9, more_is_better=True, compared=False),
    },
    full={"shape": [64, 224, 224, 3], "count": 60, "queue": 4, "seconds": 4.0},
    quick={"shape": [64, 224, 224, 3], "count": 30, "queue": 4, "seconds": 1.0},
    targets=[
        Target("steady", OURS, BEST_PEER, at_least=3),
        # Ray's actors on one host hand arrays over in shared memory, too.
        Target("steady", HERE, BEST_PEER, at_least=3, says="3 times, in shared memory as Ray's"),
        Target("steady", OURS, LIMIT, at_least=0.8, says="80 % of plain TCP"),
    ],
)
SMALL = Case(
    "remote_small",
    "items of 4 KiB from two processes of another host, over loopback",
    {"steady": Figure("us per item", 1e6)},
    full={"shape": [1024], "count": 20_000, "queue": 64, "seconds": 4.0},
    quick={"shape": [1024], "count": 4_000, "queue": 64, "seconds": 1.0},
    targets=[Target("steady", OURS, BEST_PEER, at_least=10)],
)
CASES = [LARGE, SMALL]


def penstock_feed(size: Size, role: str = "server") -> Figures:
    import penstock

    program = Program(PROGRAM, role)
    try:
        remote = penstock.remote.workers(program.read_line(), WORKERS, secret=SECRET)
        loader = penstock.Loader(Items(size), workers=remote, max_queue_size=size.queue)
        with closing(loader) as feed:
            return measure(size, lambda: feed)
    finally:
        program.end()


def plain_tcp(size: Size, made: bool = False) -> Figures:
    """`made`: the sender makes each batch, as ours do, so its bytes are not in the cache."""
    bytes_each = int(np.prod(size.shape)) * 4
    program = Program(PROGRAM, "made" if made else "stream", bytes_each, size.count)
    places = [np.zeros(tuple(size.shape), np.float32) for _ in range(size.queue)]

    def pieces() -> Iterator[Any]:
        for k in range(size.count):
            place = places[k % size.queue]
            into = memoryview(place).cast("B")
            while into:
                into = into[connection.recv_into(into, 0, socket.MSG_WAITALL) :]
            place.reshape(-1)[-1] = 1
            yield place

    try:
        with socket.create_connection(("127.0.0.1", int(program.read_line()))) as connection:
            return measure(size, pieces, numbered=False)
    finally:
        program.end()


def ray_actors(size: Size) -> Figures:
    """Each actor has half of the calls in flight; results are taken in order."""
    ray_head(2 << 30)
    import ray

    try:
        actors = [ray.remote(Maker).remote(size) for _ in range(WORKERS)]

        def ordered() -> Iterator[Any]:
            flying: deque[Any] = deque()
            for k in range(size.count + size.queue):
                if k < size.count:
                    flying.append(actors[k % WORKERS].make.remote(k))
                if k >= size.queue:
                    yield ray.get(flying.popleft())

        return measure(size, ordered)
    finally:
        ray_end()


def ray_data(size: Size) -> Figures:
    """Its batches come in any order."""
    ray_head(2 << 30)
    import ray.data

    rows, shape = size.shape[0], tuple(size.shape)

    def made(_: Any) -> Any:
        return {"x": np.ones(shape, np.float32)}

    try:
        source = ray.data.range(size.count, override_num_blocks=size.count)
        batches = source.map_batches(made, batch_size=1)

        def arrays() -> Iterator[Any]:
            for batch in batches.iter_torch_batches(batch_size=rows, prefetch_batches=size.queue):
                yield batch["x"].numpy()

        began = time.perf_counter()
        figures = measure(size, arrays, numbered=False)
        figures["total"] = time.perf_counter() - began
        return figures
    finally:
        ray_end()


for case in CASES:
    case.entry(OURS, "ours")(penstock_feed)
    case.entry(HERE, "ours", "through shared memory")(
        lambda size: penstock_feed(size, role="neighbour")
    )
    case.entry("Ray, 2 actors that return arrays", "peer", "through its object store")(ray_actors)
    case.entry(LIMIT, "limit")(plain_tcp)
LARGE.entry("Ray Data, iter_torch_batches", "peer", "in any order", quick=False)(ray_data)
LARGE.entry(LIMIT_MADE, "limit", "by one process")(lambda size: plain_tcp(size, made=True))

"""Whole batches of 154 MB: computed anew, transport alone, and a view of a persistent array."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
    expect,
    keep_heap,
    one_epoch,
)
from peers import keras_epoch, side_by_side, torch_loader

QUEUE = 4  # batches ahead, for all entries


class Items:
    """`count` batches of (rows, 224, 224, 3) float32."""

    def __init__(self, kind: str, rows: int, count: int) -> None:
        self.kind, self.shape, self.count = kind, (rows, 224, 224, 3), count
        self.kept: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        if self.kind == "rand":
            return np.random.rand(*self.shape).astype("float32")
        if self.kind == "ones":
            return np.ones(self.shape, "float32")
        if self.kept is None:
            self.kept = np.ones(self.shape, "float32")
        return self.kept[:]


def items(kind: str, size: Size) -> Items:
    return Items(kind, size.rows, size.count)


def look(batch: Any) -> float:
    """Read parts of the batch: a few pages in a hundred."""
    return float(np.asarray(batch).reshape(-1)[:: 1 << 18].sum())


def checked(
    kind: str, size: Size, ours: bool, figures: Figures, kept: list[float], last: Any
) -> Figures:
    expect(len(kept) == size.count, f"{len(kept)} batches came, not {size.count}")
    last = np.asarray(last)
    expect(last.shape == (size.rows, 224, 224, 3), f"a batch has shape {last.shape}")
    if kind == "rand":
        expect(0.49 < float(last.mean()) < 0.51, "these are no uniform numbers")
        repeated = len(kept) - len(set(kept))
        expect(not (ours and repeated), f"{repeated} batches are repeated")
        if repeated:  # the workers' copies of NumPy's generator draw the same numbers
            figures["note"] = f"{repeated} of {len(kept)} batches repeat another"
    else:
        expect(bool((last == 1).all()) and len(set(kept)) == 1, "a batch is not all ones")
    figures["rate"] = last.nbytes / figures["steady"]
    return figures


def fed(
    kind: str, size: Size, start: Callable[[], Any], began: float, ours: bool = False
) -> Figures:
    return checked(kind, size, ours, *one_epoch(start, look, size.warm, began))


# ---- ours ----------------------------------------------------------------------------------------


def penstock_feed(kind: str, size: Size, processes: bool) -> Figures:
    import penstock

    began = time.perf_counter()
    loader = penstock.Loader(
        items(kind, size), workers=WORKERS, use_multiprocessing=processes, max_queue_size=QUEUE
    )
    with closing(loader) as feed:
        figures = fed(kind, size, lambda: feed, began, ours=True)
        copied = sum(feed.stats()["bytes_copied"].values())
    figures["copied"] = copied / figures["rate"] / figures["steady"] / size.count
    return figures


# ---- peers ---------------------------------------------------------------------------------------


def in_line(kind: str, size: Size) -> Figures:
    data = items(kind, size)
    return fed(kind, size, lambda: (data[k] for k in range(len(data))), time.perf_counter())


def torch_processes(kind: str, size: Size) -> Figures:
    import torch  # noqa: F401

    began = time.perf_counter()
    loader = torch_loader(
        items(kind, size),
        batch_size=None,
        persistent_workers=False,
        prefetch_factor=QUEUE // WORKERS,
    )
    return fed(kind, size, lambda: loader, began)


def keras(kind: str, size: Size, processes: bool) -> Figures:
    data = items(kind, size)
    epoch = keras_epoch(
        data.__getitem__,
        len(data),
        workers=WORKERS,
        use_multiprocessing=processes,
        max_queue_size=QUEUE,
    )
    return fed(kind, size, lambda: (batch[0] for batch in epoch()), time.perf_counter())


def shared_memory(kind: str, size: Size) -> Figures:
    """multiprocessing.shared_memory: a new block per batch, its name through a queue."""
    import multiprocessing
    from multiprocessing import resource_tracker, shared_memory

    data = items(kind, size)
    resource_tracker.ensure_running()
    context = multiprocessing.get_context("fork")
    blocks: list[Any] = []  # keeps blocks alive while their arrays exist
    began = time.perf_counter()
    queues = [context.Queue(QUEUE // WORKERS) for _ in range(WORKERS)]
    workers = [
        context.Process(target=_share, args=(data, part, queue), daemon=True)
        for part, queue in enumerate(queues)
    ]

    def epoch() -> Iterator[Any]:
        for worker in workers:
            worker.start()
        for k in range(len(data)):
            blocks.append(shared_memory.SharedMemory(queues[k % WORKERS].get()))
            blocks[-1].unlink()
            if len(blocks) == 3:  # the consumer may still use the previous batch
                blocks.pop(0).close()
            yield np.ndarray((size.rows, 224, 224, 3), "float32", blocks[-1].buf)

    return fed(kind, size, epoch, began)


def _share(data: Items, part: int, queue: Any) -> None:
    from multiprocessing import shared_memory

    for k in range(part, len(data), WORKERS):
        made = data[k]
        block = shared_memory.SharedMemory(create=True, size=made.nbytes)
        np.ndarray(made.shape, made.dtype, block.buf)[:] = made
        queue.put(block.name)
        block.close()
    queue.close()
    queue.join_thread()


# ---- limits --------------------------------------------------------------------------------------


def limit_loop(kind: str, rows: int, count: int, warm: int, kept: bool, part: int) -> float:
    """One of two processes: make every second batch, without hand-over. Seconds per batch."""
    if kept:
        keep_heap()
    data = Items(kind, rows, count)
    for k in range(warm // WORKERS):
        data[k]
    began = time.perf_counter()
    mine = range(warm + part, count, WORKERS)
    for k in mine:
        data[k]
    return (time.perf_counter() - began) / len(mine)


def limit(kind: str, size: Size, kept: bool) -> Figures:
    spent, each = side_by_side(
        "cases.large_items", "limit_loop", kind, size.rows, size.count, size.warm, kept
    )
    return {"steady": 1 / sum(1 / seconds for seconds in each), "total": spent / size.count}


def copy_loop(rows: int, seconds: float, part: int) -> float:
    """One of two processes: copy a batch repeatedly. Bytes per second, by the best method."""
    import ctypes

    source = np.ones((rows, 224, 224, 3), "float32")
    into = np.ones_like(source)
    ways = (
        lambda: np.copyto(into, source),
        lambda: ctypes.memmove(into.ctypes.data, source.ctypes.data, source.nbytes),
    )
    return max(source.nbytes / best_of(way, seconds) for way in ways)


# ---- the cases -----------------------------------------------------------------------------------

MS = {
    "steady": Figure("ms per batch", 1e3),
    "total": Figure("ms per batch, start and first epoch", 1e3),
}
OURS, OURS_THREADS = "penstock, 2 processes", "penstock, 2 threads"
TORCH, KERAS = "torch DataLoader, 2 processes", "Keras PyDataset, 2 processes"
LIMIT = "limit: two processes, heap kept"


def make_case(kind: str, title: str, targets: list[Target], **sizes: Any) -> Case:
    case = Case(f"large-{kind}", title, dict(MS), targets=targets, **sizes)
    case.entry(OURS, "ours", "queue of 4")(lambda size: penstock_feed(kind, size, True))
    case.entry(OURS_THREADS, "ours", quick=False)(lambda size: penstock_feed(kind, size, False))
    case.entry("in line", "peer")(lambda size: in_line(kind, size))
    case.entry(TORCH, "peer", "prefetch_factor 2")(lambda size: torch_processes(kind, size))
    case.entry(KERAS, "peer", "queue of 4")(lambda size: keras(kind, size, True))
    case.entry(
        "Keras PyDataset, 2 threads", "peer", "queue of 4", quick=False, beside=OURS_THREADS
    )(lambda size: keras(kind, size, False))
    case.entry("multiprocessing.shared_memory, a block per batch", "peer", quick=False)(
        lambda size: shared_memory(kind, size)
    )
    case.entry(LIMIT, "limit", "mallopt: freed memory stays")(lambda size: limit(kind, size, True))
    case.entry("limit: two processes, malloc as it comes", "limit", quick=False)(
        lambda size: limit(kind, size, False)
    )
    return case


RAND = make_case(
    "rand",
    "np.random.rand(256,224,224,3).astype('float32') per item, 154 MB",
    [
        Target("steady", OURS, BEST_PEER, at_least=1.25),
        Target("total", OURS, BEST_PEER, at_least=1.25),
        Target("steady", OURS, LIMIT, at_least=1 / 1.05, says="within 5 % of the limit"),
        Target("total", OURS, LIMIT, at_least=1 / 1.20, says="within 20 % of the limit"),
    ],
    full={"rows": 256, "count": 64, "warm": 8},
    quick={"rows": 64, "count": 24, "warm": 8},
)
ONES = make_case(
    "ones",
    "np.ones of the same shape: transport alone",
    [
        Target("steady", OURS, BEST_PEER, at_least=1.5),
        Target("total", OURS, BEST_PEER, at_least=1),
        Target("steady", OURS, LIMIT, at_least=0.7),
        Target("copied", OURS, at_most=0, says="no byte copied"),
    ],
    full={"rows": 256, "count": 104, "warm": 40},
    quick={"rows": 64, "count": 40, "warm": 10},
)
ONES.figures["copied"] = Figure("bytes copied per byte", compared=False)

VIEW = Case(
    "large-view",
    "a view of an array that stays, 154 MB: one copy is due",
    {**MS, "rate": Figure("GB/s", 1e-9, more_is_better=True)},
    targets=[
        Target("steady", OURS, BEST_PEER, at_least=3),
        Target("rate", OURS, BEST_LIMIT, at_least=0.8),
    ],
    full={"rows": 256, "count": 120, "warm": 60, "seconds": 1.0},
    quick={"rows": 64, "count": 40, "warm": 10, "seconds": 0.4},
)
VIEW.entry(OURS, "ours", "queue of 4")(lambda size: penstock_feed("view", size, True))
VIEW.entry(TORCH, "peer", "prefetch_factor 2")(lambda size: torch_processes("view", size))


@VIEW.entry("limit: two processes copy", "limit", "np.copyto or memmove, into pages that are there")
def copy_limit(size: Size) -> Figures:
    _, rates = side_by_side("cases.large_items", "copy_loop", size.rows, size.seconds)
    return {"rate": sum(rates)}


CASES = [RAND, ONES, VIEW]

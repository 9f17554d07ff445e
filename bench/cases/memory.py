"""Memory of all processes together, with shared memory counted once, without imports and data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import (
    WORKERS,
    Case,
    Figure,
    Figures,
    Size,
    Target,
    closing,
    expect,
    processes_below,
    resident_bytes,
)
from peers import Program, keras_epoch, torch_loader

from .remote_program import SECRET

QUEUE = 10
PER_WORKER = 60 * 2**20


class Batches:
    """Batches of (rows, 224, 224, 3) float32, made without a temporary."""

    def __init__(self, rows: int, count: int) -> None:
        self.shape, self.count = (rows, 224, 224, 3), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        return np.full(self.shape, k, np.float32)


def allowed(batch: int, held: int) -> float:
    """The limit by design: the allowed batches, 15 %, and 60 MB per worker."""
    return (QUEUE + WORKERS + held) * batch * 1.15 + WORKERS * PER_WORKER


def growth(
    start: Callable[[], Any], count: int, bound: float, look: Callable[[Any], Any], held: int = 1
) -> Figures:
    """Take `count` batches and keep `held` of them; return the peak above the current memory."""
    before = resident_bytes()
    peak, last, kept = before, time.perf_counter(), []
    taken = 0
    for batch in start():
        taken += 1
        look(batch)
        kept.append(batch)
        del batch
        # Measuring takes long enough for the queue to fill.
        if time.perf_counter() - last > 0.02 or taken <= QUEUE + 2:
            peak = max(peak, resident_bytes())
            last = time.perf_counter()
        while len(kept) >= held:
            del kept[0]
        if taken == count:
            break
    expect(taken == count, f"{taken} batches came, not {count}")
    grew = peak - before
    return {"grew": grew, "allowed": grew / bound}


FIGURES = {
    "grew": Figure("MiB", 2**-20),
    "allowed": Figure("of what is allowed", compared=False),
}
OURS = "penstock, 2 processes"

# ---- large batches -------------------------------------------------------------------------------

LARGE = Case(
    "memory-batches",
    "memory: batches of 38 MB, queue of 10",
    dict(FIGURES),
    full={"rows": 64, "count": 60, "held": 4},
    quick={"rows": 32, "count": 30, "held": 4},
    targets=[
        Target(
            "allowed",
            OURS,
            at_most=1.0,
            says="(queue + workers + held) x batch + 15 % + 60 MB a worker",
        ),
        Target("allowed", "penstock, 2 processes, 4 batches held", at_most=1.0, says="the same"),
    ],
)


def batch_bytes(size: Size) -> int:
    return int(size.rows * 224 * 224 * 3 * 4)


def touch(batch: Any) -> None:
    """Read all of the batch, as training does."""
    np.asarray(batch).sum()


def ours_large(size: Size, held: int) -> Figures:
    import penstock

    data = Batches(size.rows, size.count)
    _ = penstock.Loader

    def start() -> Any:
        return closing_iterator(
            penstock.Loader(data, workers=WORKERS, use_multiprocessing=True, max_queue_size=QUEUE)
        )

    return growth(start, size.count, allowed(batch_bytes(size), held), touch, held)


def closing_iterator(loader: Any) -> Any:
    with closing(loader) as feed:
        yield from feed


LARGE.entry(OURS, "ours")(lambda size: ours_large(size, 1))
LARGE.entry("penstock, 2 processes, 4 batches held", "ours")(
    lambda size: ours_large(size, size.held)
)


@LARGE.entry("torch DataLoader, 2 processes", "peer", "prefetch_factor 5")
def torch_large(size: Size) -> Figures:
    data = Batches(size.rows, size.count)
    loader = torch_loader(data, batch_size=None, prefetch_factor=QUEUE // WORKERS)
    return growth(lambda: loader, size.count, allowed(batch_bytes(size), 1), touch)


@LARGE.entry("Keras PyDataset, 2 processes", "peer", "queue of 10")
def keras_large(size: Size) -> Figures:
    data = Batches(size.rows, size.count)
    epoch = keras_epoch(
        data.__getitem__,
        size.count,
        workers=WORKERS,
        use_multiprocessing=True,
        max_queue_size=QUEUE,
    )
    return growth(epoch, size.count, allowed(batch_bytes(size), 1), lambda batch: touch(batch[0]))


# ---- a set in memory -----------------------------------------------------------------------------

BATCH, WIDTH = 256, 784


class Rows:
    """An ordinary map-style dataset that holds its arrays."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> Any:
        return self.x[k], self.y[k]


def arrays(size: Size) -> tuple[Any, Any]:
    return np.full((size.count, WIDTH), 7, np.uint8), np.arange(size.count)


def set_bytes(size: Size) -> int:
    return int(size.count * (WIDTH + 8))


SET = Case(
    "memory-set",
    "memory: a set of 1,000,000 x 784 bytes, beyond the set itself",
    dict(FIGURES),
    full={"count": 1_000_000, "batches": 600},
    quick={"count": 250_000, "batches": 200},
    targets=[
        Target("allowed", "penstock, arrays", at_most=1.0, says="the set exists once"),
        Target(
            "allowed",
            "penstock, a dataset that holds them, 2 processes",
            at_most=1.0,
            says="one copy for all workers",
        ),
    ],
)


def set_growth(size: Size, start: Callable[[], Any], copies: int) -> Figures:
    bound = allowed(BATCH * (WIDTH + 8), 1) + copies * set_bytes(size) * 1.15
    return growth(start, size.batches, bound, lambda batch: int(batch[0][0, 0]))


@SET.entry("penstock, arrays", "ours", "gathered by 2 threads")
def ours_arrays(size: Size) -> Figures:
    import penstock

    data = arrays(size)
    _ = penstock.Loader

    def start() -> Any:
        return closing_iterator(
            penstock.Loader(data, batch_size=BATCH, shuffle=True, workers=WORKERS)
        )

    return set_growth(size, start, 0)


@SET.entry("penstock, a dataset that holds them, 2 processes", "ours", "spawn")
def ours_rows(size: Size) -> Figures:
    import penstock

    data = Rows(*arrays(size))
    _ = penstock.Loader

    def start() -> Any:
        return closing_iterator(
            penstock.Loader(
                data, batch_size=BATCH, shuffle=True, workers=WORKERS, use_multiprocessing=True
            )
        )

    return set_growth(size, start, 1)


@SET.entry("torch DataLoader, 2 processes, fork", "peer", "arrays in the dataset")
def torch_fork(size: Size) -> Figures:
    loader = torch_loader(Rows(*arrays(size)), batch_size=BATCH, shuffle=True)
    return set_growth(size, lambda: loader, 1)


@SET.entry("torch DataLoader, 2 processes, spawn", "peer", "arrays in the dataset")
def torch_spawn(size: Size) -> Figures:
    loader = torch_loader(
        Rows(*arrays(size)), batch_size=BATCH, shuffle=True, multiprocessing_context="spawn"
    )
    return set_growth(size, lambda: loader, 1)


# ---- the ranks of a node -------------------------------------------------------------------------

RANKS = 4


class Texts:
    """A list of Python's objects, of which each process that unpacks it has a copy."""

    def __init__(self, count: int) -> None:
        self.texts = [f"sample {k} of {count}" for k in range(count)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, k: int) -> Any:
        return np.full(16, len(self.texts[k]), np.int32)


OWN = f"penstock, {RANKS} ranks with {WORKERS} processes each"
SHARED = f"penstock, {RANKS} ranks share {WORKERS} processes"
NODE = Case(
    "memory-ranks",
    f"memory: worker processes of {RANKS} ranks, whose data set is a list of 1,000,000 texts",
    {"grew": Figure("MiB", 2**-20), "processes": Figure("processes", compared=False)},
    full={"count": 1_000_000, "batches": 20},
    quick={"count": 250_000, "batches": 10},
    targets=[Target("grew", SHARED, OWN, at_least=2.0, says="half the memory")],
)


def node_growth(size: Size, workers: Any, **options: Any) -> Figures:
    """Memory of all processes while each rank, a Loader of this process, is in an epoch."""
    import penstock

    data = Texts(size.count)
    before, below = resident_bytes(), len(processes_below())
    with contextlib.ExitStack() as stack:
        feeds = [
            stack.enter_context(
                penstock.Loader(
                    data, batch_size=64, shard=(rank, RANKS), workers=workers, **options
                )
            )
            for rank in range(RANKS)
        ]
        epochs = [iter(feed) for feed in feeds]
        for _ in range(size.batches):
            for rank, epoch in enumerate(epochs):
                expect(next(epoch).shape == (64, 16), f"rank {rank} has another batch")
        grew, processes = resident_bytes() - before, len(processes_below()) - below
    return {"grew": grew, "processes": processes}


@NODE.entry(SHARED, "ours", "penstock.ray.node_workers, without Ray")
def ours_shared(size: Size) -> Figures:
    import penstock

    program = Program("cases.remote_program", "neighbour")
    try:
        workers = penstock.remote.workers(program.read_line(), WORKERS, secret=SECRET)
        workers.shared = True
        return node_growth(size, workers)
    finally:
        program.end()


@NODE.entry(OWN, "ours")
def ours_own(size: Size) -> Figures:
    return node_growth(size, WORKERS, use_multiprocessing=True)


CASES = [LARGE, SET, NODE]

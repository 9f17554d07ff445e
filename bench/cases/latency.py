"""The time to a batch: at the start of a later epoch, and of the first one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from harness import (
    BEST_LIMIT,
    BEST_PEER,
    WORKERS,
    Case,
    Figure,
    Figures,
    Size,
    Target,
    closing,
    expect,
)
from peers import grain_processes, keras_epoch, torch_loader

from cases.steps import Hooked, Steps

# ---- the start of an epoch after the first -------------------------------------------------------


def later_epochs(size: Size, start: Callable[[], Any]) -> Figures:
    waits = []
    for epoch in range(size.epochs + 1):
        began = time.perf_counter()
        batches = iter(start())
        next(batches)
        wait = time.perf_counter() - began
        rest = sum(1 for _ in batches)
        expect(rest == size.count - 1, f"{rest + 1} batches came, not {size.count}")
        if epoch:
            waits.append(wait)
    return {"start": statistics.median(waits)}


EPOCH = Case(
    "epoch-start",
    "start of an epoch after the first",
    {"start": Figure("ms to its first batch", 1e3)},
    full={"count": 50, "epochs": 7},
    quick={"count": 50, "epochs": 3},
)
OURS = "penstock, 2 processes"
EPOCH.targets = [
    Target("start", OURS, BEST_PEER, at_least=10),
]


def ours_later(size: Size, data: Any, processes: bool) -> Figures:
    import penstock

    loader = penstock.Loader(data, workers=WORKERS, use_multiprocessing=processes)
    with closing(loader) as feed:
        return later_epochs(size, lambda: feed)


EPOCH.entry(OURS, "ours")(lambda size: ours_later(size, Steps(size.count), True))
EPOCH.entry("penstock, 2 processes, on_epoch_end", "ours", "no batch is made ahead of the hook")(
    lambda size: ours_later(size, Hooked(size.count), True)
)
EPOCH.entry("penstock, 2 threads", "ours", quick=False)(
    lambda size: ours_later(size, Steps(size.count), False)
)


@EPOCH.entry("torch DataLoader, 2 processes", "peer", "its default: new workers each epoch")
def torch_later(size: Size) -> Figures:
    loader = torch_loader(Steps(size.count), batch_size=None, persistent_workers=False)
    return later_epochs(size, lambda: loader)


@EPOCH.entry("torch DataLoader, persistent workers", "peer")
def torch_persistent(size: Size) -> Figures:
    loader = torch_loader(Steps(size.count), batch_size=None)
    return later_epochs(size, lambda: loader)


def keras_later(size: Size, processes: bool) -> Figures:
    data = Steps(size.count)
    epoch = keras_epoch(
        data.__getitem__, size.count, workers=WORKERS, use_multiprocessing=processes
    )
    return later_epochs(size, epoch)


EPOCH.entry("Keras PyDataset, 2 processes", "peer", "a new pool each epoch")(
    lambda size: keras_later(size, True)
)
EPOCH.entry("Keras PyDataset, 2 threads", "peer", quick=False)(
    lambda size: keras_later(size, False)
)


@EPOCH.entry("grain mp_prefetch, 2 processes", "peer", quick=False)
def grain_later(size: Size) -> Figures:
    import grain

    data = grain_processes(grain.MapDataset.source(Steps(size.count)), 2)
    return later_epochs(size, lambda: data)


# ---- the first batch of workers started by spawn -------------------------------------------------

FIRST = Case(
    "first-batch",
    "workers started by spawn, first batch",
    {
        "first": Figure("ms to the first batch", 1e3),
        "beyond": Figure("ms beyond the dataset's own imports", 1e3),
    },
    full={"count": 8, "workers": WORKERS},
    quick={"count": 8, "workers": WORKERS},
    targets=[
        Target("beyond", OURS, BEST_PEER, at_least=2),
        Target("beyond", OURS, BEST_LIMIT, at_least=1),
        Target("beyond", "penstock, a dataset with imports of its own", BEST_PEER, at_least=2),
    ],
)


def first_batch(make: Callable[[], Any], own: Callable[[Any], float] = lambda b: 0.0) -> Figures:
    """make() builds the loader, and `own` reads the time of the imports from a batch."""
    began = time.perf_counter()
    feed = make()
    batches = iter(feed)
    batch = next(batches)
    first = time.perf_counter() - began
    figures = {"first": first, "beyond": first - own(batch)}
    close = getattr(feed, "close", None)
    if close is not None:
        close()
    return figures


def penstock_first(data: Any, method: str, own: Callable[[Any], float] = lambda b: 0.0) -> Figures:
    import penstock

    _ = penstock.Loader  # loads the extension: imports are not timed, as for the peers

    def make() -> Any:
        return penstock.Loader(data, workers=WORKERS, use_multiprocessing=True, start_method=method)

    return first_batch(make, own)


FIRST.entry(OURS, "ours", "spawn; the dataset needs NumPy")(
    lambda size: penstock_first(Steps(size.count), "spawn")
)


@FIRST.entry("penstock, a dataset with imports of its own", "ours", "spawn")
def ours_with_imports(size: Size) -> Figures:
    from cases.slow_to_import import Items

    # Each worker imports; both share the cores, so the slower worker's time counts.
    return penstock_first(Items(size.count), "spawn", lambda batch: float(batch[0]))


FIRST.entry("penstock, forkserver", "ours", quick=False)(
    lambda size: penstock_first(Steps(size.count), "forkserver")
)
FIRST.entry("penstock, fork", "ours", quick=False)(
    lambda size: penstock_first(Steps(size.count), "fork")
)


@FIRST.entry("torch DataLoader, spawn", "peer")
def torch_first(size: Size) -> Figures:
    import torch  # noqa: F401

    return first_batch(
        lambda: torch_loader(Steps(size.count), batch_size=None, multiprocessing_context="spawn")
    )


@FIRST.entry("grain mp_prefetch, 2 processes", "peer")
def grain_first(size: Size) -> Figures:
    import grain

    return first_batch(lambda: grain_processes(grain.MapDataset.source(Steps(size.count)), 2))


@FIRST.entry("limit: an interpreter that imports NumPy", "limit", "two at once")
def interpreter(size: Size) -> Figures:
    import subprocess
    import sys

    began = time.perf_counter()
    running = [
        subprocess.Popen([sys.executable, "-c", "import numpy"]) for _ in range(size.workers)
    ]
    for process in running:
        process.wait()
    spent = time.perf_counter() - began
    return {"first": spent, "beyond": spent}


CASES = [EPOCH, FIRST]

"""The cost of counters and traces: the time of their calls per batch, over the time of a batch.

There is no engine without counters to compare with. counters_cost.cc makes the calls of a worker
per ticket and of the consumer per batch, including clock readings. Their time is divided by the
time of as many tickets in a run. Worker and consumer run at the same time, so the larger share of
the two is the result.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from harness import WORKERS, Case, Figure, Figures, Size, Target, closing, expect, once, one_epoch

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "bench/counters_cost.cc",
    "penstock/observe/counters.cc",
    "penstock/observe/trace.cc",
)
SAMPLES, SMALL = "batches of 64 augmented images, 2 processes", "4 KiB items, 2 processes"


def program(size: Size) -> Path:
    return size.path("counters_cost")


def prepare(size: Size) -> None:
    from cases.samples import prepare as prepare_samples

    prepare_samples(size)
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return
    sources = [str(ROOT / source) for source in SOURCES]
    newest = max(Path(source).stat().st_mtime for source in sources)
    if program(size).exists() and program(size).stat().st_mtime < newest:
        program(size).unlink()

    def build(part: Path) -> None:
        flags = ["-std=c++20", "-O3", f"-I{ROOT}", "-pthread"]
        subprocess.run([compiler, *flags, *sources, "-o", str(part)], check=True)

    once(program(size), build)


CASE = Case(
    "counters",
    "cost of counters and traces",
    {
        "share": Figure("% of the time of a batch", 100, compared=False),
        "per_batch": Figure("ns per batch, worker and consumer", 1e9, compared=False),
        "batch": Figure("us per batch", 1e6, compared=False),
    },
    full={"count": 20_000},
    quick={"count": 5_000},
    prepare=prepare,
    targets=[
        Target("share", SAMPLES, at_most=0.01, says="under 1 %"),
        Target("share", SMALL, at_most=0.01, says="under 1 %, where a batch takes microseconds"),
    ],
)


def costs(size: Size) -> list[float]:
    """Seconds: worker and consumer, of small batches, then of large ones."""
    if not program(size).exists():
        raise ImportError("no C++ compiler")
    said = subprocess.run([str(program(size))], capture_output=True, text=True, check=True).stdout
    return [float(word) * 1e-9 for word in said.split()]


def share_of(batch: float, tickets: float, worker: float, consumer: float) -> Figures:
    """batch: seconds per batch; tickets: number of tickets per batch of each worker."""
    return {
        "share": max(worker * tickets, consumer) / batch,
        "per_batch": worker * tickets * WORKERS + consumer,
        "batch": batch,
    }


@CASE.entry(SAMPLES, "ours")
def with_samples(size: Size) -> Figures:
    import penstock
    from cases.samples import BATCH, samples

    _, _, worker, consumer = costs(size)
    loader = penstock.Loader(
        samples(Size(data=size.data, count=size.count // 2)),
        batch_size=BATCH,
        workers=WORKERS,
        use_multiprocessing=True,
    )
    with closing(loader) as feed:
        figures, kept, _ = one_epoch(lambda: feed, lambda batch: len(batch[0]), 8)
        expect(sum(kept) == size.count // 2, "samples were lost")
        tickets = sum(worker["tickets"] for worker in feed.stats()["workers"])
    return share_of(figures["steady"], tickets / len(kept) / WORKERS, worker, consumer)


@CASE.entry(SMALL, "ours", "the worst that there is: a batch takes microseconds")
def with_small_items(size: Size) -> Figures:
    import penstock
    from cases.small_items import Items

    worker, consumer, _, _ = costs(size)
    loader = penstock.Loader(
        Items(size.count), workers=WORKERS, use_multiprocessing=True, max_queue_size=256
    )
    best: Figures = {}
    with closing(loader) as feed:
        for _ in range(3):
            figures, kept, _ = one_epoch(lambda: feed, lambda batch: batch[0], 1)
            expect(np.array_equal(kept, np.arange(size.count)), "items were lost")
            if not best or figures["steady"] < best["steady"]:
                best = figures
    return share_of(best["steady"], 1 / WORKERS, worker, consumer)


CASES = [CASE]

"""20,000 items of 4 KiB, one at a time: nothing is computed, the cost is the hand-over itself."""

from __future__ import annotations

import os
import time
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
    best_of,
    closing,
    epochs,
    expect,
)
from peers import grain_processes, grain_threads, keras_epoch, torch_loader

FLOATS = 1024
QUEUE = 256


def item(k: int) -> Any:
    """Item k: a new array of 4 KiB, whose first number is k."""
    made = np.full(FLOATS, 0.5, np.float32)
    made[0] = k
    return made


class Items:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        return item(int(k))


def first_number(batch: Any) -> Any:
    return batch[0]


def measure(
    size: Size,
    start: Callable[[], Any],
    look: Callable[[Any], Any] = first_number,
    ordered: bool = True,
) -> Figures:
    def check(kept: list[Any], last: Any) -> None:
        came = np.array(kept, np.float64)
        if not ordered:
            came.sort()
        expect(
            np.array_equal(came, np.arange(size.count)), "items were lost, repeated or out of order"
        )
        if isinstance(last, np.ndarray):
            expect(bool((last.reshape(-1)[1:] == 0.5).all()), "an item is not what was made")

    return epochs(start, look, check, size.seconds, began=time.perf_counter())


CASE = Case(
    "small",
    "4 KiB items, 20,000 of them, max_queue_size=256",
    {
        "steady": Figure("us per item", 1e6),
        "first": Figure("ms to the first item", 1e3, compared=False),
    },
    full={"count": 20_000, "seconds": 2.0},
    quick={"count": 5_000, "seconds": 0.5},
)
OURS, THREADS, PLAIN = "penstock, 2 processes", "penstock, 2 threads", "limit: made in line"
CASE.targets = [
    Target("steady", OURS, BEST_PEER, at_least=2),
    Target("steady", OURS, PLAIN, at_least=0.6, says="60 % of making them in line"),
    Target("steady", THREADS, BEST_PEER, at_least=1),
    Target("steady", THREADS, PLAIN, at_least=0.4, says="40 % of making them in line"),
]
CASE.figures["beyond"] = Figure("us beyond the item's own cost", 1e6, compared=False)


def penstock_feed(size: Size, processes: bool) -> Figures:
    import penstock

    def make_some() -> None:
        for k in range(2000):
            item(k)

    own = best_of(make_some, 0.05) / 2000
    loader = penstock.Loader(
        Items(size.count), workers=WORKERS, use_multiprocessing=processes, max_queue_size=QUEUE
    )
    with closing(loader) as feed:
        figures = measure(size, lambda: feed)
    # Threads take turns in Python, so an item's cost counts in full; with two processes, half.
    figures["beyond"] = figures["steady"] - own / (WORKERS if processes else 1)
    return figures


@CASE.entry(OURS, "ours")
def ours_processes(size: Size) -> Figures:
    return penstock_feed(size, True)


@CASE.entry(THREADS, "ours")
def ours_threads(size: Size) -> Figures:
    return penstock_feed(size, False)


@CASE.entry("penstock, in line", "ours", "workers=0", quick=False)
def ours_in_line(size: Size) -> Figures:
    import penstock

    with closing(penstock.Loader(Items(size.count), workers=0)) as feed:
        return measure(size, lambda: feed)


# ---- processes -----------------------------------------------------------------------------------


@CASE.entry("torch DataLoader, 2 processes", "peer", "tensors, prefetch_factor 16", quick=False)
def torch_tensors(size: Size) -> Figures:
    import torch

    class Tensors(Items):
        def __getitem__(self, k: int) -> Any:
            return torch.from_numpy(item(int(k)))

    loader = torch_loader(Tensors(size.count), batch_size=None, prefetch_factor=16)
    return measure(size, lambda: loader, lambda batch: batch.numpy()[0])


def as_it_is(x: Any) -> Any:
    return x


@CASE.entry("torch DataLoader, 2 processes, arrays pickled", "peer", "collate_fn returns the array")
def torch_arrays(size: Size) -> Figures:
    loader = torch_loader(
        Items(size.count), batch_size=None, prefetch_factor=16, collate_fn=as_it_is
    )
    return measure(size, lambda: loader)


def keras(size: Size, processes: bool) -> Figures:
    epoch = keras_epoch(
        item, size.count, workers=WORKERS, use_multiprocessing=processes, max_queue_size=64
    )
    return measure(size, epoch, lambda batch: np.asarray(batch[0]).reshape(-1)[0])


@CASE.entry("Keras PyDataset, 2 processes", "peer", "max_queue_size 64")
def keras_processes(size: Size) -> Figures:
    return keras(size, True)


@CASE.entry("grain mp_prefetch, 2 processes", "peer", "16 buffered per worker", quick=False)
def grain_in_processes(size: Size) -> Figures:
    import grain

    data = grain_processes(grain.MapDataset.source(Items(size.count)), 16)
    return measure(size, lambda: data)


class Source:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return (item(k) for k in range(self.count))


@CASE.entry("SPDL iterate_in_subprocess", "peer", "one process, buffer_size 64")
def spdl_process(size: Size) -> Figures:
    import functools

    from spdl.pipeline import iterate_in_subprocess

    data = iterate_in_subprocess(
        functools.partial(Source, size.count), buffer_size=64, mp_context="forkserver"
    )
    return measure(size, lambda: data)


# ---- threads -------------------------------------------------------------------------------------


@CASE.entry("Keras PyDataset, 2 threads", "peer", "max_queue_size 64", beside=THREADS)
def keras_in_threads(size: Size) -> Figures:
    return keras(size, False)


@CASE.entry("grain, 2 threads", "peer", "prefetch_buffer_size 32", beside=THREADS)
def grain_in_threads(size: Size) -> Figures:
    import grain

    data = grain_threads(grain.MapDataset.source(Items(size.count)), 32)
    return measure(size, lambda: data)


@CASE.entry(
    "SPDL pipe, 2 threads", "peer", "concurrency 2, sink of 64", quick=False, beside=THREADS
)
def spdl_threads(size: Size) -> Figures:
    from spdl.pipeline import PipelineBuilder

    def epoch() -> Iterator[Any]:
        builder: Any = PipelineBuilder()
        builder.add_source(range(size.count)).pipe(item, concurrency=WORKERS).add_sink(64)
        pipeline = builder.build(num_threads=WORKERS)
        with pipeline.auto_stop():
            yield from pipeline

    return measure(size, epoch, ordered=False)


@CASE.entry(
    "mlx-data prefetch, 2 threads",
    "peer",
    "arrays made beforehand, prefetch(64, 2)",
    beside=THREADS,
)
def mlx_data(size: Size) -> Figures:
    import mlx.data as dx

    buffer = dx.buffer_from_vector([{"x": item(k)} for k in range(size.count)])
    return measure(
        size,
        lambda: buffer.to_stream().prefetch(64, WORKERS),
        lambda batch: batch["x"][0],
        ordered=False,
    )


# ---- limits --------------------------------------------------------------------------------------


@CASE.entry(PLAIN, "limit", "what an item costs by itself")
def plain(size: Size) -> Figures:
    return measure(size, lambda: (item(k) for k in range(size.count)))


@CASE.entry("limit: a pipe from one process", "limit", "4 KiB written, read into a new array")
def pipe(size: Size) -> Figures:
    def epoch() -> Iterator[Any]:
        readable, writable = os.pipe()
        if os.fork() == 0:
            os.close(readable)
            for k in range(size.count):
                os.write(writable, item(k).data)
            os._exit(0)
        os.close(writable)
        with open(readable, "rb") as file:
            for _ in range(size.count):
                made = np.empty(FLOATS, np.float32)
                file.readinto(made.data)
                yield made
        os.wait()

    return measure(size, epoch)


@CASE.entry(
    "limit: queue.SimpleQueue, one thread", "limit", "references only", quick=False, beside=THREADS
)
def simple_queue(size: Size) -> Figures:
    import queue
    import threading

    def epoch() -> Iterator[Any]:
        made: queue.SimpleQueue[Any] = queue.SimpleQueue()
        free_places = threading.Semaphore(QUEUE)

        def make() -> None:
            for k in range(size.count):
                free_places.acquire()
                made.put(item(k))

        threading.Thread(target=make, daemon=True).start()
        for _ in range(size.count):
            yield made.get()
            free_places.release()

    return measure(size, epoch)


# ---- a consumer that works -----------------------------------------------------------------------

BUSY = Case(
    "busy",
    "the same items for a consumer that works about 20 us on each",
    {"steady": Figure("us per item", 1e6)},
    full={"count": 20_000, "seconds": 2.0},
    quick={"count": 5_000, "seconds": 0.5},
)


class Work:
    """Additions in NumPy for about 20 us, in place of a step."""

    def __init__(self) -> None:
        self.numbers = np.zeros(16_384, np.float32)
        self.times = 1
        once = best_of(self, 0.05)
        self.times = max(1, round(20e-6 / once))

    def __call__(self, batch: Any = None) -> Any:
        for _ in range(self.times):
            self.numbers += 1
        return None if batch is None else batch[0]


def busy(size: Size, processes: bool) -> Figures:
    import penstock

    loader = penstock.Loader(
        Items(size.count), workers=WORKERS, use_multiprocessing=processes, max_queue_size=QUEUE
    )
    with closing(loader) as feed:
        return measure(size, lambda: feed, Work())


BUSY.entry(OURS, "ours")(lambda size: busy(size, True))
BUSY.entry(THREADS, "ours")(lambda size: busy(size, False))


@BUSY.entry(PLAIN, "limit", "the items made beforehand, and the work")
def busy_in_line(size: Size) -> Figures:
    made = [item(k) for k in range(size.count)]
    return measure(size, lambda: made, Work())


CASES = [CASE, BUSY]

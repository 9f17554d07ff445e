"""A distant position: skip 10^9 elements, restore there, shuffle 10^9. Time to a batch, memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import BEST_PEER, WORKERS, Case, Figure, Figures, Size, Target, closing, expect

BATCH = 256
AGAIN = 9


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def shortest(run: Callable[[], Any], times: int = AGAIN) -> float:
    """Seconds, at best."""
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def is_shuffled(batch: Any, length: int) -> None:
    numbers = np.asarray(batch)
    expect(len(np.unique(numbers)) == BATCH, "numbers were repeated")
    expect(numbers.min() >= 0 and numbers.max() < length, "numbers from outside")
    expect(numbers.max() > length // 2, "no order of the whole")


OURS = "penstock, 2 threads"
TF_SKIP, TF_SHUFFLE = "tf.data range.skip, part of it", "tf.data range.shuffle, part of it"
CASE = Case(
    "far",
    "skip(10^9), restore at 10^9, global shuffle of 10^9: until the batch is there",
    {
        "skip": Figure("ms to skip", 1e3),
        "restore": Figure("ms to restore", 1e3),
        "shuffle": Figure("ms to shuffle", 1e3),
        "memory": Figure("MiB", 2**-20, compared=False),
    },
    full={"length": 1_000_000_000, "part": 10_000_000},
    quick={"length": 1_000_000_000, "part": 1_000_000},
    targets=[
        Target("memory", OURS, at_most=2**20, says="no memory (under 1 MiB)"),
        Target("skip", OURS, BEST_PEER, at_least=1),
        Target("restore", OURS, BEST_PEER, at_least=1),
        Target("shuffle", OURS, BEST_PEER, at_least=1),
    ],
)


@CASE.entry(OURS, "ours", "building the feed and starting its threads included")
def ours(size: Size) -> Figures:
    there_and_back(10 * BATCH)  # a warm-up, so only the cost of the distance is counted
    before = peak_bytes()
    figures = there_and_back(size.length)
    figures["memory"] = peak_bytes() - before
    return figures


def there_and_back(length: int) -> Figures:
    """Restore and skip to ``length``, and shuffle as many: the shortest times."""
    import penstock

    make = penstock.Dataset.range

    def first(data: Any) -> tuple[Any, float]:
        """The first batch, and the seconds until it was ready."""
        began = time.perf_counter()
        with closing(data.batch(BATCH).build(workers=WORKERS)) as feed:
            batch = next(iter(feed))
            return np.array(batch), time.perf_counter() - began

    with closing(make(2 * length).batch(BATCH).build(workers=WORKERS)) as feed:
        next(iter(feed))
        state = feed.state()
        state["batches"] = length // BATCH
        expect(next_after(feed, state)[0] == length // BATCH * BATCH, "another place")
        figures: Figures = {"restore": shortest(lambda: next_after(feed, state))}
    far = make(2 * length).skip(length)
    expect(first(far)[0][0] == length, "another place")
    figures["skip"] = min(first(far)[1] for _ in range(AGAIN))
    mixed = make(length).shuffle(seed=1)
    is_shuffled(first(mixed)[0], length)
    figures["shuffle"] = min(first(mixed)[1] for _ in range(AGAIN))
    return figures


def next_after(feed: Any, state: dict[str, Any]) -> Any:
    feed.restore(state)
    return np.array(next(iter(feed)))


@CASE.entry(TF_SKIP, "peer", "range.skip.batch")
def tf_skip(size: Size) -> Figures:
    import tensorflow as tf

    def first(length: int) -> Any:
        return next(tf.data.Dataset.range(2 * length).skip(length).batch(BATCH).as_numpy_iterator())

    first(1)
    before = peak_bytes()
    skip = shortest(lambda: expect(first(size.part)[0] == size.part, "another place"), 1)
    return {"skip": skip, "memory": peak_bytes() - before, "note": f"{size.part:,} elements"}


@CASE.entry(TF_SHUFFLE, "peer", "range.shuffle(all).batch")
def tf_shuffle(size: Size) -> Figures:
    import tensorflow as tf

    def first(length: int) -> Any:
        data = tf.data.Dataset.range(length).shuffle(length).batch(BATCH)
        return next(data.as_numpy_iterator())

    first(BATCH)
    before = peak_bytes()
    shuffle = shortest(lambda: is_shuffled(first(size.part), size.part), 1)
    return {"shuffle": shuffle, "memory": peak_bytes() - before, "note": f"{size.part:,} elements"}


@CASE.entry("grain MapDataset", "peer", "in line; restore is set_state", quick=False)
def grain_range(size: Size) -> Figures:
    import grain

    here = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)

    def iterator(data: Any) -> Any:
        return iter(data.batch(BATCH).to_iter_dataset(here))

    def skip() -> Any:
        return next(iterator(grain.MapDataset.range(2 * size.length)[size.length :]))

    def shuffle() -> Any:
        return next(iterator(grain.MapDataset.range(size.length).shuffle(1)))

    expect(skip()[0] == size.length, "another place")
    is_shuffled(shuffle(), size.length)
    place = iterator(grain.MapDataset.range(2 * size.length))
    next(place)
    state = place.get_state()
    state["next_index"] = size.length // BATCH

    def restore() -> Any:
        place.set_state(state)
        return next(place)

    before = peak_bytes()
    expect(restore()[0] == size.length // BATCH * BATCH, "another place")
    return {
        "skip": shortest(skip),
        "restore": shortest(restore),
        "shuffle": shortest(shuffle),
        "memory": peak_bytes() - before,
    }


CASES = [CASE]

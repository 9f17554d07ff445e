"""The time that six nearly empty stages add to a chain: per batch of 256 and stage.

Two chains of numbers are run in turns in one process: one with the stages, one without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from harness import BEST_PEER, WORKERS, Case, Figure, Figures, Size, Target, closing, expect

BATCH, STAGES = 256, 6

OURS, THREADS, TF_DATA = "penstock, in line", "penstock, 2 threads", "tf.data, in line"
CASE = Case(
    "stages",
    "what skip, take, shard, concatenate, repeat and enumerate add to batches of 256 numbers",
    {
        "added": Figure("us per batch and stage", 1e6),
        "without": Figure("us per batch without them", 1e6),
    },
    full={"batches": 2_000, "rounds": 15},
    quick={"batches": 1_000, "rounds": 5},
    targets=[
        Target("added", OURS, BEST_PEER, at_least=20),
        Target("added", THREADS, BEST_PEER, at_least=20),
    ],
)


def measure(
    size: Size, without: Callable[[], Iterable[Any]], stages: Callable[[], Iterable[Any]]
) -> Figures:
    """Each returns an epoch of ``size.batches`` batches: of numbers, and of (place, number)."""

    def walk(start: Callable[[], Iterable[Any]]) -> tuple[float, Any]:
        began, count, last = time.perf_counter(), 0, None
        for batch in start():
            last, count = batch, count + 1
        seconds = time.perf_counter() - began
        expect(count == size.batches, f"{count} batches came, not {size.batches}")
        return seconds / count, last

    best = [float("inf")] * 2
    end = size.batches * BATCH
    for _ in range(size.rounds):
        plain, last = walk(without)
        expect(np.array_equal(last, np.arange(end - BATCH, end)), "other numbers")
        added, last = walk(stages)
        expect(np.array_equal(last[0], np.arange(end - BATCH, end)), "other places")
        expect(np.array_equal(last[1], np.arange(end - BATCH, end) + 1), "other numbers")
        best = [min(best[0], plain), min(best[1], added)]
    return {"added": (best[1] - best[0]) / STAGES, "without": best[0]}


def ours(size: Size, workers: int) -> Figures:
    import penstock

    make = penstock.Dataset.range
    end = size.batches * BATCH
    plain = make(end).batch(BATCH)
    stages = make(end + 2).skip(1).take(end).shard(0, 1).concatenate(make(0)).repeat(1).enumerate()
    one, other = plain.build(workers=workers), stages.batch(BATCH).build(workers=workers)
    with closing(one), closing(other):
        return measure(size, lambda: one, lambda: other)


CASE.entry(OURS, "ours", "workers=0")(lambda size: ours(size, 0))
CASE.entry(THREADS, "ours")(lambda size: ours(size, WORKERS))


@CASE.entry(TF_DATA, "peer", "no prefetch")
def tf_data(size: Size) -> Figures:
    import tensorflow as tf

    make = tf.data.Dataset.range
    end = size.batches * BATCH
    plain = make(end).batch(BATCH)
    stages = make(end + 2).skip(1).take(end).shard(1, 0).concatenate(make(0)).repeat(1).enumerate()
    stages = stages.batch(BATCH)
    return measure(size, plain.as_numpy_iterator, stages.as_numpy_iterator)


@CASE.entry("grain, in line", "peer", "no concatenate", quick=False)
def grain_chain(size: Size) -> Figures:
    import grain

    here = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    few = Size(**{**vars(size), "rounds": 2})  # one round takes seconds
    end = size.batches * BATCH
    plain = grain.MapDataset.range(end).batch(BATCH).to_iter_dataset(here)
    stages = grain.MapDataset.range(end + 2)[1:][:end][0::1].repeat(1)
    stages = stages.map_with_index(lambda place, number: (place, number))
    return measure(few, lambda: plain, lambda: stages.batch(BATCH).to_iter_dataset(here))


CASES = [CASE]

"""Elements of 588 KiB that workers make with a Python function, then a filter and batches of 32.

Behind the filter the chain is a stream. The elements pass through the stream reader, which must not
copy them: that would be work of one thread for all workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from harness import BEST_PEER, WORKERS, Case, Figure, Figures, Size, Target, closing, expect

BATCH, SHAPE = 32, (224, 224, 3)

OURS, PROCESSES = "penstock, 2 threads", "penstock, 2 processes"
CASE = Case(
    "stream-elements",
    "elements of 588 KiB from a Python function, through filter and batch of 32",
    {"rate": Figure("elements/s", more_is_better=True)},
    full={"count": 1_600, "rounds": 5},
    quick={"count": 640, "rounds": 3},
    targets=[Target("rate", OURS, BEST_PEER, at_least=1.5)],
)


def made(number: Any) -> Any:
    return np.full(SHAPE, number, np.float32)


def true_of(_element: Any) -> bool:
    return True


def measure(size: Size, start: Callable[[], Iterable[Any]]) -> Figures:
    """The best epoch; the first one is not counted."""
    best = float("inf")
    for number in range(size.rounds + 1):
        began, firsts = time.perf_counter(), []
        for batch in start():
            firsts += np.asarray(batch)[:, 0, 0, 0].tolist()
        if number != 0:
            best = min(best, time.perf_counter() - began)
        expect(firsts == list(range(size.count)), "other elements came")
    return {"rate": size.count / best}


def ours(size: Size, processes: bool) -> Figures:
    import penstock

    chain = penstock.Dataset.range(size.count).map(made).filter(true_of).batch(BATCH)
    with closing(chain.build(workers=WORKERS, use_multiprocessing=processes)) as feed:
        return measure(size, lambda: feed)


CASE.entry(OURS, "ours")(lambda size: ours(size, False))
CASE.entry(PROCESSES, "ours")(lambda size: ours(size, True))


@CASE.entry("tf.data, numpy_function on 2 threads", "peer")
def tf_data(size: Size) -> Figures:
    import tensorflow as tf

    def call(number: Any) -> Any:
        element = tf.numpy_function(made, [number], tf.float32)
        element.set_shape(SHAPE)
        return element

    numbers = tf.data.Dataset.range(size.count)
    chain = numbers.map(call, num_parallel_calls=WORKERS).filter(lambda _: True).batch(BATCH)
    return measure(size, chain.prefetch(2).as_numpy_iterator)


CASES = [CASE]

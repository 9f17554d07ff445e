"""1,000,000 x 784 bytes in memory through shuffle, normalise (to float32) and batch."""

from __future__ import annotations

import os
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
    closing,
    epochs,
    exactly_once,
    expect,
)

from cases.in_memory import BATCH, columns, rows_of
from cases.tfrecord_data import build_program, limit

MEAN, STD = np.float32(127.5), np.float32(73.9)


def normalized(x: Any) -> Any:
    return (np.asarray(x).astype(np.float32) - MEAN) / STD


def measure(size: Size, start: Callable[[], Any], began: float) -> Figures:
    def check(kept: list[Any], last: Any) -> None:
        exactly_once(kept, size.count)
        x, y = (np.asarray(part) for part in last)
        expect(x.dtype == np.float32, f"{x.dtype} came")
        expect(np.allclose(x, normalized(rows_of(y)), atol=1e-5), "rows are not what was made")

    def look(batch: Any) -> Any:
        return np.array(batch[1])

    figures = epochs(start, look, check, size.seconds, began=began)
    batches = -(-size.count // BATCH)
    return {"rate": size.count / batches / figures["whole"], "first": figures["first"]}


OURS = "penstock, 2 threads"
KERAS, TF_DATA = "Keras' array iterator, then NumPy", "tf.data range.shuffle.batch.map(gather)"
MLX = "mlx-data buffer.shuffle.batch, then NumPy"
TWO = "limit: plain C++ on two threads"
CASE = Case(
    "array-pipeline",
    "1,000,000 x 784 bytes through shuffle, normalise (float32) and batch of 256",
    {
        "rate": Figure("rows/s, whole epochs", more_is_better=True),
        "first": Figure("ms to the first batch", 1e3),
    },
    full={"count": 1_000_000, "seconds": 2.0},
    quick={"count": 200_000, "seconds": 0.5},
    prepare=build_program,
    targets=[
        Target("rate", OURS, BEST_PEER, at_least=3),
        Target("rate", OURS, BEST_LIMIT, at_least=0.5),
    ],
)


@CASE.entry(OURS, "ours", "Dataset.arrays.shuffle.map(normalize).batch")
def ours(size: Size) -> Figures:
    import penstock

    _ = penstock.Loader  # loads the extension: imports are not timed, as for the peers
    operation = penstock.normalize(MEAN, STD, fields="0")
    data = columns(size)
    began = time.perf_counter()
    dataset = penstock.Dataset.arrays(data).shuffle(seed=1).map(operation).batch(BATCH)
    with closing(dataset.build(workers=WORKERS)) as feed:
        return measure(size, lambda: feed, began)


@CASE.entry(TF_DATA, "peer", "buffer of all numbers, AUTOTUNE, normalised in map")
def tf_data(size: Size) -> Figures:
    import tensorflow as tf

    x, y = (tf.constant(column) for column in columns(size))
    began = time.perf_counter()
    data = tf.data.Dataset.range(size.count).shuffle(size.count).batch(BATCH)
    data = data.map(
        lambda i: ((tf.cast(tf.gather(x, i), tf.float32) - MEAN) / STD, tf.gather(y, i)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return measure(size, data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator, began)


@CASE.entry(KERAS, "peer", "what fit(x, y) iterates over")
def keras_arrays(size: Size) -> Figures:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    data = columns(size)
    began = time.perf_counter()
    adapter = ArrayDataAdapter(*data, batch_size=BATCH, shuffle=True)

    def epoch() -> Iterator[Any]:
        for x, y in adapter.get_numpy_iterator():
            yield normalized(x), y

    return measure(size, epoch, began)


@CASE.entry(MLX, "peer", "prefetch(8, 2)", quick=False)
def mlx_data(size: Size) -> Figures:
    import mlx.data as dx

    x, y = columns(size)
    buffer = dx.buffer_from_vector([{"x": x[k], "y": y[k]} for k in range(size.count)])

    def epoch() -> Iterator[Any]:
        for batch in buffer.shuffle().to_stream().batch(BATCH).prefetch(8, WORKERS):
            yield normalized(batch["x"]), batch["y"]

    return measure(size, epoch, time.perf_counter())


@CASE.entry("NumPy take, subtract and divide", "peer", "into one batch, one thread")
def numpy_loop(size: Size) -> Figures:
    x, y = columns(size)
    rows = np.empty((BATCH, x.shape[1]), np.uint8)
    into, labels = np.empty(rows.shape, np.float32), np.empty(BATCH, np.int64)

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(size.count)
        for first in range(0, size.count, BATCH):
            part = order[first : first + BATCH]
            some = slice(len(part))
            x.take(part, 0, out=rows[some], mode="clip")
            np.subtract(rows[some], MEAN, out=into[some])
            np.divide(into[some], STD, out=into[some])
            yield into[some], y.take(part, 0, out=labels[some], mode="clip")

    return measure(size, epoch, time.perf_counter())


@CASE.entry(TWO, "limit", "the order known, fetched ahead, times 1 / std")
def limit_two(size: Size) -> Figures:
    return limit(size, "rows", 2, str(size.count))[0]


@CASE.entry("limit: plain C++ on one thread", "limit", "the same")
def limit_one(size: Size) -> Figures:
    return limit(size, "rows", 1, str(size.count))[0]


CASES = [CASE]

"""1,000,000 x 784 bytes in memory with labels: shuffled batches of 256."""

from __future__ import annotations

import itertools
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
    best_of,
    closing,
    epochs,
    exactly_once,
    expect,
)
from peers import grain_threads

BATCH, WIDTH = 256, 784


def rows_of(ids: Any) -> Any:
    """The rows of these numbers; a row's bytes contain its number."""
    ids = np.asarray(ids, np.int64)[:, None]
    at = np.arange(WIDTH)
    return ((ids * 131 + at * 17 + (ids >> 8) * (at & 7)) & 255).astype(np.uint8)


def columns(size: Size) -> tuple[Any, Any]:
    x = np.empty((size.count, WIDTH), np.uint8)
    for first in range(0, size.count, 20_000):
        x[first : first + 20_000] = rows_of(np.arange(first, min(first + 20_000, size.count)))
    return x, np.arange(size.count, dtype=np.int64)


def as_it_is(x: Any) -> Any:
    return x


def measure(
    size: Size,
    start: Callable[[], Any],
    numpy_of: Callable[[Any], Any] = as_it_is,
    began: float | None = None,
    most: int | None = None,
) -> Figures:
    """most: for slow peers, the number of batches to measure."""

    def check(kept: list[Any], last: Any) -> None:
        if most is None:
            exactly_once(kept, size.count)
        else:
            ids = np.concatenate(kept)
            expect(len(np.unique(ids)) == len(ids), "rows were repeated")
        x, y = numpy_of(last[0]), numpy_of(last[1])
        expect(np.array_equal(np.asarray(x), rows_of(y)), "rows and labels do not belong together")

    def look(batch: Any) -> Any:
        return np.array(numpy_of(batch[1]))

    def some() -> Any:
        return itertools.islice(iter(start()), most)

    figures = epochs(some, look, check, size.seconds, began=began)
    batches = -(-size.count // BATCH) if most is None else most
    rows = size.count if most is None else most * BATCH
    # The whole epoch, including the first batch, to include the time to draw an order beforehand.
    return {"rate": rows / batches / figures["whole"], "first": figures["first"]}


OURS = "penstock, 2 threads"
CASE = Case(
    "in-memory",
    "1,000,000 x 784 bytes in memory, shuffled batches of 256",
    {
        "rate": Figure("rows/s, whole epochs", more_is_better=True),
        "first": Figure("ms to the first batch", 1e3),
    },
    full={"count": 1_000_000, "seconds": 2.0},
    quick={"count": 200_000, "seconds": 0.5},
    targets=[
        Target("rate", OURS, BEST_PEER, at_least=1.5),
        Target("rate", OURS, BEST_LIMIT, at_least=1, says="two threads as fast as one gathers"),
        Target("first", OURS, BEST_PEER, at_least=1),
    ],
)


@CASE.entry(OURS, "ours", "a tuple of arrays, queue of 10")
def ours(size: Size) -> Figures:
    import penstock

    _ = penstock.Loader  # loads the extension: imports are not timed, as for the peers
    data = columns(size)
    began = time.perf_counter()
    loader = penstock.Loader(data, batch_size=BATCH, shuffle=True, workers=WORKERS)
    with closing(loader) as feed:
        return measure(size, lambda: feed, began=began)


@CASE.entry("penstock, 1 thread", "ours", "a tuple of arrays, queue of 10", quick=False)
def ours_one(size: Size) -> Figures:
    import penstock

    _ = penstock.Loader
    data = columns(size)
    began = time.perf_counter()
    with closing(penstock.Loader(data, batch_size=BATCH, shuffle=True, workers=1)) as feed:
        return measure(size, lambda: feed, began=began)


def of_torch(x: Any) -> Any:
    return x.numpy()


@CASE.entry("torch DataLoader", "peer", "TensorDataset, shuffled, no workers")
def torch_rows(size: Size) -> Figures:
    import torch

    x, y = columns(size)
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
    return measure(size, lambda: loader, of_torch, most=size.count // BATCH // 2)


@CASE.entry("torch DataLoader, batch indexing", "peer", "BatchSampler as sampler, no workers")
def torch_batches(size: Size) -> Figures:
    import torch

    x, y = columns(size)
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), BATCH, False)
    loader = torch.utils.data.DataLoader(data, sampler=order, batch_size=None)
    return measure(size, lambda: loader, of_torch)


@CASE.entry("tf.data range.shuffle.batch.map(gather)", "peer", "buffer of all, AUTOTUNE")
def tf_data(size: Size) -> Figures:
    import tensorflow as tf

    x, y = (tf.constant(column) for column in columns(size))
    data = tf.data.Dataset.range(size.count).shuffle(size.count).batch(BATCH)
    data = data.map(
        lambda i: (tf.gather(x, i), tf.gather(y, i)), num_parallel_calls=tf.data.AUTOTUNE
    )
    return measure(size, data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator)


class Rows:
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> Any:
        return self.x[k], self.y[k]


@CASE.entry("grain, 2 threads", "peer", "MapDataset.shuffle.batch, part of an epoch", quick=False)
def grain_rows(size: Size) -> Figures:
    import grain

    data = grain_threads(grain.MapDataset.source(Rows(*columns(size))).shuffle(1).batch(BATCH), 8)
    return measure(size, lambda: data, most=size.count // BATCH // 5)


@CASE.entry("mlx-data buffer.shuffle.batch", "peer", "prefetch(8, 2)", quick=False)
def mlx_data(size: Size) -> Figures:
    import mlx.data as dx

    x, y = columns(size)
    buffer = dx.buffer_from_vector([{"x": x[k], "y": y[k]} for k in range(size.count)])
    return measure(
        size,
        lambda: (
            (batch["x"], batch["y"])
            for batch in buffer.shuffle().to_stream().batch(BATCH).prefetch(8, WORKERS)
        ),
    )


@CASE.entry("Keras' array iterator", "peer", "what fit(x, y) iterates over")
def keras_arrays(size: Size) -> Figures:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    adapter = ArrayDataAdapter(*columns(size), batch_size=BATCH, shuffle=True)
    return measure(size, adapter.get_numpy_iterator, np.asarray)


@CASE.entry("NumPy permutation and take", "peer", "take(out=) into one batch")
def numpy_take(size: Size) -> Figures:
    x, y = columns(size)
    into, labels = np.empty((BATCH, WIDTH), np.uint8), np.empty(BATCH, np.int64)

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(size.count)
        for first in range(0, size.count, BATCH):
            part = order[first : first + BATCH]
            yield (
                x.take(part, 0, out=into[: len(part)], mode="clip"),
                y.take(part, 0, out=labels[: len(part)], mode="clip"),
            )

    return measure(size, epoch)


@CASE.entry("limit: gather on one thread", "limit", "take(out=) of rows, the order given")
def gather_limit(size: Size) -> Figures:
    x, _ = columns(size)
    order = np.random.default_rng(0).permutation(size.count)
    into = np.empty((BATCH, WIDTH), np.uint8)
    rows = size.count // BATCH * BATCH

    def gather() -> None:
        for first in range(0, rows, BATCH):
            x.take(order[first : first + BATCH], 0, out=into, mode="clip")

    return {"rate": rows / best_of(gather, size.seconds)}


CASES = [CASE]

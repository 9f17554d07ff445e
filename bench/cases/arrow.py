"""The rows of `in_memory.py` as an Arrow table: 1,000,000 x 784 bytes, shuffled batches of 256.

`Dataset.arrow` and `Dataset.arrays` feed the same rows. Hugging Face's `datasets` wraps the same
table, with_format("torch"), and torch's DataLoader shuffles it; also with batches that `datasets`
gathers itself (`__getitems__`). The peers are measured over a part of an epoch.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from harness import WORKERS, Case, Figure, Figures, Size, Target, closing

from cases.in_memory import BATCH, WIDTH, columns, measure, of_torch

OURS = "penstock, Dataset.arrow, 2 threads"
ARRAYS = "penstock, Dataset.arrays, 2 threads"

CASE = Case(
    "arrow",
    "Arrow table of 1,000,000 x 784 bytes in memory, shuffled batches of 256",
    {
        "rate": Figure("rows/s, whole epochs", more_is_better=True),
        "first": Figure("ms to the first batch", 1e3),
    },
    full={"count": 1_000_000, "seconds": 2.0},
    quick={"count": 200_000, "seconds": 0.5},
    targets=[Target("rate", OURS, ARRAYS, at_least=0.9, says="within 10 % of Dataset.arrays")],
)


def table(size: Size) -> Any:
    """Fixed-size lists, in chunks of 10,000 rows, as a reader of files makes them."""
    import pyarrow as pa

    x, y = columns(size)
    chunks = []
    for begin in range(0, size.count, 10_000):
        part = x[begin : begin + 10_000]
        rows = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), WIDTH)
        chunks.append(pa.table({"x": rows, "y": pa.array(y[begin : begin + 10_000])}))
    return pa.concat_tables(chunks)


def fed(size: Size, dataset: Any, began: float) -> Figures:
    with closing(dataset.shuffle(seed=1).batch(BATCH).build(workers=WORKERS)) as feed:

        def start() -> Any:
            for batch in feed:
                yield batch["x"], batch["y"]

        return measure(size, start, began=began)


@CASE.entry(OURS, "ours", "Dataset.arrow.shuffle.batch")
def arrow(size: Size) -> Figures:
    import penstock

    data = table(size)
    _ = penstock.Loader  # loads the extension: imports are not timed, as for the peers
    began = time.perf_counter()
    return fed(size, penstock.Dataset.arrow(data), began)


@CASE.entry(ARRAYS, "ours", "Dataset.arrays.shuffle.batch", beside=ARRAYS)
def arrays(size: Size) -> Figures:
    import penstock

    x, y = columns(size)
    _ = penstock.Loader
    began = time.perf_counter()
    return fed(size, penstock.Dataset.arrays({"x": x, "y": y}), began)


def hugging_face(size: Size, numpy: bool) -> Figures:
    import datasets
    import torch

    data = datasets.Dataset(datasets.table.InMemoryTable(table(size)))
    data = data.with_format("numpy" if numpy else "torch")
    began = time.perf_counter()
    loader = torch.utils.data.DataLoader(
        data, batch_size=BATCH, shuffle=True, collate_fn=stacked if numpy else None
    )

    def start() -> Any:
        for batch in loader:
            yield batch["x"], batch["y"]

    some = min(size.count // BATCH // 2, 200)
    return measure(size, start, np.asarray if numpy else of_torch, began=began, most=some)


def stacked(rows: list[Any]) -> Any:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@CASE.entry("datasets, torch format + DataLoader", "peer", "in this process")
def with_torch(size: Size) -> Figures:
    return hugging_face(size, False)


@CASE.entry("datasets, numpy format + DataLoader", "peer", "in this process")
def with_numpy(size: Size) -> Figures:
    return hugging_face(size, True)


CASES = (CASE,)

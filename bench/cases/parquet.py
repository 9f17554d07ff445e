"""Parquet files: images as bytes in row groups of 100, and 20 columns of numbers.

The images are 20,000 byte strings of 12 KB that do not compress, as JPEGs, in four files; batches
of 64. The numbers are 400,000 rows of float32 and float64 in row groups of 10,000, Snappy, in
four files; batches of 1024. In order; and row groups in random order, with the rows of eight
groups mixed. penstock's cache of decoded row groups is too small for all of them. The limit is
pyarrow, which decodes the same row groups on two threads and does nothing with them. A second limit
for the numbers in order: each thread also copies the columns of its row groups into arrays of a
batch's length, which is the least that batches take. Hugging Face's
`datasets` reads the files as a stream with a shuffle buffer; and, shuffled, also as a table in a
file of Arrow's that it wrote of them before the clock started.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
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
    once,
)

FILES, COLUMNS, IMAGE = 4, 20, 12_000
WINDOW = 8
WARM = 16  # batches that do not count
OURS = "penstock, 2 threads"
TABLE = "datasets, table + torch, 2 workers"
STREAM = "datasets, stream + torch, 2 workers"
DECODES = "limit: pyarrow's read_row_group, 2 threads"
COPIES = "limit: the same, copied to arrays of batches"


class Form:
    """One of the two sets of files."""

    def __init__(self, name: str, group: int, batch: int, cache: int) -> None:
        self.name, self.group, self.batch, self.cache = name, group, batch, cache

    def paths(self, size: Size) -> list[Path]:
        name = f"{self.name}-{size.count}"
        return [size.path(f"{name}-{number}.parquet") for number in range(FILES)]

    def table(self, numbers: Any) -> Any:
        import pyarrow as pa

        columns: dict[str, Any] = {"n": numbers}
        if self.name == "images":
            images = [image(number) for number in numbers.tolist()]
            columns["image"] = pa.array(images, pa.binary())
        else:
            for column in range(COLUMNS):
                dtype = np.float32 if column % 2 else np.float64
                random = np.random.default_rng((column, int(numbers[0])))
                columns[f"c{column}"] = random.random(len(numbers)).astype(dtype)
        return pa.table(columns)

    def prepare(self, size: Size) -> None:
        import pyarrow.parquet as pq

        each = size.count // FILES

        def make(path: Path, first: int) -> None:
            with pq.ParquetWriter(path, self.table(np.arange(1)).schema) as writer:
                for begin in range(first, first + each, self.group):
                    end = min(begin + self.group, first + each)
                    writer.write_table(self.table(np.arange(begin, end)))

        for number, path in enumerate(self.paths(size)):
            once(path, functools.partial(make, first=number * each))


@functools.cache
def noise() -> bytes:
    return np.random.default_rng(5).bytes(IMAGE + 4096)


def image(number: int) -> bytes:
    """Bytes that do not compress. Row n knows n."""
    begin = number % 4096
    return noise()[begin : begin + IMAGE - 8] + number.to_bytes(8, "little")


IMAGES, NUMBERS = Form("images", 100, 64, 64 << 20), Form("numbers", 10_000, 1024, 16 << 20)


def case(form: Form, shuffled: bool) -> Case:
    images = form is IMAGES
    what = "12 KB byte strings, batches of 64" if images else "20 columns, batches of 1024"
    how = "row groups shuffled" if shuffled else "in order"
    made = Case(
        f"parquet-{form.name}{'-shuffled' if shuffled else ''}",
        f"Parquet, {how}: {what}",
        {
            "rate": Figure("rows/s", 1, more_is_better=True),
            "first": Figure("ms to the first batch", 1e3),
        },
        full={"count": 20_000 if images else 400_000, "rounds": 2, "seconds": 3.0},
        quick={"count": 8_000 if images else 200_000, "rounds": 1, "seconds": 0.8},
        prepare=form.prepare,
        targets=[
            Target("rate", OURS, BEST_PEER, at_least=3)
            if shuffled
            else Target("rate", OURS, DECODES, at_least=0.8, says="80 % of pyarrow's decoding")
        ],
    )
    copied = not images and not shuffled
    if copied:
        made.targets.append(
            Target("rate", OURS, COPIES, at_least=0.95, says="95 % of decoding and copying")
        )
    options: dict[str, Any] = {"form": form, "shuffled": shuffled}
    made.entry(OURS, "ours", "Dataset.parquet.batch")(functools.partial(ours, **options))
    made.entry(STREAM, "peer", "load_dataset(streaming=True)")(
        functools.partial(hugging_face, streaming=True, **options)
    )
    if shuffled:
        made.entry(TABLE, "peer", "load_dataset.shuffle")(
            functools.partial(hugging_face, streaming=False, **options)
        )
    made.entry(DECODES, "limit")(functools.partial(decoding, form=form))
    if copied:
        made.entry(COPIES, "limit")(functools.partial(decoding, form=form, copied=True))
    return made


def measure(size: Size, form: Form, start: Callable[[], Any], began: float) -> Figures:
    def look(batch: Any) -> Any:
        return np.array(batch["n"])

    def check(kept: list[Any], last: Any) -> None:
        numbers = np.concatenate(kept)
        expect(
            (np.bincount(numbers, minlength=size.count) == size.rounds).all(), "rows are missing"
        )
        if form is IMAGES:
            expect(last["image"][-1] == image(int(last["n"][-1])), "an image of another row")

    figures = epochs(start, look, check, size.seconds, WARM, began)
    return {"rate": form.batch / figures["steady"], "first": figures["first"]}


def ours(size: Size, form: Form, shuffled: bool) -> Figures:
    import pyarrow.parquet  # noqa: F401  an import of the user's, as for the peers

    import penstock

    began = time.perf_counter()
    data = penstock.Dataset.parquet(form.paths(size), cache_bytes=form.cache)
    if shuffled:
        data = data.shuffle(seed=1, block=form.group, window=WINDOW)
    with closing(data.batch(form.batch).repeat(size.rounds).build(workers=WORKERS)) as feed:
        return measure(size, form, lambda: feed, began)


def as_arrays(rows: list[Any]) -> dict[str, Any]:
    """A batch of rows, as penstock makes it."""
    return {
        name: [row[name] for row in rows]
        if isinstance(rows[0][name], bytes)
        else np.array([row[name] for row in rows])
        for name in rows[0]
    }


def hugging_face(size: Size, form: Form, shuffled: bool, streaming: bool) -> Figures:
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    import datasets
    import torch

    datasets.disable_progress_bars()
    paths = [str(path) for path in form.paths(size)]
    cache = size.path(f"{form.name}-{size.count}-datasets")
    load = functools.partial(
        datasets.load_dataset, "parquet", data_files=paths, split="train", cache_dir=str(cache)
    )
    if not streaming:
        load()
    began = time.perf_counter()
    data = load(streaming=streaming)
    if shuffled:
        rows = WINDOW * form.group
        data = data.shuffle(seed=1, buffer_size=rows) if streaming else data.shuffle(seed=1)
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=form.batch,
        num_workers=WORKERS,
        persistent_workers=True,
        prefetch_factor=4,
        collate_fn=as_arrays,
    )

    def start() -> Any:
        for _ in range(size.rounds):
            yield from loader

    return measure(size, form, start, began)


def decoding(size: Size, form: Form, copied: bool = False) -> Figures:
    import pyarrow.parquet as pq

    paths = form.paths(size)
    footers = [pq.read_metadata(path) for path in paths]
    groups = [
        (path, footer, group)
        for path, footer in zip(paths, footers, strict=True)
        for group in range(footer.num_row_groups)
    ]

    def decode(group: Any) -> int:
        path, footer, number = group
        with pq.ParquetFile(path, metadata=footer) as file:
            table = file.read_row_group(number)
        if copied:
            columns = {name: table[name].chunk(0).to_numpy() for name in table.column_names}
            for begin in range(0, table.num_rows, form.batch):
                end = begin + form.batch
                _ = {name: column[begin:end].copy() for name, column in columns.items()}
        return int(table.num_rows)

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:

        def run() -> None:
            rows = sum(pool.map(decode, groups * size.rounds))
            expect(rows == size.count * size.rounds, "rows are missing")

        return {"rate": size.count * size.rounds / best_of(run, size.seconds)}


CASES = tuple(case(form, shuffled) for form in (IMAGES, NUMBERS) for shuffled in (False, True))

"""The same samples in every format: the tables of docs/which-format.md.

    python bench/formats.py [rounds]

Two sets: photographs as JPEGs (the bytes are delivered; decoding costs the same in all formats) and
arrays of 3 x 32 x 32 uint8 with a label. Written once into a temporary folder, then read by two
threads in batches of 256: in file order, and shuffled. The formats take turns; a figure is the best
of the rounds, because other programs can only make one worse. Files are in the page cache: a slow
disk makes the larger ones slower. `first` is the time until the first shuffled batch.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import penstock
from penstock import Dataset

PHOTOGRAPHS, ROWS, BATCH = 4000, 60_000, 256
GLOBAL: dict[str, Any] = {"seed": 1}
BLOCKS: dict[str, Any] = {"seed": 1, "block": "auto", "window": 8}

Entry = tuple[str, Path, Callable[[], Dataset], dict[str, Any]]


def photographs() -> Iterator[bytes]:
    """JPEGs of about 20 kB: slopes, waves and noise."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[0:240, 0:320]
    for _ in range(40):
        wave = 60 * np.sin(x / random.uniform(8, 40) + y / random.uniform(8, 40))
        pixels = 120 + wave[..., None] + random.normal(0, 8, (240, 320, 3))
        file = io.BytesIO()
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        yield file.getvalue()


def jpeg_entries(folder: Path) -> list[Entry]:
    jpegs = list(photographs())
    samples = [(jpegs[i % len(jpegs)], i % 10) for i in range(PHOTOGRAPHS)]
    for i, (jpeg, label) in enumerate(samples):
        (folder / "files" / f"{label}").mkdir(parents=True, exist_ok=True)
        (folder / "files" / f"{label}" / f"{i:06}.jpg").write_bytes(jpeg)
    with penstock.TarWriter(folder / "photographs.tar") as tar:
        for i, (jpeg, label) in enumerate(samples):
            tar.write({"__key__": f"{i:06}", "jpg": jpeg, "cls": str(label)})
    with penstock.TFRecordWriter(folder / "photographs.tfrecord") as records:
        for jpeg, label in samples:
            records.write(penstock.example({"jpg": jpeg, "label": label}))
    columns = {"jpg": [jpeg for jpeg, _ in samples], "label": [label for _, label in samples]}
    parquet = folder / "photographs.parquet"
    options = {"row_group_size": 100, "compression": "none", "use_dictionary": False}
    pq.write_table(pa.table(columns), parquet, **options)
    features = {"jpg": penstock.bytes(), "label": penstock.int64()}

    def records_of(path: Path) -> Dataset:
        return Dataset.tfrecord(path).map(penstock.parse_example(features))

    tar_path, record_path = folder / "photographs.tar", folder / "photographs.tfrecord"
    return [
        ("image_folder", folder / "files", lambda: Dataset.image_folder(folder / "files"), GLOBAL),
        ("tar", tar_path, lambda: Dataset.tar(tar_path), GLOBAL),
        ("tfrecord", record_path, lambda: records_of(record_path), GLOBAL),
        ("parquet", parquet, lambda: Dataset.parquet(parquet), BLOCKS),
    ]


def array_entries(folder: Path) -> list[Entry]:
    random = np.random.default_rng(0)
    # Values of few bits, which gzip makes about half as long.
    level = random.integers(0, 240, (ROWS, 3, 1, 1), np.uint8)
    x = random.integers(0, 12, (ROWS, 3, 32, 32), np.uint8) + level
    y = random.integers(0, 10, ROWS)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    for name, options in (("plain", {}), ("gzip", {"chunks": (64, 3, 32, 32)})):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            gzip = {"compression": "gzip", "shuffle": False} if options else {}
            file.create_dataset("x", data=x, **options, **gzip)
            file["y"] = y
    with penstock.TFRecordWriter(folder / "rows.tfrecord") as records:
        for row, label in zip(x, y, strict=True):
            records.write(penstock.example({"x": row.tobytes(), "y": label}))
    flat = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 3 * 32 * 32)
    whole = pa.array([row.tobytes() for row in x], pa.binary())
    for name, column in (("lists", flat), ("bytes", whole)):
        table, to = pa.table({"x": column, "y": y}), folder / f"{name}.parquet"
        pq.write_table(table, to, row_group_size=1000, use_dictionary=False)
    features = {"x": penstock.bytes(3 * 32 * 32), "y": penstock.int64()}
    names = {"x": folder / "x.npy", "y": folder / "y.npy"}

    def hdf5(name: str) -> Callable[[], Dataset]:
        return lambda: Dataset.hdf5(folder / f"{name}.h5", {"x": "x", "y": "y"})

    def records_of() -> Dataset:
        return Dataset.tfrecord(folder / "rows.tfrecord").map(penstock.parse_example(features))

    lists, whole_rows = folder / "lists.parquet", folder / "bytes.parquet"
    decoded = penstock.decode_raw("x", np.uint8, (3, 32, 32))
    return [
        ("npy", folder / "x.npy", lambda: Dataset.npy(names), GLOBAL),
        ("hdf5, not compressed", folder / "plain.h5", hdf5("plain"), GLOBAL),
        ("hdf5, gzip, 64 rows a chunk", folder / "gzip.h5", hdf5("gzip"), BLOCKS),
        ("tfrecord", folder / "rows.tfrecord", records_of, GLOBAL),
        ("parquet, bytes", whole_rows, lambda: Dataset.parquet(whole_rows).map(decoded), BLOCKS),
        ("parquet, lists", lists, lambda: Dataset.parquet(lists), BLOCKS),
    ]


def size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def epoch(dataset: Dataset, ragged: bool) -> tuple[float, float]:
    """Seconds until the first batch, and for a whole epoch."""
    began = time.perf_counter()
    batched = dataset.ragged_batch(BATCH) if ragged else dataset.batch(BATCH)
    with batched.build(workers=2) as feed:
        batches = iter(feed)
        next(batches)
        first = time.perf_counter() - began
        for _ in batches:
            pass
    return first, time.perf_counter() - began


def table_of(entries: list[Entry], count: int, rounds: int, ragged: bool) -> None:
    ordered: dict[str, list[float]] = {name: [] for name, *_ in entries}
    shuffled: dict[str, list[float]] = {name: [] for name, *_ in entries}
    first: dict[str, list[float]] = {name: [] for name, *_ in entries}
    for turn in range(rounds + 1):
        for place in range(len(entries)):
            name, _, make, shuffle = entries[(place + turn) % len(entries)]
            in_order = epoch(make(), ragged)[1]
            until, mixed = epoch(make().shuffle(**shuffle), ragged)
            if turn > 0:  # the first round fills the page cache
                ordered[name].append(count / in_order)
                shuffled[name].append(count / mixed)
                first[name].append(until * 1000)
    print("| format | bytes a sample | samples/s in order | shuffled | how | first, ms |")
    print("|---|---|---|---|---|---|")
    for name, path, _, shuffle in entries:
        how = "row groups or chunks, a window of 8" if shuffle is BLOCKS else "globally"
        figures = [max(ordered[name]), max(shuffled[name]), min(first[name])]
        print(
            f"| {name} | {size_of(path) / count:,.0f} | {figures[0]:,.0f} | {figures[1]:,.0f} "
            f"| {how} | {figures[2]:.0f} |"
        )


def decoded_per_second(rounds: int) -> float:
    """How many of the photographs two threads decode."""
    images = Dataset.items([{"image": jpeg} for jpeg in [*photographs()] * 20])
    seconds = [epoch(images.map(penstock.image.decode()), False)[1] for _ in range(rounds)]
    return 800 / min(seconds)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        table_of(jpeg_entries(Path(folder)), PHOTOGRAPHS, rounds, ragged=True)
        print(f"decoding: {decoded_per_second(rounds):,.0f} photographs/s\n")
        table_of(array_entries(Path(folder)), ROWS, rounds, ragged=False)


if __name__ == "__main__":
    main()

"""200,000 tf.Examples of 580 bytes in 8 TFRecord files: parsed, shuffled globally, and as bytes.

The files are in the page cache. A batch is 256 records: label, x (64 floats) and raw (256 bytes).
"""

from __future__ import annotations

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
    closing,
    epochs,
    exactly_once,
    expect,
)

from cases.tfrecord_data import (
    BATCH,
    FILES,
    FLOATS,
    RAW,
    file_names,
    frames_of,
    limit,
    prepare,
    raw_of,
    x_of,
)

OURS = "penstock, 2 threads"
ONE = "limit: plain C++ on one thread"
TWO = "limit: plain C++ on two threads"


def case(key: str, title: str, seconds: float, targets: list[Target]) -> Case:
    return Case(
        key,
        title,
        {
            "rate": Figure("records/s, whole epochs", more_is_better=True),
            "first": Figure("ms to the first batch", 1e3),
        },
        full={"count": 200_000, "seconds": seconds},
        quick={"count": 200_000, "seconds": seconds / 4},
        prepare=prepare,
        targets=targets,
    )


IN_PARALLEL = "tf.data, files in parallel"
PARSED = case(
    "tfrecord",
    "TFRecord: 580 bytes a record, both CRCs, parse, batches of 256",
    2.0,
    [
        Target("rate", OURS, BEST_PEER, at_least=10),
        Target("rate", OURS, TWO, at_least=0.8, says="80 % of plain C++"),
    ],
)
WHOLE_BUFFER = "tf.data, shuffle buffer of all"
SHUFFLED = case(
    "tfrecord-shuffled",
    "TFRecord shuffled globally: 580 bytes a record, both CRCs, parse, batches of 256",
    2.0,
    [
        Target("rate", OURS, BEST_PEER, at_least=10),
    ],
)
COUNTED = "tf.data, counted by Dataset.reduce"
RAW_BYTES = case(
    "tfrecord-raw",
    "TFRecord as byte strings: 580 bytes a record, both CRCs, batches of 256",
    2.0,
    [
        Target("rate", OURS, BEST_PEER, at_least=10),
    ],
)


def rates(size: Size, figures: Figures) -> Figures:
    batches = -(-size.count // BATCH)
    return {"rate": size.count / batches / figures["whole"], "first": figures["first"]}


def label_of(batch: Any) -> Any:
    return np.array(batch["label"])


def measure(size: Size, start: Callable[[], Any], began: float) -> Figures:
    def check(kept: list[Any], last: Any) -> None:
        exactly_once(kept, size.count)
        expect(np.array_equal(last["x"], x_of(last["label"])), "x is of another record")
        expect(np.array_equal(last["raw"], raw_of(last["label"])), "raw is of another record")

    return rates(size, epochs(start, label_of, check, size.seconds, began=began))


# ---- ours


def parse() -> Any:
    import penstock

    _ = penstock.Loader  # loads the extension: imports are not timed, as for the peers
    return penstock.parse_example(
        {
            "label": penstock.int64(),
            "x": penstock.float32(FLOATS),
            "raw": penstock.bytes(RAW),
        }
    )


@PARSED.entry(OURS, "ours", "Dataset.tfrecord.map(parse_example).batch")
def ours(size: Size) -> Figures:
    import penstock

    operation = parse()
    began = time.perf_counter()
    data = penstock.Dataset.tfrecord(file_names(size)).map(operation).batch(BATCH)
    with closing(data.build(workers=WORKERS)) as feed:
        return measure(size, lambda: feed, began)


@SHUFFLED.entry(OURS, "ours", "Dataset.tfrecord.shuffle.map(parse_example).batch")
def ours_shuffled(size: Size) -> Figures:
    import penstock

    operation = parse()
    began = time.perf_counter()
    data = penstock.Dataset.tfrecord(file_names(size)).shuffle(seed=1).map(operation).batch(BATCH)
    with closing(data.build(workers=WORKERS)) as feed:
        return measure(size, lambda: feed, began)


def measure_raw(size: Size, start: Callable[[], Any], began: float) -> Figures:
    wanted = frames_of(np.array([size.count - 1]))[0, 12:-4].tobytes()
    payloads = sum(Path(name).stat().st_size for name in file_names(size)) - 16 * size.count

    def look(batch: Any) -> tuple[int, int]:
        return len(batch), batch.values.size

    def check(kept: list[Any], last: Any) -> None:
        records, lengths = np.sum(kept, 0)
        expect(records == size.count, f"{records} records came, not {size.count}")
        expect(lengths == payloads, f"{lengths} bytes came, not {payloads}")
        expect(last[len(last) - 1] == wanted, "the last record is another one")

    return rates(size, epochs(start, look, check, size.seconds, began=began))


@RAW_BYTES.entry(OURS, "ours", "Dataset.tfrecord.batch: penstock.Ragged")
def ours_raw(size: Size) -> Figures:
    import penstock

    _ = penstock.Loader
    make = penstock.Dataset.tfrecord
    began = time.perf_counter()
    with closing(make(file_names(size)).batch(BATCH).build(workers=WORKERS)) as feed:
        return measure_raw(size, lambda: feed, began)


# ---- tf.data


def tf_parse(records: Any) -> Any:
    import tensorflow as tf

    features = {
        "label": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([FLOATS], tf.float32),
        "raw": tf.io.FixedLenFeature([], tf.string),
    }
    parsed = tf.io.parse_example(records, features)
    parsed["raw"] = tf.io.decode_raw(parsed["raw"], tf.uint8, fixed_length=RAW)
    return parsed


def tf_unordered(data: Any) -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = False
    return data.with_options(options)


def tf_measure(size: Size, data: Any, began: float) -> Figures:
    return measure(size, data.as_numpy_iterator, began)


@PARSED.entry(IN_PARALLEL, "peer", "interleave(batch, parse_example), 2 calls, any order")
def tf_in_parallel(size: Size) -> Figures:
    import tensorflow as tf

    began = time.perf_counter()
    data = tf.data.Dataset.from_tensor_slices(file_names(size)).interleave(
        lambda name: tf.data.TFRecordDataset(name, buffer_size=1 << 20).batch(BATCH).map(tf_parse),
        cycle_length=WORKERS,
        num_parallel_calls=WORKERS,
    )
    return tf_measure(size, tf_unordered(data.prefetch(4)), began)


@PARSED.entry(
    "tf.data, as its guide says", "peer", "interleave, batch, map, all AUTOTUNE", quick=False
)
def tf_guide(size: Size) -> Figures:
    import tensorflow as tf

    auto = tf.data.AUTOTUNE
    began = time.perf_counter()
    data = tf.data.Dataset.from_tensor_slices(file_names(size)).interleave(
        lambda name: tf.data.TFRecordDataset(name, buffer_size=1 << 20),
        cycle_length=FILES,
        block_length=BATCH,
        num_parallel_calls=auto,
    )
    data = data.batch(BATCH, num_parallel_calls=auto).map(tf_parse, num_parallel_calls=auto)
    return tf_measure(size, tf_unordered(data.prefetch(auto)), began)


@PARSED.entry("tf.data, in order", "peer", "one reader, batch, map with 2 calls", quick=False)
def tf_in_order(size: Size) -> Figures:
    import tensorflow as tf

    began = time.perf_counter()
    data = tf.data.TFRecordDataset(file_names(size), buffer_size=1 << 20).batch(BATCH)
    data = data.map(tf_parse, num_parallel_calls=WORKERS).prefetch(4)
    return tf_measure(size, data, began)


@SHUFFLED.entry(WHOLE_BUFFER, "peer", "one reader, shuffle, batch, map with 2 calls")
def tf_shuffled(size: Size) -> Figures:
    import tensorflow as tf

    began = time.perf_counter()
    data = tf.data.TFRecordDataset(file_names(size), buffer_size=1 << 20)
    data = data.shuffle(size.count).batch(BATCH)
    data = data.map(tf_parse, num_parallel_calls=WORKERS).prefetch(4)
    return tf_measure(size, tf_unordered(data), began)


@RAW_BYTES.entry(COUNTED, "peer", "one reader, batch, prefetch 4; nothing comes to Python")
def tf_counted(size: Size) -> Figures:
    import tensorflow as tf

    data = tf.data.TFRecordDataset(file_names(size), buffer_size=1 << 20).batch(BATCH).prefetch(4)

    def count(so_far: Any, batch: Any) -> Any:
        return so_far + tf.shape(batch, tf.int64)[0]

    best, stop = float("inf"), time.perf_counter() + size.seconds
    while best == float("inf") or time.perf_counter() < stop:
        began = time.perf_counter()
        records = int(data.reduce(tf.constant(0, tf.int64), count))
        best = min(best, time.perf_counter() - began)
        expect(records == size.count, f"{records} records came, not {size.count}")
    return {"rate": size.count / best}


@RAW_BYTES.entry("grain, no CRC", "peer", "TFRecordIterDataset, in line", quick=False)
def grain_records(size: Size) -> Figures:
    import grain

    began = time.perf_counter()
    records = sum(
        1 for name in file_names(size) for _ in grain.experimental.TFRecordIterDataset(name)
    )
    expect(records == size.count, f"{records} records came, not {size.count}")
    return {"rate": size.count / (time.perf_counter() - began)}


# ---- limits


def limit_of(size: Size, mode: str, threads: int) -> Figures:
    figures, total = limit(size, mode, threads, *file_names(size))
    if mode != "raw":
        expect(total == size.count * (size.count - 1) / 2, "labels were lost")
    return figures


for _case, _mode, _how in (
    (PARSED, "parsed", "read, CRCs, parse into one batch"),
    (SHUFFLED, "shuffled", "mapped, order and index known, fetched ahead"),
    (RAW_BYTES, "raw", "read, CRCs, copy into one batch"),
):
    for _name, _threads in ((TWO, 2), (ONE, 1)):
        _case.entry(_name, "limit", _how)(
            lambda size, mode=_mode, threads=_threads: limit_of(size, mode, threads)
        )

CASES = [PARSED, SHUFFLED, RAW_BYTES]

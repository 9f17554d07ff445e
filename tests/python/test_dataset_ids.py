"""Ids of samples stay beside their samples through every transformation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, THREADS, check_checkpoints, each
from penstock import Dataset

COUNT = 60
FEATURES = {"x": penstock.int64(), "code": penstock.bytes(4)}
LONG = {**FEATURES, "text": penstock.bytes(), "list": penstock.int64(ragged=True)}


def text(n: int) -> bytes:
    return b"%d," % n * (n % 5)


def record(n: int) -> bytes:
    return penstock.example(
        {
            "x": 3 * n,
            "code": np.int32(7 * n).tobytes(),
            "text": text(n),
            "list": np.full(n % 4, n),
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("ids") / "records"
    with penstock.TFRecordWriter(path) as writer:
        for n in range(COUNT):
            writer.write(record(n))
    return path


def parsed(path: Any, features: dict[str, Any] = FEATURES) -> Dataset:
    """{"id": n, "record": a record with the value 3 n}."""
    both = Dataset.zip(id=Dataset.range(COUNT), record=Dataset.tfrecord(path))
    return both.map(penstock.parse_example(features, field="record"))


def pairs(value: Any) -> Iterator[tuple[int, int]]:
    """The ids of an element, batch or nest of these, each with its value."""
    if isinstance(value, tuple):
        for part in value:
            yield from pairs(part)
        return
    rows = value["record"]
    ids = np.asarray(value["id"])
    flat = ids.reshape(-1)
    for n, x in zip(flat, np.asarray(rows["x"]).reshape(-1), strict=True):
        yield int(n), int(x)
    if "code" in rows:
        codes = np.asarray(rows["code"])
        codes = codes if codes.dtype == np.int32 else np.ascontiguousarray(codes).view(np.int32)
        assert (codes.reshape(-1) == 7 * flat).all()
    for i, n in enumerate(flat if "text" in rows else []):
        said = rows["text"] if ids.ndim == 0 else rows["text"][i]
        said = said if isinstance(said, bytes) else bytes(said).rstrip(b"\0")
        assert said == text(n)
        given = rows["list"] if ids.ndim == 0 else rows["list"][i]
        given = np.asarray(given)
        assert (given[: n % 4] == n).all()
        assert (given[n % 4 :] == 0).all()


def keeps(element: Any) -> bool:
    return bool(element["id"] % 3)


def same(element: Any) -> Any:
    return element


def carried(carry: Any, element: Any) -> Any:
    return carry + 1, element


def id_of(element: Any) -> Any:
    return element["id"] // 2


EVERY = list(range(COUNT))
# By name: the chain over {"id", "record"}, and the ids of a pass; None: any.
CHAINS: dict[str, tuple[Callable[[Dataset], Dataset], list[int] | None]] = {
    "parse_example": (lambda d: d, EVERY),
    "cast": (lambda d: d.map(penstock.cast("float64", fields="record/x")), EVERY),
    "normalize": (
        lambda d: d.map(penstock.cast("float32", fields="record/x")).map(
            penstock.normalize(0, 1, fields="record/x")
        ),
        EVERY,
    ),
    "map": (lambda d: d.map(same), EVERY),
    "batch": (lambda d: d.batch(7), EVERY),
    "padded_batch": (lambda d: d.padded_batch(7), EVERY),
    "ragged_batch": (lambda d: d.ragged_batch(7), EVERY),
    "shuffle": (lambda d: d.shuffle(seed=3).batch(7), None),
    "shuffle(block=)": (lambda d: d.shuffle(seed=3, block=4, window=3), None),
    "shuffle(buffer=)": (lambda d: d.shuffle(buffer=9, seed=3).batch(7), None),
    "filter": (lambda d: d.filter(keeps).batch(7), [n for n in EVERY if n % 3]),
    "take_while": (lambda d: d.take_while(lambda e: e["id"] < 21), EVERY[:21]),
    "unique": (lambda d: d.unique(key=id_of), EVERY[::2]),
    "scan": (lambda d: d.scan(carried, np.int64(0)).batch(7), EVERY),
    "take, skip": (lambda d: d.skip(5).take(20), EVERY[5:25]),
    "shard": (lambda d: d.shard(1, 3), EVERY[1::3]),
    "repeat": (lambda d: d.repeat(2).batch(7), EVERY * 2),
    "concatenate": (lambda d: d.take(9).concatenate(d.skip(9)), EVERY),
    "interleave": (
        lambda d: Dataset.interleave([d.shard(r, 3) for r in range(3)], cycle=3).batch(7),
        EVERY,
    ),
    "interleave of streams": (
        lambda d: Dataset.interleave([d.shard(r, 2).filter(keeps) for r in range(2)], cycle=2),
        None,
    ),
    "interleave(function)": (
        lambda d: Dataset.range(3).interleave(lambda r: d.shard(int(r), 3), cycle=3),
        EVERY,
    ),
    "flat_map": (
        lambda d: Dataset.range(0, COUNT, 10).flat_map(lambda r: d.skip(int(r)).take(10)),
        EVERY,
    ),
    "sample_from": (
        lambda d: Dataset.sample_from([d.shard(0, 2), d.shard(1, 2)], seed=5).batch(7),
        None,
    ),
    "choose_from": (
        lambda d: Dataset.choose_from(
            Dataset.arrays(np.arange(COUNT) % 2), [d.shard(0, 2), d.shard(1, 2)]
        ),
        EVERY,
    ),
    "cache": (lambda d: d.map(same).cache().shuffle(seed=3).batch(7), None),
    "on_error": (lambda d: d.on_error("skip").batch(7), EVERY),
    "prefetch": (lambda d: d.filter(keeps).prefetch(3).batch(7), [n for n in EVERY if n % 3]),
    "split_batch": (lambda d: d.batch(7).split_batch(2), EVERY),
    "unbatch": (lambda d: d.batch(7).unbatch(), EVERY),
    "rebatch": (lambda d: d.batch(7).rebatch(4), EVERY),
    "window": (lambda d: d.window(3, shift=3), EVERY),
    "window of a stream": (lambda d: d.shuffle(buffer=5, seed=1).window(3), None),
    "window, unbatch": (lambda d: d.filter(keeps).window(4).unbatch(), None),
}
# Of rows of one size.
FIXED: dict[str, tuple[Callable[[Dataset], Dataset], list[int] | None]] = {
    "decode_raw": (lambda d: d.map(penstock.decode_raw("record/code", "int32", 1)), EVERY),
}


def check(dataset: Dataset, ids: list[int] | None, **options: Any) -> None:
    with dataset.build(**options) as loader:
        found = [pair for value in loader for pair in pairs(value)]
    assert found
    assert all(x == 3 * n for n, x in found), found
    if ids is not None:
        assert [n for n, _ in found] == ids
    else:
        assert sorted(n for n, _ in found) == EVERY or len(set(found)) == len(found)


@pytest.mark.parametrize("name", [*CHAINS, *FIXED])
def test_each_id_stands_beside_its_own_value(path, name):
    chain, ids = (CHAINS | FIXED)[name]
    check(chain(parsed(path, FEATURES if name in FIXED else LONG)), ids, workers=0)


@pytest.mark.parametrize("name", ["shuffle(buffer=)", "cache", "interleave of streams", "scan"])
@each((THREADS, PROCESSES), ())
def test_with_workers_too(path, name, mode):
    chain, ids = CHAINS[name]
    check(chain(parsed(path, LONG)), ids, **mode.options)


def test_bucket_by_length_keeps_them_together(path):
    lists = penstock.parse_example(
        {"x": penstock.int64(), "list": penstock.int64(ragged=True)}, field="record"
    )
    base = Dataset.zip(id=Dataset.range(COUNT), record=Dataset.tfrecord(path)).map(lists)
    check(base.bucket_by_length([1, 3], [4, 5, 6], field="record/list"), None, workers=0)


def test_of_feeds_each_has_its_own(path):
    found = []
    with parsed(path, LONG).batch(7).feeds(2, workers=0) as feeds:
        for batches in zip(*feeds, strict=False):
            found += [pair for batch in batches for pair in pairs(batch)]
    assert found
    assert all(x == 3 * n for n, x in found)


# ---- where the features come -----------------------------------------------------------------


def test_features_take_the_place_of_the_record(path):
    records = Dataset.tfrecord(path)
    features = {"x": penstock.int64()}
    parse = penstock.parse_example(features)

    def first(dataset: Dataset) -> Any:
        return next(iter(dataset.skip(2).build(workers=0)))

    assert first(records.map(parse)) == {"x": 6}
    assert first(records.enumerate().map(parse)) == (2, {"x": 6})
    named = penstock.parse_example(features, field="1")
    assert first(records.enumerate().map(named)) == (2, {"x": 6})
    both = Dataset.zip(a=records, b=records)
    only = both.map(penstock.parse_example(features, field="b"))
    assert first(only) == {"a": record(2), "b": {"x": 6}}
    then = only.map(penstock.parse_example(features, field="a"))
    assert first(then) == {"a": {"x": 6}, "b": {"x": 6}}
    deep = Dataset.zip(Dataset.zip(n=Dataset.range(COUNT), r=records), Dataset.range(COUNT))
    assert first(deep.map(parse)) == ({"n": 2, "r": {"x": 6}}, 2)
    batch = next(iter(deep.map(parse).batch(3).build(workers=0)))
    assert batch[0]["r"]["x"].tolist() == [0, 3, 6]
    assert batch[1].tolist() == [0, 1, 2]


def test_what_cannot_be_parsed_is_said_at_once(path):
    records = Dataset.tfrecord(path)
    parse = penstock.parse_example({"x": penstock.int64()})
    for dataset, text in (
        (Dataset.zip(a=records, b=records).map(parse), "`field`"),
        (Dataset.range(3).map(parse), "no byte string"),
        (records.map(penstock.parse_example({"x": penstock.int64()}, field="y")), "'y'"),
        (
            Dataset.zip(a=records, n=Dataset.range(9)).map(
                penstock.parse_example({"x": penstock.int64()}, field="n")
            ),
            "'n' is no byte string",
        ),
    ):
        with pytest.raises(penstock.InvalidArgument, match=text):
            dataset.build(workers=0)


def test_a_record_that_is_none_is_lost_with_its_id(tmp_path):
    with penstock.TFRecordWriter(tmp_path / "records") as writer:
        for n in range(9):
            writer.write(b"none" if n == 4 else record(n))
    dataset = Dataset.tfrecord(tmp_path / "records").enumerate()
    dataset = dataset.map(penstock.parse_example({"x": penstock.int64()}))
    with dataset.build(workers=0, on_error="skip") as loader:
        assert [(int(n), int(row["x"])) for n, row in loader] == [
            (n, 3 * n) for n in range(9) if n != 4
        ]


def test_its_place_is_kept_at_every_element(path):
    dataset = parsed(path, LONG).filter(keeps).take(12).batch(5)
    check_checkpoints(dataset.build, INLINE, (THREADS,))

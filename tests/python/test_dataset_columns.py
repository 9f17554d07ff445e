"""Batches of rows that differ in size, as elements of further stages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, Mode, assert_same, each, options
from dataset_functions import always
from penstock import Dataset, Ragged

MODES = (INLINE, THREADS, PROCESSES)
NAMES = ["a", "bb", "", "dddd", "é"]
ITEMS = Dataset.items([{"name": name, "n": n} for n, name in enumerate(NAMES)])
BATCHES = [NAMES[:2], NAMES[2:4], NAMES[4:]]


def plain(value: Any) -> Any:
    if isinstance(value, Ragged):
        return value.to_list()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def same(batch: Any) -> Any:
    return batch


def longest(batch: Any) -> Any:
    assert isinstance(batch["name"], Ragged)
    assert batch["name"].kind == "str"
    return {"longest": max(batch["name"], key=len), "sum": batch["n"].sum()}


def louder(batch: Any) -> Any:
    texts = [text.upper().encode() for text in batch["name"]]
    offsets = np.cumsum([0, *map(len, texts)])
    return {**batch, "name": Ragged(np.frombuffer(b"".join(texts), "u1"), offsets, "str")}


def with_a_second(batch: Any) -> bool:
    return len(batch["name"]) > 1


def summed(total: int, batch: Any) -> tuple[int, int]:
    total += len(batch["name"])
    return total, total


def pairs(first: int) -> list[Any]:
    return [
        {"name": NAMES[i : i + 2], "n": list(range(i, min(i + 2, 5)))}
        for i in range(2 * first, 5, 2)
    ]


CHAINS: dict[str, tuple[Dataset, list[Any]]] = {
    "map": (
        ITEMS.batch(2).map(longest),
        [{"longest": max(b, key=len), "sum": s} for b, s in zip(BATCHES, (1, 5, 4), strict=True)],
    ),
    "map, the same": (ITEMS.batch(2).map(same), pairs(0)),
    "map, another": (
        ITEMS.batch(2).map(louder),
        [{**pair, "name": [t.upper() for t in pair["name"]]} for pair in pairs(0)],
    ),
    "filter": (ITEMS.batch(2).filter(with_a_second), pairs(0)[:2]),
    "scan": (ITEMS.batch(2).scan(summed, 0), [2, 4, 5]),
    "unbatch": (
        ITEMS.batch(2).unbatch(),
        [{"name": name, "n": n} for n, name in enumerate(NAMES)],
    ),
    "unbatch behind a map": (
        ITEMS.batch(3).map(same).unbatch().batch(2),
        pairs(0),
    ),
    "rebatch": (
        ITEMS.batch(2).rebatch(3),
        [{"name": NAMES[:3], "n": [0, 1, 2]}, {"name": NAMES[3:], "n": [3, 4]}],
    ),
    "window": (ITEMS.window(2, shift=2).map(same), pairs(0)),
    "window over a stream": (ITEMS.filter(always).window(2, shift=2), pairs(0)),
    "enumerate": (ITEMS.batch(2).enumerate(), [[i, pair] for i, pair in enumerate(pairs(0))]),
    "concatenate": (ITEMS.batch(2).concatenate(ITEMS.skip(2).batch(2)), pairs(0) + pairs(1)),
    "zip": (
        Dataset.zip(x=ITEMS.batch(2), i=Dataset.range(3)),
        [{"x": pair, "i": i} for i, pair in enumerate(pairs(0))],
    ),
    "buffer": (ITEMS.batch(2).shuffle(buffer=1, seed=1), pairs(0)),
    "interleave": (
        Dataset.range(2).interleave(lambda i: ITEMS.skip(2 * i).batch(2), cycle=2),
        [pairs(0)[0], pairs(1)[0], pairs(0)[1], pairs(1)[1], pairs(0)[2]],
    ),
}


@each(MODES, (SPAWN,))
@pytest.mark.parametrize("chain", CHAINS)
def test_such_batches_go_through(chain: str, mode: Mode) -> None:
    dataset, expected = CHAINS[chain]
    with dataset.build(**options(mode)) as feed:
        for _ in range(2):
            assert [plain(element) for element in feed] == expected


@pytest.mark.parametrize("chain", CHAINS)
def test_a_state_before_each_restores(chain: str) -> None:
    dataset, expected = CHAINS[chain]
    with dataset.build(**options(INLINE)) as feed:
        states = [json.dumps(feed.state())]
        states += [json.dumps(feed.state()) for _ in feed]
    for at, state in enumerate(states[:-1]):
        with dataset.build(**options(THREADS)) as feed:
            feed.restore(json.loads(state))
            assert [plain(element) for element in feed] == expected[at:]


def growing(n: int) -> Any:
    return np.full((1 + n // 2, 2), n)


def of_many_axes(n: int) -> Any:
    return np.full((1 + n, 2, 1 + n % 2), n, np.int16)


def is_ragged(batch: Any) -> Any:
    assert isinstance(batch, Ragged), type(batch)
    return batch


@each(MODES, ())
@pytest.mark.parametrize("function", [growing, of_many_axes])
def test_ragged_batches_stay_ragged_though_their_rows_are_alike(function: Any, mode: Mode) -> None:
    dataset = Dataset.range(6).map(function).ragged_batch(2).map(is_ragged)
    with dataset.build(**options(mode)) as feed:
        for at, batch in enumerate(feed):
            assert len(batch) == 2
            for i, row in enumerate(batch):
                assert_same(np.asarray(row), function(2 * at + i))
    rows = dataset.unbatch()
    with rows.build(**options(mode)) as feed:
        for n, row in enumerate(feed):
            assert_same(np.asarray(row), function(n))


def test_a_cache_and_a_snapshot_keep_them(tmp_path: Any) -> None:
    for kept in (ITEMS.batch(2).cache(), ITEMS.batch(2).cache(tmp_path / "kept")):
        with kept.map(same).build(**options(THREADS)) as feed:
            for _ in range(2):
                assert [plain(element) for element in feed] == pairs(0)
        del kept, feed
    with Dataset.snapshot(tmp_path / "kept").build(**options(INLINE)) as feed:
        assert [plain(element) for element in feed] == pairs(0)


def test_what_is_said_of_a_batch_of_such_batches() -> None:
    for dataset in (
        ITEMS.batch(2).batch(2),
        ITEMS.batch(2).padded_batch(2),
        ITEMS.batch(2).map(same).ragged_batch(2),
        ITEMS.batch(2).batch(2).map(same),
    ):
        with (
            dataset.build(**options(INLINE)) as feed,
            pytest.raises(penstock.InvalidArgument, match="'name' is a batch's rows"),
        ):
            next(iter(feed))


def test_a_ragged_of_the_users_own_is_an_element_too() -> None:
    def made(n: int) -> Any:
        return {"rows": Ragged(np.arange(n, dtype=np.float32), [0, n // 2, n]), "n": n}

    with Dataset.range(5).map(made).build(**options(THREADS)) as feed:
        for n, element in enumerate(feed):
            assert element["rows"].equals(made(n)["rows"])
            assert element["n"] == n

    def broken(n: int) -> Any:
        rows = made(4)["rows"]
        rows.offsets = np.array([0, 9, 4])
        return rows

    with (
        Dataset.range(1).map(broken).build(**options(INLINE)) as feed,
        pytest.raises(penstock.InvalidArgument, match="contradicts itself"),
    ):
        next(iter(feed))


def test_columns_of_files(tmp_path: Any) -> None:
    path = tmp_path / "people.csv"
    path.write_text("id,name\n" + "".join(f"{i},{'x' * (i % 4)}\n" for i in range(9)))
    people = Dataset.csv(path, {"id": "int64", "name": str})
    lengths = people.batch(4).map(lambda b: {"id": b["id"], "length": b["name"].lengths})
    with lengths.build(**options(THREADS)) as feed:
        seen = [plain(batch) for batch in feed]
    assert [n for batch in seen for n in batch["length"]] == [i % 4 for i in range(9)]


def test_rows_of_each_element_are_of_their_own_type() -> None:
    shapes = [(2, 3), (2, 3), (4, 3), (2, 5)]

    def made(n: int) -> Any:
        return np.full(shapes[int(n) % 4], int(n))

    rows = Dataset.range(24).map(made).ragged_batch(2).cache().unbatch()
    for mode in (INLINE, THREADS):
        with rows.ragged_batch(6).unbatch().build(**options(mode)) as feed:
            for n, row in enumerate(feed):
                assert_same(np.asarray(row), made(n))

    def typed(n: int) -> Any:
        return Ragged(np.arange(n, n + 3).astype(["i1", "f8"][n % 2]), [0, 1, 3])

    mixed = Dataset.source([typed(n) for n in range(4)]).unbatch().filter(always)
    with (
        mixed.build(**options(INLINE)) as feed,
        pytest.raises(penstock.InvalidArgument, match="must be alike"),
    ):
        list(feed)


def kept(batch: Any) -> Any:
    return batch[[i for i in range(len(batch)) if batch[i].startswith("k")]]


def test_batches_that_became_empty_hide_nothing() -> None:
    names = Dataset.range(1000).map(lambda n: ("k" if n >= 700 else "d") + str(n))
    expected = [f"k{n}" for n in range(700, 1000)]
    picked = names.batch(5).map(kept)
    for mode in (INLINE, THREADS):
        with picked.unbatch().build(**options(mode)) as feed:
            assert list(feed) == expected
        with picked.rebatch(10).build(**options(mode)) as feed:
            assert [name for batch in feed for name in batch] == expected


def test_one_feed_goes_to_all_of_its_states() -> None:
    rows = Dataset.range(10).map(lambda n: "x" * int(n)).batch(4).unbatch().repeat(2)
    with rows.build(**options(THREADS)) as feed:
        states = [feed.state()]
        whole = []
        for row in feed:
            whole.append(row)
            states.append(feed.state())
        for at, state in enumerate(states[:-1]):
            feed.restore(state)
            assert list(feed) == whole[at:]


def changed(**parts: Any) -> Any:
    rows = Ragged(np.arange(4.0), [0, 1, 4])
    for name, value in parts.items():
        setattr(rows, name, value)
    return rows


@pytest.mark.parametrize(
    "rows",
    [
        changed(dims=np.zeros((2, 0), int), axes=()),
        changed(offsets=np.array(4)),
        changed(offsets=np.zeros((2, 100_000), int)),
        changed(offsets=np.zeros(0, int)),
        changed(dims=np.ones((100_000, 2), int)),
        changed(dims=np.ones(2, int)),
        changed(values=np.arange(2.0)),
        changed(values=np.array(1.0)),
        changed(kind="str"),
        changed(kind=None),
        changed(axes=None),
        changed(offsets=np.array([0, 9, 4])),
    ],
)
def test_a_ragged_that_contradicts_itself_is_refused(rows: Any) -> None:
    with (
        Dataset.range(1).map(lambda n: rows).build(**options(INLINE)) as feed,
        pytest.raises((penstock.InvalidArgument, ValueError), match="Ragged"),
    ):
        next(iter(feed))


@pytest.mark.parametrize(
    "rows",
    [
        Ragged(np.arange(4, dtype=">i4"), [0, 0, 4]),
        Ragged(np.arange(8)[::2], [0, 1, 4]),
        Ragged(np.arange(4.0), [0, 0, 1, 4], dims=[[0], [1], [3]]),
        Ragged(np.zeros((0, 2)), [0]),
        Ragged(np.arange(6), [0, 2, 6], dims=[[1, 2], [2, 2]], axes=(0,)),
    ],
)
def test_a_ragged_comes_as_it_went(rows: Any) -> None:
    with Dataset.range(1).map(lambda n: rows).build(**options(INLINE)) as feed:
        assert next(iter(feed)).to_list() == rows.to_list()

"""Batches of rows that differ in size, where they are elements that further stages work on."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, Mode, assert_same, each, options
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


def any_of_them(_: Any) -> bool:
    return True


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
    "window over a stream": (ITEMS.filter(any_of_them).window(2, shift=2), pairs(0)),
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

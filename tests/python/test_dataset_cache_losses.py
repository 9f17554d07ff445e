"""cache: a pass tells what was lost on the way to its elements, whoever made them, and when."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, SPAWN, THREADS, each, options, passed
from penstock import Dataset

BAD = (5, 15, 25, 38, 39)


def refuse(number: Any) -> Any:
    if int(number) in BAD:
        raise ValueError(f"{int(number)} is bad, ü")
    return number


def always(number: Any) -> bool:
    return True


def never(number: Any) -> bool:
    return False


CHAINS: dict[str, Callable[[], Dataset]] = {
    "skipped": lambda: Dataset.range(40).map(refuse).on_error("skip"),
    "replaced": lambda: Dataset.range(40).map(refuse).on_error("replace"),
    "stream": lambda: Dataset.range(40).map(refuse).on_error("skip").filter(always),
    "stream, replaced": lambda: Dataset.range(40).map(refuse).on_error("replace").filter(always),
    "batches": lambda: Dataset.range(40).map(refuse).on_error("skip").batch(4),
    "batches of a stream": lambda: CHAINS["stream"]().batch(4).map(np.copy),
    "rows of batches": lambda: CHAINS["batches"]().unbatch(),
    "windows": lambda: CHAINS["stream"]().window(3, shift=2),
    "nothing": lambda: CHAINS["stream"]().filter(never),
}


def cached(chain: Dataset, where: str, folder: pathlib.Path) -> Dataset:
    match where:
        case "memory":
            return chain.cache()
        case "no room":
            return chain.cache(max_bytes=17 << 10)
    return chain.cache(folder / "kept")


def lost(feed: penstock.Loader) -> list[tuple[int, str]]:
    """Since the feed was built, but for when."""
    stats = feed.stats()
    assert stats["skipped"] + stats["replaced"] == len(stats["losses"])
    return [(loss[1], loss[2]) for loss in stats["losses"]]


def lost_without(chain: Dataset) -> list[tuple[int, str]]:
    with chain.build(workers=0) as feed:
        passed(feed)
        told = lost(feed)
    assert sorted({int(reason.split()[-4]) for _, reason in told}) == list(BAD)
    return told


@each(KINDS, (SPAWN,))
@pytest.mark.parametrize("where", ["memory", "no room", "file"])
@pytest.mark.parametrize("name", CHAINS)
def test_each_pass_counts_as_without_a_cache(mode, where, name, tmp_path):
    chain = CHAINS[name]()
    expected = lost_without(chain)
    with cached(chain, where, tmp_path).build(**options(mode)) as feed:
        for count in (1, 2, 3):
            whole = passed(feed)
            assert sorted(lost(feed)) == sorted(count * expected)
    with chain.build(workers=0) as feed:
        assert passed(feed) == whole
    if where != "file" or name == "skipped":  # of which some are missing in each pass
        return
    with chain.cache(tmp_path / "kept").build(**options(mode)) as feed:
        assert passed(feed) == whole
        assert sorted(lost(feed)) == sorted(expected)
    with Dataset.snapshot(tmp_path / "kept").build(**options(mode)) as feed:
        assert passed(feed) == whole
        assert lost(feed) == [], "they were lost on the way into the file"


@each(KINDS, ())
@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("name", ["skipped", "replaced", "stream"])
def test_what_was_made_ahead_for_a_pass_that_was_left_is_counted_by_the_next(
    mode, where, name, tmp_path
):
    chain = CHAINS[name]()
    expected = lost_without(chain)
    with cached(chain, where, tmp_path).batch(2).build(**options(mode)) as feed:
        next(iter(feed))
        before = lost(feed)
        assert len(before) <= 2
        passed(feed)
        assert sorted(lost(feed)) == sorted(before + expected)


def states_of(chain: Dataset, **how: Any) -> list[Any]:
    """Behind each element but the last, where the next pass may have begun."""
    states = []
    with chain.build(**how) as feed:
        for _ in feed:
            states.append(json.loads(json.dumps(feed.state())))
    return states[:-1]


def lost_behind(chain: Dataset, state: Any, **how: Any) -> list[tuple[int, str]]:
    with chain.build(**how) as feed:
        feed.restore(state)
        passed(feed)
        return lost(feed)


@each((INLINE, THREADS), ())
@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("name", CHAINS)
def test_behind_a_state_it_tells_what_the_chain_itself_does(mode, where, name, tmp_path):
    plain = CHAINS[name]()
    chain = cached(plain, where, tmp_path)
    states = states_of(chain, **options(mode))
    for own, state in zip(states_of(plain, workers=0), states, strict=True):
        told = lost_behind(chain, state, **options(mode))
        assert sorted(told) == sorted(lost_behind(plain, own, workers=0))


def test_damage_of_what_it_tells_is_an_error(tmp_path):
    path = tmp_path / "kept"
    chain = CHAINS["stream"]()
    passed(chain.cache(path))
    sound = path.read_bytes()
    texts = [n for n in range(len(sound)) if sound.startswith(b'[["map(refuse)"', n)]
    assert len(texts) == 4, "in front of three elements, and behind the last"
    for place, text in enumerate(texts):
        damaged = bytearray(sound)
        damaged[text + 9] ^= 1
        path.write_bytes(damaged)
        with (
            chain.cache(path).build(workers=0) as feed,
            pytest.raises(penstock.DataLoss, match=r"kept.* byte .*is wrong; delete it"),
        ):
            passed(feed)
        if place < 3:
            with pytest.raises(penstock.DataLoss, match="checksum is wrong"):
                passed(Dataset.snapshot(path))
        else:
            assert len(passed(Dataset.snapshot(path))) == 35

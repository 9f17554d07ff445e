"""cache: a pass reports the losses before its elements, independent of when they were made."""

from __future__ import annotations

import json
import os
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, SPAWN, THREADS, each, options, passed
from dataset_functions import always
from penstock import Dataset

BAD = (5, 15, 25, 38, 39)


def refuse(number: Any) -> Any:
    if int(number) in BAD:
        raise ValueError(f"{int(number)} is bad, ü")
    return number


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
        case "no space":
            return chain.cache(max_bytes=17 << 10)
    return chain.cache(folder / "kept")


def lost(feed: penstock.Loader) -> list[tuple[int, str]]:
    """The losses since the feed was built, without their times."""
    stats = feed.stats()
    assert stats["skipped"] + stats["replaced"] == len(stats["losses"])
    return [(loss[1], loss[2]) for loss in stats["losses"]]


def lost_without(chain: Dataset) -> list[tuple[int, str]]:
    with chain.build(workers=0) as feed:
        passed(feed)
        losses = lost(feed)
    assert sorted({int(reason.split()[-4]) for _, reason in losses}) == list(BAD)
    return losses


@each(KINDS, (SPAWN,))
@pytest.mark.parametrize("where", ["memory", "no space", "file"])
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
    if where != "file" or name == "skipped":  # some elements are missing in each pass
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
    """After each element except the last, after which the next pass may have begun."""
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
        losses = lost_behind(chain, state, **options(mode))
        assert sorted(losses) == sorted(lost_behind(plain, own, workers=0))


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


def test_with_skip_only_the_count_is_lost_with_it(tmp_path):
    path = tmp_path / "kept"
    chain = CHAINS["stream"]()
    passed(chain.cache(path))
    damaged = bytearray(path.read_bytes())
    damaged[damaged.rindex(b"is bad")] ^= 1
    path.write_bytes(damaged)
    with chain.cache(path).build(workers=0, on_error="skip") as feed:
        for count in (1, 2):
            assert len(passed(feed)) == 35
            assert sum("checksum" in loss[2] for loss in feed.stats()["losses"]) == count


# ---- what another time may be there --------------------------------------------------------------


@each(KINDS, ())
@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_feed_left_out_of_a_batch_is_not_kept(mode, where, streamed, tmp_path):
    """The on_error= of another feed has no effect."""
    chain = Dataset.range(40).map(refuse)
    chain = (chain.filter(always) if streamed else chain).batch(4)
    chain = cached(chain.map(np.copy), where, tmp_path)
    with chain.build(on_error="skip", **options(mode)) as feed:
        first = passed(feed)
        assert len(feed.stats()["losses"]) == 5
        assert passed(feed) == first
        assert len(feed.stats()["losses"]) == 10
    assert not (tmp_path / "kept").exists()
    with chain.build(**options(mode)) as feed, pytest.raises(ValueError, match="5 is bad"):
        passed(feed)


class KillsOnce:
    """Kills three workers, and none at later calls."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def __call__(self, number: Any) -> Any:
        if int(number) == 7 and len(os.listdir(self.folder)) < 3:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number


@pytest.mark.parametrize("streamed", [False, True])
def test_what_cost_workers_is_made_again(streamed, tmp_path):
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    chain = Dataset.range(40).map(KillsOnce(deaths))
    chain = chain.on_error("skip").filter(always) if streamed else chain.on_error("replace")
    with chain.cache(tmp_path / "kept").build(
        workers=2, use_multiprocessing=True, start_method="fork"
    ) as feed:
        assert (7 in passed(feed)) is False
        assert len(lost(feed)) == 1
        assert passed(feed) == list(range(40))
        assert len(lost(feed)) == 1
    assert passed(Dataset.snapshot(tmp_path / "kept")) == list(range(40))


# ---- seeds ---------------------------------------------------------------------------------------


class Opens:
    """For each number, the numbers from 10 times it on, cached in a separate file."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def __call__(self, number: Any) -> Dataset:
        first = 10 * int(number)
        return Dataset.range(first, first + 10).map(drawn).cache(self.folder / str(int(number)))


def drawn(number: Any) -> Any:
    return number * 1000 + penstock.rng().integers(1000)


@each(KINDS, ())
def test_files_that_a_function_names_are_of_any_place_that_it_is_called_for(mode, tmp_path):
    chain = Dataset.range(4).shuffle(seed=1).interleave(Opens(tmp_path), cycle=2)
    with chain.build(seed=5, **options(mode)) as feed:
        passes = [passed(feed) for _ in range(3)]
    assert passes[0] != passes[1], "shuffled anew"
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(passes[2])
    draws = {n // 10000: [] for n in passes[0]}
    for n in sorted(passes[0]):
        draws[n // 10000].append(n % 1000)
    assert len({tuple(of) for of in draws.values()}) == 4, "each file its own"
    with (
        chain.build(seed=6, **options(mode)) as feed,
        pytest.raises(penstock.InvalidArgument, match=r"build\(seed=5\), and here with 6"),
    ):
        passed(feed)


def rarely(number: Any) -> bool:
    return bool(penstock.rng().integers(8) == 0)


def test_a_file_with_nothing_in_it_is_of_its_seed_too(tmp_path):
    chain = Dataset.range(2).filter(rarely)
    seeds = {True: [], False: []}
    for seed in range(20):
        with chain.build(workers=0, seed=seed) as feed:
            seeds[len(passed(feed)) == 0].append(seed)
    kept = chain.cache(tmp_path / "kept")
    with kept.build(workers=0, seed=seeds[True][0]) as feed:
        assert passed(feed) == []
    with (
        kept.build(workers=0, seed=seeds[False][0]) as feed,
        pytest.raises(penstock.InvalidArgument, match="seed"),
    ):
        passed(feed)

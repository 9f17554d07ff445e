"""Indexed, a lost element keeps its position; in a stream it is not counted."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, Mode, each, options, passed
from dataset_functions import always
from penstock import Dataset

MODES = (INLINE, THREADS, PROCESSES)
SOAK = (pytest.mark.slow, pytest.mark.soak)
LENGTH = 24
LOST = (2, 7, 8, 17)
SURVIVORS = [n for n in range(LENGTH) if n not in LOST]


def bad(n: Any) -> Any:
    """Fails at the lost numbers."""
    if int(n) in LOST:
        raise ValueError(f"bad {n}")
    return n


def not_lost(n: Any) -> bool:
    return int(n) not in LOST


def same(x: Any) -> Any:
    return x


def true_or_bad(n: Any) -> bool:
    bad(n)
    return True


def odd(n: Any) -> Any:
    return int(n) % 2


def rest_of_seven(n: Any) -> Any:
    return int(n) % 7


def below_22(n: Any) -> bool:
    return int(n) < 22


def added(state: Any, n: Any) -> Any:
    return state + n, state + n


def as_long(n: Any) -> Any:
    return np.arange(int(n) % 5)


def two_rows(n: Any) -> Any:
    return np.array([n, n + 100])


def three_from(n: Any) -> Dataset:
    return Dataset.range(int(n), int(n) + 3)


def with_losses(n: Any) -> Dataset:
    """Four numbers; the second one is lost."""
    first = 4 * int(n)
    return Dataset.range(first, first + 4).map(_Without(first + 1))


def without_them(n: Any) -> Dataset:
    first = 4 * int(n)
    return Dataset.range(first, first + 4).filter(_Not(first + 1))


class _Without:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, n: Any) -> Any:
        if n == self.number:
            raise ValueError("bad")
        return n


class _Not(_Without):
    def __call__(self, n: Any) -> bool:
        return bool(n != self.number)


NUMBERS = Dataset.range(LENGTH)
STREAM = NUMBERS.filter(always)
OTHERS = Dataset.range(100, 130)

# Streams of the remaining elements, by the place at which the others are lost.
STREAMS: dict[str, Dataset] = {
    "in front": NUMBERS.map(bad).filter(always),
    "behind": STREAM.map(bad),
    "behind, then a function": STREAM.map(bad).map(same),
    "in the predicate": NUMBERS.filter(true_or_bad),
}
Stage = Callable[[Dataset], Dataset]
STAGES: dict[str, Stage] = {
    "map": lambda s: s.map(same),
    "filter": lambda s: s.filter(odd),
    "enumerate": lambda s: s.enumerate(),
    "enumerate, batch": lambda s: s.enumerate().batch(3),
    "batch": lambda s: s.batch(4),
    "batch, drop_last": lambda s: s.batch(3, drop_last=True),
    "padded_batch": lambda s: s.map(as_long).padded_batch(3),
    "ragged_batch": lambda s: s.map(as_long).ragged_batch(3),
    "take": lambda s: s.take(5),
    "skip": lambda s: s.skip(5),
    "take, skip": lambda s: s.take(10).skip(3),
    "take, map": lambda s: s.take(5).map(same),
    "batch, take": lambda s: s.batch(3).take(2),
    "batch, skip": lambda s: s.batch(3).skip(2),
    "batch, map, take": lambda s: s.batch(3).map(same).take(2),
    "batch, enumerate": lambda s: s.batch(3).enumerate(),
    "batch, batch": lambda s: s.batch(2).batch(2),
    "window": lambda s: s.window(3, shift=2, drop_last=True),
    "shuffle": lambda s: s.shuffle(buffer=4, seed=1),
    "zip": lambda s: Dataset.zip(s, OTHERS),
    "zip of streams": lambda s: Dataset.zip(OTHERS.filter(always), s),
    "concatenate": lambda s: s.concatenate(OTHERS),
    "concatenate, take": lambda s: OTHERS.take(3).concatenate(s).take(8),
    "interleave": lambda s: Dataset.interleave([s, OTHERS], cycle=2, block=2),
    "interleave by a function": lambda s: s.interleave(three_from, cycle=2, block=2),
    "flat_map": lambda s: s.flat_map(three_from),
    "repeat": lambda s: s.repeat(2),
    "repeat, enumerate": lambda s: s.repeat(2).enumerate(),
    "scan": lambda s: s.scan(added, np.int64(0)),
    "unique": lambda s: s.unique(key=rest_of_seven),
    "bucket_by_length": lambda s: s.map(as_long).bucket_by_length([2], [3, 3]),
    "unbatch": lambda s: s.map(two_rows).unbatch().batch(3),
    "rebatch": lambda s: s.batch(4).rebatch(3),
    "cache": lambda s: s.cache(),
    "cache, take": lambda s: s.cache().take(5),
    "cache, batch": lambda s: s.cache().batch(4),
    "sample_from": lambda s: Dataset.sample_from([s, OTHERS], seed=3),
    "choose_from": lambda s: Dataset.choose_from(Dataset.range(2).repeat(20), [s, OTHERS]),
    "choices": lambda s: Dataset.choose_from(s.map(odd), [OTHERS, OTHERS.skip(5)]),
    "take_while": lambda s: s.take_while(below_22),
    "shard": lambda s: s.shard(1, 2),
    "split_batch": lambda s: s.batch(4, drop_last=True).split_batch(2),
    "assert_cardinality": lambda s: s.assert_cardinality(len(SURVIVORS)).batch(4),
    "prefetch": lambda s: s.prefetch(2).take(5),
}


def fed(dataset: Dataset, mode: Mode, on_error: str = "skip") -> list[Any]:
    with dataset.build(on_error=on_error, **options(mode)) as feed:
        return passed(feed)


# Where the policy is.
POLICIES = ("of the feed", "before the stage", "after it")


def check_stream(stage: str, where: str, mode: Mode, policies: Sequence[str] = POLICIES) -> None:
    expected = fed(STAGES[stage](NUMBERS.filter(not_lost).map(same)), INLINE)
    stream = STREAMS[where]
    if "of the feed" in policies:
        assert fed(STAGES[stage](stream), mode) == expected
    if "before the stage" in policies:
        assert fed(STAGES[stage](stream.on_error("skip")), mode, "raise") == expected
    if "after it" in policies and stage != "split_batch":  # which must be the last stage
        assert fed(STAGES[stage](stream).on_error("skip"), mode, "raise") == expected


@pytest.mark.parametrize("where", STREAMS)
@pytest.mark.parametrize("stage", STAGES)
def test_in_a_stream_a_lost_element_never_existed(stage: str, where: str) -> None:
    check_stream(stage, where, INLINE)


@pytest.mark.parametrize(
    ("stage", "where"),
    [
        pytest.param(stage, where, marks=() if number % len(STREAMS) == place else SOAK)
        for number, stage in enumerate(STAGES)
        for place, where in enumerate(STREAMS)
    ],
)
def test_so_it_is_in_workers(stage: str, where: str) -> None:
    """Each stage behind one of the streams, and all of them in a soak."""
    check_stream(stage, where, THREADS)
    number = list(STAGES).index(stage)
    check_stream(stage, where, PROCESSES, [POLICIES[number // len(STREAMS) % len(POLICIES)]])


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("where", STREAMS)
@pytest.mark.parametrize("stage", STAGES)
def test_so_it_is_in_processes(stage: str, where: str) -> None:
    check_stream(stage, where, PROCESSES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "where"),
    [
        pytest.param(stage, where, marks=() if number == 10 * place else pytest.mark.soak)
        for number, stage in enumerate(STAGES)
        for place, where in enumerate(STREAMS)
    ],
)
def test_so_it_is_in_spawned_processes(stage: str, where: str) -> None:
    check_stream(stage, where, SPAWN)


@pytest.mark.parametrize("stage", STAGES)
def test_nor_does_it_behind_any_state(stage: str) -> None:
    """A state is taken at every element, and restored with another number of workers."""
    for where in ("in front", "behind, then a function"):
        dataset = STAGES[stage](STREAMS[where])
        for taken, restored in ((INLINE, THREADS), (THREADS, INLINE)):
            whole = fed(dataset, taken)
            with (
                dataset.build(on_error="skip", **options(taken)) as feed,
                dataset.build(on_error="skip", **options(restored)) as other,
            ):
                steps = iter(feed)
                counted = None
                for place in range(len(whole) + 1):
                    before, others = feed.stats()["skipped"], other.stats()["skipped"]
                    state = json.loads(json.dumps(feed.state()))
                    if state["epoch"] > 0:
                        break
                    other.restore(state)
                    assert passed(other) == whole[place:], f"after {place}"
                    lost = before + other.stats()["skipped"] - others
                    assert lost == (lost if counted is None else counted), f"after {place}"
                    counted = lost
                    if place < len(whole):
                        next(steps)


@pytest.mark.parametrize("mode", [*MODES, pytest.param(SPAWN, marks=SOAK)], ids=str)
@pytest.mark.parametrize("stream", STREAMS)
def test_take_and_skip_of_a_stream_are_all_survivors(stream: str, mode: Mode) -> None:
    for n in (5, 20) if mode is PROCESSES else (0, 1, 2, 5, 7, 19, 20, 30):
        taken, skipped = STREAMS[stream].take(n), STREAMS[stream].skip(n)
        assert fed(taken, mode) == SURVIVORS[:n]
        assert fed(skipped, mode) == SURVIVORS[n:]


@each(MODES, ())
def test_what_a_function_opens_is_a_stream_like_others(mode: Mode) -> None:
    numbers = Dataset.range(6)
    for cycle, block in ((1, 1), (2, 2), (3, 1)):
        lossy = numbers.interleave(with_losses, cycle=cycle, block=block)
        sound = numbers.interleave(without_them, cycle=cycle, block=block)
        for dataset in (lossy, lossy.on_error("skip")):
            on_error = "skip" if dataset is lossy else "raise"
            assert fed(dataset, mode, on_error) == fed(sound, mode)


# The effect of stages on positions, some of which are lost (None).
Positions = list[Any]
INDEXED: dict[str, tuple[Stage, Callable[[Positions], Positions]]] = {
    "map": (lambda s: s.map(same), lambda p: p),
    "take": (lambda s: s.take(9), lambda p: p[:9]),
    "skip": (lambda s: s.skip(9), lambda p: p[9:]),
    "batch": (lambda s: s.batch(4), lambda p: [p[i : i + 4] for i in range(0, LENGTH, 4)]),
    "batch, take": (lambda s: s.batch(3).take(3), lambda p: [p[:3], p[3:6], p[6:9]]),
    "enumerate": (
        lambda s: s.enumerate(),
        lambda p: [None if n is None else [i, n] for i, n in enumerate(p)],
    ),
    "zip": (
        lambda s: Dataset.zip(s, OTHERS),
        lambda p: [None if n is None else [n, 100 + i] for i, n in enumerate(p)],
    ),
    "concatenate, skip": (
        lambda s: OTHERS.take(3).concatenate(s).skip(5),
        lambda p: [100, 101, 102, *p][5:],
    ),
    "interleave": (
        lambda s: Dataset.interleave([s, OTHERS.take(LENGTH)], cycle=2),
        lambda p: [n for i, own in enumerate(p) for n in (own, 100 + i)],
    ),
    "repeat, take": (lambda s: s.repeat(2).take(30), lambda p: (p + p)[:30]),
    "shard": (lambda s: s.shard(1, 3), lambda p: p[1::3]),
    "window": (lambda s: s.window(3, shift=6), lambda p: [p[i : i + 3] for i in range(0, 24, 6)]),
    "cache, skip": (lambda s: s.cache().skip(9), lambda p: p[9:]),
    "prefetch": (lambda s: s.prefetch(2).take(9), lambda p: p[:9]),
    "assert_cardinality": (lambda s: s.assert_cardinality(LENGTH).skip(9), lambda p: p[9:]),
}


@pytest.mark.parametrize("mode", [*MODES, pytest.param(SPAWN, marks=SOAK)], ids=str)
@pytest.mark.parametrize("stage", INDEXED)
def test_in_what_is_indexed_a_lost_element_keeps_its_position(stage: str, mode: Mode) -> None:
    make, positions = INDEXED[stage]
    made = positions([None if n in LOST else n for n in range(LENGTH)])
    expected = [
        [n for n in one if n is not None] if isinstance(one, list) else one
        for one in made
        if one is not None
    ]
    lossy = NUMBERS.map(bad)
    assert fed(make(lossy), mode) == expected
    assert fed(make(lossy.on_error("skip")), mode, "raise") == expected


@each(MODES, ())
def test_a_shuffle_of_what_is_indexed_is_the_same_one_with_losses(mode: Mode) -> None:
    whole = fed(NUMBERS.shuffle(seed=3), mode)
    assert fed(NUMBERS.map(bad).shuffle(seed=3), mode) == [n for n in whole if not_lost(n)]


@each(MODES, ())
def test_what_is_raised_behind_a_batch_of_a_stream_is_not_left_out_in_front(mode: Mode) -> None:
    for stream in STREAMS.values():
        for dataset in (stream.batch(4), stream.batch(4).map(same), stream.take(5), stream.skip(5)):
            with pytest.raises(ValueError, match="bad 2"):
                fed(dataset.on_error("raise"), mode, "skip")


def test_a_state_goes_to_a_feed_whose_elements_are_made_alike() -> None:
    ways = ("raise", "skip")
    apart = STREAM.map(same).batch(4)
    alike = (STREAM.batch(4), STREAM.map(same).skip(3), STREAM.map(bad).on_error("skip").batch(4))
    for dataset in (apart, *alike):
        for saved, restored in (ways, ways[::-1]):
            with (
                dataset.build(on_error=saved, **options(INLINE)) as feed,
                dataset.build(on_error=restored, **options(INLINE)) as other,
            ):
                whole = passed(feed)
                next(iter(feed))
                state = feed.state()
                if dataset is not apart:
                    other.restore(state)
                    assert passed(other) == whole[1:]
                    continue
                with pytest.raises(penstock.InvalidArgument, match="on_error"):
                    other.restore(state)


@each((INLINE, PROCESSES), ())
def test_feeds_of_both_kinds_share_what_is_kept(mode: Mode, tmp_path: pathlib.Path) -> None:
    """A Dataset has one cache for all policies after it."""
    calls = tmp_path / "calls"

    def noted(n: Any) -> Any:
        with calls.open("a") as file:
            file.write(f"{n}\n")
        return n

    for where in (None, tmp_path / "kept"):
        kept = NUMBERS.filter(always).map(noted)
        dataset = kept.cache() if where is None else kept.cache(where)
        calls.write_text("")
        assert len(list(dataset.build(on_error="skip", **options(mode)))) == LENGTH
        assert len(list(dataset.build(**options(mode)))) == LENGTH
        assert len(calls.read_text().split()) == LENGTH
    assert penstock.Dataset.snapshot(tmp_path / "kept").cardinality() == LENGTH

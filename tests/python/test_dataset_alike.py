"""Dataset: a stream's schema is that of its first element, in every mode and from every place."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, THREADS, Mode, each, options, passed
from dataset_functions import always, as_it_is
from penstock import Dataset

ELEMENTS = 12
SOAK = (pytest.mark.slow, pytest.mark.soak)


class ThatOneIsReal:
    """Returns its number, except one as a floating-point number."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, number: Any) -> Any:
        return float(number) if int(number) == self.at else int(number)


class AddsNothing(ThatOneIsReal):
    def __call__(self, carry: Any, number: Any) -> Any:
        return carry, super().__call__(number)


class OpensOne(ThatOneIsReal):
    def __call__(self, number: Any) -> Dataset:
        return Dataset.items([super().__call__(number)])


class OpensAll(ThatOneIsReal):
    def __call__(self, number: Any) -> Dataset:
        return Dataset.range(ELEMENTS).map(ThatOneIsReal(self.at))


class Yields:
    def __init__(self, numbers: list[Any]) -> None:
        self.numbers = numbers

    def __call__(self) -> Iterator[Any]:
        return iter(self.numbers)


class AnswersOfTwoTypes:
    """A predicate that is true for all numbers, with another type for one."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, number: Any) -> Any:
        return 1.5 if int(number) == self.at else True


def parts(at: int) -> list[Dataset]:
    """Streams of one schema each: the elements before `at`, `at`, and the elements after it."""
    numbers = list(range(ELEMENTS))
    return [
        Dataset.generator(Yields(some))
        for some in (numbers[:at], [float(at)], numbers[at + 1 :])
        if some
    ]


def chosen(at: int) -> Dataset:
    choices = [0 if n < at else 1 if n == at else 2 for n in range(ELEMENTS)]
    return Dataset.choose_from(Dataset.generator(Yields(choices)), parts(at))


CHAINS: dict[str, Callable[[int], Dataset]] = {
    "mapped": lambda at: Dataset.range(ELEMENTS).map(ThatOneIsReal(at)).filter(always),
    "mapped twice": lambda at: (
        Dataset.range(ELEMENTS).map(ThatOneIsReal(at)).map(as_it_is).filter(always)
    ),
    "of a stream": lambda at: (
        Dataset.range(ELEMENTS).filter(always).map(ThatOneIsReal(at)).filter(always)
    ),
    "unique": lambda at: Dataset.range(ELEMENTS).map(ThatOneIsReal(at)).unique(),
    "shuffled": lambda at: (
        Dataset.range(ELEMENTS).map(ThatOneIsReal(at)).filter(always).shuffle(seed=1, buffer=1)
    ),
    "zipped": lambda at: (
        Dataset.zip(Dataset.range(ELEMENTS).map(ThatOneIsReal(at)), Dataset.range(ELEMENTS))
        .filter(lambda number, place: True)
        .map(lambda number, place: number)
    ),
    "cached": lambda at: Dataset.range(ELEMENTS).map(ThatOneIsReal(at)).cache().filter(always),
    "cached stream": lambda at: (
        Dataset.range(ELEMENTS).map(ThatOneIsReal(at)).filter(always).cache()
    ),
    "generated": lambda at: Dataset.generator(Yields([*range(at), float(at), *range(at + 1, 12)])),
    "scanned": lambda at: Dataset.range(ELEMENTS).scan(AddsNothing(at), 0),
    "flat": lambda at: Dataset.range(ELEMENTS).flat_map(OpensOne(at)),
    "opened": lambda at: Dataset.range(1).flat_map(OpensAll(at)),
    "interleaved": lambda at: Dataset.range(ELEMENTS).interleave(OpensOne(at), cycle=1),
    "in a row": lambda at: Dataset.concatenate(*parts(at)),
    "chosen": chosen,
}


@each(KINDS, ())
@pytest.mark.parametrize("at", [1, *(pytest.param(n, marks=SOAK) for n in (2, 7)), 3, 11])
@pytest.mark.parametrize("name", CHAINS)
def test_an_element_unlike_the_first_one_fails_alone(name: str, at: int, mode: Mode) -> None:
    """In line and with workers, for any chunks of elements, and for any state."""
    rows = CHAINS[name](at)
    expected = [n for n in range(ELEMENTS) if n != at]
    with rows.batch(4).build(on_error="skip", **options(mode)) as feed:
        for count in (1, 2):
            assert [n for batch in passed(feed) for n in batch] == expected
            assert feed.stats()["skipped"] == count
    with (
        rows.build(on_error="skip", **options(mode)) as feed,
        rows.build(on_error="skip", workers=0) as other,
    ):
        for place, number in enumerate(feed, 1):
            assert number == expected[place - 1]
            if place == len(expected):  # after which the next pass begins
                break
            other.restore(feed.state())
            assert passed(other) == expected[place:]
    with rows.build(**options(mode)) as feed:
        got = []
        with pytest.raises(penstock.InvalidArgument, match="alike"):
            got.extend(passed_one_by_one(feed))
        assert got == list(range(at))


def passed_one_by_one(feed: Any) -> Iterator[Any]:
    for number in feed:
        yield int(number)


def second(_: Any, number: Any) -> Any:
    return number


def both(_: Any, number: Any) -> bool:
    return True


@each(KINDS, ())
@pytest.mark.parametrize("at", [1, 7])
def test_policies_decide_of_what_is_unlike(at: int, mode: Mode) -> None:
    unlike = Dataset.range(ELEMENTS).map(ThatOneIsReal(at))
    expected = [n for n in range(ELEMENTS) if n != at]
    for kept in (
        unlike.on_error("skip").filter(always),
        unlike.on_error("skip").take(ELEMENTS).unique(),
        unlike.filter(always).on_error("skip"),
        unlike.filter(always).map(ThatOneIsReal(at)).on_error("skip").filter(always),
        unlike.on_error("skip").batch(12).unbatch(),
        unlike.on_error("skip").enumerate().batch(12).unbatch().map(second),
        Dataset.zip(Dataset.range(12), unlike.on_error("skip")).filter(both).map(second),
        Dataset.concatenate(unlike.on_error("skip"), Dataset.range(0)).batch(12).unbatch(),
    ):
        with kept.build(**options(mode)) as feed:
            assert passed(feed) == expected
            assert feed.stats()["skipped"] == 1
    for raises in (
        unlike.filter(always),
        unlike.on_error("replace").filter(always),
        unlike.on_error("skip").map(ThatOneIsReal(at)).filter(always),
    ):
        with (
            raises.build(**options(mode)) as feed,
            pytest.raises(penstock.InvalidArgument, match="alike"),
        ):
            passed(feed)
    for raised in (
        unlike.on_error("raise").filter(always),
        unlike.on_error("raise").batch(12),
        unlike.on_error("raise").enumerate().batch(12),
    ):
        with (
            raised.build(on_error="skip", **options(mode)) as feed,
            pytest.raises(penstock.InvalidArgument, match="alike"),
        ):
            passed(feed)


@each(KINDS, ())
@pytest.mark.parametrize("at", [1, 63, 64, 65, 128])
def test_one_in_a_large_batch_fails_alone(at: int, mode: Mode) -> None:
    unlike = Dataset.range(140).map(ThatOneIsReal(at))
    lengths = [129, 10] if at < 130 else [130, 9]
    stream = Dataset.range(140).filter(always).map(ThatOneIsReal(at))
    for batches, expected in (
        (unlike.batch(130), lengths),
        (unlike.batch(130).map(as_it_is), lengths),
        (unlike.batch(130).filter(lambda batch: True), lengths),
        (stream.batch(130), [130, 9]),  # in a stream it is not counted
    ):
        with batches.build(on_error="skip", **options(mode)) as feed:
            assert [len(batch) for batch in feed] == expected
            assert feed.stats()["losses"][0][1] == at


@each(KINDS, ())
def test_one_of_more_leaves_fails_alone(mode: Mode) -> None:
    """After an input with a known schema."""
    numbers = Dataset.range(8).map(ThatOneIsReal(20))
    for others in (Dataset.range(4).enumerate(), Dataset.zip(*[Dataset.range(4)] * 6)):
        for chain in (numbers.concatenate(others), Dataset.interleave([numbers, others], cycle=2)):
            for batches in (chain.batch(20), chain.filter(lambda *any: True).batch(20)):
                with batches.build(on_error="skip", **options(mode)) as feed:
                    assert passed(feed) == [list(range(8))]
                    assert feed.stats()["skipped"] == 4


@each((INLINE, THREADS, PROCESSES), ())
def test_who_raises_names_the_one_that_is_unlike_the_batch(mode: Mode) -> None:
    """Also if another worker makes the part of the batch that begins with it."""
    rows = Dataset.range(64).map(slow).map(ThatOneIsReal(44)).batch(8)
    with rows.build(**options(mode)) as feed:
        begin = feed.state()
        for _ in range(3):
            feed.restore(begin)
            steps = iter(feed)
            for _ in range(5):
                next(steps)
            place = feed.state()
            with pytest.raises(penstock.InvalidArgument, match=r"int64.* and .*float64") as caught:
                next(steps)
            assert "index 44" in str(caught.value.__cause__)
            feed.restore(place)
            with pytest.raises(penstock.InvalidArgument, match=r"int64.* and .*float64"):
                next(iter(feed))


def slow(number: Any) -> Any:
    time.sleep(0.002)
    return number


def half_are_real(number: Any) -> Any:
    time.sleep(0.001)
    return int(number) if int(number) % 8 < 4 else float(number)


def whole(number: Any) -> Any:
    return np.int64(number)


@each((INLINE, THREADS, PROCESSES), ())
def test_what_elements_are_made_of_need_not_be_alike(mode: Mode) -> None:
    """Also if two workers make a batch together, and if a cache has part of it."""
    rows = Dataset.range(64).map(half_are_real).map(whole)
    for batches in (
        rows.batch(8),
        rows.cache().batch(8),
        rows.cache().shuffle(seed=1).batch(8),
        Dataset.range(64).filter(always).map(half_are_real).map(whole).batch(8),
    ):
        with batches.build(on_error="raise", **options(mode)) as feed:
            begin = feed.state()
            for _ in range(3):
                feed.restore(begin)
                steps = iter(feed)
                assert len(next(steps)) == 8
            for _ in range(2):
                assert [len(batch) for batch in feed] == [8] * 8


class RealInFives:
    def __call__(self, number: Any) -> Any:
        return float(number) if int(number) % 5 == 2 else int(number)


@pytest.mark.parametrize("in_file", [False, True])
def test_a_cache_keeps_elements_as_if_they_were_alone(tmp_path: Any, in_file: bool) -> None:
    arguments = (tmp_path / "kept",) if in_file else ()
    rows = Dataset.range(12).map(RealInFives())
    windows = [[0, 1, 3], [2.0], [4, 5, 6], [6, 8, 9], [8, 9, 10, 11]]
    for chain in (rows, rows.cache(*arguments)):
        with chain.window(4, shift=2, drop_last=True).build(on_error="skip", workers=0) as feed:
            for _ in range(2):
                assert passed(feed) == windows
    replaced = Dataset.range(12).map(ThatOneIsReal(5)).on_error("replace")
    for chain in (replaced, replaced.cache()):
        with chain.filter(always).build(on_error="skip", workers=0) as feed:
            for _ in range(2):
                assert passed(feed) == [n for n in range(12) if n != 5]
            assert feed.stats()["replaced"] == 0


class RealFromEight:
    def __call__(self, number: Any) -> Any:
        return float(number) if number >= 8 else int(number)


@each((INLINE, THREADS), ())
def test_rounds_are_alike(mode: Mode) -> None:
    numbers = Dataset.range(16).shuffle(seed=5).take(4)
    with numbers.repeat(6).build(workers=0) as feed:
        drawn = passed(feed)
    # Elements with the schema of their round's first element, of rounds that begin like the first.
    first = [drawn[at // 4 * 4] >= 8 for at in range(len(drawn))]
    expected = [n for n, real in zip(drawn, first, strict=True) if (n >= 8) == real == first[0]]
    assert 4 < len(expected) < len(drawn)
    rounds = numbers.map(RealFromEight()).filter(always).repeat(6)
    for chain in (
        rounds.filter(always),
        rounds.shuffle(buffer=1, seed=1),
        rounds.batch(3).unbatch(),
    ):
        with chain.build(on_error="skip", **options(mode)) as feed:
            assert passed(feed) == expected
            assert feed.stats()["skipped"] == len(drawn) - len(expected)
    endless = numbers.map(RealFromEight()).filter(always).repeat().filter(always)
    with endless.take(len(expected)).build(on_error="skip", **options(mode)) as feed:
        assert passed(feed) == expected
    with (
        rounds.filter(always).build(on_error="skip", **options(mode)) as feed,
        rounds.filter(always).build(on_error="skip", workers=0) as other,
    ):
        for place, number in enumerate(feed, 1):
            assert number == expected[place - 1]
            if place == len(expected):
                break
            other.restore(feed.state())
            assert passed(other) == expected[place:]


@each(KINDS, ())
@pytest.mark.parametrize("at", [0, 1, 7])
def test_verdicts_need_not_be_alike(at: int, mode: Mode) -> None:
    for rows in (Dataset.range(ELEMENTS), Dataset.range(ELEMENTS).map(as_it_is)):
        with rows.filter(AnswersOfTwoTypes(at)).build(**options(mode)) as feed:
            assert passed(feed) == list(range(ELEMENTS))
        with rows.unique(key=ThatOneIsReal(at)).build(**options(mode)) as feed:
            assert passed(feed) == list(range(ELEMENTS))


@pytest.mark.parametrize("at", [0, 1, 7])
def test_elements_of_columns_are_alike(at: int) -> None:
    """The type of a batch does not include the lengths in a column."""

    def of_its_own_length(number: Any) -> Any:
        kind = np.float64 if int(number) // 2 == at else np.int64
        return np.full(1 + int(number) % 2, number, kind)

    rows = Dataset.range(16).map(of_its_own_length).ragged_batch(2).filter(always).unbatch()
    first = {0, 1} if at == 0 else set(range(16)) - {2 * at, 2 * at + 1}
    for workers in (0, 2):
        with rows.build(on_error="skip", workers=workers, use_multiprocessing=False) as feed:
            assert {int(row[0]) for row in feed} == first
            assert feed.stats()["skipped"] == 16 - len(first)


class LongerFromSeventy:
    def __call__(self, number: Any) -> Any:
        return np.full(3 if int(number) < 70 else 4, number, np.int64)


@each((INLINE, THREADS, PROCESSES), ())
def test_arrays_that_only_they_tell_of_are_arrays_whatever_came_with_them(mode: Mode) -> None:
    rows = Dataset.range(140).map(LongerFromSeventy()).filter(always)
    with rows.build(**options(mode)) as feed:
        for _ in range(2):
            assert [(type(row), row.shape) for row in feed] == [
                (np.ndarray, (3 if n < 70 else 4,)) for n in range(140)
            ]


@each((INLINE, THREADS, PROCESSES), ())
def test_a_ragged_batch_is_as_its_own_rows_are(mode: Mode) -> None:
    """An array if these rows have equal shapes, whatever other rows were made with them."""
    for rows in (
        Dataset.range(140).map(LongerFromSeventy()),
        Dataset.range(140).map(LongerFromSeventy()).filter(always),
    ):
        with rows.ragged_batch(20).build(**options(mode)) as feed:
            for _ in range(2):
                kinds = [type(batch) for batch in feed]
                assert kinds == [np.ndarray] * 3 + [penstock.Ragged] + [np.ndarray] * 3
        with rows.ragged_batch(20).build(workers=0) as feed:
            steps = iter(feed)
            for _ in range(2):
                next(steps)
            feed.restore(feed.state())
            assert [type(batch) for batch in feed] == kinds[2:]


@pytest.mark.parametrize("said", ["", "AAAA", 3, None])
def test_a_state_that_does_not_say_what_elements_are_is_refused(said: Any) -> None:
    rows = Dataset.range(ELEMENTS).map(ThatOneIsReal(20)).filter(always)
    with rows.build(workers=0) as feed:
        next(iter(feed))
        state = feed.state()
        text = json.dumps(state)
        assert text.count('"alike": "') == 1
        with pytest.raises(penstock.InvalidArgument, match="alike"):
            feed.restore(
                json.loads(re.sub('"alike": "[^"]*"', f'"alike": {json.dumps(said)}', text))
            )
            next(iter(feed))

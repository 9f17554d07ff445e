"""Lost elements take no place in a stream, in any mode, and are counted exactly once."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, Mode, each, options, passed, plain
from dataset_functions import always, as_it_is
from penstock import Dataset

MODES = (INLINE, THREADS, PROCESSES)


class Bad:
    """Returns the number, except for some."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __call__(self, n: Any) -> Any:
        if int(n) in self.numbers:
            raise ValueError(f"bad {n}")
        return n


def uneven(n: Any) -> Any:
    """Some take longer, so the elements that are ready together differ from run to run."""
    time.sleep(0.0001 * (int(n) % 3))
    return n


def forgiving(length: int, *bad: int) -> Dataset:
    return Dataset.range(length).map(Bad(*bad)).on_error("skip").filter(always)


def eight_of(batch: Any) -> int:
    return int(batch[0]) // 8


def without_fours(batch: Any) -> Any:
    return batch[:0] if 4 in batch.tolist() else batch


def below_eight(batch: Any) -> bool:
    return bool(batch[0] < 8)


def in_the_64th(batch: Any) -> bool:
    return not 63 * 4 <= int(batch[0]) < 64 * 4


def some_of(n: Any) -> Dataset:
    del n
    return forgiving(6, 1, 4)


ENDS_BADLY = forgiving(8, 6, 7).map(as_it_is)
MORE = Dataset.range(100, 110)
ONE_LOST = forgiving(10, 1)
UNEVEN = (
    Dataset.range(60)
    .map(Bad(*range(3, 60, 10)))
    .on_error("skip")
    .filter(always)
    .map(uneven)
    .window(3, shift=2, drop_last=True)
)

# A chain, and the number of lost elements.
CHAINS: dict[str, tuple[Dataset, int]] = {
    "behind the last, dealt out": (ENDS_BADLY.concatenate(MORE).shard(0, 2), 2),
    "behind the last, drawn": (Dataset.sample_from([ENDS_BADLY, MORE], seed=3), 2),
    "behind the last, in turns": (Dataset.interleave([ENDS_BADLY, MORE], cycle=2), 2),
    "behind the last, chosen": (
        Dataset.choose_from(Dataset.range(2).repeat(10), [ENDS_BADLY, MORE]),
        2,
    ),
    "behind the last, zipped": (Dataset.zip(ENDS_BADLY, Dataset.range(6)), 2),
    "behind the last, skipped": (ENDS_BADLY.skip(7), 2),
    "behind the last, unique": (ENDS_BADLY.concatenate(MORE).unique(), 2),
    "behind the last, mixed": (ENDS_BADLY.concatenate(MORE).shuffle(buffer=4, seed=1), 2),
    "zipped": (Dataset.zip(ONE_LOST, Dataset.range(10)), 1),
    "zipped, mapped": (Dataset.zip(ONE_LOST.map(as_it_is), Dataset.range(10)), 1),
    "counted": (ONE_LOST.enumerate(), 1),
    "skipped": (ONE_LOST.skip(4), 1),
    "skipped, mapped": (ONE_LOST.map(as_it_is).skip(4), 1),
    "windows": (UNEVEN.filter(always), 6),
    "some windows": (
        Dataset.range(36).flat_map(some_of).map(uneven).window(3, shift=2).unbatch().take(120),
        40,
    ),
    "buckets, the rest dropped": (
        forgiving(10, 8)
        .map(lambda n: np.arange(int(n) % 5))
        .bucket_by_length([2], [7, 7], drop_last=True),
        1,
    ),
    "the choice that ends it": (
        Dataset.choose_from(
            forgiving(20, 8).map(lambda n: np.int64(n * 0)), [Dataset.range(8)], stop_on_empty=True
        ),
        1,
    ),
    "choices": (
        Dataset.choose_from(
            forgiving(10, 3).map(lambda n: np.int64(n % 2)), [MORE, Dataset.range(200, 220)]
        ),
        1,
    ),
}
# The same, for elements that the feed leaves out.
FED: dict[str, tuple[Dataset, int]] = {
    "a batch that is there already": (
        Dataset.range(40).map(Bad(5)).batch(4).map(eight_of).unique(),
        1,
    ),
    "a batch that becomes nothing": (
        Dataset.range(12).map(Bad(5)).batch(4).map(without_fours).unbatch(),
        1,
    ),
    "the batch that ends it": (Dataset.range(40).map(Bad(9)).batch(4).take_while(below_eight), 1),
    "a chunk's last batch is dropped": (
        Dataset.range(4 * 70).map(Bad(63 * 4 + 1, 10)).batch(4).filter(in_the_64th).skip(60),
        2,
    ),
    "two at the end": (
        Dataset.range(10)
        .map(Bad(8, 9))
        .filter(always)
        .batch(4)
        .map(as_it_is)
        .concatenate(Dataset.range(100, 120).batch(4).filter(always))
        .shard(0, 2),
        2,
    ),
}
ALL = CHAINS | FED


def counted(feed: Any) -> int:
    return int(feed.stats()["skipped"])


@pytest.mark.parametrize("chain", ALL)
def test_elements_and_losses_are_the_same_whoever_makes_them(chain: str) -> None:
    dataset, lost = ALL[chain]
    came = []
    for mode in (INLINE, THREADS, THREADS):
        with dataset.build(on_error="skip", **options(mode)) as feed:
            came.append(passed(feed))
            assert counted(feed) == lost, mode
    assert came[1:] == came[:-1]


@each((PROCESSES,), (SPAWN,))
def test_and_by_processes(mode: Mode) -> None:
    for chain in ("behind the last, dealt out", "windows", "two at the end"):
        dataset, lost = ALL[chain]
        with dataset.build(on_error="skip", **options(INLINE)) as feed:
            expected = passed(feed)
        with dataset.build(on_error="skip", **options(mode)) as feed:
            assert passed(feed) == expected
            assert counted(feed) == lost


@pytest.mark.parametrize("chain", ALL)
def test_wherever_one_goes_on(chain: str) -> None:
    """A state is taken at every element and restored with another number of workers."""
    dataset, lost = ALL[chain]
    for taken, restored in ((INLINE, THREADS), (THREADS, INLINE)):
        with dataset.build(on_error="skip", **options(taken)) as feed:
            whole = passed(feed)
        with (
            dataset.build(on_error="skip", **options(taken)) as feed,
            dataset.build(on_error="skip", **options(restored)) as other,
        ):
            steps = iter(feed)
            for place in range(len(whole) + 1):
                before, others = counted(feed), counted(other)
                state = json.loads(json.dumps(feed.state()))
                if state["epoch"] > 0:
                    break
                other.restore(state)
                assert passed(other) == whole[place:], f"after {place}"
                assert before + counted(other) - others == lost, f"after {place}"
                if place < len(whole):
                    next(steps)


@each((INLINE, THREADS), ())
def test_each_pass_counts_what_was_lost_on_the_way_to_what_is_kept(mode: Mode) -> None:
    kept = ENDS_BADLY.cache().concatenate(MORE).filter(always)
    mixed = forgiving(60, *range(3, 60, 6)).map(uneven).map(Bad(20, 40)).cache().shuffle(buffer=1)
    with kept.build(**options(mode)) as feed:
        for count in (1, 2, 3):
            assert passed(feed) == [*range(6), *range(100, 110)]
            assert counted(feed) == 2 * count
    with mixed.build(on_error="skip", **options(mode)) as feed:
        lost = [counted(feed) for _ in range(3) if len(passed(feed)) == 48]
        assert lost == [12, 24, 36]


@each((INLINE, THREADS), ())
def test_a_loss_is_counted_with_the_element_behind_it(tmp_path: Any, mode: Mode) -> None:
    """Also if elements are delivered one by one, and many are made at a time."""
    path = tmp_path / "numbers.csv"
    path.write_text("n\n" + "".join(f"{n if n % 2 else 'x'}\n" for n in range(40)))
    numbers = Dataset.csv(path, {"n": "int64"})
    with numbers.build(on_error="skip", **options(mode)) as feed:
        steps = iter(feed)
        for n in range(1, 40, 2):
            assert int(next(steps)["n"]) == n
            assert counted(feed) == n // 2 + 1
            if n < 39:  # after which the next pass begins
                feed.restore(feed.state())
                steps = iter(feed)
        assert next(steps, None) is None
        assert counted(feed) == 20


@each(MODES, (SPAWN,))
def test_what_is_behind_the_end_is_not_counted_of_a_pass_that_was_left(mode: Mode) -> None:
    behind = forgiving(40, 2, 17, 38, 39).map(as_it_is).batch(4).prefetch(20)
    with behind.build(**options(mode)) as feed:
        for _ in feed:
            time.sleep(0.2)  # meanwhile all elements may be made
            break
        for _ in feed:
            break
        assert [loss[:2] for loss in feed.stats()["losses"]] == [(0, 2), (1, 2)]


@each(MODES, (SPAWN,))
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_an_element_that_is_unlike_the_others_fails_at_its_place(policy: str, mode: Mode) -> None:
    numbers = Dataset.range(10).map(lambda n: np.float64(n) if n == 5 else np.int64(n))
    for _ in range(3):
        with numbers.filter(always).build(on_error=policy, **options(mode)) as feed:
            if policy == "skip":
                assert passed(feed) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
                assert counted(feed) == 1
                continue
            came = []
            with pytest.raises(penstock.InvalidArgument, match="alike") as caught:
                came.extend(plain(n) for n in feed)
            assert came == [0, 1, 2, 3, 4]
            assert "\x01" not in str(caught.value)


@each((INLINE, THREADS), ())
def test_rounds_without_end_stop_at_the_same_place_after_a_restore(mode: Mode) -> None:
    def draw(n: Any) -> Any:
        del n
        return np.int64(penstock.rng().integers(100))

    def opens(v: Any) -> Dataset:
        if v % 3:
            raise ValueError("no")
        return Dataset.range(v, v + 1)

    rounds = Dataset.range(2).map(draw).flat_map(opens).repeat().take(8).filter(always)
    for seed in (2, 24, 35):
        with rounds.batch(2).build(on_error="skip", seed=seed, **options(mode)) as feed:
            whole = passed(feed)
        with (
            rounds.batch(2).build(on_error="skip", seed=seed, **options(mode)) as feed,
            rounds.batch(2).build(on_error="skip", seed=seed, **options(mode)) as other,
        ):
            for place, _ in enumerate(feed):
                state = feed.state()
                if state["epoch"] > 0:
                    break
                other.restore(state)
                assert passed(other) == whole[place + 1 :]

"""Dataset: a failure that happens only once, at any place, loses nothing."""

from __future__ import annotations

import gc
import glob
import json
import os
import pathlib
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, THREADS, Mode, each, options, passed, plain
from dataset_functions import always
from penstock import Dataset


class Hiccup:
    """Passes on numbers for which `keeps` is true; raises at the n-th call for one number."""

    def __init__(self, at: dict[int, int], keeps: Callable[[int], bool] = bool) -> None:
        self.at = at
        self.keeps = keeps
        self.looks: dict[int, int] = {}

    def __call__(self, number: Any) -> bool:
        number = int(number)
        self.looks[number] = self.looks.get(number, 0) + 1
        if self.at.get(number) == self.looks[number]:
            raise OSError(f"{number} hiccups")
        return self.keeps(number)


def not_in_threes(number: Any) -> bool:
    return int(number) % 3 != 0


def kept(path: pathlib.Path) -> list[Any]:
    with Dataset.snapshot(path).build(workers=0) as feed:
        return passed(feed)


# ---- caches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_file", [False, True])
def test_what_failed_once_moves_nothing_in_a_cache(tmp_path, in_file):
    """An element that is left out at a later attempt takes no place."""
    path = tmp_path / "kept"
    stage = Dataset.range(10).filter(Hiccup({3: 1}, lambda n: n != 3))
    cached = stage.cache(path) if in_file else stage.cache()
    expected = [0, 1, 2, *range(4, 10)]
    with cached.batch(20).build(workers=0, on_error="skip") as feed:
        for _ in range(3):
            assert [plain(batch) for batch in feed] == [expected]
    if in_file:
        assert kept(path) == expected


class EndsEarlyOnce:
    def __init__(self) -> None:
        self.begun = 0

    def __call__(self) -> Iterator[np.int64]:
        self.begun += 1
        for n in range(10):
            if n == 5 and self.begun == 1:
                raise OSError("cut off")
            yield np.int64(n)


@each((INLINE, THREADS), ())
def test_a_generator_that_raised_is_not_kept_as_all_of_it(mode, tmp_path):
    path = tmp_path / "kept"
    cut = Dataset.generator(EndsEarlyOnce()).cache(path).batch(4).unbatch()
    with cut.build(**options(mode)) as feed:
        with pytest.raises(OSError, match="cut off"):
            passed(feed)
        for _ in range(2):
            assert passed(feed) == list(range(10))
    assert kept(path) == list(range(10))


def test_a_disk_that_was_full_for_a_while_costs_a_cache_no_element(tmp_path):
    cached = Dataset.range(200).filter(always).cache(tmp_path / "kept")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with cached.build(workers=0) as feed:
            steps = iter(feed)
            got = [plain(next(steps))]
            [hidden] = glob.glob(f"{tmp_path}/.*filling*")
            resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(hidden) + 1500, hard))
            with pytest.raises(penstock.System):
                got.extend(plain(number) for number in steps)
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            feed.restore(feed.state())
            assert got + passed(feed) == list(range(200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert kept(tmp_path / "kept") == list(range(200))


# ---- going back to a place -----------------------------------------------------------------------


@each((INLINE, THREADS), ())
def test_what_fails_on_the_way_back_is_raised_and_nothing_is_lost(mode):
    chain = Dataset.range(150).filter(Hiccup({91: 1, 3: 2}, not_in_threes))
    with chain.build(**options(mode)) as feed:
        got, raised = [], []
        for _ in range(3):
            try:
                got.extend(plain(number) for number in feed)
            except OSError as error:
                raised.append(str(error))
                feed.restore(feed.state())
    assert raised == ["91 hiccups", "3 hiccups"]
    assert got == [n for n in range(150) if n % 3 != 0]


@each((INLINE, THREADS), ())
def test_a_ticket_that_is_cut_short_when_it_is_made_again_moves_no_place(mode):
    chain = Dataset.range(150).filter(Hiccup({7: 2}, always))
    with chain.build(**options(mode)) as feed:
        steps = iter(feed)
        got = [plain(next(steps)) for _ in range(20)]
        feed.restore(feed.state())
        with pytest.raises(OSError, match="7 hiccups"):
            next(iter(feed))
        assert feed.state()["batches"] == 20
        feed.restore(feed.state())
        assert got + passed(feed) == list(range(150))


def added(carry: Any, number: Any) -> Any:
    return carry + number, carry + number


BEHIND: dict[str, Callable[[Dataset], Dataset]] = {
    "scan": lambda input: input.scan(added, 0),
    "zip": lambda input: Dataset.zip(input, Dataset.range(100)),
    "filter": lambda input: input.filter(always),
    "shuffle": lambda input: input.shuffle(buffer=8, seed=3),
    "window": lambda input: input.window(4, shift=2).unbatch(),
    "unique": lambda input: input.unique(),
    "interleave": lambda input: input.interleave(Dataset.range, cycle=3),
}


@each((INLINE, THREADS), ())
@pytest.mark.parametrize("behind", BEHIND)
def test_what_fails_in_another_feed_while_a_state_is_restored_is_raised(mode, behind):
    def chain(at: dict[int, int]) -> Dataset:
        return BEHIND[behind](Dataset.range(40).filter(Hiccup(at, not_in_threes)))

    with chain({}).build(**options(mode)) as feed:
        whole = passed(feed)
    with chain({}).build(**options(mode)) as feed:
        steps = iter(feed)
        for _ in range(10):
            next(steps)
        state = json.loads(json.dumps(feed.state()))
    with chain({0: 1}).build(**options(mode)) as feed:
        feed.restore(state)
        with pytest.raises(OSError, match="0 hiccups"):
            passed(feed)
        feed.restore(state)
        assert passed(feed) == whole[10:]


def uneven(number: Any) -> Any:
    return np.int64(number) if 64 <= number < 128 else np.full(number % 5 + 1, number)


class Uneven:
    def __call__(self) -> Iterator[Any]:
        return map(uneven, range(192))


@each((INLINE, THREADS), ())
def test_what_has_no_length_waits_in_no_bucket(mode):
    chain = Dataset.generator(Uneven()).bucket_by_length([3], [7, 1000])
    with chain.build(on_error="skip", **options(mode)) as feed:
        whole = passed(feed)
        steps = iter(feed)
        for place in range(len(whole)):
            state = json.loads(json.dumps(feed.state()))
            with chain.build(workers=0, on_error="skip") as other:
                other.restore(state)
                assert passed(other) == whole[place:]
            next(steps)


# ---- generators ----------------------------------------------------------------------------------


class ReusesItsBuffer:
    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self) -> Iterator[Any]:
        buffer = np.zeros(self.width, np.int64)
        for n in range(100):
            buffer[:] = n
            yield {"of": buffer, "n": n}


@each(KINDS, ())
@pytest.mark.parametrize("width", [2, 1000])
def test_a_generator_may_use_its_buffer_again(mode, width):
    rows = Dataset.generator(ReusesItsBuffer(width))
    for chain in (rows, rows.filter(lambda row: True).shuffle(buffer=9, seed=1), rows.cache()):
        with chain.batch(8).build(**options(mode)) as feed:
            for batch in feed:
                assert (batch["of"] == batch["n"][:, None]).all()


class YieldsAnObject:
    def __call__(self) -> Iterator[Any]:
        yield from (0, 1, object(), 3)


@each(KINDS, ())
def test_what_cannot_be_an_element_fails_behind_those_before_it(mode):
    chain = Dataset.generator(YieldsAnObject()).filter(always)
    with chain.build(**options(mode)) as feed:
        got = []
        with pytest.raises(penstock.InvalidArgument, match="object") as caught:
            got.extend(plain(number) for number in feed)
        assert got == [0, 1]
        assert "generator(YieldsAnObject)" in str(caught.value.__cause__)
    with chain.build(on_error="skip", **options(mode)) as feed:
        assert passed(feed) == [0, 1, 3]
        assert feed.stats()["skipped"] == 1


class OneUnlike:
    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self) -> Iterator[Any]:
        for n in range(128):
            yield {"b": n} if n == self.at else {"a": n}


@each((INLINE, THREADS), ())
@pytest.mark.parametrize("at", [1, 5, 15, 31, 63, 64, 127])
def test_one_element_unlike_the_others_fails_alone_wherever_it_is(mode, at):
    chain = Dataset.generator(OneUnlike(at)).filter(lambda element: True).shuffle(buffer=4, seed=2)
    with chain.build(on_error="skip", **options(mode)) as feed:
        whole = passed(feed)
        assert len(whole) == 127
        assert feed.stats()["skipped"] == 1
    with chain.build(on_error="skip", **options(mode)) as feed:
        steps = iter(feed)
        for place in (at - 1, at, at + 1):
            if not 0 < place < 127:
                continue
            while feed.state()["batches"] < place:
                next(steps)
            with chain.build(workers=0, on_error="skip") as other:
                other.restore(feed.state())
                assert passed(other) == whole[place:]


class Shorter:
    def __init__(self) -> None:
        self.length = 20

    def __call__(self) -> Iterator[int]:
        self.length //= 2
        return iter(range(self.length))


def test_a_state_beyond_the_end_of_a_generator_is_refused():
    with Dataset.generator(Shorter()).build(workers=0) as feed:
        steps = iter(feed)
        for _ in range(8):
            next(steps)
        feed.restore(feed.state())
        with pytest.raises(penstock.InvalidArgument, match="beyond"):
            passed(feed)


# ---- interruptions in line -----------------------------------------------------------------------


def slow(number: Any) -> Any:
    time.sleep(0.05)
    return number


class Interrupts:
    def __init__(self, number: int) -> None:
        self.number = number
        self.done = False

    def __call__(self, number: Any) -> bool:
        if number == self.number and not self.done:
            self.done = True
            raise KeyboardInterrupt
        return True


@pytest.mark.parametrize(
    "chain",
    [
        Dataset.range(200).map(slow),
        Dataset.range(200).map(slow).batch(64),
        Dataset.range(200).filter(lambda number: slow(number) >= 0),
        Dataset.range(200).map(slow).shuffle(buffer=100),
    ],
)
def test_ctrl_c_in_a_function_waits_for_no_other_element(chain):
    timer = threading.Timer(0.12, signal.raise_signal, (signal.SIGINT,))
    with chain.build(workers=0) as feed:
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            passed(feed)
        assert time.monotonic() - begun < 1.5
    timer.join()


@pytest.mark.parametrize(
    "behind",
    [
        lambda chain: chain.shard(1, 2),
        lambda chain: chain.take(3),
        lambda chain: Dataset.zip(chain, Dataset.range(3)),
        lambda chain: chain.cache(),
        lambda chain: chain.batch(4),
    ],
)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_no_stage_passes_over_ctrl_c(behind, policy):
    with behind(Dataset.range(10).filter(always)).build(workers=0) as feed:
        whole = passed(feed)
    with behind(Dataset.range(10).filter(Interrupts(4))).build(workers=0, on_error=policy) as feed:
        got = []
        with pytest.raises(KeyboardInterrupt):
            got.extend(plain(number) for number in feed)
        feed.restore(feed.state())
        assert got + passed(feed) == whole


# ---- what is over --------------------------------------------------------------------------------


def refuses(number: Any) -> Any:
    raise ValueError(number)


@each((INLINE, THREADS), ())
def test_a_repeat_of_nothing_but_losses_ends(mode):
    with Dataset.range(5).map(refuses).repeat().build(on_error="skip", **options(mode)) as feed:
        assert passed(feed) == []
        assert feed.stats()["skipped"] in (5, 10)


@each((INLINE, THREADS), ())
def test_choices_without_end_end_with_all_inputs(mode):
    parts = [Dataset.range(5), Dataset.range(10, 13)]
    chosen = Dataset.choose_from(Dataset.range(2).repeat(), parts, stop_on_empty=False)
    with chosen.build(**options(mode)) as feed:
        assert passed(feed) == [0, 10, 1, 11, 2, 12, 3, 4]


@each((INLINE, THREADS), ())
def test_a_closed_feed_holds_no_exceptions_and_no_file(mode: Mode, tmp_path: Any):
    """Their tracebacks would refer to it, and to the memory that it was filling."""

    def left_in_the_middle() -> None:
        failing = Dataset.range(400).map(refuses_thirds).filter(always).cache(tmp_path / "kept")
        raises = pytest.raises(ValueError, match="third")
        with failing.batch(4).build(**options(mode)) as feed, raises:
            passed(feed)
        with failing.build(on_error="skip", **options(mode)) as feed:
            next(iter(feed))

    for _ in range(3):
        left_in_the_middle()
    gc.collect()
    assert os.listdir(tmp_path) == []


def refuses_thirds(number: Any) -> Any:
    if number % 3 == 1:
        raise ValueError("a third")
    return number


def test_memory_of_many_open_inputs_is_that_of_their_elements():
    """The memory is not that of 64 elements of each input."""
    large = Dataset.range(8).interleave(some_large, cycle=8).batch(2)
    with large.build(workers=0, max_bytes=32 << 20) as feed:
        steps = iter(feed)
        next(steps)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(30):
            next(steps)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100 << 10  # KiB


def some_large(number: Any) -> Dataset:
    return Dataset.range(100).map(megabyte)


def megabyte(number: Any) -> Any:
    return np.ones(1 << 20, np.uint8)

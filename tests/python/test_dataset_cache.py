"""cache: elements that are made once, shared by threads and processes."""

from __future__ import annotations

import json
import os
import pathlib
import threading
import time
from typing import Any

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import INLINE, KINDS, PROCESSES, SPAWN, THREADS, Mode, each, options, passed, plain
from penstock import Dataset


class Called:
    """Doubles numbers, and counts its calls in all processes by a file."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = str(path)

    def __call__(self, number: Any) -> Any:
        with open(self.path, "ab", buffering=0) as file:
            file.write(b".")
        return {"double": number * 2, "text": "x" * int(number % 4), "array": np.arange(number % 3)}

    def count(self) -> int:
        return os.path.getsize(self.path)


def expected_of(numbers: Any) -> list[Any]:
    return [{"double": 2 * n, "text": "x" * (n % 4), "array": list(range(n % 3))} for n in numbers]


@each((*KINDS, Mode(3, "forkserver")), (SPAWN,))
def test_a_second_pass_calls_nothing_and_gives_the_same(mode, tmp_path):
    called = Called(tmp_path / "calls")
    with Dataset.range(90).map(called).cache().build(**options(mode)) as feed:
        assert passed(feed) == expected_of(range(90))
        assert called.count() == 90
        assert passed(feed) == expected_of(range(90))
        assert passed(feed) == expected_of(range(90))
        assert called.count() == 90


@each(KINDS, ())
def test_it_is_shuffled_anew_behind_it_and_the_same_in_front(mode):
    chain = Dataset.range(40).shuffle(seed=1).map(functions.drawn).cache()
    with chain.build(**options(mode)) as feed:
        first = passed(feed)
        assert passed(feed) == first
        with Dataset.range(40).shuffle(seed=1).map(functions.drawn).build(workers=0) as plain_feed:
            assert passed(plain_feed) == first, "epoch 0"
    with chain.shuffle(seed=2).build(**options(mode)) as feed:
        second, third = passed(feed), passed(feed)
        assert second != third
        assert sorted(second) == sorted(third) == sorted(first)


@each(KINDS, ())
@pytest.mark.parametrize("streamed", [False, True])
def test_a_state_restores_at_every_element(mode, streamed):
    chain = Dataset.range(30).map(functions.described)
    if streamed:
        chain = Dataset.generator(functions.yields).map(functions.doubled)
    dataset = chain.cache().batch(4)
    with (
        dataset.build(**options(mode)) as feed,
        dataset.build(workers=0) as again,
    ):
        expected = passed(again)
        iterator = iter(feed)
        for place in range(len(expected)):
            state = json.loads(json.dumps(feed.state()))
            # Another plan object, whose cache is empty.
            with chain.cache().batch(4).build(workers=0) as fresh:
                for other in (again, fresh):
                    other.restore(state)
                    assert passed(other) == expected[place:]
            assert plain(next(iterator)) == expected[place]


def test_a_worker_that_is_killed_while_it_fills_has_published_nothing(tmp_path):
    called = Called(tmp_path / "calls")
    kills = functions.KillsOnce(57, str(tmp_path / "killed"))
    dataset = Dataset.range(90).map(kills).map(called).cache(max_bytes=1 << 20)
    with dataset.build(**options(PROCESSES)) as feed:
        assert passed(feed) == expected_of(range(90))
        assert (tmp_path / "killed").exists()
        made = called.count()
        assert passed(feed) == expected_of(range(90))
        assert called.count() == made


@each(KINDS, ())
def test_what_finds_no_room_is_made_again(mode, tmp_path):
    called = Called(tmp_path / "calls")
    with Dataset.range(400).map(called).cache(max_bytes=16 << 10).build(**options(mode)) as feed:
        assert passed(feed) == expected_of(range(400))
        assert called.count() >= 400
        before = called.count()
        assert passed(feed) == expected_of(range(400))
        assert 250 < called.count() - before < 400


def test_of_a_stream(tmp_path):
    called = Called(tmp_path / "calls")
    dataset = Dataset.range(50).map(called).filter(lambda element: element["double"] % 4 == 0)
    with dataset.cache().ragged_batch(4).build(workers=2) as feed:
        first = passed(feed)
        assert called.count() == 50
        assert passed(feed) == first
        assert called.count() == 50


def test_what_cache_cannot_be():
    with pytest.raises(penstock.InvalidArgument, match="max_bytes is 100; give 16384"):
        Dataset.range(3).cache(max_bytes=100)


@pytest.mark.parametrize("mode", [INLINE, THREADS], ids=str)
@pytest.mark.parametrize("in_a_file", [True, False])
def test_a_stream_that_was_closed_in_the_middle_is_not_kept_as_all_of_it(tmp_path, in_a_file, mode):
    taken = threading.Event()
    slow = True

    def numbers():
        for n in range(1000):
            if slow and n > 100:
                taken.set()
                time.sleep(0.001)
            yield n

    generated = Dataset.generator(numbers)
    kept = generated.cache(tmp_path / "kept") if in_a_file else generated.cache()
    feed = kept.batch(400).build(**options(mode))
    closing = threading.Thread(target=lambda: taken.wait(20) and feed.close())
    closing.start()
    with pytest.raises(penstock.Closed):
        list(feed)
    closing.join()
    assert not (tmp_path / "kept").exists()
    slow = False
    with kept.batch(400).build(workers=0) as feed:
        for _ in range(2):
            assert [n for batch in feed for n in batch] == list(range(1000))


@pytest.mark.parametrize("mode", [INLINE, THREADS], ids=str)
def test_a_stream_that_threw_is_read_from_its_front(mode):
    odd = [object()]

    def numbers():
        for n in range(200):
            yield odd.pop() if n == 100 and odd else n

    with Dataset.generator(numbers).cache().batch(10).build(**options(mode)) as feed:
        seen = []
        with pytest.raises(penstock.InvalidArgument):
            seen.extend(n for batch in feed for n in batch)
        seen.extend(n for batch in feed.steps(20 - len(seen) // 10) for n in batch)
        assert seen == list(range(200))
        assert [n for batch in feed.steps(20) for n in batch] == seen


@pytest.mark.parametrize("mode", [INLINE, THREADS], ids=str)
def test_it_is_whole_after_one_pass_though_the_last_element_was_lost(tmp_path, mode):
    def but_the_last(n):
        if n == 9:
            raise ValueError("the last one")
        return n

    kept = Dataset.range(10).map(but_the_last).on_error("skip").filter(lambda _: True)
    with kept.cache(tmp_path / "kept").build(**options(mode)) as feed:
        assert [int(n) for n in feed] == list(range(9))
        assert feed.stats()["skipped"] == 1
        assert os.listdir(tmp_path) == ["kept"]
    assert [int(n) for n in Dataset.snapshot(tmp_path / "kept")] == list(range(9))

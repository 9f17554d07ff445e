"""A Dataset for several consumers: parts of a batch, and feeds."""

from __future__ import annotations

import gc
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import KINDS, each, options, passed, plain
from penstock import Dataset


@each(KINDS, ())
def test_split_batch_gives_views_of_one_batch(mode):
    chain = Dataset.range(23).map(functions.described).batch(5)
    with chain.build(**options(mode)) as feed, chain.split_batch(3).build(**options(mode)) as cut:
        assert len(cut) == len(feed)
        for whole, parts in zip(feed, cut, strict=True):
            assert type(parts) is tuple
            assert len(parts) == 3
            for place, part in enumerate(parts):
                for name in ("number", "image"):
                    assert (part[name] == np.array_split(whole[name], 3)[place]).all()
            assert [text for part in parts for text in part["text"]] == whole["text"].to_list()
            numbers = [part["number"] for part in parts if len(part["number"])]
            for left, right in itertools.pairwise(numbers):
                left_end = left.__array_interface__["data"][0] + left.nbytes
                assert left_end == right.__array_interface__["data"][0], "no copy"


def test_split_batch_restores_at_every_batch_and_with_other_parts():
    make = Dataset.range(40).shuffle(seed=2).batch(6).split_batch
    iterator = iter(make(2))
    expected = [np.concatenate(parts).tolist() for parts in make(2)]
    for place in range(len(expected)):
        other = iter(make(3))
        other.restore(json.loads(json.dumps(iterator.state())))
        assert [np.concatenate(parts).tolist() for parts in other] == expected[place:]
        assert plain(np.concatenate(next(iterator))) == expected[place]


def test_split_batch_stands_behind_a_batch():
    with pytest.raises(penstock.InvalidArgument, match=r"behind batch\(n\)"):
        len(Dataset.range(4).split_batch(2))
    with pytest.raises(penstock.InvalidArgument, match="parts is 0"):
        Dataset.range(4).batch(2).split_batch(0)


# ---- feeds -----------------------------------------------------------------------------------

CHAINS = {
    "indexed": Dataset.range(44).shuffle(seed=2).map(functions.described).batch(4),
    "a stream": Dataset.generator(functions.yields).map(functions.doubled).batch(3).repeat(2),
    "elements": Dataset.range(21).map(functions.drawn),
}


def taken_by_each(feeds):
    """A pass of all consumers, each on its own thread; errors are raised at the end."""

    def run(feed):
        return passed(feed)

    with ThreadPoolExecutor(len(feeds)) as threads:
        return list(threads.map(run, feeds))


@each(KINDS, ())
@pytest.mark.parametrize("chain", CHAINS)
def test_batch_i_goes_to_consumer_i_mod_n(chain, mode):
    with (
        CHAINS[chain].build(workers=0) as one,
        CHAINS[chain].feeds(2, max_queue_size=3, **options(mode)) as feeds,
    ):
        for _ in range(2):
            expected = passed(one)
            assert taken_by_each(feeds) == [expected[0::2], expected[1::2]]
        stats = feeds.stats()
        assert stats["feeds"][0] == {"taken": 2 * len(expected[0::2]), "dropped": 0}


@each(KINDS, ())
@pytest.mark.parametrize("chain", CHAINS)
def test_a_state_of_feeds_restores_at_every_batch(chain, mode):
    dataset = CHAINS[chain]
    with dataset.build(workers=0) as feed:
        expected = passed(feed)
    with (
        dataset.feeds(2, **options(mode)) as feeds,
        dataset.feeds(3, **options(mode)) as other,
    ):
        # The second consumer runs ahead of the first by up to two batches.
        order = [i ^ 1 if i ^ 1 < len(expected) else i for i in range(len(expected))]
        left = set(range(len(expected)))
        for place, index in enumerate(order):
            state = json.loads(json.dumps(feeds.state()))
            if place % 4 == 1:
                other.restore(state)
                wanted = [[expected[i] for i in sorted(left) if i % 3 == c] for c in range(3)]
                assert taken_by_each(other) == wanted, place
            assert plain(next(feeds[index % 2])) == expected[index]
            left.remove(index)


def test_a_consumer_that_is_closed_or_dropped_keeps_nobody_waiting():
    first, second = Dataset.range(40).batch(2).feeds(2, max_queue_size=2, workers=1)
    assert len(list(itertools.islice(second, 1))) == 1
    del second
    gc.collect()
    assert len(list(first)) == 10
    with Dataset.range(40).batch(2).feeds(2, max_queue_size=2) as feeds:

        def fails(feed):
            with feed:
                next(feed)
                raise KeyError("of one thread")

        with ThreadPoolExecutor(2) as threads:
            failed = threads.submit(fails, feeds[1])
            assert len(list(feeds[0])) == 10
            assert type(failed.exception()) is KeyError
        assert feeds.stats()["feeds"][1] == {"taken": 1, "dropped": 9}


def test_an_exception_passes_feeds_that_it_drops():
    def fails():
        feeds = Dataset.range(40).batch(2).feeds(2, workers=1)
        next(iter(feeds[0]))
        raise KeyError("not of the feeds")

    for _ in range(2):
        with pytest.raises(KeyError, match="not of the feeds") as caught:
            fails()
        del caught
    with pytest.raises(ValueError, match="invalid literal"):  # no name holds the feeds
        print(Dataset.range(40).batch(2).feeds(2, workers=1), int("x"))


@each(KINDS, ())
def test_a_failure_is_raised_by_its_owner_and_ends_the_pass_for_all(mode):
    dataset = Dataset.range(40).map(functions.refuses_seven).batch(2)  # 7 is in batch 3
    with dataset.feeds(2, **options(mode)) as feeds, ThreadPoolExecutor(2) as threads:
        first, second = [threads.submit(list, feed) for feed in feeds]
        assert type(second.exception()) is ValueError
        with pytest.raises(penstock.Closed, match="batch 3, which is consumer 1's, failed"):
            raise first.exception()
        assert feeds.state()["index"] == 3
        again = [threads.submit(list, feed) for feed in feeds]
        assert type(again[1].exception()) is ValueError, "the next pass"
        assert feeds.state()["plan"]["epoch"] == 1


def test_patience_says_who_is_waited_for_and_how_long():
    said = r"waited (\d+(?:\.\d+)?) s for consumer 1, for which 4 batches"
    with (
        Dataset.range(1000).batch(2).feeds(2, workers=1, max_queue_size=4, patience=0.01) as feeds,
        pytest.raises(penstock.Timeout, match=said) as refused,
    ):
        list(feeds[0])
    assert float(re.search(said, str(refused.value)).group(1)) >= 0.01


def test_what_feeds_cannot_be():
    dataset = Dataset.range(4).batch(2)
    for wrong in ({"n": 0}, {"n": 2, "ordered": False}, {"n": 2, "patience": 0}):
        with pytest.raises(penstock.InvalidArgument):
            dataset.feeds(**wrong)
    with dataset.feeds(2, workers=0) as feeds:
        with pytest.raises(penstock.InvalidArgument, match="stage 0"):
            other = Dataset.range(5).batch(2).feeds(2, workers=0)
            feeds.restore(other.state())
        assert len(feeds) == 2
        assert plain(next(feeds[1])) == [2, 3]


def test_validation_runs_on_one_of_the_devices():
    train = Dataset.range(48).shuffle(seed=1).batch(4)
    validation = Dataset.range(100, 120).batch(5)
    seen: dict[int, list[int]] = {0: [], 1: []}
    scores = []

    def run(device, feed):
        with feed:
            for _ in range(2):
                for batch in feed:
                    seen[device].extend(batch.tolist())
                if device == 0:  # the other consumer waits for it at the start of the next pass
                    scores.append(sum(int(batch.sum()) for batch in validation))

    with train.feeds(2) as feeds, ThreadPoolExecutor(2) as threads:
        list(threads.map(run, range(2), feeds))
    assert sorted(seen[0] + seen[1]) == sorted([*range(48), *range(48)])
    assert scores == [sum(range(100, 120))] * 2

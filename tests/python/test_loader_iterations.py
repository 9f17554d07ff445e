"""A feed has one position: an iteration ends when a later one begins."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import penstock
from contract import KINDS, each

OVERTAKEN = r"overtaken: .* zip and nested loops need a Loader for each"


def feed_of(mode, **options: Any) -> penstock.Loader:
    return penstock.Loader(list(range(12)), batch_size=2, **mode.options, **options)


def numbers(batches) -> list[int]:
    return [int(number) for batch in batches for number in batch]


def whole(feed) -> Any:
    return iter(feed)


def steps(feed) -> Any:
    return feed.steps(6)


@each(KINDS, ())
@pytest.mark.parametrize("older", [whole, steps])
@pytest.mark.parametrize("later", [whole, steps])
def test_an_iteration_that_was_overtaken_says_so_and_does_not_end_quietly(older, later, mode):
    with feed_of(mode) as feed:
        first = older(feed)
        next(first)
        second = later(feed)
        taken = [next(second)]
        with pytest.raises(penstock.InvalidArgument, match=OVERTAKEN):
            next(first)
        taken += second  # is not affected
        rest = list(range(2, 12))
        if later is steps:
            assert numbers(taken) == [*rest, 0, 1]
        else:  # the next epoch, or after steps() the rest of this one
            assert numbers(taken) == ([0, 1, *rest] if older is whole else rest)
        with pytest.raises(StopIteration):  # it has ended, as after any exception
            next(first)


@each(KINDS, ())
def test_zip_and_nested_loops_of_one_feed_are_errors(mode):
    with feed_of(mode) as feed:
        with pytest.raises(penstock.InvalidArgument, match=OVERTAKEN):
            list(zip(feed, feed, strict=True))
        with pytest.raises(penstock.InvalidArgument, match=OVERTAKEN):
            for _ in feed:
                assert len(list(feed)) == 6
        assert numbers(feed) == list(range(12))


@each(KINDS, ())
def test_leaving_a_loop_and_beginning_another_is_no_error(mode):
    with feed_of(mode) as feed:
        for _ in feed:
            break
        assert numbers(feed) == list(range(12))
        assert numbers(itertools.islice(feed, 2)) == [0, 1, 2, 3]
        assert numbers(feed.steps(3)) == list(range(4, 10))
        assert numbers(feed) == [10, 11]


@each(KINDS, ())
def test_an_iteration_that_gave_everything_stays_over(mode):
    with feed_of(mode) as feed:
        asked = iter(feed)
        assert numbers(asked) == list(range(12))
        unasked = iter(feed)
        assert numbers(itertools.islice(unasked, 6)) == list(range(12))  # the end was not requested
        stepped = feed.steps(1)
        assert numbers(stepped) == [0, 1]
        assert numbers(feed) == list(range(2, 12))
        for over in (asked, unasked, stepped):
            assert list(over) == []


@pytest.mark.parametrize("rows", [None, 2])
def test_so_it_is_for_a_feed_of_a_dataset(rows):
    dataset = penstock.Dataset.arrays(np.arange(12))
    with (dataset if rows is None else dataset.batch(rows)).build(workers=2) as feed:
        whole = iter(feed)
        for _ in range(len(feed)):
            next(whole)
        broken = iter(feed)
        next(broken)
        assert len(list(feed)) == len(feed)
        assert list(whole) == []
        with pytest.raises(penstock.InvalidArgument, match=OVERTAKEN):
            next(broken)


@each(KINDS, ())
@pytest.mark.parametrize("begin", [whole, steps])
def test_restoring_ends_an_iteration_and_the_next_one_goes_on(begin, mode):
    with feed_of(mode) as feed:
        batches = begin(feed)
        next(batches)
        state = feed.state()
        next(batches)
        feed.restore(state)
        assert list(batches) == []
        assert numbers(feed) == list(range(2, 12))

"""Dataset: passes, places and states; iterators that are reset, and several at once."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import dataset_functions as functions
import penstock
from contract import (
    INLINE,
    KINDS,
    THREADS,
    each,
    options,
    passed,
    plain,
)
from penstock import Dataset


def test_passes_of_one_object_are_its_epochs():
    dataset = Dataset.range(20).shuffle(seed=1).batch(20)
    with dataset.build(workers=0) as feed:
        expected = [passed(feed), passed(feed), passed(feed)]
    assert [passed(dataset), passed(dataset)] == expected[:2]
    for _ in dataset:
        break
    assert len({str(order) for order in expected}) == 3


def test_two_iterators_at_once_do_not_disturb_each_other():
    dataset = Dataset.range(10).shuffle(seed=1).batch(2)
    with dataset.build(workers=0) as feed:
        first, second = passed(feed), passed(feed)
    one, other = iter(dataset), iter(dataset)
    pairs = list(zip(one, other, strict=True))
    assert [plain(a) for a, _ in pairs] == first
    assert [plain(b) for _, b in pairs] == second
    other.close()


def test_an_iterator_goes_back_to_its_place():
    iterator = iter(Dataset.range(10).batch(3).repeat(2))
    next(iterator)
    state = iterator.state()
    rest = passed(iterator)
    assert len(rest) == 7
    with pytest.raises(StopIteration):
        next(iterator)
    iterator.restore(state)
    assert passed(iterator) == rest
    assert iterator.stats()["delivered"] >= 15


def test_an_iterator_may_be_given_another_dataset():
    iterator = iter(Dataset.range(4).batch(2))
    next(iterator)
    iterator.reset()
    assert passed(iterator) == [[0, 1], [2, 3]]
    iterator.reset(Dataset.range(10, 13).batch(2))
    assert passed(iterator) == [[10, 11], [12]]
    iterator.close()
    with pytest.raises(penstock.Closed):
        iterator.reset()


def test_steps_go_across_the_ends_of_passes():
    with Dataset.range(5).batch(2).repeat(2).build(workers=0) as feed:
        assert [plain(batch) for batch in feed.steps(8)] == [[0, 1], [2, 3], [4]] * 2 + [
            [0, 1],
            [2, 3],
        ]
        assert passed(feed) == [[4], [0, 1], [2, 3], [4]]
    with Dataset.range(0).batch(2).repeat().build(workers=0) as feed:
        assert list(feed) == []
        with pytest.raises(penstock.InvalidArgument, match="empty"):
            list(feed.steps(1))


@each((INLINE, THREADS), ())
def test_rounds_that_give_nothing_come_to_an_end(mode):
    nothing = Dataset.range(10).filter(functions.never)
    with nothing.repeat().build(**options(mode)) as feed:
        assert list(feed) == []
        with pytest.raises(penstock.InvalidArgument, match="empty"):
            list(feed.steps(2))
    with nothing.build(**options(mode)) as feed:
        assert list(feed) == []
        with pytest.raises(penstock.InvalidArgument, match="empty"):
            list(feed.steps(2))


def test_restored_iterators_go_on_with_the_passes_behind():
    dataset = Dataset.range(12).shuffle(seed=1).batch(4)
    with dataset.build(workers=0) as feed:
        expected = [passed(feed) for _ in range(4)]
    for _ in dataset:
        pass
    iterator = iter(dataset)
    next(iterator)
    state = iterator.state()
    again = Dataset.range(12).shuffle(seed=1).batch(4)
    iterator = iter(again)
    iterator.restore(state)
    assert passed(iterator) == expected[1][1:]
    assert [passed(again), passed(again)] == expected[2:]


def test_an_iterator_that_was_overtaken_disturbs_nobody():
    dataset = Dataset.range(6).batch(2)
    old = iter(dataset)
    assert len(list(old)) == 3
    new = iter(dataset)
    next(new)
    old.reset()
    assert len(list(old)) == 3
    assert len(list(new)) == 2
    old.close()
    assert len(list(dataset)) == 3


def test_a_state_of_another_chain_is_refused():
    with (
        Dataset.range(9).batch(2).build(workers=0) as feed,
        Dataset.range(9).shuffle(seed=1).batch(2).build(workers=0) as other,
    ):
        with pytest.raises(penstock.InvalidArgument, match=r"batch\(2\) .* shuffle\(seed=1\)"):
            other.restore(feed.state())
        with (
            Dataset.range(9).batch(2).build(workers=0, seed=4) as seeded,
            pytest.raises(penstock.InvalidArgument, match=r"seed=0.* seed=4"),
        ):
            seeded.restore(feed.state())
        for broken in ({}, {"version": 1}, {**feed.state(), "epoch": -1}, {1, 2}):
            with pytest.raises(penstock.InvalidArgument):
                feed.restore(broken)


@pytest.mark.parametrize(
    "sharded",
    [
        lambda world: Dataset.range(30).shard(1, world).filter(functions.is_odd),
        lambda world: Dataset.range(30).filter(functions.is_odd).shard(1, world),
    ],
)
def test_a_streams_place_is_that_of_one_of_so_many_ranks(sharded):
    with sharded(2).build(workers=0) as feed, sharded(3).build(workers=0) as other:
        iterator = iter(feed)
        next(iterator)
        state = feed.state()
        rest = passed(iterator)
        feed.restore(state)
        assert passed(feed) == rest
        with pytest.raises(penstock.InvalidArgument, match="2 ranks"):
            other.restore(state)


def test_an_epoch_cut_out_of_endless_rounds_is_another_one_each_time():
    dataset = Dataset.range(50).shuffle(seed=1).repeat().take(20)
    with dataset.build(workers=0) as feed:
        first, second = passed(feed), passed(feed)
    assert first != second
    with dataset.filter(functions.always).build(workers=0) as feed:
        assert [passed(feed), passed(feed)] == [first, second]


@pytest.mark.parametrize("taken", [3, 4, 5])  # of 4 batches in a round
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_break_in_endless_rounds_is_followed_by_the_next_round(taken, workers, streamed):
    once = Dataset.range(8).shuffle(seed=1)
    once = (once.filter(functions.always) if streamed else once).batch(2)
    with once.build(workers=0) as feed:
        rounds = [[batch.tolist() for batch in feed] for _ in range(8)]
    begun, wanted = 0, []
    for _ in range(3):
        batches = [batch for each in rounds[begun:] for batch in each]
        wanted.append(batches[:taken])
        begun += -(-taken // 4)
    with once.repeat().build(workers=workers) as feed:
        found = [[batch.tolist() for batch in itertools.islice(feed, taken)] for _ in range(3)]
    assert found == wanted


def test_a_refused_restore_changes_nothing():
    with Dataset.range(6).build(workers=0) as feed:
        iterator = iter(feed)
        assert next(iterator) == 0
        with pytest.raises(penstock.InvalidArgument):
            feed.restore({})
        assert passed(iterator) == [1, 2, 3, 4, 5]


def test_a_billion_elements_are_nothing():
    dataset = Dataset.range(10**9).shuffle(seed=1)
    with dataset.build(workers=0) as feed:
        first = int(next(iter(feed)))
        state = {**feed.state(), "batches": 10**9 - 3}
        feed.restore(state)
        last = [int(number) for number in feed]
    assert len(last) == 3
    assert len({first, *last}) == 4
    with dataset.skip(10**9 - 3).build(workers=0) as feed:
        assert [int(number) for number in feed] == last


def test_a_feedable_keeps_everybodys_place():
    train = Dataset.range(10).shuffle(seed=1).batch(4)
    validation = Dataset.range(100, 105).map(functions.drawn).batch(2)
    with train.build(workers=0) as feed, validation.build(workers=0) as other:
        passes, validations = [passed(feed), passed(feed)], [passed(other), passed(other)]
    with penstock.Feedable(train=train, validation=validation) as feeds:
        assert plain(feeds.next("train")) == passes[0][0]
        assert passed(feeds.rest("validation")) == validations[0]
        assert plain(feeds.next("train")) == passes[0][1]
        feeds.reset("validation")
        assert plain(feeds.next("validation")) == validations[1][0]
        state = json.loads(json.dumps(feeds.state()))
        rest = [plain(feeds.next("train")), plain(feeds.next("validation"))]
        assert rest == [passes[0][2], validations[1][1]]
        with pytest.raises(StopIteration):
            feeds.next("train")
        feeds.restore(state)
        assert [plain(feeds.next("train")), plain(feeds.next("validation"))] == rest
        feeds.reset("train", validation)
        assert passed(feeds.rest("train")) == validations[0]
        with pytest.raises(penstock.NotFound, match="validation"):
            feeds.next("test")
        with pytest.raises(penstock.InvalidArgument, match="train"):
            feeds.restore({"train": state["train"]})
        place = feeds.state()
        for wrong in ({}, {**state["train"], "seed": 1}, {**state["train"], "plan": ["x"]}, object):
            with pytest.raises(penstock.InvalidArgument):
                feeds.restore({**state, "train": wrong})
            assert feeds.state() == place
    for wrong in ({}, {"train": [1, 2]}):
        with pytest.raises(penstock.InvalidArgument):
            penstock.Feedable(**wrong)


def budget_of(iterator):
    return iterator._loader._settings["max_bytes"]


def test_what_is_switched_between_shares_one_budget():
    with penstock.Feedable(a=Dataset.range(10), b=Dataset.range(4)) as feeds:
        feeds.reset("b", Dataset.range(5))
        each_one = [budget_of(feeds.rest(name)) for name in ("a", "b")]
    assert each_one == [budget_of(iter(Dataset.range(10))) // 2] * 2


@pytest.mark.parametrize("mixed", [{}, {"buffer": 5}])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_that_was_left_is_followed_by_the_next_one(workers, mixed):
    """If elements are delivered one by one, all are made at once, and the engine is ahead."""
    numbers = Dataset.range(30).shuffle(seed=2, **mixed)
    with numbers.build(workers=workers) as feed:
        passes = [[int(n) for n in feed] for _ in range(4)]
    assert sorted(passes[0]) == list(range(30))
    for taken in (1, 29):
        with numbers.build(workers=workers) as feed:
            begun = iter(feed)
            for n in passes[0][:taken]:
                assert feed.epoch == 0
                assert int(next(begun)) == n
            assert [int(n) for n in feed] == passes[1]
            assert [int(n) for n in feed] == passes[2]
        iterator = iter(Dataset.range(30).shuffle(seed=2, **mixed))
        for _ in range(taken):
            next(iterator)
        iterator.reset()
        assert [int(n) for n in iterator] == passes[1]
        with penstock.Feedable(a=numbers) as feeds:
            for _ in range(taken):
                feeds.next("a")
            feeds.reset("a")
            assert [int(n) for n in feeds.rest("a")] == passes[1]


def test_each_reset_begins_another_pass():
    numbers = Dataset.range(30).shuffle(seed=2)
    passes = [[int(n) for n in numbers] for _ in range(3)]
    shared = iter(Dataset.range(30).shuffle(seed=2))
    own = iter(Dataset.range(5))
    own.reset(Dataset.range(30).shuffle(seed=2))
    for iterator in (shared, own):
        iterator.reset()
        iterator.reset()
        assert [int(n) for n in iterator] == passes[2]
        iterator.close()


def test_a_reset_goes_on_behind_the_pass_that_was_restored() -> None:
    dataset = Dataset.range(12).shuffle(seed=3)
    passes = [passed(iter(dataset)) for _ in range(6)]
    with dataset.build(workers=0) as feed:
        state = at_the_front_of(feed, 3)
    first, second = iter(dataset), iter(dataset)
    next(first)
    for iterator in (second, iter(Dataset.range(3))):
        if iterator is not second:
            iterator.reset(dataset)
        iterator.restore(state)
        assert passed(iterator) == passes[3]
        iterator.reset()
        assert iterator.state()["epoch"] > 3
        iterator.close()
    first.close()


def at_the_front_of(feed: Any, epoch: int) -> dict[str, Any]:
    for _ in range(epoch):
        passed(feed)
    next(iter(feed))
    return {**feed.state(), "batches": 0}


class FailsOnceAt:
    def __init__(self, number: int) -> None:
        self.number = number
        self.failed = False

    def __call__(self, number: Any) -> bool:
        if number == self.number and not self.failed:
            self.failed = True
            raise OSError("a hiccup")
        return True


def test_an_iterator_that_was_interrupted_keeps_its_place_when_another_goes_on() -> None:
    dataset = Dataset.range(20).filter(FailsOnceAt(10))
    first = iter(dataset)
    with pytest.raises(OSError, match="hiccup"):
        passed(first)
    assert passed(iter(dataset)) == list(range(20))
    state = first.state()
    assert (state["epoch"], state["batches"]) == (0, 10)
    first.restore(state)
    assert passed(first) == list(range(10, 20))
    first.close()


def test_an_iterator_that_failed_begins_the_next_pass_when_it_is_reset() -> None:
    bad = {3}

    def check(x: Any) -> Any:
        if int(x) in bad:
            raise ValueError(x)
        return x

    dataset = Dataset.range(6).map(check)._alone(workers=0)
    failed = iter(dataset)
    with pytest.raises(ValueError, match="3"):
        list(failed)
    bad.clear()
    assert len(list(iter(dataset))) == 6  # it uses the Loader of the failed iterator
    failed.reset()
    assert failed.state()["epoch"] == 2
    assert [int(x) for x in failed] == list(range(6))


@each(KINDS, ())
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_the_state_of_what_was_closed_is_where_its_consumer_was(mode, streamed, batched):
    chain = Dataset.range(200)
    chain = chain.filter(functions.is_any) if streamed else chain
    chain = chain.batch(4) if batched else chain
    for taken in (0, 1, 2, 7):
        with chain.build(**options(mode)) as feed:
            steps = iter(feed)
            seen = [plain(next(steps)) for _ in range(taken)]
            open_state = feed.state()
        assert feed.state() == open_state
        with chain.build(workers=0) as other:
            other.restore(feed.state())
            seen += passed(other)
        assert seen == passed(chain)


def test_a_chain_too_deep_for_a_state_says_so():
    chain = Dataset.range(3)
    for _ in range(1500):
        chain = chain.filter(functions.is_any)
    with chain.build(workers=0) as feed:
        next(iter(feed))
        with pytest.raises(penstock.InvalidArgument, match="many stages of streams"):
            feed.state()

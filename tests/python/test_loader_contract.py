"""The contract of Loader: order, exactly once, the same values in every mode."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

import penstock
from contract import (
    FAST,
    INLINE,
    KINDS,
    PROCESSES,
    SLOW,
    SPAWN,
    THREADS,
    Mode,
    assert_same,
    check_checkpoints,
    each,
    epochs,
)
from loader_datasets import BatchedSamples, GloballyRandom, Items, Keyed, Samples

pytestmark = pytest.mark.timeout(60)


@each((*FAST, SPAWN))
def test_items_come_in_order_exactly_once_in_every_epoch(mode):
    with penstock.Loader(Items(25), **mode.options) as feed:
        assert len(feed) == 25
        for epoch in range(3):
            assert feed.epoch == epoch
            batches = list(feed)
            assert [index for _, index in batches] == list(range(25))
            assert all((array == index).all() for array, index in batches)
        assert feed.stats()["delivered"] == 75


@each()
def test_shuffled_samples_come_exactly_once_and_each_epoch_otherwise(mode):
    with penstock.Loader(Samples(37), batch_size=5, shuffle=True, **mode.options) as feed:
        assert len(feed) == 8
        orders = []
        for epoch in epochs(feed, 2):
            assert [len(batch["y"]) for batch in epoch] == [5] * 7 + [2]
            order = np.concatenate([batch["y"] for batch in epoch])
            assert sorted(order) == list(range(37))
            for batch in epoch:
                assert (batch["x"][:, 0, 0] == batch["y"]).all()
                assert batch["name"] == [f"s{y}" for y in batch["y"]]
            orders.append(order.tolist())
        assert orders[0] != orders[1] != list(range(37))


def options_of_samples():
    yield "plain", Samples, {"batch_size": 4}
    yield "shuffled", Samples, {"batch_size": 4, "shuffle": True, "seed": 5}
    yield "of one", Samples, {"batch_size": 1, "shuffle": True}
    yield "larger than the dataset", Samples, {"batch_size": 100, "shuffle": True}
    yield "dropped", Samples, {"batch_size": 4, "drop_last": True, "shuffle": True}
    yield "sharded", Samples, {"batch_size": 4, "shard": (1, 3), "shuffle": True}
    yield "sharded and dropped", Samples, {"batch_size": 4, "shard": (2, 3), "drop_last": True}
    yield "many at once", BatchedSamples, {"batch_size": 5, "shuffle": True}
    yield "collated", Samples, {"batch_size": 6, "collate": list}
    yield "collated at once", BatchedSamples, {"batch_size": 6, "collate": list}
    yield "drawn", Keyed, {"batch_size": 3, "seed": 3}


# New interpreters take ten times as long; they differ in how they get source and options.
STARTED = tuple(mode for mode in FAST if mode.method in ("spawn", "forkserver"))
FORKED = tuple(mode for mode in FAST[1:] if mode not in STARTED)


@pytest.mark.parametrize(
    ("source", "options", "modes"),
    [
        pytest.param(source, given, modes, id=f"{kind}-{name}", marks=marks)
        for name, source, given in options_of_samples()
        for kind, modes, marks in (
            ("few", FORKED, ()),
            (
                "started",
                STARTED,
                () if name in ("shuffled", "collated", "drawn") else pytest.mark.slow,
            ),
            ("all", SLOW, pytest.mark.slow),
        )
    ],
)
def test_samples_are_equal_whoever_makes_them(source, options, modes):
    with penstock.Loader(source(), workers=0, **options) as feed:
        wanted = epochs(feed, 2)
    for mode in modes:
        with penstock.Loader(source(), **options, **mode.options) as feed:
            assert_same(epochs(feed, 2), wanted, str(mode))


@each(FAST[1:])
def test_items_drawn_from_rng_are_equal_whoever_makes_them(mode):
    def run(mode):
        with penstock.Loader(Keyed(), seed=9, shuffle=True, **mode.options) as feed:
            return epochs(feed, 2)

    wanted = run(INLINE)
    assert_same(run(mode), wanted)
    draws = {batch[1].tobytes() for epoch in wanted for batch in epoch}
    assert len(draws) == 22  # all indices and epochs draw different numbers


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_global_generators_agree_for_any_number_of_processes(batch_size, batched):
    def run(mode):
        source = GloballyRandom(batched=batched)
        with penstock.Loader(source, batch_size=batch_size, **mode.options) as feed:
            return epochs(feed, 2)

    wanted = run(Mode(1, "fork"))
    for mode in (Mode(3, "fork"), Mode(2, "forkserver")):
        assert_same(run(mode), wanted, str(mode))
    drawn = np.concatenate([np.atleast_2d(batch[1]) for epoch in wanted for batch in epoch])
    assert len({row.tobytes() for row in drawn}) == 20


class Makers(Items):
    def __getitem__(self, index):
        time.sleep(0.002)
        return np.array([os.getpid(), threading.get_native_id()])


@each((THREADS, PROCESSES), ())
def test_one_batch_is_filled_by_several_workers(mode):
    with penstock.Loader(Makers(64), batch_size=64, **mode.options) as feed:
        # Repeated, because one worker may start much later than the other.
        makers = (len({tuple(row) for row in batch.tolist()}) for batch in feed.steps(50))
        assert mode.workers in makers


@each((INLINE, THREADS), ())
def test_global_generators_of_this_process_are_left_alone(mode):
    with penstock.Loader(Items(5), batch_size=None, **mode.options) as feed:
        np.random.seed(7)
        wanted = np.random.rand(4)
        np.random.seed(7)
        list(feed)
        assert (np.random.rand(4) == wanted).all()


@each(KINDS, ())
def test_shards_are_disjoint_equal_and_together_everything(mode):
    for drop_last in (False, True):
        seen, counts = [], set()
        for rank in range(3):
            with penstock.Loader(
                Samples(53),
                batch_size=4,
                shuffle=True,
                shard=(rank, 3),
                drop_last=drop_last,
                **mode.options,
            ) as feed:
                batches = list(feed)
                counts.add(len(batches))
                assert len(batches) == len(feed)
                assert {len(batch["y"]) for batch in batches} == {4}
                seen += [int(y) for batch in batches for y in batch["y"]]
        if drop_last:
            assert counts == {4}
            assert len(set(seen)) == len(seen) == 48
        else:
            # The last round is padded from the start of the epoch's order.
            assert counts == {5}
            assert sorted(set(seen)) == list(range(53))
            assert len(seen) == 60


@each(KINDS, ())
def test_steps_go_on_across_epochs_and_a_for_finishes_the_epoch(mode):
    with penstock.Loader(Items(7), **mode.options) as feed:
        assert [index for _, index in feed.steps(10)] == [*range(7), 0, 1, 2]
        assert feed.epoch == 1
        assert [index for _, index in feed] == [3, 4, 5, 6]
        assert feed.epoch == 2
        assert [index for _, index in feed.steps(0)] == []
        assert [index for _, index in feed.steps(7)] == list(range(7))
        assert feed.epoch == 3
        assert [index for _, index in feed] == list(range(7))
        assert [index for _, index in feed.steps(30)] == [*range(7)] * 4 + [0, 1]


@each(KINDS, ())
def test_twenty_of_a_hundred_steps_five_times_visit_all(mode):
    with penstock.Loader(Items(100, 1), shuffle=True, **mode.options) as feed:
        seen = [index for _ in range(5) for _, index in feed.steps(20)]
        assert sorted(seen) == list(range(100))


@each(KINDS, ())
def test_after_a_break_the_next_for_is_the_next_epoch(mode):
    with penstock.Loader(Items(9), **mode.options) as feed:
        for _, index in feed:
            if index == 3:
                break
        state = feed.state()
        assert (feed.epoch, state["batches"]) == (0, 4)
        assert [index for _, index in feed] == list(range(9))
        assert feed.epoch == 2
        feed.restore(state)
        assert [index for _, index in feed] == [4, 5, 6, 7, 8]


@each(KINDS, ())
def test_a_finished_iterator_stays_finished(mode):
    with penstock.Loader(Items(2), **mode.options) as feed:
        iterator = iter(feed)
        assert len(list(iterator)) == 2
        assert next(iterator, None) is None
        assert next(iterator, None) is None
        assert feed.epoch == 1


@pytest.mark.parametrize("taken", [INLINE, Mode(4), PROCESSES], ids=str)
def test_items_restore_at_every_element_in_every_mode(taken):
    def make(**options):
        return penstock.Loader(Keyed(7), shuffle=True, **options)

    check_checkpoints(make, taken, (INLINE, Mode(4), Mode(3, "fork")))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "shuffle": True},
        {"batch_size": 4, "shuffle": True, "drop_last": True},
        {"batch_size": 4, "shuffle": True, "shard": (1, 2)},
        {"batch_size": 4, "collate": list},
    ],
    ids=lambda options: ",".join(options),
)
def test_samples_restore_at_every_element_in_every_mode(options):
    check_checkpoints(lambda **mode: penstock.Loader(Samples(22), **options, **mode))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("taken", "continued"),
    [
        pytest.param(SPAWN, (SPAWN, Mode(1, "forkserver")), id="few"),
        *(pytest.param(mode, SLOW, id=str(mode), marks=pytest.mark.soak) for mode in SLOW[::3]),
    ],
)
def test_samples_restore_at_every_element_in_all_modes(taken, continued):
    def make(**options):
        return penstock.Loader(Keyed(22), batch_size=4, shuffle=True, **options)

    check_checkpoints(make, taken, continued)


BEYOND = [
    ({}, {"batches": 11}, 10),
    ({"batch_size": 3}, {"batches": 5}, 4),
    ({"batch_size": 3, "shard": (1, 3)}, {"batches": 7}, 4),
    ({"batch_size": 3, "ordered": False}, {"ahead": [4]}, None),
    ({"batch_size": 3, "ordered": False}, {"batches": 2, "ahead": [2, 77]}, None),
]


@pytest.mark.parametrize(("options", "change", "there"), BEYOND)
@pytest.mark.parametrize("source", [list(range(10)), np.arange(10)], ids=["map", "columns"])
def test_a_state_beyond_its_epoch_is_refused(source, options, change, there):
    with penstock.Loader(source, workers=0, **options) as feed:
        state = feed.state()
        with pytest.raises(penstock.InvalidArgument) as caught:
            feed.restore({**state, **change})
        if there is not None:
            said = f"says that {change['batches']} batches of an epoch were delivered"
            assert f"{said}, and there are {there}" in str(caught.value)
        assert len(list(feed)) == len(feed)
        if there is not None:  # the end of its epoch, also with a padded round
            feed.restore({**state, "batches": change["batches"] - 1})
            assert list(feed) == []
            assert feed.epoch == 1


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
@pytest.mark.parametrize("worlds", [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1)], ids=str)
def test_a_state_restores_at_another_world_size(worlds, mode):
    before, after = worlds
    length, batch = 48, 2

    def feeds(world):
        return [
            penstock.Loader(
                Samples(length),
                batch_size=batch,
                shuffle=True,
                seed=4,
                shard=(rank, world),
                **(mode.options if rank == 0 else INLINE.options),
            )
            for rank in range(world)
        ]

    def order(batches):
        return [tuple(batch["y"].tolist()) for batch in batches]

    with penstock.Loader(Samples(length), batch_size=batch, shuffle=True, seed=4) as feed:
        whole = order(feed)
    ranks, others = feeds(before), feeds(after)
    try:
        taken: set[tuple[int, ...]] = set()
        streams = [iter(rank) for rank in ranks]
        for done in range(len(ranks[0])):
            states = {str(rank.state()) for rank in ranks}
            assert len(states) == 1, "all ranks of one step have the same state"
            state = ranks[0].state()
            rest = []
            for other in others:
                other.restore(state)
                rest += order(other)
            missing = set(whole) - taken
            assert missing <= set(rest)
            # Only the padding of a last round comes twice.
            assert len(rest) - len(missing) < after * 1 + 1
            assert done * before == len(taken)
            for stream in streams:
                taken |= set(order([next(stream)]))
    finally:
        for feed in (*ranks, *others):
            feed.close()

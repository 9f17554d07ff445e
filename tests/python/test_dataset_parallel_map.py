"""Functions before stages of a stream: run by all workers, with the results of one thread."""

from __future__ import annotations

import json
import os
import signal

import pytest

import dataset_functions as functions
import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, Mode, each, options, passed, plain
from faults import wait_until, worker_pids
from penstock import Dataset

FOUR = (Mode(4), Mode(4, "fork"))


def odd_draws() -> Dataset:
    return Dataset.range(60).shuffle(seed=3).map(functions.described)


CHAINS = {
    "filter": lambda: Dataset.range(60).map(functions.drawn).filter(functions.is_odd).batch(7),
    "nest": lambda: odd_draws().shuffle(seed=1, buffer=9).ragged_batch(4),
    "elements": lambda: odd_draws().take_while(functions.always),
    "unbatch": lambda: Dataset.range(40).batch(4).map(functions.as_it_is).unbatch().batch(3),
    "tail": lambda: (
        Dataset.range(80)
        .filter(functions.is_odd)
        .map(functions.drawn)
        .shuffle(seed=2, buffer=5)
        .map(functions.as_it_is)
        .batch(6)
    ),
    "zip": lambda: Dataset.zip(
        Dataset.range(50).map(functions.drawn).filter(functions.is_odd),
        Dataset.range(50).filter(functions.is_odd).map(functions.drawn).unique(),
    ).batch(4),
    "flat_map": lambda: (
        Dataset.range(12).map(functions.as_it_is).flat_map(functions.so_many).batch(5)
    ),
    "interleave": lambda: (
        Dataset.range(12)
        .map(functions.as_it_is)
        .interleave(functions.drawn_and_odd, cycle=3)
        .unbatch()
    ),
    "interleave of inputs": lambda: Dataset.interleave(
        [
            Dataset.range(30).map(functions.drawn).filter(functions.is_odd),
            Dataset.range(9).map(functions.drawn),
            Dataset.range(50).filter(functions.is_odd).map(functions.drawn),
        ],
        cycle=2,
        block=2,
    ).batch(5),
    "window": lambda: (
        Dataset.range(40).map(functions.drawn).filter(functions.is_odd).window(3, shift=2).unbatch()
    ),
    "generator": lambda: (
        Dataset.generator(functions.yields)
        .map(functions.doubled)
        .filter(functions.always)
        .ragged_batch(3)
    ),
    "scan": lambda: Dataset.range(30).map(functions.as_it_is).scan(functions.sums, 0).batch(4),
    "getitem": lambda: Dataset.source(functions.Squares(30)).filter(functions.always).batch(4),
    "take_while": lambda: (
        Dataset.range(90).map(functions.described).take_while(functions.is_low).ragged_batch(4)
    ),
    "key": lambda: (
        Dataset.range(90).map(functions.described).unique(key=functions.tenth_of).ragged_batch(4)
    ),
    "texts and a draw": lambda: (
        Dataset.range(60).map(functions.described).filter(functions.drawn_for).ragged_batch(4)
    ),
    "twice": lambda: (
        Dataset.range(90)
        .map(functions.drawn)
        .filter(functions.is_odd)
        .map(functions.as_it_is)
        .filter(functions.drawn_for)
        .batch(3)
    ),
    "take": lambda: Dataset.range(90).map(functions.drawn).filter(functions.is_odd).take(9),
}


@each((Mode(1), THREADS, Mode(4), Mode(1, "fork"), Mode(4, "fork")), (SPAWN,))
@pytest.mark.parametrize("name", CHAINS)
def test_elements_are_those_of_one_thread(name, mode):
    with CHAINS[name]().build(workers=0) as alone, CHAINS[name]().build(**options(mode)) as feed:
        for _ in range(2):
            assert passed(feed) == passed(alone)


@each((THREADS, Mode(2, "fork")), ())
@pytest.mark.parametrize("name", CHAINS)
def test_a_state_restores_at_every_element(name, mode):
    dataset = CHAINS[name]()
    with dataset.build(workers=0) as alone:
        expected = passed(alone)
    with dataset.build(workers=0) as alone, dataset.build(**options(mode)) as feed:
        states = [json.dumps(feed.state())]
        for batch, wanted in zip(feed, expected, strict=True):
            assert plain(batch) == wanted
            states.append(json.dumps(feed.state()))
        for i, state in enumerate(states[:-1]):
            # With workers at a few places only: without workers states are equal, and it is faster.
            for other in (alone, feed) if i % 7 == 0 else (alone,):
                other.restore(json.loads(state))
                assert plain(next(iter(other))) == expected[i], i


@each(FOUR, (SPAWN,))
def test_all_workers_work_in_front_of_a_filter(tmp_path, mode):
    there = functions.Meets(str(tmp_path), mode.workers)
    dataset = Dataset.range(100).map(there).filter(functions.has_odd_number).batch(5)
    with dataset.build(**options(mode)) as feed:
        batches = list(feed)
        met = os.listdir(tmp_path)
        assert len(met) == mode.workers
        pids = {pid for batch in batches for pid in batch["pid"].tolist()}
        if mode.method:
            assert pids <= set(worker_pids(feed))
            assert os.getpid() not in pids
        else:
            assert pids == {os.getpid()}


@each((PROCESSES,), (SPAWN,))
@pytest.mark.parametrize("stage", ["filter", "take_while", "unique"])
def test_what_is_asked_of_elements_that_workers_make_they_answer(tmp_path, mode, stage):
    asks = functions.Signs(str(tmp_path))
    made = Dataset.range(60).map(functions.described)
    dataset = made.unique(key=asks) if stage == "unique" else getattr(made, stage)(asks)
    with dataset.map(functions.number_of).batch(6).build(**options(mode)) as feed:
        assert [n for batch in passed(feed) for n in batch] == list(range(0, 120, 2))
        pids = {int(name) for name in os.listdir(tmp_path)}
        assert pids
        assert pids <= set(worker_pids(feed))


def test_what_is_asked_of_elements_that_cost_nothing_the_consumer_answers(tmp_path):
    asks = functions.Signs(str(tmp_path))
    with Dataset.range(20).filter(asks).map(functions.as_it_is).build(workers=1) as feed:
        assert passed(feed) == list(range(20))
    assert os.listdir(tmp_path) == [str(os.getpid())]


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
@pytest.mark.parametrize("tail", [False, True])
def test_a_predicate_that_raises_does_so_at_its_place(mode, tail):
    source = Dataset.range(40).filter(functions.always) if tail else Dataset.range(40)
    dataset = source.map(functions.as_it_is).filter(functions.refuses_seven).batch(2)
    with dataset.build(**options(mode)) as feed:
        seen = []
        with pytest.raises(ValueError, match="not 7") as caught:
            for batch in feed:
                seen.append(plain(batch))
        assert seen == [[1, 2], [3, 4], [5, 6]]  # 0 is false
        if mode.workers:
            assert "filter(refuses_seven)" in caught.value.__cause__.worker
    with dataset.build(on_error="skip", **options(mode)) as feed:
        assert sum(len(batch) for batch in passed(feed)) == 38
        assert [loss[1] for loss in feed.stats()["losses"]] == [7]


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
def test_a_predicate_that_says_no_boolean_is_refused(mode):
    dataset = Dataset.range(9).map(functions.as_it_is).filter(functions.described)
    with (
        dataset.batch(2).build(**options(mode)) as feed,
        pytest.raises(penstock.InvalidArgument, match="not one boolean"),
    ):
        passed(feed)


@each((THREADS, PROCESSES), (SPAWN,))
@pytest.mark.parametrize("function", ["refuses_seven", "refuses_in_its_own_way"])
@pytest.mark.parametrize("policy", ["loader", "skip", "replace"])
def test_losses_are_those_of_one_thread(mode, function, policy):
    dataset = Dataset.range(150).map(getattr(functions, function))
    loader = {}
    if policy == "loader":
        loader = {"on_error": "skip"}
    else:
        dataset = dataset.on_error(policy)
    dataset = dataset.filter(functions.is_odd).batch(4)
    results = []
    for kind in (INLINE, mode):
        with dataset.build(**loader, **options(kind)) as feed:
            batches = passed(feed)
            stats = feed.stats()
            results.append((batches, stats["losses"], stats["skipped"], stats["replaced"]))
    assert results[0] == results[1]
    assert results[0][1]


@each((Mode(1, "fork"), Mode(4, "fork")), (SPAWN,))
def test_a_killed_worker_loses_no_element(tmp_path, mode):
    kills = functions.KillsOnce(17, str(tmp_path / "done"))
    dataset = Dataset.range(60).map(kills).filter(functions.is_odd).map(functions.as_it_is)
    with dataset.batch(4).build(**options(mode)) as feed:
        batches = passed(feed)
        assert [n for batch in batches for n in batch] == list(range(1, 60, 2))
        wait_until(lambda: feed.stats()["restarts"] == 1)


@each((Mode(2, "fork"),), ())
def test_workers_killed_from_outside_lose_nothing(mode):
    dataset = Dataset.range(3000).map(functions.as_it_is).filter(functions.is_odd).batch(8)
    with dataset.build(**options(mode)) as feed:
        taken = []
        for n, batch in enumerate(feed):
            taken += plain(batch)
            if n in (3, 50):
                restarts = feed.stats()["restarts"]
                os.kill(worker_pids(feed)[0], signal.SIGKILL)
                wait_until(lambda before=restarts: feed.stats()["restarts"] > before)
        assert taken == list(range(1, 3000, 2))


def test_an_element_that_kills_its_workers_is_an_error_at_its_place():
    dataset = Dataset.range(60).map(functions.Kills(9)).filter(functions.is_odd).batch(2)
    with dataset.build(workers=2, start_method="fork") as feed:
        seen = []
        with pytest.raises(penstock.WorkerLost, match="element 9"):
            for batch in feed:
                seen.append(plain(batch))
        assert seen == [[1, 3], [5, 7]]
    with dataset.build(workers=2, start_method="fork", on_error="skip") as feed:
        assert sum(len(batch) for batch in feed) == 29
        assert [loss[1] for loss in feed.stats()["losses"]] == [9]

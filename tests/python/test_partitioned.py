"""``streams=n``: a generator function that takes its stream's number, n of them at once."""

from __future__ import annotations

import os

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, THREADS, Mode, each

pytestmark = pytest.mark.timeout(120)

LENGTHS = (7, 3, 10, 0)  # of the streams


def share(stream):
    for i in range(LENGTHS[stream]):
        yield np.full(2, 100 * stream + i), 100 * stream + i


def with_process(stream):
    for _ in range(6):
        yield stream, os.getpid()


def drawn(stream):
    for _ in range(4):
        yield penstock.rng().random()


def all_items():
    return sorted(100 * s + i for s, n in enumerate(LENGTHS) for i in range(n))


def by_turns(size):
    """The expected batches: from the streams in turn, until all have ended."""
    streams = [[100 * s + i for i in range(n)] for s, n in enumerate(LENGTHS)]
    parts = [[part[i : i + size] for i in range(0, len(part), size)] for part in streams]
    turns = max(map(len, parts))
    return [part[turn] for turn in range(turns) for part in parts if turn < len(part)]


def taken(feed):
    return [np.atleast_1d(y).tolist() for _, y in feed]


@each((INLINE, THREADS, Mode(4), PROCESSES), (Mode(3), Mode(9)))
@pytest.mark.parametrize("size", [None, 2])
def test_every_item_comes_once_and_in_turn(size, mode):
    with penstock.Loader(share, streams=4, batch_size=size, **mode.options) as feed:
        for _ in range(2):
            assert taken(feed) == by_turns(size or 1)
        assert sorted(item for (item,) in by_turns(1)) == all_items()


def test_streams_are_dealt_out_to_processes():
    options = {"streams": 4, "workers": 2, "use_multiprocessing": True}
    with penstock.Loader(with_process, **options) as feed:
        pids: dict[int, set[int]] = {}
        for stream, pid in feed:
            pids.setdefault(int(stream), set()).add(int(pid))
        workers = [worker["pid"] for worker in feed.stats()["workers"]]
    assert pids == {stream: {workers[stream % 2]} for stream in range(4)}


@each((INLINE, PROCESSES), (THREADS,))
def test_a_place_is_exact_at_every_batch_and_for_any_workers(mode):
    expected = by_turns(2)
    for done in range(len(expected) + 1):
        with penstock.Loader(share, streams=4, batch_size=2, workers=0) as feed:
            batches = iter(feed)
            for _ in range(done):
                next(batches)
            state = feed.state()
        if done % 4 and mode is not INLINE:
            continue  # processes are slow
        with penstock.Loader(share, streams=4, batch_size=2, **mode.options) as other:
            other.restore(state)
            assert taken(other) == expected[done:]
            assert taken(other) == expected


def test_a_state_of_other_streams_is_refused():
    with (
        penstock.Loader(share, streams=4, workers=0) as feed,
        penstock.Loader(share, streams=3, workers=0) as other,
        pytest.raises(penstock.InvalidArgument, match=r"items of 4 streams .* items of 3 streams"),
    ):
        other.restore(feed.state())


def test_streams_draw_apart_and_the_same_anywhere():
    def numbers(**options):
        with penstock.Loader(drawn, streams=3, **options) as feed:
            return [float(x) for x in feed]

    first = numbers(workers=0)
    assert len(set(first)) == 12
    assert numbers(workers=2) == first
    assert numbers(workers=2, use_multiprocessing=True) == first


def test_what_has_no_number_to_take_is_refused():
    with pytest.raises(penstock.InvalidArgument, match="needs a generator function that takes"):
        penstock.Loader([1, 2, 3], streams=2)
    with pytest.raises(penstock.InvalidArgument, match=r"Dataset\.generator"):
        penstock.Loader(penstock.Dataset.range(3), streams=2)
    with pytest.raises(penstock.InvalidArgument, match="streams is 0"):
        penstock.Loader(share, streams=0)


# ---- Dataset


def test_a_dataset_of_streams_takes_turns_and_restores_anywhere():
    dataset = penstock.Dataset.generator(share, streams=4).map(lambda x, y: y)
    expected = [item for (item,) in by_turns(1)]
    for workers in (0, 2):
        with dataset.build(workers=workers) as feed:
            assert [int(y) for y in feed] == expected
    with iter(dataset) as iterator, iter(dataset) as other:
        for done in range(5):
            other.restore(iterator.state())
            assert [int(y) for y in other] == expected[done:]
            next(iterator)


def test_streams_of_a_dataset_draw_apart():
    with penstock.Dataset.generator(drawn, streams=3).build(workers=0) as feed:
        assert len({float(x) for x in feed}) == 12


def test_a_dataset_of_streams_travels():
    dataset = penstock.Dataset.generator(share, streams=2)
    made = dataset.__reduce__()
    again = made[0](*made[1])
    with again.build(workers=0) as feed:
        assert sorted(int(y) for _, y in feed) == [*range(7), 100, 101, 102]

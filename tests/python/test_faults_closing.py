"""Several feeds at once, feeds inside feeds, and feeds that end early."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import penstock
from contract import KINDS, SPAWN, Mode, each
from faults import right, wait_until
from leftovers import child_processes
from loader_datasets import Items

pytestmark = pytest.mark.timeout(60)

FORK = Mode(2, "fork")


# ---- several at once -----------------------------------------------------------------------------


@each(KINDS, (SPAWN,))
def test_two_feeds_at_once(mode):
    source = Items(20)
    with (
        penstock.Loader(source, shuffle=True, seed=1, **mode.options) as one,
        penstock.Loader(source, shuffle=True, seed=2, **mode.options) as two,
        penstock.Loader(source, shuffle=True, seed=1, workers=0) as first,
        penstock.Loader(source, shuffle=True, seed=2, workers=0) as second,
    ):
        for _ in range(2):
            for a, b, c, d in zip(one, two, first, second, strict=True):
                assert (a[1], b[1]) == (c[1], d[1])
                assert (a[0] == c[0]).all()
                assert (b[0] == d[0]).all()


class Nested(Items):
    """A dataset that uses a feed."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(4)
        self.options = options

    def __getitem__(self, index: int) -> Any:
        with penstock.Loader(Items(5 + index, 2000), **self.options) as inner:
            batches = list(inner)
        assert right(batches, 5 + index)
        return np.concatenate([array for array, _ in batches]), index


@pytest.mark.parametrize(
    "inner",
    [Mode(2), Mode(1, "fork"), pytest.param(Mode(1, "spawn"), marks=pytest.mark.slow)],
    ids=str,
)
@each((Mode(2), FORK), (SPAWN, Mode(2, "forkserver")))
def test_a_feed_inside_a_worker(mode, inner):
    with penstock.Loader(Nested(inner.options), **mode.options) as feed:
        for array, index in feed:
            assert (array == np.repeat(np.arange(5 + index), 2000)).all()


# ---- closing -------------------------------------------------------------------------------------


class Endless(Items):
    def __getitem__(self, index: int) -> Any:
        while index == 3 and not getattr(self, "released", False):
            time.sleep(0.01)
        return super().__getitem__(index)


@each((Mode(2), FORK), (SPAWN, Mode(2, "forkserver")))
def test_closing_from_another_thread_ends_a_wait(mode):
    source = Endless(8)
    feed = penstock.Loader(source, **mode.options)
    waiting = threading.Event()
    ended: list[Any] = []

    def consume():
        try:
            for _, index in feed:
                if index == 2:
                    waiting.set()
        except penstock.Closed:
            ended.append(time.monotonic())

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert waiting.wait(20)
    time.sleep(0.05)  # it is in next() now, or will get the same error there
    begin = time.monotonic()
    feed.close()
    consumer.join(10)
    source.released = True
    assert ended
    assert ended[0] - begin < 1.5
    with pytest.raises(penstock.Closed):
        iter(feed)


@each(KINDS, (SPAWN,))
@pytest.mark.parametrize("close", [True, False])
def test_a_consumer_may_stop_at_any_time(close, mode):
    for taken in (0, 1, 5):
        feed = penstock.Loader(Items(30, 3000), max_queue_size=4, **mode.options)
        iterator = iter(feed)
        held = [next(iterator) for _ in range(taken)]
        if close:
            feed.close()
        del feed, iterator
        assert all((array == index).all() for array, index in held)


@each((Mode(2), FORK), ())
def test_many_threads_may_look_and_close_at_once(mode):
    feed = penstock.Loader(Items(200, 3000), **mode.options)
    stop = threading.Event()
    troubles: list[BaseException] = []

    def look():
        try:
            while not stop.is_set():
                feed.stats()
                feed.analysis()
                feed.state()
        except BaseException as error:
            troubles.append(error)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    iterator = iter(feed)
    for _ in range(100):
        next(iterator)
    closers = [threading.Thread(target=feed.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    stop.set()
    for looker in lookers:
        looker.join()
    assert not troubles
    with pytest.raises(penstock.Closed):
        next(iterator)


def test_a_feed_that_is_never_asked_starts_nothing():
    feed = penstock.Loader(Items(30), **FORK.options)
    assert len(feed) == 30
    assert feed.stats()["delivered"] == 0
    del feed


@each((FORK,), ())
def test_closing_while_another_thread_begins_leaves_no_process(mode):
    feed = penstock.Loader(Items(30), **mode.options)
    feed.close()
    feed._pool.start()  # another thread found the feed open before
    assert not feed._pool.running.processes
    with pytest.raises(penstock.Closed):
        next(iter(feed))


@each((FORK,), (SPAWN,))
def test_a_worker_killed_while_the_feed_closes(mode):
    for _ in range(5):
        with penstock.Loader(Items(50, 3000), max_queue_size=2, **mode.options) as feed:
            next(iter(feed))
            for worker in feed.stats()["workers"]:
                os.kill(worker["pid"], 9)


# ---- feeds that their own dataset holds ----------------------------------------------------------


class OwnLoader:
    def __init__(self, **options: Any) -> None:
        self.feed = penstock.Loader(self, **options)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return np.asarray(index)

    def __getstate__(self) -> dict[str, Any]:
        return {}


class OwnChain:
    def __init__(self, kind: str) -> None:
        chain = penstock.Dataset.range(10)
        if kind == "stream":
            chain = chain.filter(self.keep)
        if kind == "generator":
            chain = penstock.Dataset.generator(self.numbers)
        if kind == "nested":
            chain = chain.flat_map(self.opened)
        self.feed = chain if kind == "generator" else chain.map(self.decode)

    def numbers(self) -> Any:
        yield from range(10)

    def keep(self, number: Any) -> Any:
        return number % 2 == 0

    def opened(self, number: Any) -> Any:
        return penstock.Dataset.range(2).map(self.decode)

    def decode(self, number: Any) -> Any:
        return number + 1

    def __getstate__(self) -> dict[str, Any]:
        return {}


OWNERS = {
    "loader": lambda: OwnLoader(batch_size=2, **FORK.options),
    **{kind: lambda kind=kind: OwnChain(kind) for kind in ("map", "stream", "generator")},
}


@pytest.mark.parametrize("kind", OWNERS)
@pytest.mark.parametrize("held_iterator", [False, True])
def test_what_holds_its_own_feed_is_collected_and_its_workers_end(kind, held_iterator):
    owner = OWNERS[kind]()
    iterator = iter(owner.feed)
    next(iterator)
    if held_iterator:
        owner.iterator = iterator
    gone = weakref.ref(owner)
    before = child_processes()
    assert bool(before) == (kind != "generator")
    del owner, iterator
    # The stream reader may be in a function.
    wait_until(lambda: gc.collect() >= 0 and gone() is None)
    assert not child_processes() & before


def test_an_iterator_keeps_the_functions_of_a_dataset_that_nobody_holds():
    before = child_processes()
    iterator = iter(OwnChain("nested").feed)
    gc.collect()
    assert len(list(iterator)) == 20
    del iterator
    wait_until(lambda: gc.collect() >= 0 and not child_processes() - before)


def test_a_closed_dataset_ends_its_workers_and_begins_again():
    data = penstock.Dataset.range(10).map(OwnChain("map").decode)
    iterator = iter(data)
    assert next(iterator) == 1
    assert child_processes()
    data.close()
    data.close()
    assert not child_processes()
    with pytest.raises(penstock.Closed):
        next(iterator)
    assert list(data) == list(range(1, 11))
    data.close()

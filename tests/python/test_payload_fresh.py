"""Locks of `threading` in a data set become new, unlocked ones in workers."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest

import penstock
from contract import PROCESSES, SPAWN, Mode, each
from penstock.processes import payload


class Guarded:
    """A data set with a cache protected by a lock."""

    def __init__(self):
        self.lock = threading.Lock()
        self.cache = {}

    def __len__(self):
        return 10

    def __getitem__(self, index):
        with self.lock:
            return self.cache.setdefault(index, np.full(3, index))


class Holder:
    pass


def sent(thing):
    with payload.pack(thing) as packed:
        return payload.unpack(packed.fd)


@each((SPAWN,), (PROCESSES, Mode(2, "forkserver")))
def test_a_data_set_with_a_lock_goes_to_processes(mode):
    source = Guarded()
    with source.lock, penstock.Loader(source, **mode.options) as feed:  # held only here
        assert [int(batch[0]) for batch in feed] == list(range(10))


def test_locks_arrive_free_and_are_shared_as_they_were():
    there = Holder()
    there.lock = threading.Lock()
    there.same = there.lock
    there.condition = threading.Condition(there.lock)
    there.reentrant = threading.RLock()
    there.lock.acquire()
    here = sent(there)
    assert not here.lock.locked()
    assert here.same is here.lock is not there.lock
    with here.condition:  # its methods are those of the new lock
        assert here.lock.locked()
        here.condition.notify_all()
    assert not here.lock.locked()
    with here.reentrant, here.reentrant:
        pass
    assert there.lock.locked()


def test_what_is_made_of_locks_keeps_its_value():
    there = Holder()
    there.set, there.unset = threading.Event(), threading.Event()
    there.set.set()
    there.semaphore = threading.Semaphore(3)
    there.bounded = threading.BoundedSemaphore(2)
    there.barrier = threading.Barrier(2)
    there.queue = queue.Queue(maxsize=4)
    there.queue.put("waiting")
    here = sent(there)
    assert here.set.is_set()
    assert not here.unset.is_set()
    assert not here.unset.wait(0.001)
    assert [here.semaphore.acquire(blocking=False) for _ in range(4)] == [True] * 3 + [False]
    here.bounded.acquire()
    here.bounded.release()
    with pytest.raises(ValueError, match="released too many times"):
        here.bounded.release()
    assert here.barrier.parties == 2
    here.queue.put("new")
    assert [here.queue.get(timeout=1) for _ in range(2)] == ["waiting", "new"]
    assert there.queue.qsize() == 1


def test_a_thread_that_waits_here_does_not_wait_there():
    there = Holder()
    there.condition = threading.Condition()
    waiting = threading.Thread(target=lambda: wait_for(there.condition))
    waiting.start()
    try:
        while not there.condition._waiters:
            pass
        here = sent(there)
        with here.condition:
            here.condition.notify_all()
        assert waiting.is_alive()
    finally:
        with there.condition:
            there.condition.notify_all()
        waiting.join()


def wait_for(condition):
    with condition:
        condition.wait()


def test_a_changed_object_with_a_lock_is_sent_after_an_epoch():
    class Edited(Guarded):
        def __init__(self):
            super().__init__()
            self.level = 0

        def __getitem__(self, index):
            with self.lock:
                return self.level

        def on_epoch_end(self):
            self.level += 1

    with penstock.Loader(Edited(), workers=1, use_multiprocessing=True) as feed:
        assert [set(feed), set(feed)] == [{0}, {1}]


# ---- generators


class Counting:
    """Has a generator made by one of its methods, as Keras' iterators do."""

    def __init__(self, begin):
        self.begin = begin
        self.numbers = self.count(step=2)

    def count(self, step):
        number = self.begin
        while True:
            yield number
            number += step


def test_a_methods_generator_that_was_not_begun_is_begun_anew():
    there = Counting(5)
    here = sent(there)
    here.begin = 6
    assert [next(here.numbers) for _ in range(3)] == [6, 8, 10]
    assert [next(there.numbers) for _ in range(2)] == [5, 7]


def test_one_that_was_begun_is_refused():
    there = Counting(5)
    next(there.numbers)
    with pytest.raises(penstock.InvalidArgument, match=r"dataset\.numbers \(a generator\)"):
        payload.pack(there)


# ---- Keras


def iterator_of_keras(**options):
    image = pytest.importorskip("keras").src.legacy.preprocessing.image
    data = np.arange(10, dtype=np.float32).reshape(10, 1, 1, 1)
    return image.ImageDataGenerator().flow(data, np.arange(10), batch_size=3, **options)


def test_iterators_of_keras_draw_their_order_here_and_travel():
    source = iterator_of_keras(shuffle=True, seed=3)
    with penstock.Loader(source, workers=2) as feed:
        order = source.index_array.tolist()  # drawn before there are workers
        here = sent(source)
        assert here.index_array.tolist() == order
        assert here[3][1].tolist() == order[9:]
        epochs = [np.concatenate([y for _, y in feed]).tolist() for _ in range(3)]
    assert epochs[0] == order
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3  # its on_epoch_end was called


@pytest.mark.slow  # every worker imports Keras, and all that comes with it
@pytest.mark.timeout(600)
def test_iterators_of_keras_see_each_sample_once_in_processes():
    source = iterator_of_keras(shuffle=True)
    with penstock.Loader(source, workers=2, use_multiprocessing=True) as feed:
        epochs = [np.concatenate([y for _, y in feed]).tolist() for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_iterators_of_keras_keep_their_order_without_shuffle():
    source = iterator_of_keras(shuffle=False)
    with penstock.keras.feed(source, workers=2) as feed:
        assert [y.tolist() for _, y in feed] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]

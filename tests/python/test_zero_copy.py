"""Zero-copy for unmodified code: no unnecessary copies, and no aliasing."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, Mode, assert_same, each
from faults import wait_until
from loader_datasets import Items
from zero_copy import HELD, NO_COPY, ODD, ONE_COPY, Ways, arrays_in, expected

pytestmark = pytest.mark.timeout(60)

MOST = (INLINE, Mode(1), Mode(1, "fork"))
MORE = (Mode(1, "spawn"),)


def ways():
    everything = [*NO_COPY, *ONE_COPY, *HELD, *ODD]
    assert len(everything) == len(set(everything))
    assert set(everything) <= set(vars(Ways))
    return everything


@each(MOST, MORE)
@pytest.mark.parametrize("way", ways())
def test_values_are_right_and_stay_so(way, mode):
    with penstock.Loader(Ways(way), **mode.options) as feed:
        held = [list(feed) for _ in range(2)]  # all batches of two epochs at once
        for epoch in held:
            for i, item in enumerate(epoch):
                assert_same(item, expected(way, i), f"{way}, item {i}")
        # No two arrays share a byte: a write to one is not visible in another.
        arrays = [a for epoch in held for item in epoch for a in arrays_in(item)]
        for one, other in itertools.combinations(arrays, 2):
            assert not np.may_share_memory(one, other)
    for epoch in held:
        for i, item in enumerate(epoch):
            assert_same(item, expected(way, i), f"{way}, item {i}, after the end")


@each(MOST, MORE)
@pytest.mark.parametrize("way", NO_COPY)
def test_what_nobody_else_refers_to_is_not_copied(way, mode):
    with penstock.Loader(Ways(way), **mode.options) as feed:
        arrays = sum(len(arrays_in(item)) for item in feed)
        stats = feed.stats()
        assert stats["copies_avoided"] == arrays
        assert stats["bytes_avoided"] > 0
        assert sum(stats["bytes_copied"].values()) == 0, stats["bytes_copied"]


REASONS = {
    "row_of_store": "not_owned",
    "reused_buffer": "referenced",
    "reused_buffer_in_tuple": "referenced",
    "still_referenced": "referenced",
    "base_kept": "not_owned",
    "cached_tuple": "referenced",
    "twice_in_one": "referenced",
    "reduced_view": "sparse",
    "over_bytes": "foreign",
}


@each(MOST, MORE)
@pytest.mark.parametrize("way", ONE_COPY)
def test_what_may_be_somebody_elses_is_copied_once_and_the_reason_is_counted(way, mode):
    with penstock.Loader(Ways(way), **mode.options) as feed:
        items = list(feed)
        payload = sum(array.nbytes for item in items for array in arrays_in(item))
        stats = feed.stats()
        copied = sum(stats["bytes_copied"].values())
        # Small parts beside the array may be pickled or sent inside the message.
        assert payload <= copied <= 1.1 * payload + 4096 * len(items) or way == "masked"
        assert sum(stats["copies"].values()) >= len(items)
        if way in REASONS:
            assert stats["copies"][REASONS[way]] >= len(items), stats["copies"]


@each((INLINE, Mode(1), Mode(1, "fork")), (Mode(1, "spawn"),))
def test_batches_are_writable_and_writing_changes_nothing_else(mode):
    for source, options in (
        (Ways("own"), {}),
        (Ways("row_of_store"), {}),
        (Ways("own"), {"batch_size": 2}),
        (np.arange(60000.0).reshape(6, 10000), {"batch_size": 2}),
    ):
        with penstock.Loader(source, **options, **mode.options) as feed:
            first = list(feed)
            copies = [array.copy() for array in first]
            for array in first:
                assert array.flags.writeable
                array += 1
            for array, copy in zip(first, copies, strict=True):
                assert (array == copy + 1).all()
            assert_same(list(feed), copies)


@each((INLINE, THREADS, PROCESSES), ())
def test_read_only_arrays_stay_read_only(mode):
    with penstock.Loader(Ways("own_read_only"), **mode.options) as feed:
        assert not any(item.flags.writeable for item in feed)


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
def test_a_consumer_may_keep_every_batch(mode):
    for batch_size in (None, 4):
        with penstock.Loader(
            Items(60, 20_000), batch_size=batch_size, max_queue_size=2, **mode.options
        ) as feed:
            held = [list(feed) for _ in range(3)]
            for epoch in held:
                numbers = np.concatenate([np.atleast_1d(index) for _, index in epoch])
                assert numbers.tolist() == list(range(60))
                for array, index in epoch:
                    assert (array == np.reshape(index, (-1, 1))).all()


@each((THREADS, PROCESSES), (SPAWN,))
@pytest.mark.parametrize("batch_size", [None, 4])
def test_held_batches_outlive_their_loader(batch_size, mode):
    feed = penstock.Loader(Items(16, 30_000), batch_size=batch_size, **mode.options)
    iterator = iter(feed)
    held = [next(iterator) for _ in range(3)]

    def check(batches):
        for array, index in batches:
            assert (array == np.reshape(index, (-1, 1))).all()

    feed.close()
    check(held)
    gone = weakref.ref(feed)
    del feed, iterator
    gc.collect()
    assert gone() is None
    check(held)
    for array, _ in held:
        array += 1  # still mapped for writing
    del held, array


def shared_bytes():
    """Bytes of memory in all memfds that this process has open."""
    total = 0
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(entry.path).startswith("/memfd:"):
                total += os.stat(entry.path).st_blocks * 512
    return total


@each((PROCESSES,), (SPAWN,))
@pytest.mark.parametrize("batch_size", [None, 4])
def test_closing_gives_memory_back_although_the_feed_is_still_there(batch_size, mode):
    before = shared_bytes()
    with penstock.Loader(Items(60, 200_000), batch_size=batch_size, **mode.options) as feed:
        iterator = iter(feed)
        held = [next(iterator) for _ in range(3)]
        payload = sum(array.nbytes for array, _ in held)
        wait_until(lambda: shared_bytes() - before > 3 * payload)
    del iterator
    if batch_size is not None:  # in the feed's own arena, released batch by batch
        assert shared_bytes() - before < payload + (2 << 20)
    assert all((array == np.reshape(index, (-1, 1))).all() for array, index in held)
    assert feed.stats()["delivered"] == 3
    del held
    if batch_size is not None:
        del feed  # the arena is the feed's own
    assert shared_bytes() - before < 2 << 20


class Remembered(Items):
    """Records which of its arrays still exist in this process."""

    def __init__(self):
        super().__init__(40, 4000)
        self.made: list[Any] = []

    def __getitem__(self, index):
        array, _ = super().__getitem__(index)
        self.made.append(weakref.ref(array))
        return array


def test_closing_lets_go_of_what_was_prefetched():
    source = Remembered()
    feed = penstock.Loader(source, max_queue_size=8, **THREADS.options)
    iterator = iter(feed)
    first = next(iterator)
    deadline = time.monotonic() + 10
    while len(source.made) < 9 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert sum(made() is not None for made in source.made) > 5
    feed.close()
    assert sum(made() is not None for made in source.made) == 1  # `first`, which is held
    assert (first == 0).all()


@each((THREADS, PROCESSES), ())
def test_an_array_outlives_the_container_it_came_in(mode):
    with penstock.Loader(Ways("own_in_list"), **mode.options) as feed:
        deep = [item[1]["deep"][0] for item in feed]
        views = [array[100:200] for array in deep]
        del deep
        gc.collect()
        list(feed)
        for i, view in enumerate(views):
            assert (view == np.arange(100.0, 200) + i + 1).all()


@each((INLINE, Mode(1), Mode(1, "fork")), ())
@pytest.mark.parametrize(
    "way", ["own", "row_of_store", "reused_buffer", "masked", "objects", "cached_dataclass", *HELD]
)
def test_samples_are_never_aliased(way, mode):
    with penstock.Loader(Ways(way), batch_size=3, **mode.options) as feed:
        held = [list(feed) for _ in range(2)]
        for epoch in held:
            for b, batch in enumerate(epoch):
                for r, row in enumerate(batch):
                    assert_same(row, expected(way, 3 * b + r), f"{way}, {b}, {r}")


@each((INLINE, Mode(1), Mode(1, "fork")), ())
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_error_policies_do_not_alias(policy, mode):
    class Troubled(Ways):
        def __getitem__(self, i):
            if i == 1:
                raise ValueError(i)
            return super().__getitem__(i)

    def total(samples):
        return [sample[:] for sample in samples]

    for options in ({}, {"batch_size": 3, "collate": total}):
        with penstock.Loader(
            Troubled("reused_buffer"), on_error=policy, **options, **mode.options
        ) as feed:
            held = list(feed)
            if options:
                continue  # a collate that keeps views of one buffer has mixed them up itself
            firsts = [int(array[0]) for array in held]
            assert sorted(set(firsts)) == [0, 2, 3, 4, 5]
            for array in held:
                assert (array == np.arange(len(array)) + array[0]).all()


def test_a_fork_of_this_process_does_not_release_what_is_held():
    with penstock.Loader(Items(20, 30_000), max_queue_size=1, **PROCESSES.options) as feed:
        iterator = iter(feed)
        held = [next(iterator) for _ in range(4)]
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                right = all((array == index).all() for array, index in held)
                del held
                gc.collect()
                code = 0 if right else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        rest = list(iterator)
        for array, index in (*held, *rest):
            assert (array == index).all()


@each((THREADS, PROCESSES), ())
def test_tensors_come_back_as_tensors_and_are_not_aliased(mode):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Tensors:
        def __init__(self):
            self.kept = {}

        def __len__(self):
            return 6

        def __getitem__(self, i):
            # One for each thread: concurrent writes to one would be the dataset's error.
            kept = self.kept.setdefault(threading.get_ident(), torch.zeros(4000))
            kept[:] = i
            return torch.full((4000,), i), kept, torch.from_numpy(np.full(4000, i))

    for batch_size in (None, 2):
        with penstock.Loader(Tensors(), batch_size=batch_size, **mode.options) as feed:
            held = list(feed)
            for i, tensors in enumerate(held):
                for tensor in tensors:
                    assert type(tensor) is torch.Tensor
                    first = i if batch_size is None else i * 2
                    assert int(tensor.flatten()[0]) == first

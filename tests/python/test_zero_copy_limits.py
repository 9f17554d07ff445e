"""The memory of results: recycled, or ordinary memory if the arena is exhausted."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from contract import SPAWN, Mode, each
from loader_datasets import Items

pytestmark = pytest.mark.timeout(60)

ONE = Mode(1, "fork")
MORE = (Mode(1, "spawn"), Mode(1, "forkserver"))
PAGE = 4096


def minor_faults(pid: int) -> int:
    """Page faults of all threads of a process, from the kernel's counters."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[7])


class Images:
    """The dataset of bench/cases/large_items.py, with smaller arrays."""

    def __init__(self, length: int, batch: int) -> None:
        self.length = length
        self.batch = batch

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.random.rand(self.batch, 224, 224, 3).astype("float32"), index


@each((ONE,), (Mode(2, "spawn"), Mode(2, "forkserver")))
def test_a_large_batch_takes_no_copy_and_no_page_faults_in_steady_state(mode):
    with penstock.Loader(Images(20, 4), max_queue_size=3, **mode.options) as feed:
        pages = 4 * 224 * 224 * 3 * 4 // PAGE

        def read():
            workers = [
                w for w in feed.stats()["workers"] if w["pid"]
            ]  # none before the first batch
            return sum(minor_faults(w["pid"]) for w in workers), sum(w["tickets"] for w in workers)

        # The largest number of blocks in use depends on the timing. So the steady state is reached
        # at some time; in it an epoch has almost no page faults. Each batch needs three times its
        # pages: drawn as float64, then converted to float32.
        shares = []
        while not shares or (shares[-1] > 0.02 and len(shares) < 12):
            faults, tickets = read()
            for batch, _ in feed:
                assert batch.dtype == np.float32
                assert 0.4 < batch.mean() < 0.6
            more, made = read()
            shares.append((more - faults) / (made - tickets) / (3 * pages))
        assert shares[-1] <= 0.02, shares
        stats = feed.stats()
        assert sum(stats["bytes_copied"].values()) == 0
        assert stats["copies_avoided"] >= 20 * len(shares)


class Limited(Items):
    """Its process may not create files above a size limit, which includes its arena."""

    def __init__(self, length: int, width: int, limit: int) -> None:
        super().__init__(length, width)
        self.limit = limit

    def __getitem__(self, index: int) -> Any:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.limit))
        array, _ = super().__getitem__(index)
        return {"array": array, "index": index, "text": "t" * 1000}


@each((Mode(1, "fork"), Mode(2, "fork")), MORE)
@pytest.mark.parametrize("limit", [4096, 4 << 20])
def test_an_arena_that_is_full_falls_back_to_ordinary_memory(limit, mode):
    with penstock.Loader(Limited(30, 200_000, limit), **mode.options) as feed:
        held = [list(feed) for _ in range(2)]
        for epoch in held:
            assert [item["index"] for item in epoch] == list(range(30))
            for item in epoch:
                assert (item["array"] == item["index"]).all()
                assert item["array"].flags.writeable
                assert item["text"] == "t" * 1000
        stats = feed.stats()
        assert stats["copies"]["no_room"] > 20
        assert stats["restarts"] == 0
    for item in held[0]:
        item["array"] += 1
        assert (item["array"] == item["index"] + 1).all()


@each((ONE,), MORE)
def test_batches_outside_of_the_arena_outlive_their_loader(mode):
    feed = penstock.Loader(Limited(6, 200_000, 4096), **mode.options)
    held = list(feed)
    feed.close()
    del feed
    for item in held:
        assert (item["array"] == item["index"]).all()


@each((ONE,), MORE)
def test_samples_do_not_need_their_worker_s_arena(mode):
    with penstock.Loader(Limited(30, 100_000, 4096), batch_size=4, **mode.options) as feed:
        batches = list(feed)
        assert [len(batch["index"]) for batch in batches] == [4] * 7 + [2]
        for batch in batches:
            assert (batch["array"] == batch["index"][:, None]).all()


def run_limited(limit: int, batch_size: int | None, queue: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        with penstock.Loader(
            Items(40, 500_000), batch_size=batch_size, max_queue_size=2, **ONE.options
        ) as feed:
            held = []
            try:
                for batch in feed:
                    held.append(batch)
                queue.put(("all", len(held)))
            except penstock.OutOfMemory as error:
                right = all((x == np.reshape(i, (-1, 1))).all() for x, i in held)
                del held, batch
                again = len(list(feed.steps(3)))
                queue.put(("refused", right, again, str(error)))
    except BaseException as error:
        queue.put(("raised", repr(error)))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_consumer_that_keeps_everything_under_a_limit(batch_size):
    import multiprocessing

    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=run_limited, args=(24 << 20, batch_size, queue))
    child.start()
    answer = queue.get()
    child.join(20)
    assert child.exitcode == 0
    if batch_size is None:
        assert answer == ("all", 40)
    else:
        # Samples are written in place, in one arena: if it is full, the error lists the holders,
        # and the feed continues after memory was released.
        assert answer[:3] == ("refused", True, 3), answer
        assert "Hold on to fewer batches" in answer[3]


class Exact(Items):
    """Items of very different sizes."""

    def __getitem__(self, index: int) -> Any:
        return np.full(1 + index * 9973 % 300_000, index, np.int32), index


@each((Mode(2, "fork"),), (SPAWN,))
def test_sizes_may_differ_from_batch_to_batch(mode):
    with penstock.Loader(Exact(60), shuffle=True, max_queue_size=4, **mode.options) as feed:
        held = []
        for _ in range(3):
            for array, index in feed:
                assert len(array) == 1 + index * 9973 % 300_000
                assert (array == index).all()
                if index % 7 == 0:
                    held.append((array, index))
        for array, index in held:
            assert (array == index).all()


@each((Mode(2, "fork"),), (SPAWN,))
@pytest.mark.parametrize("batch_size", [None, 4])
def test_held_batches_outlive_their_worker(batch_size, mode):
    with penstock.Loader(
        Items(40, 50_000), batch_size=batch_size, max_queue_size=3, **mode.options
    ) as feed:
        iterator = iter(feed)
        held = [next(iterator) for _ in range(4)]
        for worker in feed.stats()["workers"]:
            os.kill(worker["pid"], signal.SIGKILL)
        held += list(iterator)
        held += list(feed)
        numbers = np.concatenate([np.atleast_1d(index) for _, index in held])
        assert numbers.tolist() == [*range(40)] * 2
        for array, index in held:
            assert (array == np.reshape(index, (-1, 1))).all()
            array += 1


class Grown(Items):
    """Arrays that NumPy reallocates, older than the arena and younger."""

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)
        self.old = np.arange(50_000.0)  # as the worker starts: before there is an arena

    def __getitem__(self, index: int) -> Any:
        self.old.resize(50_000 + 10_000 * (index % 3), refcheck=False)
        made = np.fromiter(range(20_000 + index), np.int64)  # grows as it goes
        made.resize(30_000, refcheck=False)
        shrunk = np.arange(100_000)
        shrunk.resize(3000, refcheck=False)
        return made, shrunk, self.old, index


@each((Mode(1, "fork"),), MORE)
def test_arrays_may_be_resized(mode):
    with penstock.Loader(Grown(12), **mode.options) as feed:
        for made, shrunk, old, index in feed:
            assert (made[: 20_000 + index] == np.arange(20_000 + index)).all()
            assert not made[20_000 + index :].any()
            assert (shrunk == np.arange(3000)).all()
            assert (old[:50_000] == np.arange(50_000)).all()


class NoPageForHeader:
    """Its worker's arena may grow for one array, and for nothing else."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> np.ndarray:
        if index == 0:
            # The arena's first page of 64 KiB, and 16 for the array. SIGXFSZ is ignored by Python.
            resource.setrlimit(resource.RLIMIT_FSIZE, (17 << 16, resource.RLIM_INFINITY))
        return np.full(1 << 20, index + 1, np.uint8)


@each((Mode(1, "fork"),), ())
def test_an_array_whose_lease_has_no_header_is_sent_all_the_same(mode):
    with penstock.Loader(NoPageForHeader(), **mode.options) as feed:
        first, second = feed
        assert (first == 1).all()
        assert (second == 2).all()
        assert feed.stats()["copies"]["no_room"] >= 1

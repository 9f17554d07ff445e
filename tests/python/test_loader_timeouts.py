"""Items that exceed ``timeout=``: processes are killed, threads abandoned, errors name items."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import penstock
from contract import PROCESSES, SPAWN, THREADS, Mode, each
from faults import lost, wait_until
from loader_datasets import Items

pytestmark = pytest.mark.timeout(120)

# Seconds in which everything that is not stuck is done, also on a busy machine.
PATIENCE = 2.0


class Stuck(Items):
    """Hangs at one index, until `seconds` have passed; they may be changed meanwhile."""

    def __init__(self, stuck: int, length: int = 8, seconds: float = 600) -> None:
        super().__init__(length)
        self.stuck = stuck
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        if index == self.stuck:
            began = time.monotonic()
            while time.monotonic() - began < self.seconds:
                time.sleep(0.01)
        return super().__getitem__(index)


@each((PROCESSES,), (SPAWN, Mode(2, "forkserver")))
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_stuck_process_is_killed_and_replaced_and_the_error_names_the_index(batch_size, mode):
    with penstock.Loader(
        Stuck(5), batch_size=batch_size, timeout=PATIENCE, shuffle=True, **mode.options
    ) as feed:
        iterator = iter(feed)
        first = next(iterator) if batch_size is None else None
        with pytest.raises(penstock.Timeout, match=r"epoch 0, index 5 .*worker \d"):
            list(iterator)
        assert feed.stats()["timeouts"] >= 1
        del first
        # Another worker is there for the next epoch.
        with pytest.raises(penstock.Timeout, match=r"epoch [01], index 5 "):
            list(feed)
        assert feed.stats()["restarts"] >= 1


@each((PROCESSES,), ())
@pytest.mark.parametrize("batch_size", [None, 4])
def test_skip_passes_over_what_hangs(batch_size, mode):
    with penstock.Loader(
        Stuck(5), batch_size=batch_size, timeout=PATIENCE, on_error="skip", **mode.options
    ) as feed:
        taken = [y for _, ys in feed for y in np.ravel(ys).tolist()]
        assert taken == [0, 1, 2, 3, 4, 6, 7]
        assert lost(feed) == [(0, 5)]
        assert feed.stats()["skipped"] == 1


class StuckTogether(Stuck):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


@each((PROCESSES,), ())
def test_skip_passes_over_what_hangs_in_getitems(mode):
    with penstock.Loader(
        StuckTogether(5), batch_size=4, timeout=PATIENCE, on_error="skip", **mode.options
    ) as feed:
        taken = [y for _, ys in feed for y in ys.tolist()]
        assert taken == [0, 1, 2, 3, 4, 6, 7]
        assert lost(feed) == [(0, 5)]
        assert feed.stats()["skipped"] == 1


@each((THREADS,), ())
def test_a_stuck_thread_is_abandoned_and_the_error_names_the_index(mode):
    source = Stuck(5)
    with penstock.Loader(source, timeout=PATIENCE, **mode.options) as feed:
        begin = time.monotonic()
        seen = []
        with pytest.raises(penstock.Timeout, match=r"epoch 0, index 5 "):
            for _, index in feed:
                seen.append(index)
        assert seen == [0, 1, 2, 3, 4]
        assert time.monotonic() - begin < 60
    source.seconds = 0  # it must end at some time, because threads cannot be killed


@each((THREADS,), ())
def test_skip_passes_over_a_stuck_thread(mode):
    source = Stuck(5)
    with penstock.Loader(
        source, batch_size=4, timeout=PATIENCE, on_error="skip", **mode.options
    ) as feed:
        batches = list(feed)
        assert [y for _, ys in batches for y in ys.tolist()] == [0, 1, 2, 3, 4, 6, 7]
        for x, y in batches:
            assert (x == y[:, None]).all()
        assert lost(feed) == [(0, 5)]
        wait_until(lambda: feed.stats()["restarts"] >= 1)
    source.seconds = 0


class SlowOdd(Items):
    """Every second item exceeds the limit, and is delivered anyway."""

    def __getitem__(self, index: int) -> Any:
        if index % 2:
            time.sleep(2.5)
        return super().__getitem__(index)


@each((Mode(1),), ())
def test_threads_that_come_back_stand_in_for_others(mode):
    with penstock.Loader(SlowOdd(24), timeout=1, on_error="skip", **mode.options) as feed:
        assert [index for _, index in feed] == [*range(0, 24, 2)]
        assert feed.stats()["skipped"] == 12  # more than can be stuck at a time


class StuckFour(Items):
    def __getitem__(self, index: int) -> Any:
        if 4 <= index < 8:
            time.sleep(20)
        return super().__getitem__(index)


@each((PROCESSES,), ())
def test_skip_passes_over_a_whole_batch_that_hangs(mode):
    with penstock.Loader(
        StuckFour(12), batch_size=4, timeout=PATIENCE, on_error="skip", **mode.options
    ) as feed:
        assert [y for _, ys in feed for y in ys.tolist()] == [0, 1, 2, 3, 8, 9, 10, 11]
        assert lost(feed) == [(0, index) for index in range(4, 8)]


class StuckForGood(Items):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.over = threading.Event()

    def __getitem__(self, index: int) -> Any:
        self.over.wait(20)
        return super().__getitem__(index)


@each((Mode(1),), ())
def test_when_every_thread_is_stuck_nobody_waits(mode):
    source = StuckForGood(32)
    with (
        penstock.Loader(source, timeout=0.02, on_error="skip", **mode.options) as feed,
        pytest.raises(penstock.Timeout, match="all threads, 11 by now, are stuck"),
    ):
        try:
            list(feed)
        finally:
            source.over.set()


def slow_generator():
    for i in range(6):
        if i == 3:
            signal.pause()
        yield i


class StuckOnce:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self):
        for i in range(6):
            if i == 3 and self.times == 0:
                self.times += 1
                time.sleep(3)
            yield np.array([i])


@each((Mode(1),), ())
@pytest.mark.parametrize("wait", [0, 3.5], ids=["while it is stuck", "when it came back"])
def test_a_generator_goes_on_after_its_thread_was_abandoned(wait, mode):
    with penstock.Loader(StuckOnce(), timeout=1, **mode.options) as feed:
        with pytest.raises(penstock.Timeout, match=r"epoch 0, index 3 "):
            list(feed)
        time.sleep(wait)
        for _ in range(2):
            assert [int(batch[0]) for batch in feed] == list(range(6))


@each((PROCESSES,), ())
def test_a_generator_that_hangs_times_out(mode):
    with penstock.Loader(slow_generator, timeout=PATIENCE, **mode.options) as feed:
        seen = []
        with pytest.raises(penstock.Timeout, match="index 3"):
            for item in feed:
                seen.append(item)
        assert seen == [0, 1, 2]
    with penstock.Loader(slow_generator, timeout=PATIENCE, on_error="skip", **mode.options) as feed:
        assert list(feed) == [0, 1, 2]
        assert lost(feed) == [(0, 3)]


def steady_generator():
    for i in range(12):
        time.sleep(0.3)
        yield i, os.getpid()


@each((PROCESSES,), ())
def test_replaying_a_generator_is_not_held_against_its_timeout(mode):
    options = {"timeout": PATIENCE, "max_queue_size": 1, **mode.options}
    with penstock.Loader(steady_generator, **options) as feed:  # a replay up to 8 takes 2.4 s
        iterator = iter(feed)
        seen = []
        for i, pid in iterator:
            seen.append(i)
            if i == 8:
                os.kill(pid, signal.SIGKILL)
        assert seen == list(range(12))
        assert feed.stats()["timeouts"] == 0


def many_rows():
    """So many rows that gathering a quarter of them takes more than a millisecond."""
    return np.arange(4_000_000)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["columns", "chain"])
def test_native_workers_time_out(kind, on_error):
    rows = many_rows()
    options = {"workers": 2, "timeout": 0.001, "on_error": on_error}
    if kind == "columns":
        made = penstock.Loader(rows, batch_size=len(rows) // 4, shuffle=True, **options)
    else:
        made = penstock.Dataset.arrays(rows).shuffle(seed=1).batch(len(rows) // 4).build(**options)
    with made as feed:
        with pytest.raises(penstock.Timeout, match=r"epoch 0, index \d+"):
            list(feed)
        assert feed.stats()["timeouts"] >= 1
        wait_until(lambda: feed.stats()["restarts"] >= 1, "another thread in its place")


@pytest.mark.parametrize("kind", ["columns", "chain"])
def test_a_timeout_that_is_not_reached_changes_nothing_for_native_workers(kind):
    rows = np.arange(1000)

    def made(**options):
        if kind == "columns":
            return penstock.Loader(rows, batch_size=10, shuffle=True, workers=2, **options)
        return penstock.Dataset.arrays(rows).shuffle(seed=0).batch(10).build(workers=2, **options)

    with made() as plain, made(timeout=60) as feed:
        for _ in range(3):
            for batch, other in zip(feed, plain, strict=True):
                assert np.array_equal(batch, other)
        assert feed.stats()["timeouts"] == 0

"""Waits of consumer and workers: the counters of stats(), and a consumer that stops."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, THREADS, Mode, each
from faults import right, wait_until
from loader_datasets import Items

pytestmark = pytest.mark.timeout(60)


class Sleepy(Items):
    """Takes 5 ms for every item."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        return super().__getitem__(index)


def waits(feed: penstock.Loader, batches: int, step: float) -> tuple[float, float]:
    """The share of time that the consumer waits, and the idle seconds of workers."""
    before = feed.stats()
    for _ in feed.steps(batches):
        time.sleep(step)
    after = feed.stats()
    waited, used = (after[key] - before[key] for key in ("wait_ns", "busy_ns"))
    idle = [sum(worker["wait_ticket_ns"] for worker in s["workers"]) for s in (before, after)]
    return waited / (waited + used), (idle[1] - idle[0]) / 1e9


# Other load of the machine affects the measurement: measure several times, the best counts.
TIMES = 4


@each(KINDS, ())
def test_behind_a_slow_consumer_the_workers_wait(mode: Mode) -> None:
    with penstock.Loader(Items(100), max_queue_size=4, **mode.options) as feed:
        next(iter(feed))  # processes have started by then
        for left in reversed(range(TIMES)):
            share, idle = waits(feed, 20, 0.02)
            if share < 0.2 and (mode == INLINE or idle > 0.1):
                break
            assert left, (share, idle)


@each(KINDS, ())
def test_behind_a_slow_dataset_the_consumer_waits(mode: Mode) -> None:
    with penstock.Loader(Sleepy(100), max_queue_size=1, **mode.options) as feed:
        for left in reversed(range(TIMES)):
            share, _ = waits(feed, 60, 0)
            if share > 0.8:
                break
            assert left, share
        stats = feed.stats()
    assert stats["wait_share"] == stats["wait_ns"] / (stats["wait_ns"] + stats["busy_ns"])


@each((THREADS, PROCESSES), ())
def test_where_a_row_finds_no_room_its_worker_waits_for_it(mode: Mode) -> None:
    with penstock.Loader(Items(64, 1 << 14), batch_size=8, max_bytes=1, **mode.options) as feed:
        for _ in range(3):
            assert len(list(feed)) == 8
        assert sum(worker["wait_slot_ns"] for worker in feed.stats()["workers"]) > 0


@each((THREADS, PROCESSES), ())
def test_where_bytes_bound_the_batches_the_advice_is_to_raise_them(mode: Mode) -> None:
    with penstock.Loader(Sleepy(100, 1 << 14), max_bytes=1, **mode.options) as feed:
        for left in reversed(range(TIMES)):
            waits(feed, 30, 0)
            found = feed.analysis()
            if found["bottleneck"] == "memory":
                break
            assert left, found
    assert any("Raise max_bytes" in each for each in found["recommendations"])


def cpu_seconds(feed: penstock.Loader) -> float:
    """CPU time of the workers, which are processes or threads of this process."""
    tasks = [Path(f"/proc/{worker['pid']}/stat") for worker in feed.stats()["workers"]]
    if not feed.stats()["workers"][0]["pid"]:
        ids = [t.native_id for t in threading.enumerate() if t.name.startswith("penstock worker")]
        tasks = [Path(f"/proc/self/task/{number}/stat") for number in ids]
    assert tasks
    ticks = 0
    for task in tasks:
        fields = task.read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def made(feed: penstock.Loader) -> int:
    return int(feed.stats()["stages"][0]["rows"])


@each((THREADS, PROCESSES), ())
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_consumer_that_does_not_come_back_costs_nothing(
    batch_size: int | None, mode: Mode
) -> None:
    items = batch_size or 1
    with penstock.Loader(
        Items(60 * items), batch_size=batch_size, max_queue_size=5, **mode.options
    ) as feed:
        batches = iter(feed)
        taken = [next(batches)]
        wait_until(lambda: made(feed) >= (1 + 5) * items)
        for left in reversed(range(TIMES)):
            before = cpu_seconds(feed)
            time.sleep(1)
            # A spinning worker would use all idle CPU time.
            if cpu_seconds(feed) - before <= 0.05:
                break
            assert left
        assert made(feed) <= (1 + 5 + mode.workers) * items
        taken += batches
        assert right(taken, 60 * items)
        assert len(taken) == 60

"""Feeds that tune their workers to the consumer's pace, in every mode."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import penstock
from faults import wait_until
from penstock import Dataset

CORES = len(os.sched_getaffinity(0))
PATIENCE = 60.0


class Numbers:
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(3, index)


def same(number: Any) -> Any:
    return number


def run(feed: penstock.Loader, step: float, until: Any) -> None:
    """Take batches, with a step of so many seconds each, until the condition holds."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for _ in feed.steps(5):
            time.sleep(step)
        if until(feed.stats()):
            return
    raise AssertionError(f"never: {feed.stats()['active_workers']} of the workers are active")


def one_is_active(stats: dict[str, Any]) -> bool:
    return bool(stats["active_workers"] == 1)


def test_processes_of_a_loader_that_bring_nothing_rest_and_outlive_a_death() -> None:
    with penstock.Loader(
        Numbers(), batch_size=4, use_multiprocessing=True, start_method="fork"
    ) as feed:
        run(feed, 0.002, one_is_active)
        stats = feed.stats()
        assert stats["queue_size"] == 10  # a Loader's queue is not tuned
        if CORES > 1:
            os.kill(stats["workers"][-1]["pid"], signal.SIGKILL)  # a parked one
            wait_until(lambda: feed.stats()["restarts"] == 1)
        os.kill(feed.stats()["workers"][0]["pid"], signal.SIGKILL)  # the active one
        assert len(list(feed.steps(300))) == 300
        wait_until(lambda: feed.stats()["restarts"] == (2 if CORES > 1 else 1))


@pytest.mark.parametrize("processes", [False, True])
def test_a_dataset_for_a_slow_consumer_has_one_worker_and_a_short_queue(processes: bool) -> None:
    chain = Dataset.range(1000).map(same).batch(2).repeat()
    with chain.build(use_multiprocessing=processes, start_method="fork") as feed:
        run(feed, 0.002, lambda s: s["active_workers"] == 1 and s["queue_size"] <= 8)


def test_what_is_given_is_not_tuned() -> None:
    chain = Dataset.range(1000).batch(2).repeat().prefetch(6)
    with chain.build(workers=2) as feed:
        for _ in feed.steps(200):
            time.sleep(0.002)
        assert feed.stats()["active_workers"] == 2
        assert feed.stats()["queue_size"] == 6
    with penstock.Loader(Numbers(), workers=0) as feed:
        next(iter(feed))
        assert feed.stats()["active_workers"] == 1


def test_threads_with_a_timeout_are_not_parked() -> None:
    with penstock.Loader(Numbers(), batch_size=4, timeout=30.0) as feed:
        places = feed.stats()["active_workers"]
        for _ in feed.steps(200):
            time.sleep(0.002)
        assert feed.stats()["active_workers"] == places

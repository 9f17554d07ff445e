"""A pass stays within max_bytes for any number of a stream's inputs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from dataset_functions import as_it_is
from penstock import Dataset

MIB = 1 << 20
BUDGET = 32 * MIB
INPUTS, ROWS = 48, 14


def resident_bytes() -> int:
    return penstock._engine.resident_bytes()


@pytest.mark.parametrize(("workers", "processes"), [(0, False), (2, False), (2, True)])
def test_many_inputs_of_large_elements_stay_within_the_budget(workers: int, processes: bool):
    """Elements of 1 MiB that the stream makes without Python."""
    small = np.ones((ROWS, MIB // 4), np.uint8)
    to_float = penstock.cast("float32")
    many = Dataset.range(INPUTS).interleave(
        lambda _: Dataset.arrays(small).map(to_float), cycle=INPUTS
    )
    # Only chains that call Python run in processes.
    batches = (many.map(as_it_is) if processes else many).batch(4)
    before = most = resident_bytes()
    count = 0
    options: Any = {"workers": workers, "max_bytes": BUDGET}
    with batches.build(use_multiprocessing=processes, **options) as feed:
        for batch in feed:
            count += 1
            if count < 20:  # so that the maximum is made ahead
                time.sleep(0.01)
            most = max(most, resident_bytes())
            del batch
    assert count == INPUTS * ROWS // 4
    # The delivered batch, and 12 MiB for everything else.
    assert most - before < BUDGET + 4 * MIB + 12 * MIB


GROWTH = """
import sys, threading, time
import numpy as np
import penstock
from penstock import Dataset

MIB = 1 << 20
case, workers, processes = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
budget = int(sys.argv[4])
def large(number): return np.full(MIB // 8, float(number))
def yes(element): return True
def source(): return Dataset.range(60).map(large).filter(yes)
dataset = {
    "one": lambda: source().batch(4),
    "interleave": lambda: Dataset.interleave([source() for _ in range(16)], cycle=16).batch(4),
    "sample_from": lambda: Dataset.sample_from([source() for _ in range(16)]).batch(4),
    "large batches": lambda: Dataset.range(320).map(large).batch(16),
    "zip": lambda: Dataset.zip(*[source() for _ in range(4)]).batch(1),
}[case]()
resident = penstock._engine.resident_bytes
before = most = resident()
over = False
def watch():
    global most
    while not over:
        most = max(most, resident())
        time.sleep(0.001)
threading.Thread(target=watch, daemon=True).start()
count = 0
with dataset.build(workers=workers, use_multiprocessing=processes, max_bytes=budget * MIB) as feed:
    for batch in feed:
        count += 1
        time.sleep(0.01)
        del batch
over = True
print(count, (most - before) // MIB)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "processes"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("case", ["one", "interleave", "sample_from", "zip"])
def test_functions_of_many_inputs_stay_within_the_budget(case: str, workers: int, processes: bool):
    """Results of functions are released with their elements, and are not kept longer."""
    # Memory that Python frees is returned to the system: the heap would keep some of it.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    arguments = [sys.executable, "-c", GROWTH, case, str(workers), str(processes), "32"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    count, grown = map(int, done.stdout.split())
    assert count == {"one": 15, "interleave": 240, "sample_from": 240, "zip": 60}[case]
    # The delivered batch, and 16 MiB for everything else, including functions' results in workers.
    assert grown < BUDGET // MIB + 4 + 16


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_what_functions_made_of_a_batch_is_within_the_budget(processes: bool):
    """Two workers hold the data of their batches twice until it is written to the batches."""
    arguments = [sys.executable, "-c", GROWTH, "large batches", "2", str(processes), "96"]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    count, grown = map(int, done.stdout.split())
    assert count == 20
    # The delivered batch, and 8 MiB for everything else.
    assert grown < 96 + 16 + 8


def test_a_batch_of_all_there_is_takes_what_there_is():
    def kib(number: Any) -> Any:
        return np.full(128, number)

    def yes(_element: Any) -> bool:
        return True

    for workers in (0, 2):
        before = resident_bytes()
        everything = Dataset.range(10).map(kib).filter(yes).batch(1_000_000)
        with everything.build(workers=workers, use_multiprocessing=False) as feed:
            (batch,) = feed
            assert batch[:, 0].tolist() == list(range(10))
            assert resident_bytes() - before < 64 * MIB


@pytest.mark.parametrize("processes", [False, True])
def test_sections_behind_sections_are_found_again_with_any_budget(processes: bool):
    """No element of an abandoned pass is made ahead while a position is restored."""

    def first(number: Any) -> Any:
        return np.full(20_000, number)

    def second(element: Any) -> Any:
        return np.full(9_000, element[0])

    def yes(_element: Any) -> bool:
        return True

    def numbers(batches: Iterable[Any]) -> list[int]:
        return [int(batch[0, 0]) for batch in batches]

    dataset = Dataset.range(36).map(first).batch(6).unbatch().map(second).filter(yes).batch(1)
    for budget in (1, 2, 4, 8):
        options: Any = {"workers": 2, "max_bytes": budget * MIB}
        with dataset.build(use_multiprocessing=processes, **options) as feed:
            for cut in range(1, 20):
                iterator = iter(feed)
                assert numbers(next(iterator) for _ in range(cut)) == list(range(cut))
                state = feed.state()
                del iterator
                feed.restore(state)
                assert numbers(feed) == list(range(cut, 36)), f"{budget} MiB, {cut}"


@pytest.mark.parametrize("max_bytes", [1, MIB, None])
def test_a_worker_that_is_killed_holds_no_bytes_and_no_element(tmp_path: Path, max_bytes: Any):
    """Large elements stay in their slots until their batch is made."""
    marker = str(tmp_path / "killed")

    def made(number: Any) -> Any:
        if number == 23 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((64, 1024), float(number))

    def yes(_element: Any) -> bool:
        return True

    dataset = Dataset.range(48).map(made).filter(yes).batch(4)
    with dataset.build(workers=2, use_multiprocessing=True, max_bytes=max_bytes) as feed:
        for _ in range(2):
            numbers = [row for batch in feed for row in batch[:, 63, 1023].tolist()]
            assert numbers == list(range(48))
        assert feed.stats()["restarts"] == 1
        assert feed.stats()["stream_bytes_copied"] == 0


def large(number: Any) -> Any:
    return np.full(MIB // 8, number)


def test_order_and_places_do_not_depend_on_the_budget():
    def some(number: Any) -> Dataset:
        return Dataset.range(number * 100, number * 100 + 6).map(large)

    dataset = Dataset.range(16).interleave(some, cycle=16).batch(4)

    def numbers(feed: Any) -> list[list[int]]:
        return [batch[:, 0].tolist() for batch in feed]

    with dataset.build(workers=0) as feed:
        expected = numbers(feed)
    assert len(expected) == 24
    for workers in (0, 2):
        with dataset.build(workers=workers, max_bytes=4 * MIB, use_multiprocessing=False) as feed:
            assert numbers(feed) == expected
    for least, most in ((None, MIB), (MIB, None)):
        with dataset.build(workers=0, max_bytes=least) as feed:
            steps = iter(feed)
            for _ in range(7):
                next(steps)
            state = feed.state()
        with dataset.build(workers=0, max_bytes=most) as feed:
            feed.restore(state)
            assert numbers(feed) == expected[7:]


def test_an_input_of_which_nothing_came_yet_holds_up_no_other():
    """The size of its elements is unknown, and there may be no space for one."""
    running = most_running = 0
    lock = threading.Lock()

    def fails(number: int) -> np.ndarray:
        raise ValueError(number)

    def some(number: int) -> np.ndarray:
        nonlocal running, most_running
        with lock:
            running += 1
            most_running = max(most_running, running)
        time.sleep(0.004)
        with lock:
            running -= 1
        return np.full(12500, float(number))

    rare = Dataset.range(1000).map(fails).filter(lambda _: True)
    often = Dataset.range(400).map(some).filter(lambda _: True)
    mixed = Dataset.sample_from([rare, often], weights=[0.05, 0.95], seed=3).batch(4)
    at_once = []
    options: Any = {"workers": 8, "use_multiprocessing": False, "max_bytes": 8 * MIB}
    with mixed.build(**options, on_error="skip") as feed:
        for count, _ in enumerate(feed, 1):
            if count % 8 == 0:
                at_once.append(most_running)
                most_running = 0
            if count == 88:
                break
    assert min(at_once) >= 3, at_once

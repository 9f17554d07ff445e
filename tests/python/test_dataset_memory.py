"""What a pass takes is what max_bytes says, however many inputs a stream has."""

from __future__ import annotations

import time
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
    """Elements of 1 MiB that the stream makes itself: nothing of them is Python's."""
    small = np.ones((ROWS, MIB // 4), np.uint8)
    to_float = penstock.cast("float32")
    many = Dataset.range(INPUTS).interleave(
        lambda _: Dataset.arrays(small).map(to_float), cycle=INPUTS
    )
    # Only what calls Python goes to processes.
    batches = (many.map(as_it_is) if processes else many).batch(4)
    before = most = resident_bytes()
    count = 0
    options: Any = {"workers": workers, "max_bytes": BUDGET}
    with batches.build(use_multiprocessing=processes, **options) as feed:
        for batch in feed:
            count += 1
            if count < 20:  # so that as much is made ahead as may be
                time.sleep(0.01)
            most = max(most, resident_bytes())
            del batch
    assert count == INPUTS * ROWS // 4
    # The batch in hand, and 12 MiB for everything else.
    assert most - before < BUDGET + 4 * MIB + 12 * MIB


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

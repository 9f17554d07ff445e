"""How iterations over batches of a device end before their time."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("torch")

import penstock
import penstock.torch


def numbers(n: int = 64):
    rows = np.arange(n * 5, dtype=np.float32).reshape(n, 5)
    return penstock.Dataset.arrays({"x": rows, "y": np.arange(n)}).batch(8)


@pytest.mark.parametrize("device", [None, "cuda:0"])
def test_another_thread_may_close_while_batches_are_taken(cuda, device):
    cuda.set("copy_us", 3000)
    for _ in range(4):
        feed = penstock.torch.feed(numbers(1 << 14), device=device, workers=2)
        ended = []

        def take(feed=feed, ended=ended):
            try:
                for _ in feed:
                    time.sleep(0.001)
                ended.append("silently")
            except penstock.Closed:
                ended.append("closed")

        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(0.02)
        feed.close()
        thread.join(10)
        assert ended == ["closed"]


@pytest.mark.parametrize("taken", [1, 6])
def test_a_later_iteration_ends_an_earlier_one_with_an_error(cuda, taken):
    with penstock.torch.feed(numbers(), device="cuda:0", workers=2) as feed:
        outer = iter(feed)
        for _ in range(taken):
            next(outer)
        time.sleep(0.1)
        assert len(list(feed)) == 8
        with pytest.raises(penstock.InvalidArgument, match="overtaken"):
            next(outer)


def test_batches_in_transfer_are_dropped_when_the_position_is_set(cuda):
    # Two batches, besides what tests with a lost driver left.
    cuda.set("device_memory", cuda.get("memory in use") + 2 * 64 * 1024)
    with penstock.torch.feed(numbers(), device="cuda:0", workers=2) as feed:
        kept = iter(feed)
        next(kept)
        state = feed.state()
        time.sleep(0.1)
        next(kept)
        feed.restore(state)
        assert [int(batch["y"].numpy()[0]) for batch in feed] == list(range(8, 64, 8))

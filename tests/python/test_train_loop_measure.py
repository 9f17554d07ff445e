"""train.Loop.measure: which N is enough for the user's own step, feed and callbacks."""

from __future__ import annotations

import time

import numpy as np
import pytest

import penstock
from penstock import train
from penstock.train._loop_measure import measured
from penstock.train._loop_runs import Run, Said

ROWS, SIZE = 96, 4
SAMPLES = penstock.Dataset.arrays({"x": np.arange(ROWS, dtype=np.float32)})


class Machine:
    """Steps of 1 ms, and a look of 10 ms after each run; the machine gets slower."""

    def __init__(self):
        self.asked = []

    def __call__(self, n, seconds):
        self.asked.append((n, seconds))
        slower = 1 + 0.01 * sum(seconds is not None for _, seconds in self.asked)
        return (0.001 + 0.010 / n) * slower


def test_the_smallest_n_near_the_fastest_is_enough():
    machine = Machine()
    found = measured(machine, [1, 10, 100, 500, 1000, 2000], 1.5)
    assert list(found.step_seconds) == [1, 10, 100, 500, 1000]
    assert found.left_out == (2000,)  # 2 s a run
    assert found.best == 500  # 1.02 ms a step; of 100 it is 1.1
    timed = [n for n, seconds in machine.asked if seconds is not None]
    assert timed == [1, 10, 100, 500, 1000, 1000, 500, 100, 10, 1, 1, 10, 100, 500, 1000]
    lines = str(found).splitlines()
    assert len(lines) == 7
    assert lines[4].split()[0] == "500"
    assert lines[4].endswith("<- enough")
    assert lines[-1].endswith(": 2000")


def test_no_run_is_short_enough():
    with pytest.raises(penstock.InvalidArgument, match=r"one run takes longer than 0\.5 s"):
        measured(lambda n, seconds: 1.0, [], 0.5)


@pytest.mark.parametrize("feed", ["samples", "batches"])
def test_it_is_training_and_every_step_is_shown(feed):
    seen = []

    def step(batch):
        seen.append(len(batch["x"]))
        return batch["x"].sum()

    numbers = []
    loop = train.Loop(
        step,
        SAMPLES if feed == "samples" else list(SAMPLES.batch(SIZE)),
        steps=7,
        batch_size=SIZE if feed == "samples" else None,
        callbacks=lambda number, metrics: numbers.append(number),
        workers=0,
    )
    found = loop.measure((4, 1), seconds=0.2)
    assert set(found.step_seconds) == {1, 4}
    assert all(0 < each < 1 for each in found.step_seconds.values())
    assert not found.left_out
    assert set(seen) == {SIZE}
    assert numbers == list(range(len(seen)))
    assert loop.steps == len(seen)


def test_the_loop_goes_on_where_it_was():
    order = []
    loop = train.Loop(
        lambda batch: order.extend(batch["x"].tolist()),
        SAMPLES.shuffle(seed=1),
        steps=3,
        batch_size=SIZE,
        workers=0,
    )
    loop.run(steps=6)
    before = list(order)
    loop.measure((1, 2), seconds=0.05)
    order.clear()
    loop.run(steps=18)
    assert sorted(before + order) == list(range(ROWS))


def test_what_cannot_be_is_refused():
    loop = train.Loop(lambda batch: None, SAMPLES, steps=3, batch_size=SIZE, workers=0)
    for steps, seconds, said in [
        ((), 1.0, "give some N"),
        ((0,), 1.0, "steps is 0; give 1 or more"),
        (3, 1.0, "give a list of integers"),
        ((1,), 0.0, "a time above 0"),
    ]:
        with pytest.raises(penstock.InvalidArgument, match=said):
            loop.measure(steps, seconds=seconds)
    assert loop.steps == 0
    ended = train.Loop(
        lambda batch: 1.0, SAMPLES, steps=3, batch_size=SIZE, callbacks=lambda *_: True, workers=0
    )
    with pytest.raises(penstock.InvalidArgument, match="a callback ended the training"):
        ended.measure((1,), seconds=0.1)
    once = train.Loop(lambda batch: 1.0, iter(SAMPLES.batch(SIZE)), steps=3)
    with pytest.raises(penstock.InvalidArgument, match="the feed gave no batch"):
        once.measure((1,), seconds=0.1)


def test_steps_that_say_nothing_are_waited_for():
    """A device that is behind: who asks for more is not told so."""
    end = [0.0]

    def wait():
        time.sleep(max(0.0, end[0] - time.perf_counter()))

    class Behind(Run):
        def __call__(self, batches):
            end[0] = max(end[0], time.perf_counter()) + 0.002 * batches.steps
            return Said(batches.steps, lambda: [None] * batches.steps, lambda: None, None, wait)

    loop = train.Loop(lambda batch: None, SAMPLES, steps=3, batch_size=SIZE, workers=0)
    loop._run = Behind()
    found = loop.measure((1, 8), seconds=0.3)
    assert all(0.0015 < each < 0.02 for each in found.step_seconds.values()), found


def test_a_scan_is_measured_with_its_compilations_left_out():
    jax = pytest.importorskip("jax")

    def step(w, batch):
        return w + batch["x"].sum(), {"w": w}

    loop = train.Loop(step, SAMPLES, steps=1, batch_size=SIZE, state=jax.numpy.zeros(()), workers=0)
    found = loop.measure((1, 8), seconds=0.6)
    assert found.step_seconds[8] < found.step_seconds[1]  # a dispatch costs more than the step
    assert found.best == 8

"""train.Loop.measure: the smallest sufficient N for the user's step, feed and callbacks."""

from __future__ import annotations

import time

import numpy as np
import pytest

import penstock
from penstock import train
from penstock.train.loop import measured
from penstock.train.loop_runs import Runner, RunResult, Scan, Steps
from penstock.train.super_batches import SuperBatch

ROWS, SIZE = 96, 4
SAMPLES = penstock.Dataset.arrays({"x": np.arange(ROWS, dtype=np.float32)})


class Machine:
    """Steps of 1 ms, and a check-in of 10 ms after each run; the machine gets slower."""

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
    assert found.best == 500  # 1.02 ms a step; with 100 it is 1.1
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
    found = loop.measure((4, 1), seconds=1.0)
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


def test_invalid_arguments_are_refused():
    loop = train.Loop(lambda batch: None, SAMPLES, steps=3, batch_size=SIZE, workers=0)
    for steps, seconds, said in [
        ((), 1.0, "give values of N"),
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
    """A device that runs behind: dispatching more work does not wait."""
    end = [0.0]

    def wait():
        time.sleep(max(0.0, end[0] - time.perf_counter()))

    class Behind(Runner):
        def __call__(self, batches):
            end[0] = max(end[0], time.perf_counter()) + 0.002 * batches.steps
            return RunResult(
                batches.steps, lambda: [None] * batches.steps, lambda: None, None, wait
            )

    loop = train.Loop(lambda batch: None, SAMPLES, steps=3, batch_size=SIZE, workers=0)
    loop._runner = Behind()
    found = loop.measure((1, 8), seconds=0.3)
    assert all(0.0015 < each < 0.2 for each in found.step_seconds.values()), found


def test_a_scan_is_measured_with_its_compilations_left_out():
    jax = pytest.importorskip("jax")

    def step(w, batch):
        return w + batch["x"].sum(), {"w": w}

    loop = train.Loop(step, SAMPLES, steps=1, batch_size=SIZE, state=jax.numpy.zeros(()), workers=0)
    found = loop.measure((1, 8), seconds=0.6)
    assert found.step_seconds[8] < found.step_seconds[1]  # a dispatch costs more than the step


def test_a_scan_without_metrics_and_with_a_donated_state_is_waited_for():
    """Like a Keras model on JAX whose train_step returns no logs."""
    jax = pytest.importorskip("jax")

    def step(w, batch):
        return w + batch["x"].sum(), {}

    loop = train.Loop(step, SAMPLES, steps=1, batch_size=SIZE, state=jax.numpy.zeros(()), workers=0)
    loop._runner = Scan(step, jax.numpy.zeros(()), donate=True)
    assert set(loop.measure((1, 8), seconds=1.0).step_seconds) == {1, 8}
    assert float(loop.state) > 0


class Cuda:
    """Events as in torch.cuda: an event waits for the work queued before it."""

    def __init__(self):
        self.asked = self.done = 0

    def is_initialized(self):
        return True

    def Event(self):
        return Event(self)


class Event:
    def __init__(self, cuda):
        self.cuda = cuda

    def record(self):
        self.asked = self.cuda.asked

    def synchronize(self):
        self.cuda.done = max(self.cuda.done, self.asked)


@pytest.mark.parametrize("said", [None, 3])
@pytest.mark.parametrize("state", [None, 0])
def test_torch_steps_without_gpu_metrics_are_waited_for(monkeypatch, said, state):
    torch = pytest.importorskip("torch")
    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)

    def step(*given):
        cuda.asked += 1
        return said if state is None else (state, said)

    steps = Steps(step, state)
    batches = SuperBatch(4, 1, None, [np.zeros(1)] * 4)
    first = steps(batches)
    steps(batches)
    assert (cuda.asked, cuda.done) == (8, 0)
    first.wait()
    assert cuda.done == 4, "no further than its own"
    assert first.each() == [said] * 4


def test_a_gpu_that_fails_when_it_is_asked_ends_the_run(monkeypatch):
    torch = pytest.importorskip("torch")

    class Failing(Cuda):
        def Event(self):
            raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(torch, "cuda", Failing())
    loop = train.Loop(lambda batch: None, SAMPLES, steps=2, batch_size=SIZE, workers=0)
    with pytest.raises(RuntimeError, match="an illegal memory access") as caught:
        loop.run()
    assert any("of Loop, or the run that begins there" in note for note in caught.value.__notes__)

"""train.Loop with seconds=: results of fixed runs, timely check-ins, few lengths of runs."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

import penstock
from penstock import train
from penstock.train.loop_runs import RunResult
from penstock.train.pace import MOST_STEPS, Timed, super_batch_of

ROWS, SIZE = 107, 8  # 13 steps of 8 and one of 3
ALWAYS, NEVER = 1e-9, 1e9  # seconds between two check-ins


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 5)).astype(np.float32)
    return {"x": x, "y": (x @ np.arange(5, dtype=np.float32) + 1)[:, None].astype(np.float32)}


class Line:
    """A linear model in NumPy, trained by gradient descent."""

    def __init__(self):
        self.w = np.zeros((5, 1), np.float32)

    def __call__(self, batch):
        error = batch["x"] @ self.w - batch["y"]
        self.w = self.w - np.float32(0.05) * (batch["x"].T @ error) / len(error)
        return {"loss": (error**2).mean(), "rows": len(error)}


@pytest.mark.parametrize("seconds", [ALWAYS, 1e-3, NEVER])
@pytest.mark.parametrize("way", ["dataset", "super-batches", "batches"])
def test_the_result_is_that_of_any_fixed_number_bit_for_bit(data, seconds, way):
    def run(**how):
        feed = {
            "dataset": penstock.Dataset.arrays(data).shuffle(seed=1),
            "super-batches": [data],
            "batches": [
                {n: a[i : i + SIZE] for n, a in data.items()} for i in range(0, ROWS, SIZE)
            ],
        }[way]
        model, seen = Line(), []
        loop = train.Loop(
            model,
            feed,
            batch_size=None if way == "batches" else SIZE,
            callbacks=lambda number, metrics: seen.append((number, metrics)),
            workers=0,
            **how,
        )
        report = loop.run(epochs=3)
        assert report.steps == loop.steps == 42
        return model.w, seen, report

    w, expected, _ = run(steps=5)
    mine, seen, report = run(seconds=seconds)
    np.testing.assert_array_equal(mine, w)
    assert seen == expected
    assert report.metrics == expected[-1][1]
    if seconds == NEVER:
        assert report.check_ins == 1
    if seconds == ALWAYS:
        assert report.check_ins == 42


def test_a_number_of_steps_a_stop_and_an_exception_are_as_exact_as_ever(data):
    model = Line()
    loop = train.Loop(model, [data], seconds=NEVER, batch_size=SIZE)
    assert loop.run(steps=7).steps == 7
    plain = Line()
    for begin in range(0, 7 * SIZE, SIZE):
        plain({name: array[begin : begin + SIZE] for name, array in data.items()})
    np.testing.assert_array_equal(model.w, plain.w)

    seen = []

    def stop_at_six(number, metrics):
        seen.append(number)
        return number == 6

    loop = train.Loop(Line(), [data], seconds=ALWAYS, batch_size=SIZE, callbacks=stop_at_six)
    assert loop.run(epochs=None).stopped
    assert seen == list(range(7))

    def fails(batch):
        if batch["x"][0, 0] == data["x"][6 * SIZE, 0]:
            raise ValueError("no")

    seen.clear()
    loop = train.Loop(fails, [data], seconds=NEVER, batch_size=SIZE, callbacks=stop_at_six)
    with pytest.raises(ValueError, match="no") as caught:
        loop.run()
    assert any("step 6 of Loop" in note for note in caught.value.__notes__)
    assert seen == list(range(6))

    def feed():
        yield data
        raise OSError("the disk")

    seen.clear()
    loop = train.Loop(Line(), feed(), seconds=NEVER, batch_size=SIZE, callbacks=stop_at_six)
    with pytest.raises(OSError, match="the disk") as caught:
        loop.run()
    assert any("before step 14" in note for note in caught.value.__notes__)
    assert seen == list(range(14)), "what was made before it is replayed"


def test_a_jax_scan_compiles_powers_of_two_and_gives_the_same_bits():
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1003, 5)).astype(np.float32)
    y = (x @ np.arange(5, dtype=np.float32))[:, None]
    traced, lengths = [], []

    def step(w, batch):
        traced.append(1)

        def loss_of(w):
            return ((batch["x"] @ w - batch["y"]) ** 2).mean()

        loss, slope = jax.value_and_grad(loss_of)(w)
        return w - 0.05 * slope, loss

    def run(**how):
        seen = []
        loop = train.Loop(
            step,
            penstock.Dataset.arrays({"x": x, "y": y}),
            batch_size=1,
            state=jax.numpy.zeros((5, 1)),
            callbacks=lambda _, loss: seen.append(loss),
            workers=0,
            **how,
        )
        plain = loop._runner

        class Noted(type(plain)):
            def __call__(self, batches):
                lengths.append(batches.steps)
                return super().__call__(batches)

        plain.__class__ = Noted
        traced.clear()
        lengths.clear()
        loop.run(epochs=4)
        return np.asarray(loop.state), seen

    w, expected = run(steps=7)
    for seconds in (ALWAYS, 0.01, NEVER):
        mine, seen = run(seconds=seconds)
        np.testing.assert_array_equal(mine, w)
        assert seen == expected
        assert all(length & (length - 1) == 0 for length in lengths)
        assert max(lengths) == 1 if seconds == ALWAYS else max(lengths) <= MOST_STEPS
        assert len(traced) <= 2 * len(set(lengths)) <= 2 * MOST_STEPS.bit_length()
    assert max(lengths) == MOST_STEPS


class World:
    """A clock that advances by the work that is done."""

    def __init__(self, step):
        self.now, self.step, self.extra = 0.0, step, 0.0

    def run(self, pace, left=1 << 20):
        steps = pace.run_of(left)

        def wait():
            self.now += steps * self.step + self.extra
            self.extra = 0.0

        return steps, pace.due(RunResult(steps, list, lambda: None, None, wait))


def looks(world, pace, runs):
    """Steps and seconds between check-ins."""
    found, steps, began = [], 0, world.now
    pace.begin()
    for _ in range(runs):
        made, due = world.run(pace)
        steps += made
        if due:
            found.append((steps, world.now - began))
            steps, began = 0, world.now
            pace.begin()
    return found


@pytest.mark.parametrize("step", [1e-6, 1e-3, 0.03, 0.3, 5.0])
def test_check_ins_are_on_time_for_any_duration_of_a_step(step):
    world = World(step)
    pace = Timed(1.0, 256, lambda: world.now)
    found = looks(world, pace, 20_000)
    assert len(found) >= 3
    for steps, took in found:
        assert took == pytest.approx(max(1.0, step), rel=0.3)
        assert steps == pytest.approx(took / step)
    assert pace.run_of(1 << 20) <= max(1, 0.5 / step)


def test_runs_grow_in_few_lengths_shrink_when_steps_do_and_forgive_one_slow_run():
    world = World(1e-5)
    pace = Timed(1.0, 4096, lambda: world.now)
    pace.begin()
    lengths = [world.run(pace)[0] for _ in range(20)]
    assert sorted(set(lengths)) == [1, 16, 256, 4096]
    world.extra = 10.0  # something was compiled
    assert world.run(pace)[0] == 4096
    assert world.run(pace)[0] == 4096
    world.step = 1e-2
    lengths = [world.run(pace)[0] for _ in range(40)]
    assert lengths[-1] * world.step <= 0.5
    assert all(length & (length - 1) == 0 for length in lengths)
    assert [pace.run_of(left) for left in (1, 2, 3, 7)] == [1, 2, 2, 4]


def test_a_super_batch_of_a_dataset_is_as_large_as_its_samples_allow(data):
    small = penstock.Dataset.arrays(np.zeros((3, 2), np.float32))
    large = penstock.Dataset.arrays(np.zeros((3, 1 << 20), np.float32))  # 4 MiB a sample
    assert super_batch_of(small, 32) == MOST_STEPS
    assert super_batch_of(large, 1) == 2
    assert super_batch_of(large, 32) == 1
    numbers = penstock.Dataset.arrays(np.arange(24)).shuffle(seed=3)
    untouched = penstock.Dataset.arrays(np.arange(24)).shuffle(seed=3)
    super_batch_of(numbers, 4)
    assert list(numbers) == list(untouched), "no pass was begun"


def test_measuring_a_sample_makes_one_sample_in_line_and_on_this_thread():
    made = []

    def slow_to_share(number):
        made.append((int(number), threading.get_ident()))
        return np.full(3, number)

    assert super_batch_of(penstock.Dataset.range(50).map(slow_to_share), 4) == MOST_STEPS
    assert made == [(0, threading.get_ident())]


def test_batches_of_a_feed_are_grouped_by_their_bytes():
    alive = set()
    most = 0

    def feed():
        nonlocal most
        for _ in range(64):
            batch = np.zeros(1 << 20, np.float32)  # two are 8 MiB
            alive.add(id(batch))
            weakref.finalize(batch, alive.discard, id(batch))
            most = max(most, len(alive))
            yield batch

    assert train.Loop(lambda batch: None, feed(), seconds=NEVER).run().steps == 64
    assert most <= 4


def test_invalid_arguments_are_refused(data):
    class OfSomebody:
        def __call__(self, batch):
            return batch

        def train_step(self, batch):
            return {}

    with pytest.raises(penstock.errors.InvalidArgument, match="no Keras 3 model"):
        train.Loop(OfSomebody(), [data], steps=2)
    for wrong in ({}, {"seconds": 0}, {"seconds": -1.0}, {"seconds": float("nan")}):
        with pytest.raises(penstock.errors.InvalidArgument, match="seconds"):
            train.Loop(lambda batch: 0, [data], **wrong)

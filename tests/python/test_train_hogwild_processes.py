"""train.Hogwild with worker processes: the same contract, and losses with a dead process."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import train
from test_train_hogwild import INPUTS, batches, fresh, serial, step


def processes(step=step, parameters=None, optimizer=None, feed=None, **options):
    parameters = fresh(shared=True) if parameters is None else parameters
    return train.Hogwild(
        step, parameters, optimizer or train.SGD(0.05), batches() if feed is None else feed,
        use_multiprocessing=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("state", ["shared", "own"])
def test_one_process_gives_the_bits_of_an_updater(state):
    optimizer = train.Adam(train.Schedule.cosine(0.1, 100).after_warmup(5), clip_norm=1.0)
    expected = serial(optimizer, epochs=2)
    hogwild = processes(optimizer=optimizer, workers=1, state=state)
    report = hogwild.run(epochs=2)
    assert np.array_equal(hogwild.updater.parameters["w"], expected.parameters["w"])
    assert report.updates == report.steps == hogwild.updater.step == 64
    for mine, theirs in zip(hogwild.updater.slabs, expected.slabs, strict=True):
        assert np.array_equal(mine["w"], theirs["w"])


def test_processes_learn_together_run_after_run():
    hogwild = processes(optimizer=train.Adam(0.05), workers=2, snapshot=True)
    for run in range(1, 3):
        report = hogwild.run(epochs=15)
        assert report.steps == report.updates == 15 * len(batches())
        assert sum(report.staleness.values()) == report.updates
        assert hogwild.updater.step == run * report.updates
    np.testing.assert_allclose(hogwild.updater.parameters["w"], np.arange(INPUTS), atol=0.3)


def test_each_batch_goes_to_one_process_once_in_the_form_it_had():
    def count(batch, views):
        (numbers, name), extra = batch["x"], batch["y"]
        assert numbers.dtype == np.int16
        assert name == f"batch {numbers[0]}"
        assert extra.shape == (3, 2)
        return 0.0, {"seen": train.Rows(numbers, -np.ones(len(numbers), np.float32))}

    parameters = train.Parameters({"seen": (1000,)}, shared=True)
    feed = [
        {"x": (np.arange(i, i + 5, dtype=np.int16), f"batch {i}"), "y": np.ones((2, 3)).T}
        for i in range(0, 1000, 5)
    ]
    report = processes(count, parameters, train.SGD(1.0), feed, workers=3).run()
    assert report.steps == 200
    assert (parameters["seen"] == 1).all()


def test_batches_with_and_without_a_pickle_take_turns():
    class Numbers(list):
        pass

    def count(batch, views):
        numbers = np.asarray(batch["x"], np.int64)
        assert type(batch["x"]).__name__ == batch["kind"]
        assert len(batch["more"]) == 10 * numbers[0]
        assert (batch["more"] == numbers[0]).all()
        return 0.0, {"seen": train.Rows(numbers, -np.ones(len(numbers), np.float32))}

    kinds = [list, Numbers, np.array, tuple]
    feed = [
        {"x": make, "kind": type(make).__name__, "more": np.full(10 * i, i)}
        for i in range(0, 1000, 5)
        for make in [kinds[i // 5 % 4](range(i, i + 5))]
    ]
    parameters = train.Parameters({"seen": (1000,)}, shared=True)
    assert processes(count, parameters, train.SGD(1.0), feed, workers=2).run().steps == 200
    assert (parameters["seen"] == 1).all()


def test_steps_are_exact_and_no_batch_more_is_taken():
    taken = []

    def endless():
        while True:
            taken.append(0)
            yield batches()[0]

    hogwild = processes(feed=endless(), workers=2)
    assert hogwild.run(steps=31, epochs=None).steps == 31
    assert len(taken) == 31
    assert hogwild.run(epochs=None, until=lambda r: r.steps >= 20, interval=0.01).steps >= 20


def test_an_exception_in_a_process_is_raised_with_its_place():
    def fails(batch, views):
        if views.step == 3:
            raise KeyError("of mine")
        return step(batch, views)

    with pytest.raises(KeyError, match="of mine") as raised:
        processes(fails, workers=2).run(epochs=None)
    notes = " ".join(getattr(raised.value, "__notes__", [])) + str(raised.value)
    assert "of Hogwild, step 3" in notes
    assert "in fails" in str(raised.value.__cause__)


def test_an_exception_in_a_process_is_raised_after_the_process_has_ended(tmp_path):
    number = tmp_path / "pid"

    def fails(batch, views):
        (tmp_path / "its").write_text(str(os.getpid()))
        (tmp_path / "its").rename(number)
        raise KeyError("of mine")

    def ended():
        with contextlib.suppress(FileNotFoundError):
            status = Path(f"/proc/{number.read_text()}/stat").read_text()
            return status.rpartition(")")[2].split()[0] == "Z"
        return False

    def feed():
        yield batches()[0]
        while not ended():
            time.sleep(0.01)
        yield batches()[1]

    with pytest.raises(KeyError, match="of mine"):
        processes(fails, feed=feed(), workers=1).run(epochs=None)


def test_a_step_that_cannot_be_pickled_or_started_is_an_error():
    own = threading.local()
    with pytest.raises(penstock.errors.InvalidArgument, match="cannot be sent"):
        processes(lambda batch, views: own, workers=1).run()

    def no_model(views):
        raise ValueError("no model here")

    with pytest.raises(ValueError, match="no model here"):
        processes(model=no_model, workers=2).run()
    with pytest.raises(penstock.errors.InvalidArgument, match="shared=True") as refused:
        processes(parameters=fresh())
    assert "penstock.torch.alias(module, shared=True)" in str(refused.value)


class KilledOnce:
    """A step during which its process is killed, the first time that batch 5 is seen."""

    def __init__(self, flag):
        self.flag = flag

    def __call__(self, batch, views):
        number = int(batch[0])
        if number == 5 and not os.path.exists(self.flag):
            open(self.flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return None, {"seen": train.Rows(batch, -np.ones(len(batch), np.float32))}


@pytest.mark.parametrize("policy", ["restart", "raise"])
def test_a_process_that_is_killed_while_it_computes(policy, tmp_path):
    parameters = train.Parameters({"seen": (40,)}, shared=True)
    feed = [np.array([i]) for i in range(40)]
    hogwild = processes(
        KilledOnce(str(tmp_path / "killed")), parameters, train.SGD(1.0), feed, workers=2,
        on_lost=policy,
    )  # fmt: skip
    if policy == "raise":
        with pytest.raises(penstock.errors.WorkerLost, match="killed by SIGKILL"):
            hogwild.run()
        assert parameters["seen"].max() == 1  # none twice
        return
    report = hogwild.run()
    # Its batches were not used, and went to other workers, each once.
    assert (parameters["seen"] == 1).all()
    assert (report.steps, report.restarts, report.torn) == (40, 1, 0)


def test_a_process_that_is_killed_in_the_middle_of_an_update():
    """The weights stay usable, its batch counts as used, and the report counts it as torn."""
    floats = 8_000_000
    parameters = train.Parameters({"w": (floats,)}, shared=True)

    def ones(batch, views):
        views.gradients["w"][:] = -1
        views.gradients["w"][0] = os.getpid()

    hogwild = processes(
        ones, parameters, train.SGD(1.0, clip_value=1.0), [np.zeros(1)] * 12, workers=1,
        on_lost="restart",
    )  # fmt: skip
    counters = hogwild._runner.counters
    over = threading.Event()
    killed = []

    def kill_in_an_update():
        while not over.is_set():
            counts = counters.counts(0)
            if counts["begun"] > counts["applied"] and not killed:
                (process,) = hogwild._runner.running.values()
                process.kill()
                killed.append(counters.counts(0))

    killer = threading.Thread(target=kill_in_an_update)
    killer.start()
    try:
        report = hogwild.run()
    finally:
        over.set()
        killer.join()
    assert killed
    assert report.restarts == 1
    # The signal may have come when the update had just ended.
    assert report.torn in (0, 1)
    assert report.steps in (11, 12)
    w = parameters["w"][1:]
    assert report.updates == 12 - report.torn
    assert w.max() == 12
    assert w.min() == 12 - report.torn
    if report.torn:
        assert set(np.unique(w)) <= {11.0, 12.0}


def test_processes_that_die_before_a_step_end_the_run():
    def dies(batch, views):
        os._exit(7)

    with pytest.raises(penstock.errors.WorkerLost, match="exited with 7"):
        processes(dies, workers=2, on_lost="restart").run()


def test_optimizers_and_schedules_are_pickled():
    for schedule in (
        train.Schedule(0.5),
        train.Schedule.steps(0.5, [3, 9], 0.3),
        train.Schedule.exponential(0.5, 0.9, 3),
        train.Schedule.cosine(0.5, 20, 0.1).after_warmup(4),
    ):
        copy = pickle.loads(pickle.dumps(schedule))
        assert [copy.at(i) for i in range(30)] == [schedule.at(i) for i in range(30)]
    optimizer = train.AdamW(train.Schedule.cosine(1e-3, 10), beta1=0.8, clip_norm=2.0)
    again = pickle.loads(pickle.dumps(optimizer))
    assert (again.beta1, again.clip_norm, again.weight_decay) == (0.8, 2.0, 0.01)
    a, b = (train.Updater(fresh(), o) for o in (optimizer, again))
    for updater in (a, b):
        updater.apply({"w": np.ones(INPUTS), "b": 1.0})
    assert np.array_equal(a.parameters["w"], b.parameters["w"])


def test_a_module_of_torch_is_sent_and_aliased():
    torch = pytest.importorskip("torch")

    def learn(batch, views):
        loss = (
            (views.model(torch.from_numpy(batch[0]))[:, 0] - torch.from_numpy(batch[1])) ** 2
        ).mean()
        loss.backward()
        return loss

    module = torch.nn.Linear(INPUTS, 1)
    parameters, _ = penstock.torch.alias(module, shared=True)
    report = processes(
        learn, parameters, train.Adam(0.05), workers=2, model=module
    ).run(epochs=30)  # fmt: skip
    assert report.updates == 30 * len(batches())
    np.testing.assert_allclose(module.weight.detach().numpy()[0], np.arange(INPUTS), atol=0.3)

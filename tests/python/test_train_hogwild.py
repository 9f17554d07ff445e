"""train.Hogwild: workers that change the same weights with no lock."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

import penstock
from penstock import train

ROWS, INPUTS, BATCH = 512, 8, 16


def samples():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, INPUTS)).astype(np.float32)
    return x, (x @ np.arange(INPUTS, dtype=np.float32)).astype(np.float32)


def batches():
    x, y = samples()
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]


def fresh(**options):
    return train.Parameters({"w": (INPUTS,), "b": ()}, **options)


def gradient_of(weights, x, y):
    error = x @ weights["w"] + weights["b"] - y
    return float((error**2).mean()), 2 * x.T @ error / len(y), np.float32(2 * error.mean())


def step(batch, views):
    loss, views.gradients["w"][:], views.gradients["b"][...] = gradient_of(views.weights, *batch)
    return loss


class Meeting:
    """A step that waits until `n` workers are in it at the same time, in the first rounds only."""

    def __init__(self, n):
        self.barrier = threading.Barrier(n)

    def __call__(self, batch, views):
        if views.step == 0:
            self.barrier.wait(30)
        return step(batch, views)


def serial(optimizer, epochs=1, **options):
    parameters = fresh()
    updater = train.Updater(parameters, optimizer, **options)
    for _ in range(epochs):
        for batch in batches():
            _, w, b = gradient_of(parameters, *batch)
            updater.apply({"w": w, "b": b})
    return updater


@pytest.mark.parametrize(
    "optimizer", [train.SGD(0.05), train.Adam(0.1, clip_norm=1.0)], ids=lambda o: type(o).__name__
)
@pytest.mark.parametrize("state", ["shared", "own"])
@pytest.mark.parametrize("snapshot", [False, True, "update"])
def test_one_worker_gives_the_bits_of_an_updater(optimizer, state, snapshot):
    expected = serial(optimizer, epochs=3)
    parameters = fresh()
    hogwild = train.Hogwild(
        step, parameters, optimizer, batches(), workers=1, state=state, snapshot=snapshot
    )
    report = hogwild.run(epochs=3)
    assert np.array_equal(parameters["w"], expected.parameters["w"])
    assert report.updates == report.steps == hogwild.updater.step == parameters.version == 96
    assert report.staleness == {0: 96}
    for mine, theirs in zip(hogwild.updater.slabs, expected.slabs, strict=True):
        assert np.array_equal(mine["w"], theirs["w"])


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("state", ["shared", "own"])
def test_workers_learn_together(workers, state):
    parameters = fresh()
    hogwild = train.Hogwild(
        Meeting(workers), parameters, train.Adam(0.05), batches(), workers=workers, state=state
    )
    report = hogwild.run(epochs=30)
    assert report.steps == report.updates == 30 * len(batches()) == parameters.version
    assert sum(report.staleness.values()) == report.updates
    behind = sum(updates * count for updates, count in report.staleness.items())
    assert report.mean_staleness == pytest.approx(behind / report.updates)
    assert sum(each["steps"] for each in report.workers) == report.steps
    assert all(each["steps"] >= 1 for each in report.workers)
    assert report.recent_loss < report.loss
    np.testing.assert_allclose(parameters["w"], np.arange(INPUTS), atol=0.3)


def test_each_batch_goes_to_one_worker_once():
    seen, lock = [], threading.Lock()

    def note(batch, views):
        with lock:
            seen.extend(batch.tolist())

    feed = penstock.Dataset.arrays(np.arange(1000)).shuffle(seed=1).batch(7)
    parameters = fresh()
    report = train.Hogwild(note, parameters, train.SGD(0.1), feed, workers=4).run(epochs=2)
    assert sorted(seen) == sorted(2 * list(range(1000)))
    assert report.steps == 2 * 143
    assert np.isnan(report.loss)


def test_a_generator_is_taken_from_by_one_worker_at_a_time_and_has_one_pass():
    def generate():
        yield from range(50)

    seen = []
    hogwild = train.Hogwild(
        lambda batch, views: seen.append(batch), fresh(), train.SGD(0.1), generate(), workers=3
    )
    assert hogwild.run(epochs=None).steps == 50
    assert sorted(seen) == list(range(50))
    assert hogwild.run(epochs=5).steps == 0


def test_it_stops_after_so_many_steps_and_takes_no_batch_more():
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield batches()[0]

    hogwild = train.Hogwild(step, fresh(), train.SGD(0.01), endless(), workers=3)
    assert hogwild.run(steps=41, epochs=None).steps == 41
    assert len(taken) == 41
    assert hogwild.run(steps=0).steps == 0
    assert hogwild.run(steps=9).updates == 9
    assert hogwild.updater.step == 50


def test_it_stops_after_some_seconds():
    hogwild = train.Hogwild(step, fresh(), train.SGD(0.01), batches(), workers=2)
    report = hogwild.run(epochs=None, seconds=0.05)
    assert report.seconds >= 0.05
    assert report.updates_per_second == pytest.approx(report.updates / report.seconds)


def test_a_callback_ends_the_run():
    asked = []

    def enough(report):
        asked.append(report)
        return report.updates >= 100

    hogwild = train.Hogwild(step, fresh(), train.SGD(0.01), batches(), workers=2)
    report = hogwild.run(epochs=None, until=enough, interval=0.001)
    assert report.updates >= asked[-1].updates >= 100
    with pytest.raises(ZeroDivisionError):
        hogwild.run(epochs=None, until=lambda report: 1 / 0, interval=0.001)
    assert hogwild.run().steps == len(batches())  # and it runs again


def test_an_exception_ends_all_workers_and_names_the_worker():
    began = threading.Barrier(2)

    def fails(batch, views):
        if views.step == 0:
            began.wait(30)
        if views.number == 1 and views.step == 3:
            raise KeyError("of mine")
        return step(batch, views)

    hogwild = train.Hogwild(fails, fresh(), train.SGD(0.01), batches(), workers=2)
    with pytest.raises(KeyError, match="of mine") as raised:
        hogwild.run(epochs=None)
    notes = " ".join(getattr(raised.value, "__notes__", [])) + str(raised.value)
    assert "in worker 1 of Hogwild, step 3" in notes


def test_an_exception_of_the_feed_ends_the_run():
    def broken():
        yield batches()[0]
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        train.Hogwild(step, fresh(), train.SGD(0.01), broken(), workers=2).run()


@pytest.mark.parametrize("policy", ["raise", "skip", "count"])
def test_gradients_that_are_not_finite(policy):
    def poisoned(batch, views):
        loss = step(batch, views)
        if views.step == 4:
            views.gradients["w"][3] = np.nan
        return loss

    parameters = fresh()
    hogwild = train.Hogwild(
        poisoned, parameters, train.SGD(0.01), batches(), workers=1, non_finite=policy
    )
    if policy == "raise":
        with pytest.raises(penstock.errors.InvalidArgument, match=r"block 'w' is nan at \(3,\)"):
            hogwild.run()
        assert np.isfinite(parameters["w"]).all()
        assert parameters.version == 4
        return
    report = hogwild.run()
    assert report.steps == len(batches())
    assert report.non_finite >= 1
    if policy == "skip":
        assert (report.skipped, report.updates) == (1, len(batches()) - 1)
        assert np.isfinite(parameters["w"]).all()
    else:
        assert report.skipped == 0
        assert report.updates == len(batches())
        assert np.isnan(parameters["w"]).any()


def test_only_rows_that_were_touched_change():
    table = train.Parameters({"table": (100, 4), "b": (4,)})
    table["table"] = np.ones((100, 4))
    table["b"] = np.ones(4)

    def touch(rows, views):
        return 0.0, {"table": train.Rows(rows, np.ones((len(rows), 4)))}

    optimizer = train.SGD(0.5, weight_decay=0.1)
    feed = [np.array([7]), np.array([3, 9, 3])]
    report = train.Hogwild(touch, table, optimizer, feed, workers=2).run()
    assert report.updates == 2
    expected = np.ones((100, 4), np.float32)
    expected[[7, 9]] = 1 - 0.5 * 1.1
    expected[3] = 1 - 0.5 * 2.1  # twice in a batch: added up
    np.testing.assert_allclose(table["table"], expected, rtol=1e-6)
    assert (table["b"] == 1).all()


def test_blocks_that_are_not_in_a_gradient_do_not_change():
    parameters = fresh()

    def partial(batch, views):
        return {"b": np.float64(2)}

    report = train.Hogwild(partial, parameters, train.SGD(0.25), [0], workers=1).run()
    assert parameters["b"] == -0.5
    assert not parameters["w"].any()
    assert report.copied_bytes == 4  # it was not float32


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"nothing": 1}, "no block 'nothing'"),
        ({"w": np.ones(3)}, r"gradient of block 'w' is \(3,\); it must be \(8,\)"),
        ({"w": train.Rows([1.5], np.ones(1))}, "rows of block 'w'"),
        ({"w": train.Rows([8], np.ones(1))}, "there is no row 8"),
        ({"b": train.Rows([0], np.ones(1))}, "rows of block 'b'"),
        ((1, 2, 3), "a tuple of 3"),
        ("high", "returned a str as its loss"),
    ],
)
def test_invalid_results_of_a_step_are_refused(returned, says):
    hogwild = train.Hogwild(lambda batch, views: returned, fresh(), train.SGD(0.1), [0], workers=1)
    with pytest.raises(penstock.errors.Error, match=says):
        hogwild.run()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"step": 3}, "step is a int"),
        ({"parameters": {}}, "parameters is a dict"),
        ({"workers": 0}, "workers is 0"),
        ({"state": "none"}, "state is 'none'; there are shared, own"),
        ({"snapshot": "step"}, "snapshot is 'step'; give False, True"),
        ({"non_finite": "ignore"}, "non_finite is 'ignore'"),
        ({"model": 3}, "model is a int"),
        ({"optimizer": train.Updater(fresh(), train.SGD(0.1))}, "belongs to other parameters"),
    ],
)
def test_invalid_arguments_are_refused(arguments, says):
    given = {"step": step, "parameters": fresh(), "optimizer": train.SGD(0.1), "feed": []}
    with pytest.raises(penstock.errors.InvalidArgument, match=says):
        train.Hogwild(**{**given, **arguments})


def test_an_updater_goes_on_with_its_state(tmp_path):
    whole = serial(train.Adam(0.1), epochs=2)
    half = serial(train.Adam(0.1))
    train.Hogwild(step, half.parameters, half, batches(), workers=1).run()
    assert np.array_equal(half.parameters["w"], whole.parameters["w"])
    half.save(tmp_path / "run.safetensors")
    again = train.Updater(fresh(), train.Adam(0.1))
    again.load(tmp_path / "run.safetensors")
    assert again.step == 64


def test_a_function_makes_a_model_for_each_worker():
    made = []

    def model(views):
        made.append(views.number)
        return views.number * 10

    def check(batch, views):
        assert views.model == views.number * 10

    train.Hogwild(check, fresh(), train.SGD(0.1), range(8), workers=3, model=model).run()
    assert made == [0, 1, 2]


@pytest.mark.parametrize("merge_every", [None, 3])
def test_groups_with_weights_of_their_own_come_to_one_solution(merge_every):
    parameters = fresh()
    hogwild = train.Hogwild(
        step, parameters, train.SGD(0.02), batches(), workers=4, replicas=2, merge_every=merge_every
    )
    for run in range(1, 9):  # even with rare merges within a run
        assert hogwild.run(epochs=10).updates == 320
        assert parameters.version == hogwild.updater.step == 320 * run
    np.testing.assert_allclose(parameters["w"], np.arange(INPUTS), atol=0.05)


def test_groups_do_not_see_each_other_before_they_merge():
    """Each of two workers counts in its own element; the other's element stays unchanged."""
    seen = []
    last = threading.Barrier(2)

    def one_up(batch, views):
        if batch == "last":
            last.wait(30)  # both have made all their other updates, which must not be visible
        seen.append((views.number, views.weights["w"][:2].tolist()))
        return None, {"w": train.Rows([views.number], np.float32([-1]))}

    parameters = fresh()
    feed = [*range(38), "last", "last"]
    hogwild = train.Hogwild(
        one_up, parameters, train.SGD(1.0), feed, workers=2, replicas=2, merge_every=1000
    )
    begun = [0.0, 0.0]
    for run in (1, 2):
        seen.clear()
        hogwild.run()
        mine = [[weights for worker, weights in seen if worker == number] for number in (0, 1)]
        for number, other in ((0, 1), (1, 0)):
            steps = range(len(mine[number]))
            assert [weights[number] - begun[number] for weights in mine[number]] == [*steps]
            assert {weights[other] for weights in mine[number]} == {begun[other]}
        begun = [begun[number] + len(mine[number]) for number in (0, 1)]
        assert parameters["w"][:2].tolist() == begun
        assert sum(begun) == 40 * run


def test_a_model_of_a_group_is_a_view_of_its_weights():
    torch = pytest.importorskip("torch")
    from penstock.torch import alias

    module = torch.nn.Linear(INPUTS, 1)
    parameters, _ = alias(module)
    before = module.weight.detach().clone()

    def learn(batch, views):
        x, y = (torch.from_numpy(part) for part in batch)
        loss = ((views.model(x)[:, 0] - y) ** 2).mean()
        loss.backward()
        return loss

    hogwild = train.Hogwild(
        learn, parameters, train.SGD(0.02), batches(), workers=2, replicas=2, model=module
    )
    for _ in range(8):
        hogwild.run(epochs=10)
    assert not torch.equal(before, module.weight)  # the module sees the merge
    np.testing.assert_allclose(module.weight.detach()[0], np.arange(INPUTS), atol=0.1)


@pytest.mark.parametrize(
    "options",
    [{"workers": 2, "replicas": 3}, {"replicas": 0}, {"replicas": 2, "merge_every": 0}],
    ids=str,
)
def test_replicas_that_cannot_be_are_refused(options):
    with pytest.raises(penstock.InvalidArgument, match=r"replicas|merge_every"):
        train.Hogwild(step, fresh(), train.SGD(0.1), batches(), **options)


def test_replicas_are_for_threads():
    with pytest.raises(penstock.InvalidArgument, match="threads"):
        train.Hogwild(
            step,
            fresh(shared=True),
            train.SGD(0.1),
            batches(),
            use_multiprocessing=True,
            replicas=2,
        )


def test_a_thread_that_cannot_start_ends_the_others(monkeypatch):
    parameters = fresh()
    hogwild = train.Hogwild(step, parameters, train.SGD(0.01), batches(), workers=3)
    start = threading.Thread.start

    def fails(thread):
        if thread.name == "penstock hogwild 2":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError, match="new thread"):
            hogwild.run()
    assert not any(t.name.startswith("penstock hogwild") for t in threading.enumerate())
    assert hogwild.run().steps == len(batches())


def test_ctrl_c_ends_a_run_once_the_steps_that_began_are_over():
    inside, may_end = threading.Event(), threading.Event()

    def waits(batch, views):
        inside.set()
        assert may_end.wait(30)

    def interrupt():
        inside.wait(30)
        signal.raise_signal(signal.SIGINT)
        may_end.set()

    hogwild = train.Hogwild(waits, fresh(), train.SGD(0.01), batches(), workers=2)
    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        hogwild.run(epochs=None)
    helper.join()
    assert not any(t.name.startswith("penstock hogwild") for t in threading.enumerate())

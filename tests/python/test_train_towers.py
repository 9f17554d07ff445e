"""train.Towers: one update from several batches at a time."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

import penstock
from penstock import train
from test_train_hogwild import BATCH, ROWS, batches, fresh, gradient_of, samples, step


def run(towers, feed=None, step=step, epochs=1, optimizer=None, **options):
    parameters = fresh()
    made = train.Towers(
        step, parameters, optimizer or train.SGD(0.05), batches() if feed is None else feed,
        towers=towers, **options,
    )  # fmt: skip
    return parameters, made.run(epochs=epochs)


def large_batches(rows, epochs=1):
    """The result of one worker with batches as large as those of all towers together."""
    x, y = samples()
    parameters = fresh()
    updater = train.Updater(parameters, train.SGD(0.05))
    for _ in range(epochs):
        for begin in range(0, ROWS, rows):
            _, w, b = gradient_of(parameters, x[begin : begin + rows], y[begin : begin + rows])
            updater.apply({"w": w, "b": b})
    return parameters


@pytest.mark.parametrize("towers", [1, 2, 3, 4, 7])
def test_a_round_is_one_large_batch(towers):
    parameters, report = run(towers, epochs=2)
    expected = large_batches(BATCH * towers, epochs=2)
    np.testing.assert_allclose(parameters["w"], expected["w"], rtol=1e-4, atol=1e-5)
    rounds = 2 * -(-len(batches()) // towers)
    assert (report.rounds, report.updates, report.batches) == (rounds, rounds, 64)
    assert parameters.version == rounds


def test_batches_of_several_sizes_count_by_their_rows():
    x, y = samples()
    sizes = [1, 30, 16, 5]
    feed = [(x[:size], y[:size]) for size in sizes]
    parameters, _ = run(4, feed)
    everything = [np.concatenate(part) for part in zip(*feed, strict=True)]
    w = gradient_of(fresh(), *everything)[1]
    np.testing.assert_allclose(parameters["w"], -0.05 * w, rtol=1e-5)
    equal, _ = run(4, feed, weigh=lambda batch: 1)
    means = [gradient_of(fresh(), *batch)[1] for batch in feed]
    np.testing.assert_allclose(equal["w"], -0.05 * np.mean(means, axis=0), rtol=1e-5)


@pytest.mark.parametrize("way", ["feeds", "shards", "list"])
def test_ways_to_feed_give_the_same(way):
    x, y = samples()
    dataset = penstock.Dataset.arrays((x, y)).batch(BATCH)
    expected, _ = run(2, epochs=2)
    if way == "feeds":
        with dataset.feeds(2) as feeds:
            parameters, report = run(2, feeds, epochs=2)
    elif way == "shards":
        parameters, report = run(
            2, [dataset.shard(rank, 2) for rank in range(2)], epochs=2, deal="feeds"
        )
    else:
        parameters, report = run(2, [batches()[0::2], batches()[1::2]], epochs=2, deal="feeds")
    assert np.array_equal(parameters["w"], expected["w"])
    assert report.batches == 64


def test_parts_of_one_batch():
    x, y = samples()
    dataset = penstock.Dataset.arrays((x, y)).batch(2 * BATCH).split_batch(2)
    parameters, _ = run(2, dataset, deal="parts")
    expected, _ = run(2)
    assert np.array_equal(parameters["w"], expected["w"])
    with pytest.raises(penstock.errors.InvalidArgument, match="tuples of 3 batches"):
        run(3, dataset, deal="parts")


@pytest.mark.parametrize("tower", [0, 2])
def test_a_tower_that_throws_ends_all_and_nothing_of_its_round_is_applied(tower):
    def fails(batch, views):
        if views.number == tower and views.step == 2:
            raise ValueError("of mine")
        return step(batch, views)

    parameters = fresh()
    towers = train.Towers(fails, parameters, train.SGD(0.05), batches(), towers=3)
    with pytest.raises(ValueError, match="of mine") as raised:
        towers.run()
    notes = " ".join(getattr(raised.value, "__notes__", [])) + str(raised.value)
    assert f"in tower {tower}, round 2" in notes
    assert parameters.version == 2
    expected = fresh()
    train.Towers(step, expected, train.SGD(0.05), batches()[:6], towers=3).run()
    assert np.array_equal(parameters["w"], expected["w"])
    # Gradients left by the failed round are not part of the next.
    again = train.Towers(step, parameters, train.SGD(0.05), batches()[6:9], towers=3)
    train.Towers(step, expected, train.SGD(0.05), batches()[6:9], towers=3).run()
    again.run()
    assert np.array_equal(parameters["w"], expected["w"])


def test_an_exception_of_the_feed_comes_after_the_rounds_before_it():
    def broken():
        yield from batches()[:4]
        raise OSError("no more")

    parameters = fresh()
    with pytest.raises(OSError, match="no more"):
        train.Towers(step, parameters, train.SGD(0.05), broken(), towers=2).run()
    assert parameters.version == 2


def test_it_stops_after_rounds_seconds_or_a_callback():
    taken = []

    def endless():
        while True:
            taken.append(0)
            yield batches()[0]

    towers = train.Towers(step, fresh(), train.SGD(0.01), endless(), towers=2)
    assert towers.run(steps=5, epochs=None).rounds == 5
    assert len(taken) == 10  # exactly those
    assert towers.run(steps=0).rounds == 0
    assert towers.run(seconds=0.01, epochs=None).seconds >= 0.01
    assert towers.run(until=lambda report: report.rounds == 7, epochs=None).rounds == 7


def test_ctrl_c_ends_a_run_once_the_steps_that_began_are_over():
    inside, may_end = threading.Event(), threading.Event()

    def waits(batch, views):
        inside.set()
        assert may_end.wait(30)

    def interrupt():
        inside.wait(30)
        signal.raise_signal(signal.SIGINT)
        may_end.set()

    parameters = fresh()
    towers = train.Towers(waits, parameters, train.SGD(0.05), batches(), towers=2)
    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        towers.run(epochs=None)
    helper.join()
    assert not any(t.name.startswith("penstock tower") for t in threading.enumerate())


def test_a_step_that_returns_no_gradients_changes_nothing():
    parameters = fresh()
    parameters["w"][:] = 1
    optimizer = train.SGD(0.1, weight_decay=0.5)
    towers = train.Towers(lambda batch, views: (1.0, {}), parameters, optimizer, batches()[:4])
    report = towers.run()
    assert (report.rounds, report.updates, report.loss) == (2, 0, 1.0)
    assert (parameters["w"] == 1).all()


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_gradients_that_are_not_finite(policy):
    def poisoned(batch, views):
        loss = step(batch, views)
        if (views.number, views.step) == (1, 3):
            views.gradients["w"][2] = np.inf
        return loss

    parameters = fresh()
    towers = train.Towers(
        poisoned, parameters, train.SGD(0.01), batches(), towers=2, non_finite=policy
    )
    if policy == "raise":
        refused = pytest.raises(
            penstock.errors.InvalidArgument, match=r"block 'w' is inf at \(2,\)"
        )
        with refused as raised:
            towers.run()
        assert "in round 3" in " ".join(getattr(raised.value, "__notes__", [str(raised.value)]))
        assert parameters.version == 3
    else:
        report = towers.run()
        assert (report.rounds, report.updates) == (16, 15)
    assert np.isfinite(parameters["w"]).all()


def test_rows_of_all_towers_are_added_up():
    table = train.Parameters({"table": (10, 2)})

    def touch(rows, views):
        return None, {"table": train.Rows(rows, np.ones((len(rows), 2), np.float32))}

    feed = [np.array([1, 2]), np.array([2, 2])]
    train.Towers(touch, table, train.SGD(1.0), feed, towers=2).run()
    expected = np.zeros((10, 2), np.float32)
    expected[1], expected[2] = -0.5, -1.5
    assert np.array_equal(table["table"], expected)


def rows_of_two_blocks(of_b, towers=2, **options):
    """One round: each tower gives ones for row 0 of block a, and `of_b(number)` for b."""
    parameters = train.Parameters({"a": (4, 2), "b": (4, 2)})

    def touch(batch, views):
        ones = train.Rows([0], np.ones((1, 2), np.float32))
        return 0.0, {"a": ones, "b": train.Rows(*of_b(views.number))}

    feed = [np.ones((1, 1))] * towers
    made = train.Towers(touch, parameters, train.SGD(1.0), feed, towers=towers, **options)
    return parameters, made


@pytest.mark.parametrize(
    ("rows", "values", "says"),
    [
        ([9], [[1, 1]], "there is no row 9"),
        ([-1], [[1, 1]], "there is no row -1"),
        ([1], [[1, np.nan]], r"block 'b' is nan at \(0, 1\)"),
        ([1], [[-np.inf, 1]], "block 'b' is -inf"),
    ],
)
@pytest.mark.parametrize("tower", [0, 1])
def test_a_round_with_rows_that_are_refused_is_not_half_applied(rows, values, says, tower):
    parameters, towers = rows_of_two_blocks(
        lambda number: (rows, values) if number == tower else ([1], [[1, 1]])
    )
    with pytest.raises(penstock.errors.InvalidArgument, match=says) as raised:
        towers.run()
    notes = " ".join(getattr(raised.value, "__notes__", [])) + str(raised.value)
    assert f"in tower {tower}, round 0" in notes
    assert parameters.version == 0
    assert not parameters["a"].any()
    assert not parameters["b"].any()


def test_rows_whose_sum_is_not_finite_are_refused_as_a_whole():
    parameters, towers = rows_of_two_blocks(lambda number: ([1], [[3e38, 1]]))
    with pytest.raises(penstock.errors.InvalidArgument, match="block 'b' is inf") as raised:
        towers.run()
    notes = " ".join(getattr(raised.value, "__notes__", [])) + str(raised.value)
    assert "in round 0" in notes, "no tower's own are to blame"
    assert parameters.version == 0
    apart, towers = rows_of_two_blocks(lambda number: ([number], [[3e38, 1]]))
    towers.run()
    assert np.isfinite(apart["b"]).all()
    assert apart.version == 1


def test_rows_that_weigh_nothing_are_left_out():
    weights = iter([1, 0])
    parameters, towers = rows_of_two_blocks(
        lambda number: ([9], [[np.nan, np.nan]]) if number == 1 else ([1], [[1, 1]]),
        weigh=lambda batch: next(weights),
    )
    towers.run()
    assert parameters["a"][0].tolist() == parameters["b"][1].tolist() == [-1, -1]
    assert parameters.version == 1


def test_a_tower_whose_thread_cannot_start_ends_the_others(monkeypatch):
    _, towers = rows_of_two_blocks(lambda number: ([1], [[1, 1]]), towers=3)
    start = threading.Thread.start

    def fails(thread):
        if thread.name == "penstock tower 1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="new thread"):
        towers.run()
    assert threading.active_count() == before


def test_towers_may_return_gradients_of_any_framework():
    def returns(batch, views):
        loss, w, b = gradient_of(views.weights, *batch)
        return loss, {"w": w.astype(np.float64), "b": b}

    parameters, report = run(2, step=returns)
    expected, _ = run(2)
    np.testing.assert_allclose(parameters["w"], expected["w"], rtol=1e-6)
    assert report.copied_bytes > 0


def test_batches_are_staged_for_their_device():
    staged = []

    def stage(batch, device):
        staged.append(device)
        return device

    def check(batch, views):
        assert batch == views.device == "ab"[views.number]

    feed = [np.zeros(4)] * 4
    train.Towers(check, fresh(), train.SGD(0.1), feed, devices="ab", stage=stage).run()
    assert staged == ["a", "b", "a", "b"]
    with pytest.raises(penstock.errors.InvalidArgument, match="no device of an imported torch"):
        train.Towers(check, fresh(), train.SGD(0.1), feed, devices=[object(), object()])


def test_batches_are_put_on_jax_devices():
    jax = pytest.importorskip("jax")
    device = jax.devices()[0]
    seen = []

    def look(batch, views):
        x, y = batch["x"], batch["rest"][0]
        assert views.device is device
        for array in (x, y):
            assert isinstance(array, jax.Array)
            assert array.devices() == {device}
        seen.append(float(x[0]))
        return 0.0

    feed = [{"x": np.full(4, k, np.float32), "rest": [np.zeros(4, np.int32)]} for k in range(4)]
    train.Towers(look, fresh(), train.SGD(0.1), feed, devices=[device] * 2).run()
    assert sorted(seen) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [train.Hogwild, train.Towers])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_the_given_updaters_policy_for_non_finite_gradients_holds(kind, policy):
    """With an updater of the same policy, and with one of another policy."""

    def bad(batch, views):
        views.gradients["w"][:] = np.nan

    for own in (None, policy):
        parameters = fresh()
        updater = train.Updater(parameters, train.SGD(0.1), non_finite=policy)
        made = kind(bad, parameters, updater, batches()[:2], non_finite=own)
        if policy == "raise":
            with pytest.raises(penstock.errors.InvalidArgument, match="is nan"):
                made.run()
        else:
            assert made.run().updates == 0
        assert np.isfinite(parameters["w"]).all()
    with pytest.raises(penstock.errors.InvalidArgument, match="'count', but the updater's is"):
        kind(bad, parameters, updater, [], non_finite="count")
    # An updater that it makes itself keeps its policy elsewhere.
    made = kind(bad, parameters, train.SGD(0.1), batches()[:2], non_finite="skip")
    assert not made.updater.apply({"w": np.full(8, np.nan), "b": 0.0})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"non_finite": "ignore"}, "non_finite is 'ignore'"),
        ({"towers": 0}, "towers is 0"),
        ({"towers": 2, "devices": ["cpu"]}, "1 devices for 2 towers"),
        ({"weigh": "cols"}, "weigh is 'cols'"),
        ({"step": None}, "step is a NoneType"),
        ({"feed": [[], []], "towers": 3, "deal": "feeds"}, "3 feeds.*this is one of 2"),
        ({"deal": "feeds"}, "this is a list_iterator"),
        ({"deal": "cards"}, "deal is 'cards'"),
    ],
)
def test_invalid_arguments_are_refused(arguments, says):
    given = {"step": step, "parameters": fresh(), "optimizer": train.SGD(0.1), "feed": iter([])}
    with pytest.raises(penstock.errors.InvalidArgument, match=says):
        train.Towers(**{**given, **arguments})


def test_batches_without_rows_need_to_be_weighed():
    with pytest.raises(penstock.errors.InvalidArgument, match="weigh=lambda"):
        run(2, [{"x": np.zeros(3), "scale": 2.0}] * 2, step=lambda batch, views: None)

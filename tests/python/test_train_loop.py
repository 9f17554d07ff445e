"""train.Loop: the plain loop's result for any N, and the arguments of callbacks."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import train

ROWS, SIZE = 107, 8  # 13 steps of 8 and one of 3


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 5)).astype(np.float32)
    return {"x": x, "y": (x @ np.arange(5, dtype=np.float32) + 1)[:, None].astype(np.float32)}


def batches_of(data):
    for begin in range(0, ROWS, SIZE):
        yield {name: array[begin : begin + SIZE] for name, array in data.items()}


class Line:
    """A linear model in NumPy, trained by gradient descent."""

    def __init__(self):
        self.w = np.zeros((5, 1), np.float32)

    def __call__(self, batch):
        error = batch["x"] @ self.w - batch["y"]
        self.w = self.w - np.float32(0.05) * (batch["x"].T @ error) / len(error)
        return {"loss": (error**2).mean(), "rows": len(error), "first": error[0]}


@pytest.mark.parametrize("steps", [1, 4, 13, 14, 50])
@pytest.mark.parametrize("way", ["dataset", "loader", "super-batches", "batches"])
def test_the_result_is_the_plain_loops_bit_for_bit(data, steps, way):
    plain, expected = Line(), []
    for _ in range(3):
        expected += [plain(batch) for batch in batches_of(data)]
    samples = penstock.Dataset.arrays(data)
    model, seen = Line(), []
    loader = penstock.Loader(samples.batch(SIZE * steps), workers=0) if way == "loader" else None
    feed = {
        "dataset": samples,
        "loader": loader,
        "super-batches": [data],
        "batches": list(batches_of(data)),
    }[way]
    loop = train.Loop(
        model,
        feed,
        steps=steps,
        batch_size=None if way == "batches" else SIZE,
        callbacks=lambda number, metrics: seen.append((number, metrics)),
        workers=0,
    )
    report = loop.run(epochs=3)
    if loader is not None:
        loader.close()
    np.testing.assert_array_equal(model.w, plain.w)
    assert [number for number, _ in seen] == list(range(42))
    for (_, metrics), wanted in zip(seen, expected, strict=True):
        assert metrics["loss"] == wanted["loss"]
        assert type(metrics["loss"]) is float
        assert metrics["rows"] == wanted["rows"]
        np.testing.assert_array_equal(metrics["first"], wanted["first"])
    assert report.steps == loop.steps == 42
    assert report.check_ins == 3 * (-(-13 // steps) + 1)
    assert report.metrics["loss"] == expected[-1]["loss"]
    assert not report.stopped


def test_super_batches_of_a_dataset_are_views_and_differ_from_pass_to_pass():
    seen = []

    def step(batch):
        assert not batch.flags.owndata
        seen.append(batch.tolist())

    numbers = penstock.Dataset.arrays(np.arange(24)).shuffle(seed=3)
    loop = train.Loop(step, numbers, steps=3, batch_size=4, workers=0)
    loop.run(epochs=2)
    first, second = (np.concatenate(part).tolist() for part in (seen[:6], seen[6:]))
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second
    # A separate run continues where the last one ended.
    apart = train.Loop(step, numbers, steps=3, batch_size=4, workers=0)
    seen.clear()
    apart.run()
    apart.run()
    assert np.concatenate(seen).tolist() == first + second


def test_a_number_of_steps_is_exact_and_a_callback_ends_it(data):
    model = Line()
    loop = train.Loop(model, [data], steps=5, batch_size=SIZE)
    assert loop.run(steps=7).steps == 7
    assert loop.run(steps=0).steps == 0
    plain = Line()
    for batch, _ in zip(batches_of(data), range(7), strict=False):
        plain(batch)
    np.testing.assert_array_equal(model.w, plain.w)

    seen = []

    def stop_at_six(number, metrics):
        seen.append(number)
        return number == 6

    report = train.Loop(Line(), [data], steps=5, batch_size=SIZE, callbacks=stop_at_six).run(
        epochs=None
    )
    assert report.stopped
    assert seen == list(range(10)), "those that ran in the same check-in are replayed too"
    assert train.Loop(Line(), [data], steps=5, batch_size=SIZE).run(epochs=None, seconds=0).steps


class Keras:
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs))


def test_callbacks_as_keras_has_them(data):
    callback = Keras()
    train.Loop(lambda batch: 1.5, [data], steps=5, batch_size=SIZE, callbacks=[callback]).run()
    assert callback.seen == [(number, 1.5) for number in range(14)]


def test_an_exception_names_its_step_and_callbacks_are_called_for_earlier_steps(data):
    def fails(batch):
        if batch["x"][0, 0] == data["x"][6 * SIZE, 0]:
            raise ValueError("no")
        return batch["x"][0, 0]

    seen = []
    loop = train.Loop(
        fails, [data], steps=4, batch_size=SIZE, callbacks=lambda number, _: seen.append(number)
    )
    with pytest.raises(ValueError, match="no") as caught:
        loop.run()
    assert any("step 6 of Loop" in note for note in caught.value.__notes__)
    assert seen == list(range(6))

    def callback(number, metrics):
        if number == 3:
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        train.Loop(lambda batch: 0, [data], steps=4, batch_size=SIZE, callbacks=callback).run()
    assert any("callback of Loop, for step 3" in note for note in caught.value.__notes__)

    def feed():
        yield from list(batches_of(data))[:5]
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk") as caught:
        train.Loop(lambda batch: 0, feed(), steps=2).run()
    assert any("feed of Loop, before step 4" in note for note in caught.value.__notes__)


def test_invalid_arguments_are_refused(data):
    for wrong in (
        {"steps": 0},
        {"steps": 2, "batch_size": 0},
        {"steps": 2, "callbacks": 3},
        {"steps": 2, "callbacks": [3]},
    ):
        with pytest.raises((penstock.errors.InvalidArgument, TypeError)):
            train.Loop(lambda batch: 0, [data], **wrong)
    with pytest.raises(penstock.errors.InvalidArgument, match="give a function"):
        train.Loop(3, [data], steps=1)
    with pytest.raises(penstock.errors.InvalidArgument, match="gave no batch"):
        train.Loop(lambda batch: 0, [], steps=1).run()
    with pytest.raises(penstock.errors.InvalidArgument, match="state, metrics"):
        train.Loop(lambda state, batch: 0, [data], steps=1, batch_size=8, state=1).run()


def test_a_state_is_handed_on_from_step_to_step():
    seen = []
    loop = train.Loop(
        lambda state, batch: (state + batch.sum(), state),
        penstock.Dataset.arrays(np.arange(10)),
        steps=2,
        batch_size=3,
        state=100,
        workers=0,
        callbacks=lambda _, before: seen.append(before),
    )
    loop.run()
    assert loop.state == 145
    assert seen == [100, 103, 115, 136]


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_a_torch_loop_has_the_plain_loops_bits(data, steps):
    torch = pytest.importorskip("torch")

    def made():
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 1)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)

        def step(batch):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach()}

        return model, step

    plain, step = made()
    expected = [
        step({name: torch.from_numpy(part) for name, part in batch.items()})["loss"].item()
        for _ in range(2)
        for batch in batches_of(data)
    ]
    model, step = made()
    seen = []
    train.Loop(
        step,
        penstock.Dataset.arrays(data),
        steps=steps,
        batch_size=SIZE,
        convert=torch.from_numpy,
        callbacks=lambda _, metrics: seen.append(metrics["loss"]),
        workers=0,
    ).run(epochs=2)
    assert seen == expected
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_metrics_in_a_reused_tensor_are_those_of_their_step():
    torch = pytest.importorskip("torch")
    total, dtype = torch.zeros((), dtype=torch.bfloat16), torch.int64

    def step(batch):
        total.add_(1)
        return {"total": total, "count": torch.tensor(len(batch), dtype=dtype), "row": batch[:2]}

    seen = []
    loop = train.Loop(
        step,
        [np.full(3, i, np.float32) for i in range(5)],
        steps=2,
        convert=torch.from_numpy,
        callbacks=lambda _, metrics: seen.append(metrics),
    )
    loop.run()
    assert [metrics["total"] for metrics in seen] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert all(type(metrics["total"]) is float for metrics in seen)
    assert [metrics["count"] for metrics in seen] == [3] * 5
    assert [metrics["row"].tolist() for metrics in seen] == [[i, i] for i in range(5)]


@pytest.mark.parametrize("way", ["dataset", "batches"])
def test_a_jax_scan_gives_the_same_for_any_number_of_steps(data, way):
    jax = pytest.importorskip("jax")
    traced = []

    def step(w, batch):
        traced.append(1)

        def loss_of(w):
            return ((batch["x"] @ w - batch["y"]) ** 2).mean()

        loss, slope = jax.value_and_grad(loss_of)(w)
        return w - 0.05 * slope, {"loss": loss, "w": w[:2, 0]}

    def run(steps):
        seen = []
        loop = train.Loop(
            step,
            penstock.Dataset.arrays(data) if way == "dataset" else list(batches_of(data)),
            steps=steps,
            batch_size=SIZE if way == "dataset" else None,
            state=jax.numpy.zeros((5, 1)),
            callbacks=lambda _, metrics: seen.append(metrics),
            workers=0,
        )
        traced.clear()
        report = loop.run(epochs=3)
        assert report.steps == 42
        return np.asarray(loop.state), seen

    one, seen = run(1)
    assert isinstance(seen[0]["loss"], float)
    assert seen[0]["w"].shape == (2,)
    for steps in (5, 13, 40):
        many, others = run(steps)
        assert len(traced) <= 6, "once for a run of N, once for each other number of steps"
        np.testing.assert_array_equal(many, one)
        for mine, other in zip(others, seen, strict=True):
            assert mine["loss"] == other["loss"]
            np.testing.assert_array_equal(mine["w"], other["w"])
    plain, w = jax.jit(step), jax.numpy.zeros((5, 1))
    for _ in range(3):
        for batch in batches_of(data):
            w, _ = plain(w, batch)
    np.testing.assert_allclose(w, one, rtol=1e-5)


@pytest.mark.parametrize("way", ["names", "dtypes"])
def test_a_scan_of_unlike_batches_gives_the_same_for_any_number_of_steps(way):
    jax = pytest.importorskip("jax")
    one, four, ten = np.float32(1), np.float32(4), np.float32(10)
    feed = {
        "names": [{"x": one, "y": {"a": ten, "b": four}}, {"y": {"b": four, "a": ten}, "x": one}],
        # As float32, 16777217 would be even.
        "dtypes": [{"x": np.int32(16777217), "y": {"a": ten, "b": four}}] * 2
        + [{"x": np.float32(0.5), "y": {"a": ten, "b": four}}],
    }[way]

    def step(state, batch):
        last = (batch["x"] % 2).astype(np.float32)
        return state + 100 * last + batch["y"]["a"] + 3 * batch["y"]["b"], {"last": last}

    def run(steps):
        seen = []
        loop = train.Loop(
            step,
            feed,
            steps=steps,
            state=jax.numpy.float32(0),
            callbacks=lambda _, metrics: seen.append(metrics["last"]),
        )
        loop.run()
        return float(loop.state), seen

    expected = (244.0, [1, 1]) if way == "names" else (316.0, [1, 1, 0.5])
    for steps in (1, 2, 3, 10):
        assert run(steps) == expected


def test_batches_of_other_names_are_no_scan():
    jax = pytest.importorskip("jax")

    def step(state, batch):
        return state + batch.get("x", 0) - batch.get("y", 0), 0.0

    feed = [{"x": np.float32(1)}, {"y": np.float32(3)}]
    loop = train.Loop(step, feed, steps=2, state=jax.numpy.float32(0))
    assert loop.run().steps == 2
    assert loop.state == -2


def test_metrics_go_by_their_names():
    seen = []
    said = [
        {"m": {"a": np.zeros(1), "b": np.ones(1)}},
        {"m": {"b": np.ones(1), "a": np.zeros(1)}},
        {"m": {"b": np.ones(1, np.int64), "a": np.zeros(1)}},
    ]
    loop = train.Loop(
        lambda batch: said[batch],
        range(3),
        steps=3,
        callbacks=lambda _, metrics: seen.append(metrics["m"]),
    )
    loop.run()
    assert [each["a"].tolist() for each in seen] == [[0]] * 3
    assert [each["b"].tolist() for each in seen] == [[1]] * 3
    assert seen[2]["b"].dtype == np.int64


@pytest.mark.parametrize(
    "nest",
    [
        lambda x: {"a": {"x": x, "y": -x}, "b": {}},
        lambda x: ((x, -x), ()),
        lambda x: {"a": x, "b": -x},
        lambda x: (x, -x),
    ],
)
def test_views_of_a_super_batch_are_of_its_nest(nest):
    seen = []
    loop = train.Loop(seen.append, [nest(np.arange(5))], steps=2, batch_size=2)
    loop.run()
    expected = [nest(part) for part in (np.arange(2), np.arange(2, 4), np.arange(4, 5))]
    assert repr(seen) == repr(expected)


def ragged_feed():
    lengths = penstock.Dataset.items([1, 2, 3, 4, 5])
    return lengths.map(lambda length: np.full(int(length), length, np.float32)).ragged_batch(5)


@pytest.mark.parametrize("cut", [True, False])
def test_rows_of_any_length_are_cut_into_steps_too(cut):
    feed = [*(ragged_feed() if cut else ragged_feed().rebatch(2))]
    for steps in (1, 2, 3):
        seen = []
        step = lambda batch, seen=seen: seen.append([row.tolist() for row in batch])  # noqa: E731
        train.Loop(step, feed, steps=steps, batch_size=2 if cut else None).run()
        assert [len(row) for rows in seen for row in rows] == [1, 2, 3, 4, 5]
        assert [len(rows) for rows in seen] == [2, 2, 1]


@pytest.mark.parametrize("cut", [True, False])
def test_a_scan_refuses_rows_of_any_length(cut):
    jax = pytest.importorskip("jax")
    feed = [*(ragged_feed() if cut else ragged_feed().rebatch(2))]
    step = lambda state, batch: (state + 1, {})  # noqa: E731
    size = 2 if cut else None
    loop = train.Loop(step, feed, steps=2, batch_size=size, state=jax.numpy.zeros(()))
    with pytest.raises(penstock.errors.InvalidArgument, match="padded_batch"):
        loop.run()

"""Checks of Keras models in train.Loop; test_keras.py runs this for every backend."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras
import numpy as np
import pytest

import penstock
from penstock import train

ROWS, SIZE = 107, 8  # 13 steps of 8 and one of 3
BACKEND = keras.backend.backend()


class Largest(keras.metrics.Metric):
    """A metric whose result is its own memory."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_pred))))

    def result(self):
        return self.value.value


def _data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 5)).astype("float32")
    return x, (x @ np.arange(5, dtype="float32") + 1)[:, None]


def _model(rate=0.2):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Dense(4, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(rate),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae", Largest()])
    return model


class Notes(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append({name: float(value) for name, value in logs.items()})


def _all_of(model):
    model = [model.variables, model.optimizer.variables, model.metrics_variables]
    return [keras.ops.convert_to_numpy(v) for part in model for v in part]


def _learned(rate=0.2, feed=None, **how):
    model, notes = _model(rate), Notes()
    samples = penstock.Dataset.arrays(_data())
    how = {"batch_size": SIZE, "workers": 0, **how}
    loop = train.Loop(model, samples if feed is None else feed, callbacks=notes, **how)
    report = loop.run(epochs=2)
    assert report.steps == len(notes.seen)
    assert report.metrics == notes.seen[-1]
    return _all_of(model), notes.seen, model


def it_learns_what_fit_learns_and_says_what_fit_says():
    x, y = _data()
    # On torch dropout draws from the generator that fit's DataLoader draws from, too.
    rate = 0.0 if BACKEND == "torch" else 0.2
    model, notes = _model(rate), Notes()
    model.fit(x, y, batch_size=SIZE, epochs=2, shuffle=False, verbose=0, callbacks=[notes])
    expected = _all_of(model)
    found, seen, mine = _learned(rate, steps=5)
    assert len(seen) == 28
    for one, other in zip(seen, notes.seen, strict=True):
        assert one.keys() == other.keys() == {"loss", "mae", "largest"}
        for name in one:
            assert one[name] == pytest.approx(other[name], rel=1e-4), (name, one, other)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(
        mine.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-3, atol=1e-4
    )
    same = all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    print(f"the bits of fit, too: {same and seen == notes.seen}", flush=True)
    if BACKEND == "torch":
        assert same
        assert seen == notes.seen


def any_number_of_steps_and_the_clock_give_the_same_bits():
    expected, said, _ = _learned(steps=5)
    x, y = _data()
    batches = [(x[i : i + SIZE], y[i : i + SIZE]) for i in range(0, ROWS, SIZE)]
    for how in (
        {"steps": 1},
        {"steps": 50},
        {"seconds": 1e9, "steps": 4},
        {"steps": 4, "feed": batches, "batch_size": None},
    ):
        found, seen, _ = _learned(**how)
        different = [i for i, pair in enumerate(zip(seen, said, strict=True)) if pair[0] != pair[1]]
        assert not different, (how, different)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(how))


def sample_weights_count_and_inputs_have_names():
    x, y = _data()
    weights = np.zeros(ROWS, "float32")
    inputs = {"a": keras.Input((5,), name="a"), "b": keras.Input((5,), name="b")}
    out = keras.layers.Dense(1, kernel_initializer="ones")(
        keras.layers.Add()(list(inputs.values()))
    )
    model = keras.Model(inputs, out)
    model.compile("sgd", "mse")
    before = [w.copy() for w in model.get_weights()]
    samples = penstock.Dataset.arrays(({"a": x, "b": x}, y, weights))
    train.Loop(model, samples, steps=5, batch_size=SIZE, workers=0).run()
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    samples = penstock.Dataset.arrays(({"a": x, "b": x}, y, weights + 1))
    train.Loop(model, samples, steps=5, batch_size=SIZE, workers=0).run()
    assert not np.array_equal(model.get_weights()[0], before[0])


def callbacks_see_the_model_change_it_and_stop_it():
    samples = penstock.Dataset.arrays(_data())
    model = _model()

    class Watch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.kernels, self.numbers = [], []

        def on_train_batch_end(self, batch, logs=None):
            self.numbers.append(batch)
            self.kernels.append(self.model.layers[0].get_weights()[0].tolist())
            if batch == 4:
                self.model.optimizer.learning_rate = 0.0
            if batch == 12:
                self.model.stop_training = True

    watch = Watch()
    loop = train.Loop(model, samples, steps=5, batch_size=SIZE, callbacks=watch, workers=0)
    report = loop.run(epochs=3)
    assert report.stopped
    assert watch.numbers == list(range(13)), watch.numbers
    assert watch.kernels[0] == watch.kernels[4], "all of a run see what it came to"
    assert watch.kernels[4] == watch.kernels[12], "with a rate of zero nothing is learned"
    assert watch.kernels[12] == model.layers[0].get_weights()[0].tolist()
    assert float(model.optimizer.learning_rate) == 0.0
    assert not loop.run(steps=3).stopped, "the next one begins anew"


def a_model_that_was_changed_between_runs_goes_on_from_there():
    x, y = _data()
    model = _model()
    loop = train.Loop(model, penstock.Dataset.arrays((x, y)), steps=5, batch_size=SIZE, workers=0)
    loop.run()
    kept = model.layers[-1].get_weights()
    model.layers[-1].set_weights([np.zeros_like(w) for w in kept])
    model.compile(
        keras.optimizers.SGD(0.0), "mae", metrics=[keras.metrics.MeanSquaredError("mine")]
    )
    report = loop.run()
    assert set(report.metrics) == {"loss", "mine"}
    assert not any(w.any() for w in model.layers[-1].get_weights())
    assert report.metrics["loss"] == pytest.approx(np.abs(y).mean(), rel=1e-4)
    model.fit(x, y, batch_size=SIZE, verbose=0)
    assert np.isfinite(model.evaluate(x, y, verbose=0)).all()


def a_model_that_runs_eagerly_does_here_too():
    x, y = _data()
    called = []

    class Counts(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            if not isinstance(x, keras.KerasTensor):
                called.append(1)
            return self.dense(x)

    model = Counts()
    model.compile("sgd", "mse", run_eagerly=True)
    model.build((None, 5))
    called.clear()
    report = train.Loop(
        model, penstock.Dataset.arrays((x, y)), steps=5, batch_size=SIZE, workers=0
    ).run()
    assert report.steps == 14
    assert len(called) >= 14
    assert report.metrics["loss"] > 0


def an_exception_leaves_a_model_that_works():
    x, y = _data()
    model = _model()
    seen = []
    samples = penstock.Dataset.arrays((x, y))

    def fails(number, logs):
        seen.append(number)
        if len(seen) == 8:
            raise KeyError("mine")

    loop = train.Loop(model, samples, steps=5, batch_size=SIZE, callbacks=fails, workers=0)
    with pytest.raises(KeyError, match="mine"):
        loop.run()
    assert seen == list(range(8))
    assert int(model.optimizer.iterations) == 10, "those of the second run"
    with pytest.raises(Exception, match=r"\b[56]\b"):  # of the backend: 6 columns for 5
        train.Loop(model, [(np.ones((8, 6), "float32"), y[:8])], steps=1, batch_size=8).run()
    assert np.isfinite(model.predict(x, verbose=0)).all()
    assert loop.run(steps=3).steps == 3


def what_cannot_be_is_refused():
    raw = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(penstock.InvalidArgument, match="compile"):
        train.Loop(raw, [_data()], steps=1)
    for wrong in ({"state": 1}, {"convert": np.asarray}):
        with pytest.raises(penstock.InvalidArgument, match="omit these"):
            train.Loop(_model(), [_data()], steps=1, **wrong)


def online_learns_what_train_on_batch_learns_and_goes_on_from_its_snapshot():
    def fresh():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    x, y = _data()
    x, y = x[:100], y[:100]
    expected, losses = fresh(), []
    for i in range(0, 100, 10):
        losses.append(float(expected.train_on_batch(x[i : i + 10], y[i : i + 10])))
        expected.reset_metrics()
    found, predictions = [], []

    def batch(messages):
        rows = [int(message.payload) for message in messages]
        return x[rows], y[rows]

    def note(step):
        found.append(step.loss)
        predictions.append(step.predictions.shape)

    with tempfile.TemporaryDirectory() as spool:
        for rows in (range(40), range(40, 100)):
            items, model = [b"%d" % row for row in rows], fresh()
            # Batches of 10 rows, which are padded to 16 where shapes are compiled.
            options = {"max_batch": 16, "min_batch": 10, "max_wait": 60.0, "max_queue": 10}
            with train.Online(items, batch, model, spool=spool, on_batch=note, **options) as live:
                live.run()
    assert predictions == [(10, 1)] * 10
    np.testing.assert_allclose(found, losses, rtol=1e-3)
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert int(model.optimizer.iterations) == 10

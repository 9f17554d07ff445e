"""Checks of stateful Keras models in train.predict and train.evaluate; for every backend."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras
import numpy as np
import pytest

import penstock
from penstock import train

LANES, WINDOW, WIDTH = 3, 4, 2


def _sequences(count=8):
    rng = np.random.default_rng(5)
    return [rng.normal(size=(rng.integers(1, 14), WIDTH)).astype("float32") for _ in range(count)]


def _layers(stateful):
    return [
        keras.layers.GRU(5, return_sequences=True, stateful=stateful),
        keras.layers.LSTM(4, return_sequences=True, stateful=stateful),
        keras.layers.Dense(1),
    ]


def _models():
    """Return a stateful model, and one of the same weights for whole sequences."""
    keras.utils.set_random_seed(4)
    stateful = keras.Sequential(
        [keras.layers.Input(batch_shape=(LANES, WINDOW, WIDTH)), *_layers(True)]
    )
    whole = keras.Sequential([keras.layers.Input((None, WIDTH)), *_layers(False)])
    _copy_weights(stateful, whole)
    return stateful, whole


def _copy_weights(of, to):
    for mine, given in zip(to.trainable_variables, of.trainable_variables, strict=True):
        mine.assign(np.array(keras.ops.convert_to_numpy(given)))


def _state(model):
    return [
        keras.ops.convert_to_numpy(state) for layer in model.layers[:2] for state in layer.states
    ]


def sequences_are_predicted_as_if_whole():
    stateful, whole = _models()
    feed = [{"x": x, "id": number} for number, x in enumerate(_sequences())]
    outputs, extras = train.predict(stateful, feed, inputs="x", stateful=True)
    assert [extra["id"] for extra in extras] == list(range(len(feed)))
    for made, x in zip(outputs, _sequences(), strict=True):
        assert made.shape == (len(x), 1)
        np.testing.assert_allclose(made, whole.predict_on_batch(x[None])[0], atol=1e-5)


def the_models_own_state_stays():
    stateful, _ = _models()
    stateful(np.ones((LANES, WINDOW, WIDTH), "float32"))
    before = _state(stateful)
    assert all(state.any() for state in before)
    train.predict(stateful, _sequences(), stateful=True)
    for state, value in zip(_state(stateful), before, strict=True):
        assert np.array_equal(state, value)


def a_model_that_is_not_built_yet():
    model = keras.Sequential(_layers(True))
    given = _sequences()
    outputs, _ = train.predict(model, given, stateful=True, batch_size=2, window=5)
    whole = keras.Sequential(_layers(False))
    whole(given[0][None])
    _copy_weights(model, whole)
    for made, x in zip(outputs, given, strict=True):
        np.testing.assert_allclose(made, whole.predict_on_batch(x[None])[0], atol=1e-5)
    assert not any(state.any() for state in _state(model))


def evaluate_gives_the_compiled_loss_and_metrics_over_all_steps():
    stateful, whole = _models()
    stateful.compile(loss="mse", metrics=["mae"])
    feed = [(x, x.sum(axis=1, keepdims=True)) for x in _sequences()]
    found = train.evaluate(stateful, feed, stateful=True)
    errors = np.concatenate([whole.predict_on_batch(x[None])[0] - y for x, y in feed])
    assert found["rows"] == len(errors)
    assert found["loss"] == pytest.approx((errors**2).mean(), rel=1e-4)
    assert found["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    again = train.evaluate(stateful, feed, stateful=True)
    assert again == pytest.approx(found)


def evaluate_with_metrics_of_ones_own():
    stateful, whole = _models()
    feed = [(x, x[:, 0]) for x in _sequences()]

    def metrics(outputs, rest):
        return {"error": np.abs(outputs[:, 0] - rest[0]), "first": outputs[0, 0]}

    found = train.evaluate(stateful, feed, stateful=True, metrics=metrics)
    outputs = [whole.predict_on_batch(x[None])[0, :, 0] for x, _ in feed]
    errors = np.concatenate([np.abs(o - y) for o, (_, y) in zip(outputs, feed, strict=True)])
    assert found["error"] == pytest.approx(errors.mean(), rel=1e-4)


def what_does_not_fit_is_said():
    stateful, whole = _models()
    with pytest.raises(penstock.InvalidArgument, match="no layer that keeps its state"):
        train.predict(whole, _sequences(), stateful=True, window=4)
    with pytest.raises(penstock.InvalidArgument, match=f"batch_size=7, .* built with {LANES}"):
        train.predict(stateful, _sequences(), stateful=True, batch_size=7)
    with pytest.raises(penstock.InvalidArgument, match=f"window=9, .* built with {WINDOW}"):
        train.predict(stateful, _sequences(), stateful=True, window=9)
    with pytest.raises(penstock.InvalidArgument, match="is not compiled"):
        train.evaluate(stateful, [(x, x) for x in _sequences()], stateful=True)
    stateful.compile(loss="mse")
    with pytest.raises(penstock.InvalidArgument, match="no targets"):
        train.evaluate(stateful, _sequences(), stateful=True)
    last = keras.Sequential(
        [
            keras.layers.Input(batch_shape=(LANES, WINDOW, WIDTH)),
            keras.layers.GRU(2, stateful=True),
        ]
    )
    with pytest.raises(penstock.InvalidArgument, match="return_sequences=True"):
        train.predict(last, _sequences(), stateful=True)
    both = keras.Sequential(
        [
            keras.layers.Input(batch_shape=(LANES, WINDOW, WIDTH)),
            keras.layers.Bidirectional(keras.layers.GRU(2, return_sequences=True, stateful=True)),
        ]
    )
    with pytest.raises(penstock.InvalidArgument, match="Bidirectional"):
        train.predict(both, _sequences(), stateful=True)

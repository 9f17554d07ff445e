"""The same models in the learner and in the actors of test_publish_models.py."""

from __future__ import annotations


def torch_model():
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1, dtype=torch.float32)
    )


def jax_parameters(value):
    import jax.numpy as jnp

    return {
        "dense": {"kernel": jnp.full((3, 1), value), "bias": jnp.full((1,), value, jnp.bfloat16)},
        "scale": (jnp.full((), value), jnp.zeros((0, 2))),
    }


def jax_apply(parameters, x):
    dense = parameters["dense"]
    return (x @ dense["kernel"] + dense["bias"].astype("float32")) * parameters["scale"][0]


def keras_model():
    import keras

    model = keras.Sequential(
        [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    model.build((None, 3))
    return model

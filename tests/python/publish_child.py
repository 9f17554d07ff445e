"""An actor of another process: follows weights by its framework, and prints what it predicts.

A line of the input is a version to wait for; a line of the output is the version and the prediction
of a batch of ones.
"""

from __future__ import annotations

import json
import sys


def with_torch(name):
    import torch

    import penstock.torch
    from publish_models import torch_model

    module = torch_model().eval()
    follower = penstock.torch.attach(name, module)

    def predict():
        with torch.no_grad():
            return follower.update(), module(torch.ones(2, 3)).ravel().tolist()

    return follower, predict


def with_jax(name):
    import jax.numpy as jnp

    import penstock.jax
    from publish_models import jax_apply, jax_parameters

    model = penstock.jax.attach(name, like=jax_parameters(0.0))

    def predict():
        with model.read() as (version, parameters):
            return version, jax_apply(parameters, jnp.ones((2, 3))).ravel().tolist()

    return model, predict


def with_keras(name):
    import numpy as np

    import penstock.keras
    from publish_models import keras_model

    model = keras_model()
    follower = penstock.keras.attach(name, model)

    def predict():
        version = follower.update()
        return version, np.asarray(model.predict(np.ones((2, 3)), verbose=0)).ravel().tolist()

    return follower, predict


if __name__ == "__main__":
    follower, predict = {"torch": with_torch, "jax": with_jax, "keras": with_keras}[sys.argv[1]](
        sys.argv[2]
    )
    for line in sys.stdin:
        assert follower.wait(int(line), timeout=60)
        print(json.dumps(predict()), flush=True)

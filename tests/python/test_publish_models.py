"""Whole models of torch, JAX and Keras, published and followed by processes of the user."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock
import publish_models as models
from penstock import train

CHILD = Path(__file__).with_name("publish_child.py")


@contextlib.contextmanager
def actor(framework, name):
    """A function that returns what the actor predicts with a version, or a newer one."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), framework, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def predicted(version):
        child.stdin.write(f"{version}\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline())

    try:
        yield predicted
        child.stdin.close()
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_torch_module_is_followed_with_its_buffers(name):
    torch = pytest.importorskip("torch")
    import penstock.torch

    torch.manual_seed(1)
    module = models.torch_model()
    module(torch.randn(16, 3))  # moves the running mean and variance
    assert penstock.torch.publish(name, module) == 0
    with actor("torch", name) as predicted:
        for version in range(2):
            with torch.no_grad():
                expected = module.eval()(torch.ones(2, 3)).ravel().tolist()
            assert predicted(version) == [version, expected]
            module.train()(torch.randn(16, 3))
            assert penstock.torch.publish(name, module) == version + 1
    with penstock.torch.attach(name, models.torch_model().to(torch.float64)) as follower:
        assert follower.version == 2
        assert follower.alive


def test_a_tree_of_jax_is_read_with_its_types(name):
    pytest.importorskip("jax")
    import penstock.jax

    assert penstock.jax.publish(name, models.jax_parameters(2.0)) == 0
    with actor("jax", name) as predicted:
        assert predicted(0) == [0, [16.0, 16.0]]
        assert penstock.jax.publish(name, models.jax_parameters(3.0)) == 1
        assert predicted(1) == [1, [36.0, 36.0]]
    with penstock.jax.attach(name, like=models.jax_parameters(0.0)) as model:
        with model.read() as (version, tree):
            pass
        penstock.jax.publish(name, models.jax_parameters(4.0))
        assert (version, tree["dense"]["bias"].dtype) == (1, "bfloat16")
        assert float(tree["scale"][0]) == 3.0, "arrays stay valid after the block"
        assert tree["scale"][1].shape == (0, 2)
    with pytest.raises(penstock.InvalidArgument, match=r"tree\['scale'\]\[0\]"):
        penstock.jax.publish(name, {**models.jax_parameters(1.0), "scale": (np.ones(2),)})
    with pytest.raises(penstock.InvalidArgument, match="kernel"):
        penstock.jax.attach(name, like={"dense": {"kernel": np.ones((3, 2))}})


def test_a_keras_model_is_followed(name):
    pytest.importorskip("keras")
    import penstock.keras

    model = models.keras_model()
    assert penstock.keras.publish(name, model) == 0
    models.keras_model()  # names of layers count on in this process
    with actor("keras", name) as predicted:
        for version in range(2):
            expected = np.asarray(model.predict(np.ones((2, 3)), verbose=0)).ravel()
            found = predicted(version)
            assert found[0] == version
            assert np.allclose(found[1], expected, rtol=1e-5)
            for weight in model.weights:
                weight.assign(weight + 0.5)
            assert penstock.keras.publish(name, model) == version + 1


def test_a_follower_may_lag(name):
    torch = pytest.importorskip("torch")
    import penstock.torch

    module, actors = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    penstock.torch.publish(name, module)
    with penstock.torch.attach(name, actors) as follower:
        for _ in range(2):
            with torch.no_grad():
                module.weight += 1
            penstock.torch.publish(name, module)
        assert follower.update(max_lag=2) == 0
        assert actors.weight.item() != module.weight.item()
        assert follower.update(max_lag=1) == 2
        assert actors.weight.item() == module.weight.item()
    with pytest.raises(penstock.errors.Closed):
        follower.update()


def test_other_blocks_than_before_make_no_version(name):
    values = {"w": np.ones((2, 3)), "b": [3, 4]}
    assert train.publish(name, values) == 0
    for bad, says in (
        ({"w": np.ones((2, 3))}, "'b' is missing"),
        ({**values, "c": np.ones(1)}, "no block 'c'"),
        ({**values, "b": np.zeros(3)}, "'b' is .2,.; these values are .3,."),
        ({**values, "b": np.array(["x", "y"])}, "'b'"),
    ):
        with pytest.raises(penstock.InvalidArgument, match=says):
            train.publish(name, bad)
    with pytest.raises(penstock.InvalidArgument, match=r"'w'"):
        train.publish(name, train.Parameters({"w": (3, 2)}))
    with train.attach(name, like={"w": (2, 3), "b": (2,)}) as model:
        assert model.version == 0
        assert train.publish(name, {"w": np.full((2, 3), 7), "b": [1, 2]}) == 1
        with model.read() as (_, weights):
            assert (weights["w"] == 7).all()
            assert weights["b"].tolist() == [1, 2]


@pytest.mark.gpu
def test_weights_on_a_device_are_published_from_there(name):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    import penstock.torch

    module = torch.nn.Linear(300, 40).cuda()
    penstock.torch.publish(name, module)
    other = torch.nn.Linear(300, 40).cuda()
    with penstock.torch.attach(name, other) as follower:
        assert follower.version == 0
        assert torch.equal(module.weight, other.weight)

"""Hogwild and towers with torch modules and JAX functions."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import train

torch = pytest.importorskip("torch")

LABELS = torch.nn.functional.cross_entropy


@pytest.fixture(autouse=True)
def threads_of_torch_stay_as_they_were():
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 3)
    )


def batches(n=64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 32, 6, generator=generator)
    return [(part, part[:, :3].argmax(1)) for part in x]


def step(batch, views):
    loss = LABELS(views.model(batch[0]), batch[1])
    loss.backward()
    return loss


def accuracy(module):
    module.eval()
    x, y = (torch.cat(part) for part in zip(*batches(), strict=True))
    return (module(x).argmax(1) == y).float().mean().item()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("snapshot", [False, True, "update"])
def test_replicas_of_a_module_train_the_same_weights(workers, snapshot):
    module = network()
    parameters, _ = penstock.torch.alias(module)
    hogwild = train.Hogwild(
        step, parameters, train.Adam(0.01), batches(), workers=workers, model=module,
        snapshot=snapshot,
    )  # fmt: skip
    report = hogwild.run(epochs=6)
    assert report.updates == 6 * 64
    assert report.copied_bytes == (report.steps * parameters.nbytes if snapshot else 0)
    if not snapshot:  # the module is worker 0's own, its buffers too
        assert accuracy(module) > 0.9
    plain = network()
    plain.load_state_dict({**plain.state_dict(), **module.state_dict()})
    for name, value in plain.named_parameters():
        assert np.array_equal(value.detach().numpy(), parameters[name])


def test_one_worker_is_a_plain_loop():
    module, plain = network(), network()
    parameters, _ = penstock.torch.alias(module)
    train.Hogwild(
        step, parameters, train.SGD(0.1), batches(), workers=1, model=module
    ).run(steps=20)  # fmt: skip
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for x, y in batches()[:20]:
        optimizer.zero_grad()
        LABELS(plain(x), y).backward()
        optimizer.step()
    torch.set_num_threads(before)
    for name, value in plain.named_parameters():
        np.testing.assert_allclose(parameters[name], value.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_that_torch_put_elsewhere_are_copied_and_counted():
    def elsewhere(batch, views):
        views.model.zero_grad()
        return step(batch, views)

    module = network()
    parameters, _ = penstock.torch.alias(module)
    hogwild = train.Hogwild(
        elsewhere, parameters, train.SGD(0.1), batches(4), workers=2, model=module
    )
    expected = 4 * sum(array.nbytes for array in parameters.values())
    assert hogwild.run().copied_bytes == expected


def test_towers_of_replicas_are_one_large_batch():
    def without_norm():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))

    module, plain = without_norm(), without_norm()
    parameters, _ = penstock.torch.alias(module)
    train.Towers(
        step, parameters, train.SGD(0.5), batches(), devices=["cpu"] * 4, model=module
    ).run()  # fmt: skip
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for i in range(0, 64, 4):
        x, y = (torch.cat(part) for part in zip(*batches()[i : i + 4], strict=True))
        optimizer.zero_grad()
        LABELS(plain(x), y).backward()
        optimizer.step()
    for name, value in plain.named_parameters():
        np.testing.assert_allclose(parameters[name], value.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [train.Hogwild, train.Towers])
def test_functions_of_jax_return_their_gradients(kind):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    @jax.jit
    def value_and_gradient(weights, x, y):
        def loss(weights):
            return jnp.mean((x @ weights["w"] - y) ** 2)

        return jax.value_and_grad(loss)(weights)

    def jax_step(batch, views):
        weights = {name: jnp.array(array) for name, array in views.weights.items()}  # a copy
        return value_and_gradient(weights, *batch)

    rng = np.random.default_rng(0)
    truth = rng.normal(size=5).astype(np.float32)
    feed = []
    for _ in range(100):
        x = rng.normal(size=(16, 5)).astype(np.float32)
        feed.append((x, x @ truth))
    parameters = train.Parameters({"w": (5,)})
    workers = kind(jax_step, parameters, train.SGD(0.1), feed)
    # A worker may compile while the other one continues. Then its gradient may be the last one
    # applied, and be computed from the first weights.
    first = workers.run(epochs=1)
    report = workers.run(epochs=2)
    np.testing.assert_allclose(parameters["w"], truth, atol=1e-3)
    assert report.loss < 0.01 < first.loss  # 0 if the result is exact

"""train.Population of JAX functions against training each member alone by plain JAX."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from penstock import errors, train  # noqa: E402

MEMBERS, ROWS, STEPS = 4, 8, 6
STRATEGIES = ("stacked", "concurrent")


def init(key):
    weights = 0.3 * jax.random.normal(key, (5, 3))
    return {"layers": [{"w": weights, "b": jnp.zeros(3)}], "scale": jnp.ones(())}


def apply(weights, inputs):
    (layer,) = weights["layers"]
    return weights["scale"] * jnp.tanh(inputs @ layer["w"] + layer["b"])


def cross_entropy(outputs, targets):
    right = outputs[jnp.arange(len(targets)), targets]
    return (jax.nn.logsumexp(outputs, axis=1) - right).mean()


def batches(count=STEPS, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((ROWS, 5)).astype(np.float32), rng.integers(0, 3, ROWS))
        for _ in range(count)
    ]


def sgd(w, g, state, step, lr, decay):
    return w - lr * (g + decay * w), state


def momentum(w, g, state, step, lr, decay):
    v = 0.9 * state[0] + g + decay * w
    return w - lr * v, (v, 0)


def adam(w, g, state, step, lr, decay):
    g = g + decay * w
    m, v = 0.9 * state[0] + 0.1 * g, 0.999 * state[1] + 0.001 * g * g
    m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.999**step)
    return w - lr * m_hat / (np.sqrt(v_hat) + 1e-8), (m, v)


gradient_of = jax.jit(jax.value_and_grad(lambda w, x, y: cross_entropy(apply(w, x), y)))


def alone(seed, data, steps, formula=sgd, lr=0.05, decay=0.0):
    """The same by JAX and NumPy: the weights, and the loss of each step."""
    weights = init(jax.random.key(seed))
    leaves, tree = jax.tree.flatten(weights)
    leaves, states = [np.asarray(leaf) for leaf in leaves], [(0, 0)] * len(leaves)
    losses = []
    for step in range(steps):
        loss, gradient = gradient_of(tree.unflatten(leaves), *data[step % len(data)])
        losses.append(float(loss))
        for n, g in enumerate(jax.tree.leaves(gradient)):
            leaves[n], states[n] = formula(
                leaves[n], np.asarray(g), states[n], step + 1, np.float32(lr), np.float32(decay)
            )
    return tree.unflatten(leaves), losses


def assert_alike(weights, other):
    assert jax.tree.structure(weights) == jax.tree.structure(other)
    for mine, wanted in zip(jax.tree.leaves(weights), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=2e-4, atol=2e-6)


def assert_result(population, result, *facts, **options):
    weights, losses = alone(*facts, **options)
    assert result.error is None
    np.testing.assert_allclose(result.losses, losses, rtol=1e-4)
    assert_alike(population.module(result.member), weights)


def trained(population, data, **options):
    return list(population.train(data, **options).as_completed())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("formula", [sgd, momentum, adam])
def test_members_are_as_if_trained_alone(formula, strategy):
    lrs, decays = [0.001, 0.01, 0.05, 0.1], [0.0, 0.1, 0.01, 0.0]
    data = batches()
    with train.Population(
        (init, apply),
        members=MEMBERS,
        hyper={"lr": lrs, "weight_decay": decays},
        optimizer=formula.__name__,
        seed=3,
        strategy=strategy,
    ) as population:
        results = trained(population, data, steps=STEPS)
        assert [r.member for r in results] == list(range(MEMBERS))
        for n, result in enumerate(results):
            assert_result(
                population, result, 3 + n, data, STEPS, formula, lr=lrs[n], decay=decays[n]
            )
            assert population.step(n) == result.steps == STEPS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_member_has_its_own_data_and_steps(strategy):
    feeds = {}

    def own(member, seed):
        feeds[member] = batches(3, seed)  # ends, and is begun again
        return feeds[member]

    seeds, steps = [7, 7, 9, 2], [2, 3, 4, 5]  # 4, 3, 2 and 1 of the rows train
    with train.Population(
        (init, apply),
        members=4,
        hyper={"lr": 0.05, "seed": seeds},
        optimizer="sgd",
        strategy=strategy,
    ) as population:
        results = trained(population, own, steps=steps)
        assert [r.steps for r in results] == steps
        for result in results:
            n = result.member
            assert_result(population, result, seeds[n], feeds[n], steps[n])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_member_that_diverges_stops_alone(strategy):
    data = batches()
    with train.Population(
        (init, apply),
        members=3,
        hyper={"lr": [0.05, 1e38, 0.05]},
        optimizer="sgd",
        strategy=strategy,
    ) as population:
        results = {r.member: r for r in trained(population, data, steps=STEPS)}
        assert isinstance(results[1].error, errors.InvalidArgument)
        assert results[1].steps < STEPS
        for n in (0, 2):
            assert_result(population, results[n], n, data, STEPS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_batch_that_fails_is_its_members_error(strategy):
    def own(member, seed):
        data = batches(3, seed)
        if member == 1:
            data[2] = (data[2][0][:, :4], data[2][1])  # the model refuses this size
        return data

    with train.Population(
        (init, apply), members=3, hyper={"lr": 0.05}, optimizer="sgd", strategy=strategy
    ) as population:
        results = {r.member: r for r in trained(population, own, steps=3)}
        assert isinstance(results[1].error, TypeError)
        assert results[1].steps == 2
        for n in (0, 2):
            assert_result(population, results[n], n, own(n, n), 3)


def test_both_strategies_are_measured_and_one_goes_on():
    data = [tuple(map(jnp.asarray, batch)) for batch in batches()]
    with train.Population(
        (init, apply), members=3, hyper={"lr": 0.05}, optimizer="sgd"
    ) as population:
        assert population.strategy is None
        for result in trained(population, data, steps=8):
            assert_result(population, result, result.member, data, 8)
        assert population.strategy in STRATEGIES


def test_an_operation_that_cannot_be_stacked_is_computed_by_threads():
    def by_callback(outputs, targets):
        shape = jax.ShapeDtypeStruct(targets.shape, targets.dtype)
        return cross_entropy(outputs, jax.pure_callback(np.array, shape, targets))  # refuses vmap

    with train.Population(
        (init, apply), members=2, hyper={"lr": 0.05}, optimizer="sgd", loss=by_callback
    ) as population:
        for result in trained(population, lambda member, seed: batches(2, seed), steps=2):
            assert_result(population, result, result.member, batches(2, result.member), 2)
        assert population.strategy == "concurrent"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_that_do_not_fit_wait_in_a_copy(strategy):
    data = batches(1)
    with train.Population(
        (init, apply),
        members=5,
        resident=2,
        hyper={"lr": 0.05},
        optimizer="momentum",
        strategy=strategy,
    ) as population:
        results = trained(population, data, steps=3)
        assert sorted(r.member for r in results) == list(range(5))
        for result in results:
            assert_result(population, result, result.member, data, 3, momentum)


def test_a_member_is_taken_put_elsewhere_and_copied():
    data = batches()
    with train.Population(
        (init, apply), members=2, optimizer="adam", strategy="concurrent"
    ) as first:
        trained(first, data[:2], steps=2)
        state = first.take(1)
    assert (state.step, state.floats.dtype, state.buffers) == (2, np.float32, {})
    with train.Population((init, apply), members=3, optimizer="adam", strategy="stacked") as second:
        second.put(2, state)
        second.copy(2, 0)
        trained(second, data[2:5], steps=3, members=[0, 2])
        weights, _ = alone(1, data, 5, adam, lr=0.001)
        assert_alike(second.module(2), weights)
        assert_alike(second.module(0), weights)
        assert_alike(second.module(1), init(jax.random.key(1)))
        assert [second.step(n) for n in range(3)] == [5, 0, 5]


def test_module_returns_copies():
    with train.Population((init, apply), members=2, resident=1) as population:
        before = [population.module(n) for n in range(2)]
        trained(population, batches(), steps=2)
        for n in range(2):
            assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(before[n]))
            assert_alike(before[n], init(jax.random.key(n)))
            assert not np.array_equal(
                before[n]["layers"][0]["w"], population.module(n)["layers"][0]["w"]
            )


def test_weights_may_be_one_array_and_inputs_a_tree():
    def regression(outputs, targets):
        return ((outputs - targets) ** 2).mean()

    batch = ({"x": np.ones((4, 2), np.float32)}, np.full(4, 2, np.float32))
    for strategy in STRATEGIES:
        with train.Population(
            (lambda key: np.zeros(2, np.float32), lambda w, inputs: inputs["x"] @ w),
            members=2,
            loss=regression,
            hyper={"lr": 0.25},
            optimizer="sgd",
            strategy=strategy,
        ) as population:
            trained(population, lambda member, seed: [batch], steps=1)
            np.testing.assert_allclose(population.module(0), [1, 1])  # 0.25 * 2 * 2


def test_no_torch_is_needed(monkeypatch):
    for name in list(sys.modules):
        if name == "torch" or name.endswith("population_torch"):
            monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError
    with train.Population((init, apply), members=2) as population:
        assert [r.error for r in trained(population, batches(1), steps=1)] == [None, None]


def test_threads_end():
    population = train.Population((init, apply), members=2, strategy="concurrent")
    trained(population, batches(1), steps=1)
    population.close()
    running = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("penstock-member") for name in running)


def growing(key):
    size = 3 + int(jax.random.key_data(key)[-1])
    return {"w": jnp.zeros(size)}


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ((init,), {}, "two functions for JAX"),
        ((init, 3), {}, "function, int.*two functions for JAX"),
        ((lambda key: {"w": np.zeros(3)}, apply), {}, r"float64 at weights\['w'\].*float32"),
        ((lambda key: {"n": 3, "w": jnp.zeros(3)}, apply), {}, r"int at weights\['n'\]"),
        ((lambda key: {}, apply), {}, "a dict without arrays"),
        ((growing, apply), {}, r"seed 1.*weights\['w'\].* is \(4,\), and \(3,\) in member 0"),
        ((init, apply), {"seed": 1 << 32}, r"seed 4294967296 .* below 2\*\*32"),
        ((init, apply), {"strategy": "stacked", "compile": True}, "leave it out"),
    ],
)
def test_wrong_models_are_refused(model, options, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        train.Population(model, members=2, **options)


def test_wrong_data_is_refused():
    with train.Population((init, apply), members=2, strategy="concurrent") as population:
        for data, words in (([], "no batch"), ([{"x": 1}], "a dict; a population wants")):
            with pytest.raises(errors.InvalidArgument, match=words):
                trained(population, data, steps=1)

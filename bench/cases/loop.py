"""A tiny model (8 -> 16 relu -> 1, mean squared error, SGD), feeding included, N steps a check-in.

`step` is the time of a step, including callbacks that get every step's loss, if there are any. The
peers are hand-written loops over an array in memory: with torch, with a jitted step of JAX, and
with `jax.lax.scan` over 20 steps; and Keras' `fit` over the same array, without callbacks and with
`steps_per_execution` of 1 and 20, compared with the same Keras model in penstock's Loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from harness import Case, Figure, Figures, Size, Target, expect

from cases import torch_programs

JAX, TORCH = "train.Loop, jax", "train.Loop, torch"
KERAS = {name: f"train.Loop, Keras on {name}" for name in ("jax", "tensorflow", "torch")}
CPP, CPP_LOOP = "train::Loop, libtorch", "libtorch loop by hand"
SCAN, TORCH_LOOP = "jax.lax.scan by hand", "torch loop by hand"

CASE = Case(
    "loop",
    "us a step of a tiny model, batch 32, 20 steps a check-in",
    {"step": Figure("us a step", 1e6)},
    full={"steps": 4000, "batch": 32, "n": 20},
    quick={"steps": 1000, "batch": 32, "n": 20},
    prepare=lambda size: torch_programs.build(size, "loop_torch"),
    targets=[
        Target("step", JAX, SCAN, at_least=0.7, says="0.7 of a scan by hand"),
        *(
            Target("step", ours, peer, at_least=1.5, says=f"1.5 times Keras' fit on {name}")
            for name in ("jax", "tensorflow")
            for ours, peer in [(KERAS[name], f"Keras fit on {name}, 20 at once")]
        ),
        Target("step", TORCH, TORCH_LOOP, at_least=0.9, says="torch's own loop, 10 % at most"),
        Target("step", CPP, CPP_LOOP, at_least=0.97, says="libtorch's own loop, 3 % at most"),
    ],
)
CASES = [CASE]


def data(size: Size) -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((size.steps * size.batch, 8), dtype=np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


def timed(epoch: Callable[[], Any], size: Size) -> Figures:
    epoch()  # compiles
    took = []
    for _ in range(3):
        began = time.perf_counter()
        loss = epoch()
        took.append(time.perf_counter() - began)
    expect(np.isfinite(loss) and loss < 0.5, f"a loss of {loss} at the end")
    return {"step": min(took) / size.steps}


def ours(step: Any, size: Size, **options: Any) -> Figures:
    import penstock
    from penstock import train

    losses: list[float] = []
    loop = train.Loop(
        step,
        penstock.Dataset.arrays(data(size)),
        batch_size=size.batch,
        callbacks=lambda _, loss: losses.append(loss),
        **({"steps": size.n} | options),
    )

    def epoch() -> float:
        losses.clear()
        loop.run()
        expect(len(losses) == size.steps, f"{len(losses)} losses")
        return losses[-1]

    return timed(epoch, size)


def jax_parts() -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    first, second = jax.random.split(jax.random.PRNGKey(0), 2)
    weights = [
        jax.random.normal(first, (8, 16)) * 0.3,
        jnp.zeros(16),
        jax.random.normal(second, (16, 1)) * 0.3,
        jnp.zeros(1),
    ]

    def loss_of(w: Any, batch: Any) -> Any:
        y = jax.nn.relu(batch["x"] @ w[0] + w[1]) @ w[2] + w[3]
        return ((y - batch["y"]) ** 2).mean()

    def step(w: Any, batch: Any) -> Any:
        loss, slopes = jax.value_and_grad(loss_of)(w, batch)
        return [value - 0.01 * slope for value, slope in zip(w, slopes, strict=True)], loss

    return step, weights


def torch_parts() -> Any:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@CASE.entry(JAX, "ours", "a Dataset, all losses replayed")
def ours_jax(size: Size) -> Figures:
    step, weights = jax_parts()
    return ours(step, size, state=weights)


@CASE.entry("train.Loop, jax, by the clock", "ours", "a Dataset, all losses replayed once a second")
def ours_jax_by_the_clock(size: Size) -> Figures:
    step, weights = jax_parts()
    return ours(step, size, state=weights, steps=None, seconds=1.0)


@CASE.entry(TORCH, "ours", "a Dataset, all losses replayed")
def ours_torch(size: Size) -> Figures:
    import torch

    return ours(torch_parts(), size, convert=torch.from_numpy)


@CASE.entry(SCAN, "peer", "the last loss")
def scan(size: Size) -> Figures:
    import jax

    step, weights = jax_parts()
    scanned = jax.jit(lambda w, batches: jax.lax.scan(step, w, batches))
    shape = (size.steps // size.n, size.n, size.batch)
    all_of_it = {name: x.reshape(*shape, -1) for name, x in data(size).items()}
    state = [weights]

    def epoch() -> float:
        for i in range(shape[0]):
            state[0], loss = scanned(state[0], {name: x[i] for name, x in all_of_it.items()})
        return float(loss[-1])

    return timed(epoch, size)


@CASE.entry("jax loop by hand", "peer", "the last loss")
def jax_loop(size: Size) -> Figures:
    import jax

    step, weights = jax_parts()
    jitted, arrays, state = jax.jit(step), data(size), [weights]

    def epoch() -> float:
        for i in range(0, size.steps * size.batch, size.batch):
            batch = {name: x[i : i + size.batch] for name, x in arrays.items()}
            state[0], loss = jitted(state[0], batch)
        return float(loss)

    return timed(epoch, size)


@CASE.entry(TORCH_LOOP, "peer", "the last loss", beside=TORCH)
def torch_loop(size: Size) -> Figures:
    import torch

    step = torch_parts()
    arrays = {name: torch.from_numpy(x) for name, x in data(size).items()}

    def epoch() -> float:
        for i in range(0, size.steps * size.batch, size.batch):
            loss = step({name: x[i : i + size.batch] for name, x in arrays.items()})
        return float(loss)

    return timed(epoch, size)


def in_cpp(size: Size, way: str) -> Figures:
    seconds, loss = torch_programs.run(size, "loop_torch", way, size.steps, size.batch, size.n)
    expect(loss < 0.5, f"a loss of {loss} at the end")
    return {"step": seconds}


@CASE.entry(CPP, "ours", "a Dataset, all losses replayed")
def ours_cpp(size: Size) -> Figures:
    return in_cpp(size, "ours")


@CASE.entry(CPP_LOOP, "peer", "all losses read, 20 at a time", beside=CPP)
def cpp_loop(size: Size) -> Figures:
    return in_cpp(size, "hand")


# ---- Keras: the same model, compiled, and `fit` -------------------------------------------------


def keras_model(backend: str, at_once: int = 1) -> Any:
    os.environ["KERAS_BACKEND"] = backend
    import keras

    if backend == "torch":
        import torch

        torch.set_num_threads(1)
    keras.utils.set_random_seed(0)
    relu = keras.layers.Dense(16, activation="relu")
    model = keras.Sequential([keras.Input((8,)), relu, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=at_once)
    return model


def ours_of_keras(backend: str, size: Size) -> Figures:
    import penstock
    from penstock import train

    losses: list[float] = []
    samples = data(size)
    loop = train.Loop(
        keras_model(backend),
        penstock.Dataset.arrays((samples["x"], samples["y"])),
        steps=size.n,
        batch_size=size.batch,
        callbacks=lambda _, metrics: losses.append(metrics["loss"]),
    )

    def epoch() -> float:
        losses.clear()
        loop.run()
        expect(len(losses) == size.steps, f"{len(losses)} losses")
        return losses[-1]

    return timed(epoch, size)


def fit(backend: str, at_once: int, size: Size) -> Figures:
    model, samples = keras_model(backend, at_once), data(size)
    how = {"batch_size": size.batch, "shuffle": False, "verbose": 0}

    def epoch() -> float:
        return float(model.fit(samples["x"], samples["y"], **how).history["loss"][-1])

    return timed(epoch, size)


for name in KERAS:
    CASE.entry(KERAS[name], "ours", "a Dataset, all losses replayed")(partial(ours_of_keras, name))
    for count in (1, 20) if name != "torch" else (1,):  # torch does not support more
        title = f"Keras fit on {name}, {count} at once"
        CASE.entry(title, "peer", "no callbacks", beside=KERAS[name])(partial(fit, name, count))

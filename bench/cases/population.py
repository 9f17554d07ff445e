"""Thirty LeNet-5, each with its own learning rate, on one batch a step that all of them share.

`rate` counts samples times networks. `grew` is the memory beyond torch and the images: weights,
gradients, and what a step needs; `all` is all memory of the C++ programs, with libtorch. Every
entry trains by SGD from equal weights for as many steps, and its losses are compared with those of
one network after the other. Compiling is not timed. The limit computes the gradients in two
processes and does nothing with them.
"""

from __future__ import annotations

import functools
import multiprocessing
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import BEST_PEER, WORKERS, Case, Figure, Figures, Size, Target, expect, resident_bytes

from cases import torch_programs

MEMBERS = 30
RATES = [float(lr) for lr in np.geomspace(0.005, 0.1, MEMBERS)]
THREADS, STACKED = "Population, 2 threads", "Population, stacked and compiled"
JAX = "Population, JAX by 2 threads"
CPP, CPP_BY_HAND = "members in C++, 2 threads", "2 threads in C++ by hand"
WARM = 3

Step = Callable[[Any, Any], Any]  # images and labels; returns the losses of all networks


def lenet() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def seeded(number: int) -> Any:
    import torch

    torch.manual_seed(number)
    return lenet()


def batches(size: Size) -> list[Any]:
    import torch

    rng = np.random.default_rng(0)
    images = rng.standard_normal((size.steps + WARM, size.batch, 1, 28, 28), np.float32)
    labels = rng.integers(0, 10, (size.steps + WARM, size.batch))
    return list(zip(torch.from_numpy(images), torch.from_numpy(labels), strict=True))


def expected(data: list[Any]) -> Any:
    """The loss of the first and last network in the last step."""
    losses = []
    for number in (0, MEMBERS - 1):
        step = one_by_one([seeded(number)], RATES[number : number + 1])
        for batch in data:
            last = step(*batch)
        losses.append(float(last[0]))
    return losses


def one_by_one(models: list[Any], rates: list[float]) -> Step:
    import torch

    optimizers = [torch.optim.SGD(m.parameters(), lr) for m, lr in zip(models, rates, strict=True)]

    def step(images: Any, labels: Any) -> list[Any]:
        losses = []
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    return step


def gradients_alone(models: list[Any]) -> Step:
    import torch

    def step(images: Any, labels: Any) -> list[Any]:
        losses = []
        for model in models:
            for parameter in model.parameters():
                parameter.grad = None
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            losses.append(loss.detach())
        return losses

    return step


def measured(size: Size, make: Callable[[], Step]) -> Figures:
    data = batches(size)
    before = resident_bytes()
    step = make()
    for batch in data[:WARM]:
        losses = step(*batch)
    start = time.perf_counter()
    for batch in data[WARM:]:
        losses = step(*batch)
    seconds = time.perf_counter() - start
    grew = resident_bytes() - before
    check(losses, data)
    return {"rate": MEMBERS * size.batch * size.steps / seconds, "grew": grew}


def check(losses: Any, data: list[Any]) -> None:
    wanted = expected(data)
    got = [float(losses[0]), float(losses[-1])]
    expect(np.allclose(got, wanted, rtol=1e-3), f"losses are {got}, not {wanted}")


def population(size: Size, model: Any = lenet, **options: Any) -> Figures:
    from penstock import train

    data = batches(size)
    before = resident_bytes()
    with train.Population(
        model, members=MEMBERS, hyper={"lr": RATES}, optimizer="sgd", **options
    ) as networks:
        list(networks.train(data[:WARM], steps=WARM).as_completed())
        start = time.perf_counter()
        results = list(networks.train(data[WARM:], steps=size.steps).as_completed())
        seconds = time.perf_counter() - start
        grew = resident_bytes() - before
    by_member = sorted(results, key=lambda result: result.member)
    check([result.losses[-1] for result in by_member], data)
    return {"rate": MEMBERS * size.batch * size.steps / seconds, "grew": grew}


def threads(size: Size) -> Figures:
    return population(size, strategy="concurrent", threads=WORKERS)


def stacked(size: Size) -> Figures:
    return population(size, strategy="stacked", compile=True)


def in_turns(size: Size) -> Figures:
    return measured(size, lambda: one_by_one([seeded(n) for n in range(MEMBERS)], RATES))


def by_vmap(size: Size, compiled: bool = False) -> Figures:
    import torch

    def make() -> Step:
        weights, _ = torch.func.stack_module_state([seeded(n) for n in range(MEMBERS)])
        weights = {name: w.detach() for name, w in weights.items()}
        base = lenet().to("meta")
        rates = torch.tensor(RATES)

        def loss_of(weights: Any, images: Any, labels: Any) -> Any:
            outputs = torch.func.functional_call(base, weights, (images,))
            return torch.nn.functional.cross_entropy(outputs, labels)

        each = torch.func.vmap(torch.func.grad_and_value(loss_of), (0, None, None))
        if compiled:
            each = torch.compile(each, dynamic=False)

        def step(images: Any, labels: Any) -> Any:
            gradients, losses = each(weights, images, labels)
            for name, w in weights.items():
                w.sub_(gradients[name] * rates.view(-1, *[1] * (w.dim() - 1)))
            return losses.detach()

        return step

    return measured(size, make)


def by_compiled_vmap(size: Size) -> Figures:
    return by_vmap(size, compiled=True)


def jax_weights(number: int) -> Any:
    """The initial weights of a network for JAX, by torch's names; equal to torch's."""
    return {name: p.detach().numpy() for name, p in seeded(number).named_parameters()}


def jax_lenet(weights: Any, images: Any) -> Any:
    from jax import lax, nn

    def block(x: Any, layer: int, padding: int) -> Any:
        pads = [(padding, padding)] * 2
        x = lax.conv_general_dilated(x, weights[f"{layer}.weight"], (1, 1), pads)
        x = nn.relu(x + weights[f"{layer}.bias"][:, None, None])
        return lax.reduce_window(x, -float("inf"), lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    x = block(block(images, 0, 2), 3, 0).reshape(len(images), -1)
    for layer in (7, 9, 11):
        x = x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        x = x if layer == 11 else nn.relu(x)
    return x


def in_jax(size: Size) -> Figures:
    import jax

    def init(key: Any) -> Any:
        return jax_weights(int(jax.random.key_data(key)[-1]))

    jax.random.key(0)  # the memory of JAX itself does not count
    return population(size, (init, jax_lenet), strategy="concurrent", threads=WORKERS)


def by_jax(size: Size, stacked: bool) -> Figures:
    import jax
    from jax import numpy as jnp

    def loss_of(weights: Any, images: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(jax_lenet(weights, images))
        return -jnp.take_along_axis(scores, labels[:, None], 1).mean()

    def one(weights: Any, rate: Any, images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
        return jax.tree.map(lambda w, g: w - rate * g, weights, gradients), loss

    def make() -> Step:
        models = [jax_weights(n) for n in range(MEMBERS)]
        rates = jnp.asarray(RATES, jnp.float32)
        if stacked:
            weights = jax.tree.map(lambda *each: jnp.stack(each), *models)
            every = jax.jit(jax.vmap(one, (0, 0, None, None)), donate_argnums=0)
        else:
            alone = jax.jit(one, donate_argnums=0)

        def step(images: Any, labels: Any) -> Any:
            nonlocal weights
            batch = images.numpy(), labels.numpy()
            if stacked:
                weights, losses = every(weights, rates, *batch)
                return np.asarray(losses)
            losses = []
            for number, rate in enumerate(rates):
                models[number], loss = alone(models[number], rate, *batch)
                losses.append(loss)
            return [float(loss) for loss in losses]

        return step

    jax.random.key(0)
    return measured(size, make)


def by_jax_vmap(size: Size) -> Figures:
    return by_jax(size, stacked=True)


def in_turns_by_jax(size: Size) -> Figures:
    return by_jax(size, stacked=False)


def two_threads(size: Size) -> Figures:
    """Half of the networks each, by hand."""
    import torch

    def make() -> Step:
        half = MEMBERS // WORKERS
        steps = [
            one_by_one([seeded(n) for n in range(at, at + half)], RATES[at : at + half])
            for at in range(0, MEMBERS, half)
        ]
        work: list[Any] = [None] * WORKERS
        done: list[Any] = [None] * WORKERS
        turn = threading.Barrier(WORKERS + 1)

        def run(which: int) -> None:
            torch.set_num_threads(1)
            while True:
                turn.wait()
                done[which] = steps[which](*work[which])
                turn.wait()

        for which in range(WORKERS):
            threading.Thread(target=run, args=(which,), daemon=True).start()

        def step(images: Any, labels: Any) -> Any:
            work[:] = [(images, labels)] * WORKERS
            turn.wait()
            turn.wait()
            return [loss for part in done for loss in part]

        return step

    return measured(size, make)


def _process(
    at: int, count: int, size: Size, trained: bool, ready: Any, go: Any, losses: Any
) -> None:
    import torch

    torch.set_num_threads(1)
    numbers = range(at, at + count)
    models = [seeded(n) for n in numbers]
    step = one_by_one(models, [RATES[n] for n in numbers]) if trained else gradients_alone(models)
    data = batches(size)
    for batch in data[:WARM]:
        step(*batch)
    ready.release()
    go.wait()
    for batch in data[WARM:]:
        last = step(*batch)
    losses.put((at, [float(loss) for loss in last]))


def two_processes(size: Size, trained: bool = True) -> Figures:
    """Half of the networks each, by hand; the memory is that of both processes, with torch."""
    context = multiprocessing.get_context("spawn")
    ready, go, losses = context.Semaphore(0), context.Event(), context.Queue()
    half = MEMBERS // WORKERS
    children = [
        context.Process(target=_process, args=(at, half, size, trained, ready, go, losses))
        for at in range(0, MEMBERS, half)
    ]
    before = resident_bytes()
    for child in children:
        child.start()
    for _ in children:
        ready.acquire()
    start = time.perf_counter()
    go.set()
    parts = dict(losses.get() for _ in children)
    seconds = time.perf_counter() - start
    grew = resident_bytes() - before
    for child in children:
        child.join()
    if trained:
        check([loss for at in sorted(parts) for loss in parts[at]], batches(size))
    return {"rate": MEMBERS * size.batch * size.steps / seconds, "grew": grew}


def in_cpp(size: Size, way: str) -> Figures:
    rate, memory = torch_programs.run(size, "population_torch", way, size.batch, size.steps)
    return {"rate": rate, "all": memory}


def case(key: str, batch: int, steps: int, ours: str, at_least: float) -> Case:
    made = Case(
        key,
        f"{MEMBERS} LeNet-5 with learning rates of their own, batches of {batch}",
        {
            "rate": Figure("sample-steps/s", more_is_better=True),
            "grew": Figure("MiB grew", 2**-20),
            "all": Figure("MiB in all", 2**-20),
        },
        full={"batch": batch, "steps": steps},
        quick={"batch": batch, "steps": max(5, steps // 5)},
        targets=[
            Target("rate", ours, BEST_PEER, at_least=at_least),
            Target("grew", THREADS, at_most=80 * 2**20, says="80 MB beyond torch"),
            Target("all", CPP, at_most=200 * 2**20, says="200 MB in C++"),
        ],
        prepare=lambda size: torch_programs.build(size, "population_torch"),
    )
    made.entry(THREADS, "ours")(threads)
    made.entry(STACKED, "ours")(stacked)
    made.entry("torch, one after the other", "peer")(in_turns)
    made.entry("torch.func.vmap", "peer", beside=STACKED)(by_vmap)
    made.entry("torch.func.vmap, compiled", "peer", beside=STACKED)(by_compiled_vmap)
    made.entry("2 threads by hand", "peer")(two_threads)
    made.entry("2 processes by hand", "peer")(two_processes)
    if ours == THREADS:  # stacked members are faster than separate ones with small batches
        made.entry("limit: gradients alone, 2 processes", "limit")(
            functools.partial(two_processes, trained=False)
        )
    made.entry(CPP, "ours")(functools.partial(in_cpp, way="ours"))
    made.entry(CPP_BY_HAND, "peer", beside=CPP)(functools.partial(in_cpp, way="threads"))
    return made


CASES = [
    case("population-64", 64, 20, THREADS, 1.1),
    case("population-8", 8, 60, STACKED, 1.05),
]
CASES[0].entry(JAX, "ours", quick=False)(in_jax)
CASES[0].entry("JAX, one after the other", "peer", beside=JAX, quick=False)(in_turns_by_jax)
CASES[0].entry("jax.vmap", "peer", beside=JAX, quick=False)(by_jax_vmap)

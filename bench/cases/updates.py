"""Applying a gradient to weights: how close an optimizer comes to the memory bandwidth.

Memory limits an update: SGD reads weights and gradients and writes weights, Adam also reads and
writes two moments. The limit is the copy of an array of the same size. An update can reach only a
part of its floats per second: SGD moves 12 bytes a float and reads the gradient once more to check
whether it is finite, Adam moves 32, a copy 8. torch's fused forms do not check: 12 and 28.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import BEST_PEER, Case, Figure, Figures, Size, Target, expect

OURS, LIMIT = "penstock.train.Updater", "limit: one copy of as many floats"


def measure(size: Size, step: Callable[[], Any]) -> Figures:
    """Floats per second of the fastest of some rounds of steps."""
    for _ in range(3):
        step()
    best = float("inf")
    for _ in range(size.rounds):
        began = time.perf_counter()
        for _ in range(size.steps):
            step()
        best = min(best, (time.perf_counter() - began) / size.steps)
    return {"rate": size.floats / best}


def gradient(size: Size) -> Any:
    return np.random.default_rng(0).normal(size=size.floats).astype(np.float32)


def ours(size: Size, optimizer: Any) -> Figures:
    from penstock import train

    parameters = train.Parameters({"w": (size.floats,)})
    gradients = parameters.gradients()
    gradients["w"] = gradient(size)
    updater = train.Updater(parameters, optimizer)
    figures = measure(size, lambda: updater.apply(gradients))
    expect(updater.step == 3 + size.rounds * size.steps, "updates were lost")
    expect(np.isfinite(parameters["w"]).all(), "weights are not finite")
    return figures


def theirs(size: Size, name: str, **arguments: Any) -> Figures:
    import torch

    torch.set_num_threads(1)
    weights = torch.zeros(size.floats, requires_grad=True)
    weights.grad = torch.from_numpy(gradient(size))
    optimizer = getattr(torch.optim, name)([weights], lr=1e-3, **arguments)
    return measure(size, optimizer.step)


def case(key: str, title: str, name: str) -> Case:
    made = Case(
        key,
        title,
        {"rate": Figure("M floats/s", 1e-6, more_is_better=True)},
        full={"floats": 10_000_000, "steps": 10, "rounds": 7},
        quick={"floats": 10_000_000, "steps": 3, "rounds": 3},
        targets=[
            Target("rate", OURS, BEST_PEER, at_least=1),
        ],
    )

    @made.entry(OURS, "ours", "one thread")
    def _(size: Size) -> Figures:
        from penstock import train

        return ours(size, getattr(train, name)(1e-3))

    @made.entry(f"torch.optim.{name}, fused", "peer", "one thread")
    def _(size: Size) -> Figures:
        return theirs(size, name, fused=True)

    @made.entry(f"torch.optim.{name}, foreach", "peer", "one thread")
    def _(size: Size) -> Figures:
        return theirs(size, name, foreach=True)

    @made.entry(LIMIT, "limit", "numpy.copyto")
    def _(size: Size) -> Figures:
        to, from_ = np.zeros(size.floats, np.float32), gradient(size)
        return measure(size, lambda: np.copyto(to, from_))

    return made


CASES = [
    case("updates_sgd", "updates by SGD, 10,000,000 floats, one thread", "SGD"),
    case("updates_adam", "updates by Adam, 10,000,000 floats, one thread", "Adam"),
]

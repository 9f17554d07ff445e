"""60,000 x 28 x 28 bytes that stay on a device: epochs of shuffled batches, gathered there.

The device is the first one of CUDA's, or else the CPU's memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from harness import Case, Figure, Figures, Size, Target, expect

BATCH = 128
OURS, HAND = "penstock, torch", "torch by hand"
OURS_JAX, HAND_JAX = "penstock, jax", "jax by hand"

CASE = Case(
    "resident",
    "60,000 x 28 x 28 bytes on a device, an epoch of shuffled batches of 128",
    {"epoch": Figure("ms per epoch", 1e3)},
    full={"count": 60_000, "seconds": 2.0},
    quick={"count": 60_000, "seconds": 0.5},
    targets=[
        Target("epoch", OURS, HAND, at_least=1, says="not slower than torch by hand"),
        Target("epoch", OURS_JAX, HAND_JAX, at_least=1, says="not slower than jax by hand"),
    ],
    on_device=True,
)


def columns(size: Size) -> tuple[Any, Any]:
    """Images whose first two bytes are their number, and the numbers."""
    numbers = np.arange(size.count)
    images = np.random.default_rng(0).integers(0, 256, (size.count, 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = numbers & 255, numbers >> 8
    return images, numbers


def measure(
    size: Size, epoch: Callable[[], Iterable[tuple[Any, Any]]], wait: Callable[[Any], Any]
) -> Figures:
    """The fastest epoch, whose last work on the device is waited for."""
    seen = []
    for x, y in epoch():  # also compiles
        first = np.asarray(x[:, 0, :2].tolist())
        expect(bool((first @ [1, 256] == y.tolist()).all()), "images and numbers do not match")
        seen += y.tolist()
    expect(sorted(seen) == list(range(size.count)), "an epoch has not every image once")
    best, end = float("inf"), time.perf_counter() + size.seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        for batch in epoch():
            last = batch
        wait(last)
        best = min(best, time.perf_counter() - began)
    return {"epoch": best}


def ours(size: Size, device: Any, wait: Callable[[Any], Any]) -> Figures:
    import penstock

    data = penstock.Dataset.arrays(columns(size)).shuffle(seed=1).batch(BATCH)
    with penstock.device.resident(data, device) as kept:
        return measure(size, lambda: kept, wait)


def torch_device() -> Any:
    import torch

    torch.set_num_threads(1)  # batches are too small for more, in memory
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def torch_wait(_: Any) -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


@CASE.entry(OURS, "ours")
def ours_torch(size: Size) -> Figures:
    return ours(size, torch_device(), torch_wait)


@CASE.entry(HAND, "peer", "TensorDataset on the device, randperm")
def torch_by_hand(size: Size) -> Figures:
    import torch

    device = torch_device()
    data = torch.utils.data.TensorDataset(*(torch.tensor(c, device=device) for c in columns(size)))

    def epoch() -> Iterable[tuple[Any, Any]]:
        order = torch.randperm(size.count, device=device)
        return (data[order[i : i + BATCH]] for i in range(0, size.count, BATCH))

    return measure(size, epoch, torch_wait)


def jax_wait(batch: Any) -> None:
    import jax

    jax.block_until_ready(batch)


@CASE.entry(OURS_JAX, "ours")
def ours_jax(size: Size) -> Figures:
    import jax

    return ours(size, jax.devices()[0], jax_wait)


@CASE.entry(HAND_JAX, "peer", "jax.random.permutation, a jitted gather", beside=OURS_JAX)
def jax_by_hand(size: Size) -> Figures:
    import jax

    x, y = (jax.numpy.asarray(column) for column in columns(size))
    gather = jax.jit(lambda x, y, rows: (x[rows], y[rows]))
    keys = iter(jax.random.split(jax.random.key(0), 10_000))

    def epoch() -> Iterable[tuple[Any, Any]]:
        order = jax.random.permutation(next(keys), size.count)
        return (gather(x, y, order[i : i + BATCH]) for i in range(0, size.count, BATCH))

    return measure(size, epoch, jax_wait)


CASES = [CASE]

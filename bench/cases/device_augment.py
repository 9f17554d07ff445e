"""Images of 224 x 224 x 3 uint8 on a device: turned, moved, magnified, mirrored, normalised there.

The device is the first one of CUDA's, or else the CPU's memory with a thread for each worker; the
note of each figure names it. The peer is what kornia does on a device: `grid_sample` of float32,
with the whole map as one matrix an image.

Two figures need no GPU: the host's time for a batch of 8 x 8 images, whose work is little but
starting kernels, and the number of operations that torch starts for a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from harness import WORKERS, Case, Figure, Figures, Size, Target, best_of, expect

from cases.augment import DEGREES, MEAN, MOVE, SCALE, SIDE, STD, photographs
from cases.resident import torch_wait

BATCH = 64
OURS, HAND = "penstock on the device", "grid_sample by hand"
ON_CPU = f"penstock, {WORKERS} threads of the CPU"

CASE = Case(
    "device_augment",
    "augmented images: 224x224x3 uint8 on a device to float32, batches of 64",
    {
        "rate": Figure("images/s", more_is_better=True),
        "host": Figure("us of the host per batch", 1e6),
        "operations": Figure("operations per batch"),
    },
    full={"count": 1024, "seconds": 4.0},
    quick={"count": 256, "seconds": 1.0},
    targets=[Target("operations", OURS, at_most=12, says="at most 12 operations per batch")],
    on_device=True,
)


def torch_device() -> Any:
    import torch

    torch.set_num_threads(WORKERS)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def measure(size: Size, epoch: Callable[[], Iterable[Any]]) -> Figures:
    """Epochs for some seconds, and the work of the last batch; the first epoch does not count."""
    means = []
    for batch in epoch():
        expect(tuple(batch.shape) == (BATCH, SIDE, SIDE, 3), f"a batch is {tuple(batch.shape)}")
        means.append(float(batch.mean()))
    expect(len(means) == size.count // BATCH, f"{len(means)} batches came")
    expect(abs(float(np.mean(means))) < 1, "the mean is far from 0")
    torch_wait(None)
    began, images = time.perf_counter(), 0
    while time.perf_counter() < began + size.seconds:
        for _batch in epoch():
            images += BATCH
        torch_wait(None)
    rate = images / (time.perf_counter() - began)
    return {"rate": rate, "note": f"on {batch.device}"}


def of_host(augmented: Callable[[Any], Any], device: Any) -> Figures:
    """What the host does for a batch, whatever the size of the images."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Started(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += not operation.is_view
            return operation(*args, **(kwargs or {}))

    small = torch.zeros(BATCH, 8, 8, 3, dtype=torch.uint8, device=device)
    augmented(small)
    torch_wait(None)
    with Started() as started:
        augmented(small)
    torch.set_num_threads(1)
    return {"host": best_of(lambda: augmented(small), 0.5), "operations": started.count}


def operations(**on: Any) -> list[Any]:
    from penstock import image

    return [
        image.random_affine(DEGREES, (MOVE, MOVE), SCALE, fill="reflect", fields="", **on),
        image.random_flip(fields="", **on),
        image.normalize(MEAN, STD, fields="", **on),
    ]


@CASE.entry(OURS, "ours", "random_affine, random_flip, normalize with on='device'")
def ours(size: Size) -> Figures:
    import penstock
    from penstock.device.functions import Rows

    device, functions = torch_device(), operations(on="device")
    chain: Any = penstock.Dataset.arrays(photographs(size.count)).shuffle(seed=1).batch(BATCH)
    for operation in functions:
        chain = chain.map(operation, device=device)
    with penstock.device.resident(chain, device) as kept:
        figures = measure(size, lambda: kept)

    def augmented(images: Any) -> Any:
        for number, operation in enumerate(functions):
            images = operation(images, Rows(0, 0, 0, number))
        return images

    return {**figures, **of_host(augmented, device)}


@CASE.entry(HAND, "peer", "affine_grid, grid_sample, flip in torch")
def by_hand(size: Size) -> Figures:
    import torch

    device = torch_device()
    data = torch.from_numpy(photographs(size.count)).to(device)
    mean, std = (torch.from_numpy(each).to(device) for each in (MEAN, STD))

    def augmented(images: Any) -> Any:
        count, side = images.shape[:2]
        angle, x, y, scale, flip = torch.rand(5, count, device=device)
        angle = (2 * angle - 1) * math.radians(DEGREES)
        scale = 1 / (SCALE[0] + (SCALE[1] - SCALE[0]) * scale)
        a, b = torch.cos(angle) * scale, torch.sin(angle) * scale
        x, y = (2 * x - 1) * 2 * MOVE, (2 * y - 1) * 2 * MOVE
        theta = torch.stack([torch.stack([a, b, x], 1), torch.stack([-b, a, y], 1)], 1)
        grid = torch.nn.functional.affine_grid(theta, [count, 3, side, side], align_corners=False)
        made = torch.nn.functional.grid_sample(
            images.permute(0, 3, 1, 2).float(),
            grid,
            padding_mode="reflection",
            align_corners=False,
        )
        made = torch.where(flip[:, None, None, None] < 0.5, made.flip(3), made)
        return made.permute(0, 2, 3, 1).sub(mean).div(std)

    def epoch() -> Iterable[Any]:
        order = torch.randperm(size.count, device=device)
        return (augmented(data[order[i : i + BATCH]]) for i in range(0, size.count, BATCH))

    return {**measure(size, epoch), **of_host(augmented, device)}


@CASE.entry(ON_CPU, "ours", "the same operations in workers, sent to the device")
def on_cpu(size: Size) -> Figures:
    import penstock
    import penstock.torch

    device = torch_device()
    chain = penstock.Dataset.arrays(photographs(size.count)).shuffle(seed=1)
    for operation in operations():
        chain = chain.map(operation)
    with penstock.torch.feed(chain.batch(BATCH), device=device, workers=WORKERS) as feed:
        return measure(size, lambda: feed)


CASES = (CASE,)

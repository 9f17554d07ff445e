"""Images of 224 x 224 x 3 uint8 on a device: turned, moved, magnified, mirrored, normalised there.

The device is the first one of CUDA's, or else the CPU's memory with a thread for each worker. The
peer is what kornia does on a device: `grid_sample` of float32, one kernel with the whole map as one
matrix an image. It has no target: penstock on the device makes the bits of its workers, by sums of
integers in many small kernels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from harness import WORKERS, Case, Figure, Figures, Size, expect

from cases.augment import DEGREES, MEAN, MOVE, SCALE, SIDE, STD, photographs
from cases.resident import torch_wait

BATCH = 64
OURS, HAND = "penstock on the device", "grid_sample by hand"
ON_CPU = f"penstock, {WORKERS} threads of the CPU"

CASE = Case(
    "device_augment",
    "augmented images: 224x224x3 uint8 on a device to float32, batches of 64",
    {"rate": Figure("images/s", more_is_better=True)},
    full={"count": 1024, "seconds": 4.0},
    quick={"count": 256, "seconds": 1.0},
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
    return {"rate": images / (time.perf_counter() - began)}


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

    device = torch_device()
    chain: Any = penstock.Dataset.arrays(photographs(size.count)).shuffle(seed=1).batch(BATCH)
    for operation in operations(on="device"):
        chain = chain.map(operation, device=device)
    with penstock.device.resident(chain, device) as kept:
        return measure(size, lambda: kept)


@CASE.entry(HAND, "peer", "affine_grid, grid_sample, flip in torch")
def by_hand(size: Size) -> Figures:
    import torch

    device = torch_device()
    data = torch.from_numpy(photographs(size.count)).to(device)
    mean, std = (torch.from_numpy(each).to(device) for each in (MEAN, STD))

    def augmented(images: Any) -> Any:
        count = len(images)
        angle, x, y, scale, flip = torch.rand(5, count, device=device)
        angle = (2 * angle - 1) * math.radians(DEGREES)
        scale = 1 / (SCALE[0] + (SCALE[1] - SCALE[0]) * scale)
        a, b = torch.cos(angle) * scale, torch.sin(angle) * scale
        x, y = (2 * x - 1) * 2 * MOVE, (2 * y - 1) * 2 * MOVE
        theta = torch.stack([torch.stack([a, b, x], 1), torch.stack([-b, a, y], 1)], 1)
        grid = torch.nn.functional.affine_grid(theta, [count, 3, SIDE, SIDE], align_corners=False)
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

    return measure(size, epoch)


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

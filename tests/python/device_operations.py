"""Operations of penstock.image in workers and on a device, for tests of torch, jax and a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import penstock
from image_files import picture
from penstock import image

HEIGHT, WIDTH = 29, 36


def affine(fill: Any, interpolation: str = "bilinear"):
    return lambda **on: [
        image.random_affine(40, (0.3, 0.2), (0.4, 1.6), 15, fill, interpolation=interpolation, **on)
    ]


def resized(filter: str, antialias: bool = True):
    how = {"filter": filter, "antialias": antialias}
    return lambda **on: [image.resize(20, 55, **how, **on)]


# Of uint8 alone.
COLOURS = {
    "jitter": lambda **on: [image.color_jitter(0.4, 0.5, 0.6, 0.2, **on)],
    "brightness": lambda **on: [image.color_jitter(0.8, **on)],
    "contrast": lambda **on: [image.color_jitter(contrast=(0.2, 1.9), **on)],
    "saturation": lambda **on: [image.color_jitter(saturation=0.8, **on)],
    "hue": lambda **on: [image.color_jitter(hue=0.5, **on)],
    "no change": lambda **on: [image.color_jitter(**on)],
    "grey": lambda **on: [image.grayscale(1, **on)],
    "grey in three channels": lambda **on: [image.grayscale(3, **on)],
}
SIZES = {
    "resize": resized("bilinear"),
    "resize without antialias": resized("bilinear", False),
    "resize nearest": resized("nearest"),
    "resize box": resized("box"),
    "resize bicubic": resized("bicubic"),
    "resize lanczos": resized("lanczos"),
    "resized crop": lambda **on: [image.random_resized_crop(16, 19, **on)],
    "resized crop bicubic": lambda **on: [
        image.random_resized_crop(40, 9, (0.1, 0.5), (0.5, 2), filter="bicubic", **on)
    ],
}
# Of float32, too.
MOVES = {
    "affine nearest": affine("nearest"),
    "affine constant": affine("constant"),
    "affine reflect": affine("reflect"),
    "affine wrap": affine("wrap"),
    "affine value": affine(77.5),
    "affine without new values": affine("constant", "nearest"),
    "affine wrap without new values": affine("wrap", "nearest"),
    "affine of each axis": lambda **on: [
        image.random_affine((10, 90), scale=(0.5, 1, 1, 2), shear=(-5, 5, -9, 9), **on)
    ],
    "no affine": lambda **on: [image.random_affine(**on)],
    "crop": lambda **on: [image.random_crop(17, 30, **on)],
    "flip": lambda **on: [image.random_flip(0.4, 0.7, **on)],
    "center crop": lambda **on: [image.center_crop(16, 31, **on)],
    "pad": lambda **on: [image.pad((1, 2, 3, 4), 9, **on)],
    "turn": lambda **on: [image.rot90(3, **on)],
    "erase": lambda **on: [image.erase(0.7, value=12.5, **on)],
}
CHAINS = {
    "all": lambda **on: [
        image.random_resized_crop(24, 26, **on),
        image.random_flip(**on),
        image.color_jitter(0.4, 0.4, 0.4, 0.1, **on),
        image.random_affine(10, **on),
        image.erase(**on),
        image.normalize((124, 116, 104), (58, 57, 57), **on),
        image.to_chw(**on),
    ]
}
EVERY = {**COLOURS, **SIZES, **MOVES, **CHAINS}


def rows(dtype: Any = np.uint8, channels: int = 3) -> penstock.Dataset:
    """Rows with an image ``(HEIGHT, WIDTH, channels)``; no axis of channels for 0."""
    pixels = np.stack([picture(WIDTH, HEIGHT, i, max(channels, 1)) for i in range(18)])
    if channels == 1:
        pixels = pixels[..., None]
    if dtype == np.float32:
        pixels = pixels / np.float32(255)
    return penstock.Dataset.arrays({"image": pixels}).shuffle(seed=1)


def images_of_workers(dataset: penstock.Dataset, operations: Any, seed: int) -> list[Any]:
    for operation in operations:
        dataset = dataset.map(operation)
    with dataset.batch(7).build(workers=0, seed=seed) as feed:
        return [np.array(batch["image"]) for _ in range(2) for batch in feed]


def mapped(dataset: Any, operations: Any, device: Any) -> Any:
    """Batches, and functions of a device behind them."""
    for operation in operations:
        dataset = dataset.map(operation, device=device)
    return dataset


# Operations that mix pixels in float32 on a device, and in integers in workers.
MIXED = {"all", *(name for name in MOVES if "affine" in name and "without new" not in name)}


def check_images(feed: Any, dataset: Any, name: str, device: Any, within: float = 0) -> None:
    """The images of two epochs on a device are those of the workers.

    One value in a thousand may differ by up to `within`, a level at most; one in a hundred by a
    level if pixels are mixed.
    """
    make = EVERY[name]
    wanted = images_of_workers(dataset, make(), seed=5)
    chain = mapped(dataset.batch(7), make(on="device"), device)
    with feed(chain, workers=0, seed=5) as batches:
        got = [np.asarray(_on_host(batch["image"])) for _ in range(2) for batch in batches]
    assert len(got) == len(wanted) == 6
    dtype = wanted[0].dtype
    level = 1 if dtype == np.uint8 else 1 / 57 if name == "all" else 1 / 255
    assert within <= level
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == dtype
        assert one.shape == other.shape
        far = np.abs(one.astype(np.float64) - other)
        assert far.max() <= (level if name in MIXED else within) + 1e-6
        assert (far > 1e-5).mean() <= (0.01 if name in MIXED else 0.001)


def _on_host(leaf: Any) -> Any:
    return leaf.cpu().numpy() if hasattr(leaf, "cpu") else leaf

"""A picture of what each operation of penstock.image does to a photograph.

    python examples/contact_sheet.py sheet.png [photograph.jpg]

A row for each operation: the photograph, and the operation's results at several places of an epoch.
Without a photograph, one of scikit-learn's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import penstock
from penstock import image

SIDE, RESULTS, TEXT = 128, 6, 16

SINGLE = {
    "resize(64, 128)": image.resize(64, 128),
    "center_crop(96, 96)": image.center_crop(96, 96),
    "random_crop(96, 96)": image.random_crop(96, 96),
    "random_resized_crop(128, 128)": image.random_resized_crop(SIDE, SIDE),
    "random_flip(0.5, 0.5)": image.random_flip(0.5, 0.5),
    "pad(12, 128)": image.pad(12, 128),
    "rot90()": image.rot90(),
    "grayscale()": image.grayscale(3),
    "random_affine(degrees=30)": image.random_affine(30),
    "random_affine(translate=(0.3, 0.3), fill='wrap')": image.random_affine(
        translate=(0.3, 0.3), fill="wrap"
    ),
    "random_affine(scale=(0.5, 1.5), fill='reflect')": image.random_affine(
        scale=(0.5, 1.5), fill="reflect"
    ),
    "random_affine(shear=30, fill='constant')": image.random_affine(shear=30, fill="constant"),
    "perspective(p=1)": image.perspective(p=1),
    "color_jitter(brightness=0.5)": image.color_jitter(brightness=0.5),
    "color_jitter(contrast=0.5)": image.color_jitter(contrast=0.5),
    "color_jitter(saturation=0.9)": image.color_jitter(saturation=0.9),
    "color_jitter(hue=0.5)": image.color_jitter(hue=0.5),
    "color_jitter(0.4, 0.4, 0.4, 0.1)": image.color_jitter(0.4, 0.4, 0.4, 0.1),
    "invert()": image.invert(),
    "posterize(2)": image.posterize(2),
    "solarize(128)": image.solarize(128),
    "autocontrast()": image.autocontrast(),
    "equalize()": image.equalize(),
    "sharpness(3)": image.sharpness(3),
    "gamma(2)": image.gamma(2),
    "channel_shift(60)": image.channel_shift(60),
    "gaussian_blur(9, (0.1, 4))": image.gaussian_blur(9, (0.1, 4)),
    "erase(p=1)": image.erase(p=1),
    "rand_augment(2, 9)": image.rand_augment(2, 9),
    "rand_augment(2, 25)": image.rand_augment(2, 25),
    "auto_augment('imagenet')": image.auto_augment("imagenet"),
    "trivial_augment_wide()": image.trivial_augment_wide(),
}
MIXED = {
    "mixup(0.8)": image.mixup(0.8, num_classes=2),
    "cutmix(0.8)": image.cutmix(0.8, num_classes=2),
}


def photographs(path: str | None) -> list[np.ndarray]:
    """Two photographs, the larger side cut off."""
    if path is not None:
        files = [Path(path).read_bytes()]
        decoded = image.compose([image.decode()])
        whole = [decoded(data) for data in files]
    else:
        from sklearn.datasets import load_sample_image

        whole = [np.array(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    squares = []
    for each in whole:
        side = min(each.shape[:2])
        cut = image.compose([image.center_crop(side, side), image.resize(SIDE, SIDE)])
        squares.append(cut(each))
    return [squares[0], squares[-1][:, ::-1] if len(squares) == 1 else squares[-1]]


def results(operation: Any, photograph: np.ndarray) -> list[np.ndarray]:
    together = image.compose([operation])
    return [together(photograph, seed=1, index=index) for index in range(RESULTS)]


def mixed(operation: Any, both: list[np.ndarray]) -> list[np.ndarray]:
    """The first image of several batches."""
    data = {"image": np.stack(both * RESULTS), "label": np.arange(2 * RESULTS) % 2}
    batches = penstock.Dataset.arrays(data).batch(2).map(operation)
    with batches.build(workers=0, seed=1) as feed:
        return [np.array(batch["image"][0]) for batch in feed]


def sheet(rows: dict[str, list[np.ndarray]]) -> Image.Image:
    """Two columns of rows."""
    step, half = SIDE + 4, -(-len(rows) // 2)
    width = (RESULTS + 1) * step + 12
    made = Image.new("RGB", (2 * width, half * (step + TEXT)), "white")
    draw = ImageDraw.Draw(made)
    for i, (name, images) in enumerate(rows.items()):
        left, top = i // half * width, i % half * (step + TEXT)
        draw.text((left + 2, top + 2), name, fill="black")
        for x, pixels in enumerate(images):
            shown = Image.fromarray(pixels)
            shown.thumbnail((SIDE, SIDE))
            made.paste(shown, (left + x * step, top + TEXT))
    return made


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    both = photographs(sys.argv[2] if len(sys.argv) == 3 else None)
    rows = {name: [both[0], *results(operation, both[0])] for name, operation in SINGLE.items()}
    rows |= {name: [both[0], *mixed(operation, both)] for name, operation in MIXED.items()}
    sheet(rows).save(sys.argv[1])
    print(f"{len(rows)} operations, {RESULTS} results each: {sys.argv[1]}")


if __name__ == "__main__":
    main()

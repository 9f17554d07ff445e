"""Real images for the demo: scikit-learn's handwritten digits, once written as PNG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SIDE = 64
TEST_SHARE = 0.2


def write_digits(folder: Path) -> None:
    """Write ``folder/{train,test}/<digit>/<number>.png``, unless they are there already.

    The 1797 images (8x8, 17 grey levels, of 43 people) come with scikit-learn's wheel. They are
    written at 64x64. The split is fixed: a permutation with its own seed.
    """
    done = folder / "done"
    if done.exists():
        return
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    test_size = round(TEST_SHARE * len(order))
    for position, number in enumerate(order):
        part = "test" if position < test_size else "train"
        pixels = np.rint(digits.images[number] * (255 / 16)).astype(np.uint8)
        target = folder / part / str(digits.target[number]) / f"{number:04d}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(target)
    done.touch()


def list_images(folder: Path) -> tuple[list[str], np.ndarray]:
    """Paths of all images under class folders, in a fixed order, and the class of each (int32)."""
    files = sorted(folder.glob("*/*.png"))
    labels = np.array([int(file.parent.name) for file in files], dtype="int32")
    return [str(file) for file in files], labels

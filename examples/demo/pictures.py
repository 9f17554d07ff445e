"""The same image files without NumPy and Pillow: read, decoded and augmented by the engine."""

from __future__ import annotations

from pathlib import Path

import penstock
from penstock import image


def pictures(folder: Path, batch_size, side, seed) -> penstock.Dataset:
    """Batches as of sequence.py: images (n, side, side, 1) in 0..1, and labels (n,)."""
    return (
        penstock.Dataset.image_folder(folder)
        .shuffle(seed=seed)
        .map(image.decode(channels=1))
        .map(image.resize(side, side, filter="bicubic"))
        # Turned by up to 12 degrees, zoomed by up to 12 %, shifted by up to 4 pixels.
        .map(image.random_affine(12, (4 / side, 4 / side), (0.88, 1.12)))
        .map(image.normalize(0, 255))
        .map(penstock.select("image", "label"))
        .batch(batch_size)
    )

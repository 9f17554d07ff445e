"""The data set, as written for Keras: NumPy and Pillow, without any use of penstock."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image


class DigitSequence:
    """Batches of images read from files, each randomly rotated, shifted and zoomed.

    It has the methods of a ``keras.utils.PyDataset`` (formerly ``Sequence``). It could be derived
    from that class, but then every worker process would import Keras first.
    """

    def __init__(self, files, labels, batch_size, side=64, augment=False):
        self.files = np.array(files)
        self.labels = labels
        self.batch_size = batch_size
        self.side = side
        self.augment = augment
        self.order = np.arange(len(files))
        self.on_epoch_end()

    def __len__(self):
        return math.ceil(len(self.files) / self.batch_size)

    def __getitem__(self, index):
        """Batch `index`: images (n, side, side, 1) in 0..1 and labels (n,)."""
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        x = np.stack([self.load(self.files[row]) for row in rows])
        return x[..., np.newaxis], self.labels[rows]

    def on_epoch_end(self):
        if self.augment:
            np.random.shuffle(self.order)

    def load(self, file):
        with Image.open(file) as image:
            image = image.convert("L").resize((self.side, self.side), Image.Resampling.BICUBIC)
        pixels = np.asarray(image, dtype="float32") / 255
        return distort(pixels) if self.augment else pixels


def distort(pixels):
    """Rotate by up to 12 degrees, zoom by up to 12 %, shift by up to 4 pixels; bilinear."""
    side = len(pixels)
    angle = np.deg2rad(np.random.uniform(-12, 12))
    zoom = np.random.uniform(0.88, 1.12)
    shift_x, shift_y = np.random.uniform(-4, 4, size=2)

    # Where each pixel of the result comes from.
    centre = (side - 1) / 2
    y, x = np.mgrid[:side, :side].astype("float32") - centre
    source_x = (np.cos(angle) * x - np.sin(angle) * y) / zoom + centre - shift_x
    source_y = (np.sin(angle) * x + np.cos(angle) * y) / zoom + centre - shift_y
    source_x = np.clip(source_x, 0, side - 1.001)
    source_y = np.clip(source_y, 0, side - 1.001)

    left, top = source_x.astype("int32"), source_y.astype("int32")
    right_share, bottom_share = source_x - left, source_y - top
    upper = pixels[top, left] * (1 - right_share) + pixels[top, left + 1] * right_share
    lower = pixels[top + 1, left] * (1 - right_share) + pixels[top + 1, left + 1] * right_share
    return (upper * (1 - bottom_share) + lower * bottom_share).astype("float32")

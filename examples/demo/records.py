"""The same images as one TFRecord file of tf.Examples, and the pipeline that feeds them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

import penstock
from sequence import distort


def write_records(path: Path, files, labels) -> None:
    """Write each image file unchanged, with its label; does nothing if the TFRecord file exists."""
    if path.exists():
        return
    with penstock.TFRecordWriter(path) as writer:
        for file, label in zip(files, labels, strict=True):
            image = Path(file).read_bytes()
            writer.write(penstock.example({"image": image, "label": label}))


def decode_and_augment(sample):
    """Convert one tf.Example in a worker process: image (side, side, 1) in 0..1, and label."""
    with Image.open(io.BytesIO(sample["image"])) as image:
        pixels = np.asarray(image.convert("L"), dtype="float32") / 255
    return distort(pixels)[..., np.newaxis], sample["label"]


def pipeline(path: Path, batch_size, seed) -> penstock.Dataset:
    return (
        penstock.Dataset.tfrecord(path)
        .shuffle(seed=seed)
        .map(penstock.parse_example({"image": penstock.bytes(), "label": penstock.int64()}))
        .map(decode_and_augment)
        .batch(batch_size)
        .prefetch(10)
    )

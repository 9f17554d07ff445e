"""Feeds for `fit`, `evaluate` and `predict` of Keras 3, and published models, on every backend."""

from __future__ import annotations

from .image_generator import ImageBatches, ImageDataGenerator
from .publish import attach, publish
from .py_dataset import PyDatasetFeed, feed
from .stream import StreamFeed

__all__ = [
    "ImageBatches",
    "ImageDataGenerator",
    "PyDatasetFeed",
    "StreamFeed",
    "attach",
    "feed",
    "publish",
]

"""A feed for `fit`, `evaluate` and `predict` of Keras 3, on every backend."""

from __future__ import annotations

from .image_generator import ImageBatches, ImageDataGenerator
from .py_dataset import PyDatasetFeed, feed
from .stream import StreamFeed

__all__ = ["ImageBatches", "ImageDataGenerator", "PyDatasetFeed", "StreamFeed", "feed"]

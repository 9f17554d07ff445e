"""A feed that goes into `fit`, `evaluate` and `predict` of Keras 3, whatever its backend."""

from __future__ import annotations

from .py_dataset import PyDatasetFeed, feed
from .stream import StreamFeed

__all__ = ["PyDatasetFeed", "StreamFeed", "feed"]

"""A Loader whose batches are trees of jax arrays; published trees of weights."""

from __future__ import annotations

from .loader import JaxLoader, feed
from .publish import JaxModel, attach, publish

__all__ = ["JaxLoader", "JaxModel", "attach", "feed", "publish"]

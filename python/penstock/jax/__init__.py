"""A Loader whose batches are trees of jax arrays."""

from __future__ import annotations

from .loader import Feed, feed

__all__ = ["Feed", "feed"]

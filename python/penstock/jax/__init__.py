"""A Loader whose batches are trees of jax arrays."""

from __future__ import annotations

from .loader import JaxLoader, feed

__all__ = ["JaxLoader", "feed"]

"""Training on several hosts under Ray: each rank's share of a data set, and rows of ray.data."""

from __future__ import annotations

from .feed import feed
from .rows import rows

__all__ = ["feed", "rows"]

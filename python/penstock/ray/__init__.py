"""On several hosts under Ray: a rank's share of a data set, workers elsewhere, rows of ray.data."""

from __future__ import annotations

from .feed import feed
from .rows import rows
from .workers import workers

__all__ = ["feed", "rows", "workers"]

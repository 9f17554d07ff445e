"""Dataset: a source and a chain of transformations, run natively, exact and restorable."""

from __future__ import annotations

from .dataset import Dataset

__all__ = ["Dataset"]

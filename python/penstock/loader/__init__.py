"""Loader: any Python dataset, fed by all cores, in order, without a copy."""

from __future__ import annotations

from .iterators import BatchIterator, LoaderIterator
from .loader import Loader

__all__ = ["BatchIterator", "Loader", "LoaderIterator"]

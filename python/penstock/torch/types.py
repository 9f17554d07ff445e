"""Converts batches to the types of torch's default_collate and default_convert."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from ..base import interop

# The types of default_collate, before the user registers others.
STANDARD_COLLATE = dict(torch_collate.default_collate_fn_map)


def tensors_of(nest: Any, in_sequence: bool = False) -> Any:
    """Convert a batch of the engine (arrays, lists of other values) to default_collate's form."""
    kind = type(nest)
    if kind is np.ndarray:
        return torch.from_numpy(nest)
    if kind is tuple:
        return [tensors_of(value, True) for value in nest]
    if kind is dict:
        return {key: tensors_of(value) for key, value in nest.items()}
    if kind is list:
        if nest and _is_column(nest[0]):
            values = tuple(nest) if in_sequence else nest
            return values if isinstance(nest[0], (str, bytes)) else _collated(values)
        return [tensors_of(value, True) for value in nest]
    if isinstance(nest, tuple):  # a named tuple
        return kind(*(tensors_of(value, True) for value in nest))
    return nest


def _is_column(value: Any) -> bool:
    """Whether a list with this first item has one object for each sample, and is not a sample.

    The engine collects objects only for values that are neither rows nor nests.
    """
    kind = type(value)
    if kind is np.ndarray:
        return bool(value.ndim == 0 or value.dtype.hasobject or value.dtype.kind == "T")
    if kind in (list, dict, tuple) or hasattr(kind, "_fields"):
        return False
    return not isinstance(value, torch.Tensor) or interop.array_of_tensor(value) is None


def _collated(values: Any) -> Any:
    return torch_collate.default_collate(values)


def converted(item: Any) -> Any:
    return torch_collate.default_convert(item)

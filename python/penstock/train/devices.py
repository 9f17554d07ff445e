"""Putting a batch where a tower computes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.nests import mapped
from ..errors import InvalidArgument


def stage_for(device: Any) -> Callable[[Any], Any]:
    """Return what copies a batch's arrays to a device; returns them as they are for None.

    Raises
    ------
    InvalidArgument
        The device is neither torch's nor JAX's.
    """
    if device is None:
        return lambda batch: batch
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(device, (str, torch.device)):
        place = torch.device(device)
        return lambda batch: mapped(lambda leaf: _to_torch(torch, leaf, place), batch)
    if jax is not None and isinstance(device, jax.Device):
        return lambda batch: mapped(lambda leaf: jax.device_put(leaf, device), batch)
    raise InvalidArgument(
        f"device {device!r} is neither a device of torch nor one of JAX that was imported; give "
        "stage=function(batch, device)",
        "Towers",
    )


def _to_torch(torch: Any, leaf: Any, place: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic)):
        leaf = torch.as_tensor(leaf)
    return leaf.to(place, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

"""torch's DataLoader with penstock's workers behind it, feeds of tensors, published weights."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..train.torch_module import Aliased, alias
    from .data_loader import DataLoader
    from .publish import attach, publish
    from .tensor_loader import TensorLoader, feed

__all__ = ["Aliased", "DataLoader", "TensorLoader", "alias", "attach", "feed", "publish"]

# Worker processes import only `worker`: other modules are imported when they are first used.
_HOMES = {
    "Aliased": "penstock.train.torch_module",
    "DataLoader": "penstock.torch.data_loader",
    "TensorLoader": "penstock.torch.tensor_loader",
    "alias": "penstock.train.torch_module",
    "attach": "penstock.torch.publish",
    "feed": "penstock.torch.tensor_loader",
    "publish": "penstock.torch.publish",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""Batches on their way to a device, and rows that stay there: see docs/device.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .resident import Resident, resident

__all__ = ["Resident", "resident"]


# The Loaders of the adapters import this package, too: `resident` is imported when it is used.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(".resident", __name__)
    for public in __all__:
        globals()[public] = getattr(module, public)
    return globals()[name]

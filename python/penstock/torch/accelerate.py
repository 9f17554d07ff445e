"""Makes accelerate return a penstock DataLoader when it prepares one.

accelerate makes a plain DataLoader from the attributes of the given one, and iterates over that.
This module wraps the functions that do so: for a penstock loader they return a penstock loader.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_REBUILDING = ("prepare_data_loader", "skip_first_batches")
_MODULES = ("accelerate", "accelerate.accelerator", "accelerate.data_loader")


def keep_loaders(is_ours: Callable[[Any], bool]) -> None:
    """Wrap accelerate's functions, for loaders for which `is_ours` is true.

    Does nothing if accelerate was not imported, or its functions are wrapped already.
    """
    home: Any = sys.modules.get("accelerate.data_loader")
    for name in _REBUILDING:
        rebuild = getattr(home, name, None)
        if rebuild is None or hasattr(rebuild, "__penstock__"):
            continue
        keeping = _keeping(rebuild, is_ours)
        for module in map(sys.modules.get, _MODULES):
            if getattr(module, name, None) is rebuild:
                setattr(module, name, keeping)


def _keeping(rebuild: Any, is_ours: Callable[[Any], bool]) -> Any:
    @functools.wraps(rebuild)
    def call(dataloader: Any, *args: Any, **options: Any) -> Any:
        made = rebuild(dataloader, *args, **options)
        ours = getattr(dataloader, "base_dataloader", dataloader)
        if not is_ours(ours):
            return made
        wrapped = hasattr(made, "base_dataloader")
        kept = ours._like(made.base_dataloader if wrapped else made)
        if not wrapped:
            return kept
        made.base_dataloader = kept
        made.dl_state_dict = kept.state_dict()
        return made

    call.__penstock__ = True  # type: ignore[attr-defined]
    return call

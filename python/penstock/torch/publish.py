"""Publish a torch module's weights, and follow those of another process.

>>> penstock.torch.publish("actor", module)  # in the learner, after updates
>>> follower = penstock.torch.attach("actor", module)  # in any other process of this user
>>> follower.update()  # before predicting
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InvalidArgument
from ..train.publish import Follower
from ..train.publish import attach as attach_blocks
from ..train.publish import publish as publish_blocks

__all__ = ["attach", "publish"]


def publish(name: str, module: torch.nn.Module) -> int:
    """Publish a module's parameters and buffers, on whatever device, as `penstock.train.publish`.

    One copy: from the device into the memory that readers read. Numbers become float32.

    Returns
    -------
    int
        The version: 0, or the last version + 1.

    Raises
    ------
    InvalidArgument, OutOfMemory
        As `penstock.train.publish`; a complex parameter.
    """
    return publish_blocks(name, _blocks(module, "publish"))


def attach(name: str, module: torch.nn.Module, timeout: float | None = 60.0) -> Follower:
    """Follow the weights that another process publishes, and load them into `module`.

    Parameters
    ----------
    module : torch.nn.Module
        With the parameters and buffers of the published one. They may be on a device and of
        another floating type.
    timeout : float, optional
        Seconds to wait for the first version; None: no limit, 0: do not wait.

    Raises
    ------
    Timeout, InvalidArgument, OutOfMemory
        As `penstock.train.attach`.
    """
    blocks = _blocks(module, "attach")
    shapes = {block: tuple(tensor.shape) for block, tensor in blocks.items()}

    def load(weights: dict[str, Any]) -> None:
        with torch.no_grad():
            for block, into in _blocks(module, "attach").items():
                # torch warns of arrays that are read-only.
                into.copy_(torch.from_numpy(weights[block].copy()))

    return Follower(attach_blocks(name, shapes, timeout), load)


def _blocks(module: Any, operation: str) -> dict[str, torch.Tensor]:
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgument(
            f"module is a {type(module).__name__}; give a torch module", operation
        )
    return {
        name: value
        for name, value in module.state_dict().items()
        if isinstance(value, torch.Tensor)  # modules may have state of other types
    }

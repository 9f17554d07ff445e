"""Weights and gradients on a device: named blocks of float32 in one tensor of torch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..base.arguments import integer
from ..errors import InvalidArgument
from .device_updater import DeviceUpdater
from .optimizers import Optimizer
from .parameters import Parameters, Slab, copy_all, numbers

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DeviceParameters", "DeviceSlab"]

_ALIGN = 16  # floats, as in the engine's slabs: 64 bytes


class DeviceSlab(Slab):
    """A `Slab` in the memory of a device. Its blocks are views of one tensor, `floats`.

    Blocks are tensors of torch, of shape and name as in a slab of the host. Threads: any; work on
    several streams must be ordered by events.
    """

    _arrays: dict[str, Any]

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: Any) -> None:
        begins, end = {}, 0
        for name, shape in shapes.items():
            begins[name] = end
            end += -(-math.prod(shape) // _ALIGN) * _ALIGN
        self.floats = torch.zeros(end, dtype=torch.float32, device=device)
        self._arrays = {
            name: self.floats[begins[name] : begins[name] + math.prod(shape)].view(shape)
            for name, shape in shapes.items()
        }
        self._copied = 0

    @classmethod
    def over(cls, other: Any) -> Self:
        """Make an object over the memory of another one, of the same kind."""
        made = cls.__new__(cls)
        vars(made).update(vars(other))
        made._copied = 0
        return made

    @property
    def _slab(self) -> Any:  # the engine's slab of the host
        raise InvalidArgument(
            f"these weights or gradients are on {self.device}, and this needs them in the memory "
            "of the host: alias a module that is on the CPU",
            "train",
        )

    def __setitem__(self, name: str, values: Any) -> None:
        into: Any = self[name]
        if values is into:
            return
        given: Any = values if isinstance(values, torch.Tensor) else numbers(name, values, "train")
        if tuple(given.shape) != into.shape:
            raise InvalidArgument(
                f"block {name!r} is {tuple(into.shape)}; these values are {tuple(given.shape)}",
                type(self).__name__,
            )
        if not isinstance(given, torch.Tensor):
            given = torch.tensor(np.asarray(given, np.float32))
        into.copy_(given.detach())
        self._copied += into.nbytes

    def copy_from(self, other: Slab) -> None:
        """Copy a slab with the same blocks, on this device, on another one or on the host."""
        other._settle()
        if isinstance(other, DeviceSlab) and other.shapes == self.shapes:
            self.floats.copy_(other.floats)
        else:
            copy_all(self, other, "copy_from")

    def zero(self) -> None:
        """Set every number to 0, in the order of the current stream."""
        self.floats.zero_()

    def like(self) -> DeviceSlab:
        """Make another slab of the same blocks on the same device: zeroes."""
        return DeviceSlab(self.shapes, self.floats.device)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(block.shape) for name, block in self._arrays.items()}

    @property
    def device(self) -> Any:
        """The device of the memory, a ``torch.device``."""
        return self.floats.device

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def nbytes(self) -> int:
        """Bytes of memory, including the gaps between blocks (multiples of 64 bytes)."""
        return int(self.floats.nbytes)

    @property
    def shared(self) -> bool:
        """Always False: other processes cannot share this memory."""
        return False

    def _is_at(self, other: Slab) -> bool:
        return isinstance(other, DeviceSlab) and other.floats.data_ptr() == self.floats.data_ptr()

    def _on_host(self) -> dict[str, Any]:
        """Copies of all blocks as NumPy arrays: one transfer, for which this thread waits."""
        blocks = self.floats.cpu() if self.floats.device.type != "cpu" else self.floats.clone()
        made = {}
        for name, block in self._arrays.items():
            begin = block.storage_offset()
            made[name] = blocks[begin : begin + block.numel()].view(block.shape).numpy()
        return made


class DeviceParameters(DeviceSlab, Parameters):
    """`Parameters` in the memory of a device. Made by `penstock.torch.alias`.

    The host has no copy of them. `save`, `state` and `penstock.train.publish` make one.
    """

    _versions: list[int]  # one number, shared by all parameters over this memory

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: Any) -> None:
        DeviceSlab.__init__(self, shapes, device)
        self._versions = [0]

    @property
    def version(self) -> int:
        """The number of applied updates. Can be set, for example after reading a checkpoint."""
        return self._versions[0]

    @version.setter
    def version(self, version: int) -> None:
        self._versions[0] = integer("version", version, 0, operation="Parameters")

    def gradients(self, *, shared: bool = False) -> Slab:
        """Make a slab for gradients on the same device: zeroes, of the same blocks."""
        if shared:
            raise InvalidArgument(f"memory of {self.device} cannot be shared", "gradients")
        return self.like()

    def copy_to(self, device: Any) -> DeviceParameters:
        """Make a copy on another device, with a version of its own."""
        made = DeviceParameters(self.shapes, device)
        made.floats.copy_(self.floats)
        made.version = self.version
        return made

    def to_host(self) -> Parameters:
        """Make a copy in the memory of the host."""
        self._settle()
        made = Parameters(self._on_host())
        made.version = self.version
        return made

    def _updater(self, optimizer: Optimizer, policy: str, shared: bool) -> tuple[Any, list[Slab]]:
        if shared:
            raise InvalidArgument(f"memory of {self.device} cannot be shared", "Updater")
        made = DeviceUpdater(self, optimizer, policy)
        return made, [*made.state]

    def save(self, path: str | os.PathLike[str], *, dtype: str = "float32") -> None:
        self.to_host().save(path, dtype=dtype)

    def load(self, path: str | os.PathLike[str]) -> None:
        host = Parameters(self.shapes)
        host.load(path)
        self._settle()
        self.copy_from(host)
        self.version = host.version

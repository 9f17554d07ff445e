"""Rows of a population: each has one member's weights and optimizer state in one piece."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _engine
from ..errors import InvalidArgument
from .optimizers import Optimizer
from .parameters import shape_of

__all__ = ["HostRows", "MemberRows", "MemberState", "available_bytes", "copied"]

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class MemberState:
    """A member of a population, taken out of it: a value without references to the population.

    Attributes
    ----------
    floats : array of float32, shape (n,)
        The weights, then the optimizer's state, as in the population's memory.
    step : int
        Updates applied so far.
    hyper : dict
        The hyper-parameters, with the seed.
    buffers : dict
        Copies of the module's buffers, such as running means.
    """

    floats: Array
    step: int
    hyper: dict[str, Any]
    buffers: dict[str, Array] = field(default_factory=dict)


def copied(buffers: Mapping[str, Array]) -> dict[str, Array]:
    return {name: buffer.copy() for name, buffer in buffers.items()}


def available_bytes() -> int:
    """Memory of the host that is free."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class MemberRows(ABC):
    """The memory of several members: `floats` has weights and optimizer state, and `gradients`.

    A row of `floats` is ``[weights | state | state]``; each part has the layout of the weights, and
    begins at a multiple of 64 bytes. A row of `gradients` is one such part.
    """

    floats: Any  # arrays or tensors of float32
    gradients: Any

    def __init__(self, count: int, shapes: Mapping[str, Sequence[int]], state_slabs: int) -> None:
        self.count = count
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._blocks = [(name, shape_of(name, shape)) for name, shape in self.shapes.items()]
        one = _engine.Slab.make(self._blocks, False)
        self.stride = one.all_floats  # of one part
        addresses = {name: array.ctypes.data for name, array in one.arrays().items()}
        first = min(addresses.values())
        self.offsets = {name: (addresses[name] - first) // 4 for name in self.shapes}  # in a part
        self.parts = 1 + state_slabs
        self.size = self.parts * self.stride  # floats of a row

    def host_copy(self, floats: Array) -> Array:
        """Copy one member's floats into memory of the host from which `load` is fastest."""
        copy: Array = floats.copy()
        return copy

    @abstractmethod
    def load(self, row: int, floats: Array, optimizer: Optimizer, step: int) -> None:
        """Write a whole row, and continue from it after `step` updates."""

    @abstractmethod
    def use(self, row: int, optimizer: Optimizer) -> None:
        """Continue with this optimizer."""

    @abstractmethod
    def step(self, row: int) -> int:
        """Updates of the row's member."""

    @abstractmethod
    def take(self, row: int) -> Array:
        """Return a copy of a row in the host's memory."""

    @abstractmethod
    def update(self, rows: Sequence[int]) -> list[Exception | None]:
        """Apply these rows' gradients. An error for each whose gradient is not finite."""

    def views(self, floats: Any) -> dict[str, Any]:
        """The blocks of the part at the beginning of the last axis, as views of any framework."""
        found = {}
        for name, shape in self.shapes.items():
            block = floats[..., self.offsets[name] : self.offsets[name] + math.prod(shape)]
            found[name] = block.reshape((*floats.shape[:-1], *shape))
        return found

    def beginning(self, weights: Mapping[str, Array], initial_state: float) -> Array:
        """The floats of a row before the first update."""
        floats = np.zeros(self.size, np.float32)
        for name, block in self.views(floats).items():
            np.copyto(block, weights[name])
        for part in range(1, self.parts):
            for block in self.views(floats[part * self.stride :]).values():
                block[...] = initial_state
        return floats


class HostRows(MemberRows):
    """Rows in slabs of the engine, whose optimizers update them in place."""

    def __init__(self, count: int, shapes: Mapping[str, Sequence[int]], state_slabs: int) -> None:
        super().__init__(count, shapes, state_slabs)
        self._slab = _engine.Slab.make([("members", [count, self.size])], False)
        self._gradients = _engine.Slab.make([("members", [count, self.stride])], False)
        self.floats = self._slab.arrays()["members"]
        self.gradients = self._gradients.arrays()["members"]
        self._parts = [self._parts_of(row) for row in range(count)]
        self._gradient = [
            self._gradients.window(self._blocks, row * self.stride) for row in range(count)
        ]
        self._updaters: list[_engine.Updater | None] = [None] * count

    def _parts_of(self, row: int) -> list[_engine.Slab]:
        return [
            self._slab.window(self._blocks, (row * self.parts + part) * self.stride)
            for part in range(self.parts)
        ]

    def load(self, row: int, floats: Array, optimizer: Optimizer, step: int) -> None:
        np.copyto(self.floats[row], floats)
        self._use(row, optimizer, step)

    def use(self, row: int, optimizer: Optimizer) -> None:
        self._use(row, optimizer, self.step(row))

    def _use(self, row: int, optimizer: Optimizer, step: int) -> None:
        weights, *states = self._parts[row]
        updater = _engine.Updater.over(weights, optimizer._built, 0, states)
        updater.step = step
        self._updaters[row] = updater

    def step(self, row: int) -> int:
        updater = self._updaters[row]
        return 0 if updater is None else updater.step

    def take(self, row: int) -> Array:
        copy: Array = self.floats[row].copy()
        return copy

    def update(self, rows: Sequence[int]) -> list[Exception | None]:
        return [self._update(row) for row in rows]

    def _update(self, row: int) -> Exception | None:
        updater = self._updaters[row]
        assert updater is not None
        try:
            updater.apply(self._gradient[row], 1.0)
        except InvalidArgument as error:
            return error
        return None

"""Rows of a population: each has one member's weights and optimizer state in one piece."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _engine
from .optimizers import Optimizer
from .parameters import shape_of

__all__ = ["MemberRow", "MemberRows", "MemberState", "copied"]

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


class MemberRows:
    """The memory of several members: a slab of weights and optimizer state, and one of gradients.

    A row is ``[weights | state | state]``; each part has the layout of the weights, and begins at
    a multiple of 64 bytes.
    """

    def __init__(self, count: int, shapes: Mapping[str, Sequence[int]], state_slabs: int) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._blocks = [(name, shape_of(name, shape)) for name, shape in self.shapes.items()]
        one = _engine.Slab.make(self._blocks, False)
        self.stride = one.all_floats  # of one part
        addresses = {name: array.ctypes.data for name, array in one.arrays().items()}
        first = min(addresses.values())
        self.offsets = {name: (addresses[name] - first) // 4 for name in self.shapes}  # in a part
        self.parts = 1 + state_slabs
        self._slab = _engine.Slab.make([("members", [count, self.parts * self.stride])], False)
        self._gradients = _engine.Slab.make([("members", [count, self.stride])], False)
        self.floats: Array = self._slab.arrays()["members"]
        self.gradients: Array = self._gradients.arrays()["members"]
        self.members = [MemberRow(self, row) for row in range(count)]

    def part(self, row: int, part: int) -> _engine.Slab:
        return self._slab.window(self._blocks, (row * self.parts + part) * self.stride)

    def gradient(self, row: int) -> _engine.Slab:
        return self._gradients.window(self._blocks, row * self.stride)

    def views(self, floats: Any) -> dict[str, Any]:
        """The blocks of the part at the beginning of the last axis, as views of any framework."""
        found = {}
        for name, shape in self.shapes.items():
            block = floats[..., self.offsets[name] : self.offsets[name] + math.prod(shape)]
            found[name] = block.reshape((*floats.shape[:-1], *shape))
        return found

    def beginning(self, weights: Mapping[str, Array], initial_state: float) -> Array:
        """The floats of a row before the first update."""
        floats = np.zeros(self.parts * self.stride, np.float32)
        for name, block in self.views(floats).items():
            np.copyto(block, weights[name])
        for part in range(1, self.parts):
            for block in self.views(floats[part * self.stride :]).values():
                block[...] = initial_state
        return floats


class MemberRow:
    """One row, and what updates it. A member's optimizer may change; the memory stays."""

    def __init__(self, rows: MemberRows, row: int) -> None:
        self.floats: Array = rows.floats[row]
        self.parameters = rows.views(self.floats)
        self.gradients = rows.views(rows.gradients[row])
        self._weights = rows.part(row, 0)
        self._gradient = rows.gradient(row)
        self._states = [rows.part(row, part) for part in range(1, rows.parts)]
        self._updater: _engine.Updater | None = None

    def load(self, floats: Array, optimizer: Optimizer, step: int) -> None:
        """Write a whole row, and continue from it after `step` updates."""
        np.copyto(self.floats, floats)
        self.use(optimizer, step)

    def use(self, optimizer: Optimizer, step: int) -> None:
        """Continue after `step` updates, with this optimizer."""
        self._updater = _engine.Updater.over(self._weights, optimizer._built, 0, self._states)
        self._updater.step = step

    def update(self) -> None:
        """Apply the gradient in the row's place. `InvalidArgument`: it is not finite."""
        assert self._updater is not None
        self._updater.apply(self._gradient, 1.0)

    @property
    def step(self) -> int:
        return 0 if self._updater is None else self._updater.step

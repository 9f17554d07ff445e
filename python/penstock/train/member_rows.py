"""Rows of a population: each has one member's weights and optimizer state in one piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _engine
from ..errors import InvalidArgument
from .optimizers import Optimizer
from .parameters import Parameters, Slab, shape_of

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
        self.offsets = {name: (at - first) // 4 for name, at in addresses.items()}  # in a part
        self.parts = 1 + state_slabs
        self._slab = _engine.Slab.make([("members", [count, self.parts * self.stride])], False)
        self._gradients = _engine.Slab.make([("members", [count, self.stride])], False)
        self.floats: Array = self._slab.arrays()["members"]
        self.gradients: Array = self._gradients.arrays()["members"]

    def part(self, row: int, part: int) -> _engine.Slab:
        return self._slab.window(self._blocks, (row * self.parts + part) * self.stride)

    def gradient(self, row: int) -> _engine.Slab:
        return self._gradients.window(self._blocks, row * self.stride)


class MemberRow:
    """One row, and what updates it. A member's optimizer may change; the memory stays."""

    def __init__(self, rows: MemberRows, row: int) -> None:
        self._rows = rows
        self.row = row
        self._weights = rows.part(row, 0)
        self._gradient = rows.gradient(row)
        self.parameters = Parameters.__new__(Parameters)
        Slab.__init__(self.parameters, self._weights)
        self.gradients = Slab(self._gradient)
        self._states = [rows.part(row, part) for part in range(1, rows.parts)]
        self._updater: _engine.Updater | None = None

    @property
    def floats(self) -> Array:
        floats: Array = self._rows.floats[self.row]
        return floats

    def begin(self, optimizer: Optimizer) -> None:
        """Set the optimizer's state to its beginning. The weights are set by the caller."""
        initial = optimizer._built.initial_state
        self.floats[self._rows.stride :] = 0.0
        if initial:
            for state in self._states:
                for array in state.arrays().values():
                    array[...] = initial
        self.use(optimizer, 0)

    def use(self, optimizer: Optimizer, step: int) -> None:
        """Continue after `step` updates, with this optimizer."""
        self._updater = _engine.Updater.over(self._weights, optimizer._built, 0, self._states)
        self._updater.step = step

    def load(self, floats: Array, optimizer: Optimizer, step: int) -> None:
        """Write a whole row, and continue from it."""
        if floats.shape != self.floats.shape:
            raise InvalidArgument(
                f"this state has {floats.size} floats; a member of this population has "
                f"{self.floats.size}",
                "Population",
            )
        np.copyto(self.floats, floats)
        self.use(optimizer, step)

    def update(self) -> None:
        """Apply the gradient in the row's place. `InvalidArgument`: it is not finite."""
        assert self._updater is not None
        self._updater.apply(self._gradient, 1.0)

    @property
    def step(self) -> int:
        return 0 if self._updater is None else self._updater.step

"""Rows of a population on a device: torch tensors, and the optimizers' formulas over all rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import InvalidArgument
from .member_rows import Array, MemberRows
from .optimizers import Optimizer

__all__ = ["DeviceRows"]

_COLUMNS = (  # of Optimizer.pass_of
    *("clip_norm", "clip", "decay", "keep", "rate", "memory", "fresh"),
    *("memory2", "fresh2", "root", "eps"),
)


class DeviceRows(MemberRows):
    """Rows as tensors of one device. One update advances all rows that train, in one pass.

    The formulas are those of the engine's optimizers (penstock/train/formulas.h): the engine gives
    each member's numbers for its step, such as the bias corrections of Adam.
    """

    def __init__(
        self, count: int, shapes: Mapping[str, Sequence[int]], state_slabs: int, device: Any
    ) -> None:
        super().__init__(count, shapes, state_slabs)
        self.floats = torch.zeros(count, self.size, device=device)
        self.gradients = torch.zeros(count, self.stride, device=device)
        self._pinned = self.floats.device.type == "cuda"
        self._optimizers: list[Optimizer | None] = [None] * count
        self._steps = [0] * count

    def load(self, row: int, floats: Array, optimizer: Optimizer, step: int) -> None:
        self.floats[row].copy_(torch.from_numpy(floats))
        self._optimizers[row], self._steps[row] = optimizer, step

    def use(self, row: int, optimizer: Optimizer) -> None:
        self._optimizers[row] = optimizer

    def step(self, row: int) -> int:
        return self._steps[row]

    def host_copy(self, floats: Array) -> Array:
        return self._pinned_copy(torch.from_numpy(floats))

    def take(self, row: int) -> Array:
        return self._pinned_copy(self.floats[row])

    def _pinned_copy(self, floats: torch.Tensor) -> Array:
        copy: Array = torch.empty(self.size, pin_memory=self._pinned).copy_(floats).numpy()
        return copy

    def update(self, rows: Sequence[int]) -> list[Exception | None]:
        formula, numbers = "", []
        for row in rows:
            optimizer = self._optimizers[row]
            assert optimizer is not None
            formula, own = optimizer._built.pass_of(self._steps[row])
            numbers.append(own)
        device = self.floats.device
        table = torch.tensor(numbers, dtype=torch.float32).to(device, non_blocking=True)
        of = {name: table[:, n : n + 1] for n, name in enumerate(_COLUMNS)}
        every = len(rows) == self.count
        chosen = None if every else torch.tensor(rows, device=device)
        floats = self.floats if chosen is None else self.floats[chosen]
        gradients = self.gradients if chosen is None else self.gradients[chosen]
        finite = torch.isfinite(gradients).all(1, keepdim=True)
        parts = [floats[:, n * self.stride : (n + 1) * self.stride] for n in range(self.parts)]
        if any(math.isfinite(own[0]) for own in numbers):
            norm = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients = gradients * torch.clamp(of["clip_norm"] / (norm + 1e-6), max=1.0)
        results = _updated(formula, of, parts[0], gradients, parts[1:])
        for part, result in zip(parts, results, strict=True):
            part.copy_(torch.where(finite, result, part))
        if chosen is not None:
            self.floats[chosen] = floats
        fine = finite[:, 0].tolist()  # waits for the device
        errors: list[Exception | None] = []
        for row, ok in zip(rows, fine, strict=True):
            errors.append(None if ok else self._not_finite(row))
            self._steps[row] += ok
        return errors

    def _not_finite(self, row: int) -> InvalidArgument:
        views = self.views(self.gradients[row])
        found = [name for name, block in views.items() if not torch.isfinite(block).all()]
        return InvalidArgument(
            f"the gradient of update {self._steps[row]} is not finite in block {found[0]!r}. "
            "Nothing was changed",
            "apply",
        )


def _updated(
    formula: str, of: Mapping[str, Any], w: Any, g: Any, states: Sequence[Any]
) -> list[Any]:
    """The weights and states after an update, each of shape (rows, floats)."""
    g = torch.minimum(torch.maximum(g, -of["clip"]), of["clip"]) + of["decay"] * w
    rate, memory, fresh, eps = of["rate"], of["memory"], of["fresh"], of["eps"]
    if formula == "sgd":
        return [w - rate * g]
    if formula in ("momentum", "nesterov"):
        v = memory * states[0] + g
        return [w - rate * (v if formula == "momentum" else g + memory * v), v]
    if formula == "adagrad":
        s = states[0] + g * g
        return [w - rate * (g / (s.sqrt() + eps)), s]
    if formula == "rmsprop":
        s = memory * states[0] + fresh * (g * g)
        return [w - rate * (g / (s.sqrt() + eps)), s]
    if formula == "centered_rmsprop":
        s = memory * states[0] + fresh * (g * g)
        mean = states[1] + fresh * (g - states[1])
        variance = torch.clamp(s - mean * mean, min=0.0)
        return [w - rate * (g / (variance.sqrt() + eps)), s, mean]
    mean = states[0] + fresh * (g - states[0])
    square = of["memory2"] * states[1] + of["fresh2"] * (g * g)
    w = w * of["keep"] - rate * (mean / (square.sqrt() * of["root"] + eps))
    return [w, mean, square]

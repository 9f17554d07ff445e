"""Updates of parameters on a device: the optimizers' formulas as operations of torch."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..errors import InvalidArgument
from .device_rows import numbers_of, updated
from .device_streams import Order
from .optimizers import Optimizer, _schedule
from .parameters import check_all

if TYPE_CHECKING:
    from .device_slab import DeviceParameters, DeviceSlab

__all__ = ["DeviceUpdater"]


class Enqueued(NamedTuple):
    """An update that was given to the device."""

    applied: bool
    version: int  # of the weights before it
    norm: Any  # of the gradient: on the device


class DeviceUpdater:
    """Applies updates to parameters on a device, as the engine's Updater does on the host.

    The formulas are those of the engine (penstock/train/formulas.h), which also gives the numbers
    of each step, such as the bias corrections of Adam.

    Threads: any. Updates are enqueued one after the other, and the device applies them so.
    """

    def __init__(self, parameters: DeviceParameters, optimizer: Optimizer, policy: str) -> None:
        built = optimizer._built
        self.state = [parameters.like() for _ in range(built.state_slabs)]
        for slab in self.state:
            slab.floats.fill_(built.initial_state)
        self.step = 0
        self.skipped = 0
        self._parameters = parameters
        self._optimizer = optimizer
        self._policy = policy
        self._parts = [parameters.floats[None], *(slab.floats[None] for slab in self.state)]
        self._norm: Any = 0.0
        self._non_finite: Any = 0  # on the device with "count"
        self._lock = threading.Lock()
        self._order = Order(parameters.device)

    def apply(self, gradients: DeviceSlab, scale: float) -> bool:
        return self.enqueue(gradients, scale).applied

    def enqueue(self, gradients: DeviceSlab, scale: float = 1.0) -> Enqueued:
        """Enqueue one update on the current stream, behind the one before. Errors as `apply`."""
        if gradients.shapes != self._parameters.shapes:
            check_all(self._parameters, gradients, "apply")
        if not math.isfinite(scale):
            raise InvalidArgument(f"scale is {scale!r}; give a finite number", "apply")
        with self._lock, self._order:
            return self._update(gradients, float(scale))

    def _update(self, gradients: DeviceSlab, scale: float) -> Enqueued:
        floats = gradients.floats
        # In double: the sum of squares of finite floats is finite.
        norm = torch.linalg.vector_norm(floats, dtype=torch.float64) * abs(scale)
        if self._policy == "count":
            self._non_finite = self._non_finite + (~torch.isfinite(norm)).long()
        elif not math.isfinite(float(norm)):
            if self._policy == "raise":
                raise self._not_finite(gradients)
            self._non_finite += 1
            self.skipped += 1
            return Enqueued(False, self._parameters.version, norm)
        self._norm = norm
        formula, given = self._optimizer._built.pass_of(self.step)
        of = numbers_of([given], floats.device)
        scaled = floats[None] if scale == 1.0 else floats[None] * scale
        if self._optimizer.clip_norm is not None:
            factor = torch.clamp(self._optimizer.clip_norm / (norm + 1e-6), max=1.0)
            scaled = scaled * factor.to(torch.float32)
        results = updated(formula, of, self._parts[0], scaled, self._parts[1:])
        for part, result in zip(self._parts, results, strict=True):
            part.copy_(result)
        self.step += 1
        self._parameters.version += 1
        return Enqueued(True, self._parameters.version - 1, norm)

    def _not_finite(self, gradients: DeviceSlab) -> InvalidArgument:
        for name, block in gradients.items():
            wrong = (~torch.isfinite(block)).nonzero()
            if len(wrong):
                place = tuple(wrong[0].tolist())
                value = float(block[place])
                text = f"block {name!r} is {value} at {place}"
                break
        else:
            text = "it was written to while it was applied"
        return InvalidArgument(
            f"the gradient of update {self.step} is not finite: {text}. Nothing was changed. See "
            "non_finite for other policies",
            "apply",
        )

    def apply_rows(self, block: str, rows: Any, values: Any, scale: float) -> bool:
        raise InvalidArgument(
            f"updates of some rows are for parameters of the host; these are on "
            f"{self._parameters.device}: apply the gradient of all blocks",
            "apply_rows",
        )

    @property
    def lr(self) -> float:
        optimizer: Any = self._optimizer
        return _schedule(optimizer.lr).at(self.step)

    @property
    def norm(self) -> float:
        """Waits for the device."""
        return float(self._norm)

    @property
    def non_finite(self) -> int:
        """Waits for the device, with the policy "count"."""
        return int(self._non_finite)

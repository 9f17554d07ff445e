"""Towers whose weights and gradients are on devices: one update there for each round."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..errors import InvalidArgument
from .device_slab import DeviceParameters, DeviceSlab
from .device_streams import Queue, mark, wait
from .device_updater import DeviceUpdater
from .steps import (
    Outcome,
    Views,
    is_module,
    loss_and_gradients,
    number_of,
    put_gradients,
    views_of,
)

if TYPE_CHECKING:
    from .towers import TowersReport

__all__ = ["DeviceTowers"]

_AHEAD = 2  # rounds that the host may be ahead of the device


class DeviceTowers:
    """The devices of `Towers`: each tower has a stream, and the updater's device has the weights.

    A tower on another device has a copy of the weights, which is renewed after each update. In a
    round:

    1. A tower's stream waits for the weights and for the batch, and computes.
    2. The stream of the thread that runs the towers waits for all of them, adds up the gradients as
       a tree over tower numbers, applies the update, and renews the copies.

    Losses stay on the device until a report is asked for.

    Threads: `compute` one for each tower; everything else one thread, while no tower computes.
    """

    def __init__(
        self,
        parameters: DeviceParameters,
        updater: DeviceUpdater,
        model: Any,
        devices: Sequence[Any],
        group: Any,
    ) -> None:
        self._updater = updater
        self._home = parameters
        self._group = group
        self.views: list[Views] = []
        self._copies: list[DeviceParameters] = []  # on other devices
        self._queues: list[Queue] = []
        for number, device in enumerate(devices):
            views = self._views_of(number, model, device)
            self.views.append(views)
            self._queues.append(Queue(views.weights.device))
        self._batches: list[Any] = [None] * len(devices)  # whose memory the device may still read
        self._losses: list[Any] = [None] * len(devices)
        self._rounds: deque[Any] = deque()
        self._ready: list[Any] = []
        self.begin()
        if group is not None:
            first = dist.get_global_rank(group, 0)
            dist.broadcast(self._home.floats, first, group=group)
            self._renew()

    def _views_of(self, number: int, model: Any, device: Any) -> Views:
        home = self._home
        place = home.device if device is None else _indexed(device)
        if place == home.device:
            views = views_of(number, home, home, model, replicate=number > 0)
        else:
            there = next((each for each in self._copies if each.device == place), None)
            if there is None:
                there = home.copy_to(place)
                self._copies.append(there)
            own = copy.deepcopy(model).to(place) if is_module(model) else model
            views = views_of(number, there, there, own, replicate=False)
        views.device = place
        return views

    def begin(self) -> None:
        """Begin a run."""
        self._sum: Any = 0.0  # of weighted losses
        self._weights = 0.0
        self._last: Any = math.nan
        self._rounds.clear()
        for views in self.views:  # from a round that failed
            views.gradients.zero()
        self._renew()

    def end(self) -> None:
        """Let the current stream wait for all work, also of a round that failed."""
        self._wait_for_towers()
        self._batches = [None] * len(self._batches)

    def compute(
        self, tower: int, batch: Any, step: Callable[[Any, Views], Any], marks: Any
    ) -> Outcome:
        """Run a step on the tower's stream. `marks`: of the batch, from the thread that took it."""
        views, queue = self.views[tower], self._queues[tower]
        self._batches[tower] = batch
        with queue:
            wait(queue.device, *self._ready, *marks)
            loss, gradients = loss_and_gradients(step(batch, views), "Towers")
            copied = put_gradients(gradients, views, "Towers")
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self._losses[tower] = loss.detach().reshape(())  # read when a report is asked for
            else:
                self._losses[tower] = number_of(loss, "Towers")
        return Outcome(None, None, copied)

    def marks(self) -> list[Any]:
        """Mark what the current streams of all devices have been given, such as batches."""
        return [mark(device) for device in self._devices()]

    def apply(self, weights: Sequence[float]) -> bool:
        """Apply one update from the mean of the gradients. False: skipped."""
        self._wait_for_towers()
        self._count_losses(weights)
        total = self._added(weights)
        scale = max(weights) / sum(weights)
        if self._group is not None:
            scale = self._reduce(total, max(weights), sum(weights))
        applied = self._updater.enqueue(total, scale).applied
        for views in self.views:
            views.gradients.zero()
        self._renew()
        self._batches = [None] * len(self._batches)
        self._losses = [None] * len(self._losses)
        self._rounds.append(self._ready[0])
        if len(self._rounds) > _AHEAD:
            late = self._rounds.popleft()
            if late is not None:
                late.synchronize()
        return applied

    def report(self, report: TowersReport) -> TowersReport:
        """Add the losses to a report. Waits for the device."""
        mean = float(self._sum) / self._weights if self._weights > 0 else math.nan
        return replace(report, loss=mean, last_loss=float(self._last))

    def _devices(self) -> list[Any]:
        return [self._home.device, *(other.device for other in self._copies)]

    def _wait_for_towers(self) -> None:
        for device in self._devices():
            wait(device, *(queue.done for queue in self._queues))

    def _renew(self) -> None:
        """Copy the weights to other devices, and mark all devices' streams as ready."""
        for other in self._copies:
            # Into memory of the host torch would not wait for the end of the copy.
            other.floats.copy_(self._home.floats, non_blocking=other.device.type != "cpu")
            other.version = self._home.version
        self._ready = self.marks()

    def _added(self, weights: Sequence[float]) -> DeviceSlab:
        """Add up the gradients into the first tower's, as `add_towers` of the engine."""
        largest = max(weights)
        parts = []
        for views, weight in zip(self.views, weights, strict=True):
            slab = views.gradients
            assert isinstance(slab, DeviceSlab)
            floats = slab.floats.to(self._home.device)
            if weight == 0:
                floats.zero_()
            elif weight != largest:
                floats.mul_(weight / largest)
            parts.append(floats)
        stride = 1
        while stride < len(parts):
            for tower in range(0, len(parts) - stride, 2 * stride):
                parts[tower].add_(parts[tower + stride])
            stride *= 2
        first = self.views[0].gradients
        if isinstance(first, DeviceSlab) and first.device == self._home.device:
            return first
        sum_ = self._home.like()
        sum_.floats.copy_(parts[0])
        return sum_

    def _reduce(self, total: DeviceSlab, largest: float, weight: float) -> float:
        """Add up the gradients of all processes; return the update's scale."""
        both = torch.empty(len(total.floats) + 1, device=total.device)
        torch.mul(total.floats, largest, out=both[:-1])
        both[-1] = weight
        dist.all_reduce(both, group=self._group)
        torch.div(both[:-1], both[-1], out=total.floats)
        return 1.0

    def _count_losses(self, weights: Sequence[float]) -> None:
        loss: Any = 0.0
        counted = 0.0
        for found, weight in zip(self._losses, weights, strict=True):
            if found is None or weight == 0:  # a part of weight 0 may have a loss of NaN
                continue
            if isinstance(found, torch.Tensor):
                found = found.to(self._home.device, torch.float64)
            loss = loss + found * weight
            counted += weight
        self._sum = self._sum + loss
        self._weights += counted
        self._last = loss / counted if counted > 0 else math.nan


def _indexed(device: Any) -> Any:
    """A device as tensors on it name theirs: "cuda" with its number."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError) as error:
        raise InvalidArgument(
            f"device {device!r} is no usable device of torch: {error}", "Towers"
        ) from error

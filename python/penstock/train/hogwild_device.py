"""Hogwild's workers as threads that train the same weights on a device, each on its own stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _engine
from ..errors import InvalidArgument
from .device_slab import DeviceSlab
from .device_streams import Queue, mark, wait
from .device_updater import DeviceUpdater
from .hogwild_threads import Threads, WorkerLoop
from .steps import OneThreadEach, Source, views_of
from .updater import Updater

__all__ = ["DeviceThreads"]


class DeviceWorker:
    """One worker: applies its gradients to the weights of the device. One thread.

    It has the methods of the engine's HogwildWorker that `WorkerLoop` calls.
    """

    def __init__(self, updater: Updater, counters: _engine.SharedCounters, number: int) -> None:
        self._updater: DeviceUpdater = updater._engine
        self._parameters = updater.parameters
        self._counters = counters
        self._number = number
        self._read_version = 0

    def begin(self) -> None:
        self.read()

    def read(self) -> None:
        """Count other workers' updates from here on."""
        self._read_version = self._parameters.version

    def apply(self, gradients: DeviceSlab) -> None:
        update = self._updater.enqueue(gradients)
        gradients.zero()
        if update.applied:
            self._counters.note_update(self._number, update.version - self._read_version)
        if not math.isfinite(float(update.norm)):
            self._counters.note_non_finite(self._number, not update.applied)

    def finish_step(self, loss: float | None, copied: int) -> None:
        self._counters.finish_step(self._number, loss, copied)


class DeviceThreads(Threads):
    """Threads of which each enqueues its steps and its updates on a stream of its own.

    Steps of different workers run in any order, and at the same time. Updates come one after the
    other on the device (`DeviceUpdater`), so none is lost. A step may see a part of the updates
    that are applied while it computes; it sees all of its own worker's earlier ones.
    """

    def __init__(
        self,
        step: Callable[[Any, Any], Any],
        updater: Updater,
        workers: int,
        model: Any,
    ) -> None:
        self._counters = _engine.SharedCounters.make(workers, False)
        self.engine = _engine.Hogwild(self._counters)
        self._device = updater.parameters.device
        self._one_thread_each = OneThreadEach()
        self._replicas = 1
        self._cores = []
        self._source: Any = None
        self._loops = []
        self._queues = []
        self._began: Any = None
        for number in range(workers):
            parameters = updater.parameters
            views = views_of(number, parameters, parameters, model, replicate=number > 0)
            views.device = self._device
            worker = DeviceWorker(updater, self._counters, number)
            self._loops.append(WorkerLoop(step, views, worker, 0))
            self._queues.append(Queue(self._device))

    def begin(self, source: Source) -> None:
        super().begin(source)
        self._began = mark(self._device)

    def work(self, number: int) -> None:
        with self._queues[number]:
            wait(self._device, self._began)
            super().work(number)

    def end(self) -> None:
        super().end()
        wait(self._device, *(queue.done for queue in self._queues))


def check_options(options: dict[str, tuple[Any, Any]], device: Any) -> None:
    """`options`: names with the given value and the only possible one."""
    for name, (given, only) in options.items():
        if given != only:
            raise InvalidArgument(
                f"{name} is {given!r}, and the weights are on {device}: there it can only be "
                f"{only!r}. Workers are threads, which share the weights and the optimizer's state",
                "Hogwild",
            )

"""The ends of a Loader's epochs: the dataset's hooks, and sending their changes to the workers."""

from __future__ import annotations

from typing import Any

from .source import SourceInfo, length_of
from .worker_pool import WorkerPool


class Epochs:
    """Runs the dataset's hooks, once each, in the consumer's thread.

        closed ──begin──> open ──end──> closed

    Only a dataset that may change between epochs (`SourceInfo.edited`) has open epochs. REQUIRED:
    the caller holds the Loader's lock. Depends on the engine's core and the pool, not the Loader.
    """

    def __init__(self, core: Any, pool: WorkerPool, info: SourceInfo, mode: str) -> None:
        self._core = core
        self._pool = pool
        self._info = info
        self._hooks = info.hooks
        self._edited = info.edited
        self._sends = info.edited and info.hooked is not None and mode == "processes"
        self._tracker: Any = None
        self.open: int | None = None  # its on_epoch_begin was called, its end was not

    def watch(self) -> None:
        """Record the state of the dataset before its workers start."""
        if self._sends and self._tracker is None:
            from ..processes.payload import Tracker

            self._tracker = Tracker(self._info.hooked)

    def begin(self, epoch: int) -> None:
        """Enter `epoch`, or continue in it: its tickets may be made from now on."""
        if self._edited and self.open != epoch:
            self.end()
            self.call("on_epoch_begin")
            self.publish()
            self.open = epoch
        self._core.begin_epoch(epoch)

    def end(self) -> None:
        """End the open epoch, if there is one; it may be unfinished."""
        if self.open is not None:
            self.open = None
            self.call("on_epoch_end")

    def moved_to(self, epoch: int) -> None:
        """The position was set by the user: no hook is called for the epoch that was left."""
        if self.open != epoch:
            self.open = None

    def call(self, hook: str) -> None:
        """Call a hook, if the dataset has it."""
        if hook in self._hooks:
            self._core.settle()  # no thread reads the dataset while the hook changes it
            getattr(self._info.hooked, hook)()

    def publish(self) -> None:
        """Publish changes of the dataset: the length, and for processes the changed attributes."""
        length = length_of(self._info)
        changed = None if self._tracker is None else self._tracker.changes()
        try:
            if changed is not None or length != self._pool.length:
                self._pool.publish(length, changed)
        finally:
            if changed is not None:
                changed.close()

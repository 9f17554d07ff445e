"""The ends of a Loader's epochs: the dataset's hooks, and what they change sent to the workers."""

from __future__ import annotations

from typing import Any

from .source import SourceInfo, length_of
from .worker_pool import WorkerPool


class Epochs:
    """Runs the dataset's hooks, once each, in the consumer's thread.

        closed ──begin──> open ──end──> closed

    Only a dataset that is edited between epochs (`SourceInfo.edited`) has open ones. Called under
    Loader's lock; knows the engine's core and the pool, not the Loader.
    """

    def __init__(self, core: Any, pool: WorkerPool, info: SourceInfo, mode: str) -> None:
        self._core = core
        self._pool = pool
        self._info = info
        self._hooks = info.hooks
        self._edited = info.edited
        self._sends = info.edited and info.hooked is not None and mode == "processes"
        self._tracker: Any = None
        self.open: int | None = None  # whose on_epoch_begin was called, but not its end

    def watch(self) -> None:
        """Note what the dataset is like, before its workers start with it."""
        if self._sends and self._tracker is None:
            from ..processes.payload import Tracker

            self._tracker = Tracker(self._info.hooked)

    def begin(self, epoch: int) -> None:
        """Enter `epoch`, or go on in it: its tickets may be made from now on."""
        if self._edited and self.open != epoch:
            self.end()
            self.call("on_epoch_begin")
            self.publish()
            self.open = epoch
        self._core.begin_epoch()

    def end(self) -> None:
        """The open epoch, if there is one, is over or broken off."""
        if self.open is not None:
            self.open = None
            self.call("on_epoch_end")

    def moved_to(self, epoch: int) -> None:
        """The place was set from outside: no hook is called for an epoch that was left so."""
        if self.open != epoch:
            self.open = None

    def call(self, hook: str) -> None:
        """Call one of the hooks, if the dataset has it."""
        if hook in self._hooks:
            self._core.settle()  # no thread is still reading what the hook may change
            getattr(self._info.hooked, hook)()

    def publish(self) -> None:
        """Make known what was changed in the dataset: its length, and to processes the rest."""
        length = length_of(self._info)
        changed = None if self._tracker is None else self._tracker.changes()
        try:
            if changed is not None or length != self._pool.length:
                self._pool.publish(length, changed)
        finally:
            if changed is not None:
                changed.close()

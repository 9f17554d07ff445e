"""Which pass of a Dataset comes next, and the workers that its passes share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ..base.fork_lock import ForkLock

if TYPE_CHECKING:
    from ..loader import Loader
    from .dataset import Dataset
    from .iterator import DatasetIterator


class Passes:
    """The passes of one Dataset object: the n-th is epoch n - 1.

    They share one Loader, which stays between them; a pass that begins while another one is under
    way gets its own. Any thread.

    Parameters
    ----------
    **options
        What Loaders are built with.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._lock = ForkLock()
        self._next = 0
        self._loader: Loader | None = None
        self._latest: weakref.ref[DatasetIterator] | None = None  # that has the Loader

    def begin(self, dataset: Dataset) -> DatasetIterator:
        """Begin the next pass over `dataset`, whose passes these are."""
        from .iterator import DatasetIterator

        with self._lock.here():
            epoch = self.take()
            latest = None if self._latest is None else self._latest()
            if latest is not None and latest.under_way:
                return DatasetIterator(dataset, dataset.build(**self.options), epoch, own=True)
            if latest is not None:
                latest._hand_over()
            # A forked child's copy is its parent's.
            if self._loader is None or self._loader.closed or self._loader._foreign():
                self._loader = dataset.build(**self.options)
            iterator = DatasetIterator(dataset, self._loader, epoch, own=False)
            self._latest = weakref.ref(iterator)
            return iterator

    def take(self, behind: int = -1) -> int:
        """Return the number of the next pass, which is the caller's: one behind `behind`."""
        with self._lock.here():
            self._next = max(self._next, behind + 1) + 1
            return self._next - 1

    def go_on_behind(self, number: int) -> None:
        """A pass was restored: the next one is that behind it."""
        with self._lock.here():
            self._next = number + 1

    def shared_with(self, iterator: DatasetIterator) -> bool:
        """Whether the Loader is this iterator's, and no later one's."""
        with self._lock.here():
            return self._latest is not None and self._latest() is iterator

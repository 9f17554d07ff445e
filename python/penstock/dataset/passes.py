"""Passes over a Dataset: their numbers, their iterator, and the workers that they share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ..base.conventions import Closing, Restorable, shown
from ..base.fork_lock import ForkLock
from ..errors import InvalidArgument

if TYPE_CHECKING:
    from ..loader import Loader
    from .dataset import Dataset


class Passes:
    """The passes of one Dataset object: the n-th is epoch n - 1.

    They share one Loader, which stays open between passes; a pass that begins during another one
    gets a Loader of its own. Threads: any.

    Parameters
    ----------
    **options
        The options of the Loaders.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._lock = ForkLock()
        self._next = 0
        self._loader: Loader | None = None
        self._latest: weakref.ref[DatasetIterator] | None = None  # has the Loader

    def begin(self, dataset: Dataset) -> DatasetIterator:
        """Begin the next pass over `dataset`, the owner of these passes."""
        with self._lock.here():
            epoch = self.take()
            latest = None if self._latest is None else self._latest()
            if latest is not None and latest.under_way:
                return DatasetIterator(dataset, dataset.build(**self.options), epoch, own=True)
            if latest is not None:
                latest._hand_over()
            # In a forked child, the Loader belongs to the parent.
            if self._loader is None or self._loader.closed or self._loader._foreign():
                self._loader = dataset.build(**self.options)
            iterator = DatasetIterator(dataset, self._loader, epoch, own=False)
            self._latest = weakref.ref(iterator)
            return iterator

    def close(self) -> None:
        """End the workers; the next pass starts new ones."""
        with self._lock.here():
            loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()

    def take(self, behind: int = -1) -> int:
        """Reserve and return the number of the next pass, which is larger than `behind`."""
        with self._lock.here():
            self._next = max(self._next, behind + 1) + 1
            return self._next - 1

    def go_on_behind(self, number: int) -> None:
        """Make the pass after `number`, which was restored, the next one."""
        with self._lock.here():
            self._next = number + 1

    def shared_with(self, iterator: DatasetIterator) -> bool:
        """Whether the shared Loader belongs to this iterator, and not to a later one."""
        with self._lock.here():
            return self._latest is not None and self._latest() is iterator


class DatasetIterator(Restorable, Closing):
    """The result of ``iter(dataset)``: one pass, whose position can be saved and restored.

    Only one thread may use it at a time. As a context manager it closes at the end of the block.
    """

    def __init__(self, dataset: Dataset, loader: Loader, epoch: int, own: bool) -> None:
        self._dataset = dataset
        self._loader = loader
        self._own = own  # no other iterator uses the loader
        self._over = False
        self._ended = False  # the pass has ended
        self._left: dict[str, Any] | None = None  # the position of an unfinished pass
        self._pass = epoch
        self._options = dataset._passes.options  # of all its Loaders
        loader._go_to_pass(epoch)
        self._next = iter(loader).__next__

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        try:
            return self._next()
        except StopIteration:
            self._over, self._ended = True, True
            raise
        except BaseException:
            self._over = True
            raise

    @property
    def under_way(self) -> bool:
        """Whether the pass may have further elements."""
        return not self._over

    def state(self) -> dict[str, Any]:
        """Return the position, a small dict for JSON; prefetched batches do not count."""
        self._have_a_loader()
        return self._loader.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken, in this pass or another one.

        Raises
        ------
        InvalidArgument
            The state is of another chain; the text names the stage that differs. Nothing was
            changed.
        """
        self._have_a_loader()
        self._loader.restore(state)
        self._pass = self._loader._info.pass_of(int(state["epoch"]))
        if not self._own:
            self._dataset._passes.go_on_behind(self._pass)
        self._begin()

    def _check(self, state: Any) -> None:
        """Raise the errors of `restore` for this state."""
        self._have_a_loader()
        self._loader._check_state(state)

    def reset(self, dataset: Dataset | None = None) -> None:
        """Begin the next pass; or a pass over another Dataset: other files, other parameters."""
        if dataset is not None:
            # Raises before anything has changed.
            if not isinstance(getattr(dataset, "_passes", None), Passes):
                raise InvalidArgument(
                    f"dataset is {dataset!r}; give a Dataset, or None for the next pass", "reset"
                )
            loader = dataset.build(**self._options)
            if self._own:
                self._loader.close()
            self._dataset, self._loader, self._own = dataset, loader, True
            self._pass = dataset._passes.take()
        else:
            self._have_a_loader()
            self._pass = self._dataset._passes.take(behind=self._pass)
        self._loader._go_to_pass(self._pass)
        self._begin()

    def _have_a_loader(self) -> None:
        """Get a Loader, since a later iterator may have taken over the shared one."""
        if not self._own and not self._dataset._passes.shared_with(self):
            self._loader, self._own = self._dataset.build(**self._options), True
            if self._left is None:
                self._loader._go_to_pass(self._pass + 1)
            else:
                self._loader.restore(self._left)

    def _hand_over(self) -> None:
        """Give the shared Loader up to another iterator."""
        if not self._ended and not self._loader.closed:
            self._left = self._loader.state()

    def _begin(self) -> None:
        self._next = iter(self._loader).__next__
        self._over = self._ended = False
        self._left = None

    @property
    def element_spec(self) -> Any:
        """That of the Dataset."""
        return self._dataset.element_spec

    def __repr__(self) -> str:
        return shown(self, self._loader, epoch=self._pass)

    def stats(self) -> dict[str, Any]:
        """Return the counters; see `Loader.stats`."""
        return self._loader.stats()

    def close(self) -> None:
        """End the workers. Held batches stay valid."""
        self._over = True
        if self._own or self._dataset._passes.shared_with(self):
            self._loader.close()

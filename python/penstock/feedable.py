"""Several Datasets behind one iterator that can switch between them at any step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base.conventions import Closing, Restorable, shown
from .errors import InvalidArgument, NotFound
from .loader.settings import budget

if TYPE_CHECKING:
    from .dataset import Dataset
    from .dataset.passes import DatasetIterator


class Feedable(Restorable, Closing):
    """Datasets by name, each with a position of its own.

    Switching between them costs nothing: all of them prefetch, and they share the memory that one
    Loader would have (``max_bytes``) in equal parts.

    Parameters
    ----------
    **datasets : Dataset
        Such as ``train=..., validation=...``.

    Notes
    -----
    Only one thread may use it at a time. As a context manager it closes at the end of the block.

    Examples
    --------
    >>> feeds = penstock.Feedable(train=train, validation=validation)
    >>> for step in range(10_000):
    ...     train_step(feeds.next("train"))
    ...     if step % 1000 == 999:
    ...         feeds.reset("validation")
    ...         for batch in feeds.rest("validation"):
    ...             evaluate(batch)
    """

    def __init__(self, **datasets: Dataset) -> None:
        from .dataset import Dataset

        if not datasets:
            raise InvalidArgument("give Datasets by names", "Feedable")
        for name, dataset in datasets.items():
            if not isinstance(dataset, Dataset):
                raise InvalidArgument(f"{name} is {dataset!r}; give a penstock.Dataset", "Feedable")
        # Each name has a Loader of its own, even if one Dataset is given twice, and a part of the
        # bytes: of a common number, a Dataset that is not asked for would keep what it made ahead.
        part = max(budget() // len(datasets), 1)
        self._iterators: dict[str, DatasetIterator] = {
            name: iter(dataset._alone(max_bytes=part)) for name, dataset in datasets.items()
        }

    def next(self, name: str) -> Any:
        """Return the next batch of a Dataset.

        Raises
        ------
        StopIteration
            The Dataset's pass has ended; `reset` begins the next one.
        NotFound
            No Dataset has that name.
        """
        return next(self._iterator(name))

    def rest(self, name: str) -> DatasetIterator:
        """Return an iterator over the rest of a Dataset's pass."""
        return self._iterator(name)

    def reset(self, name: str, dataset: Dataset | None = None) -> None:
        """Begin a Dataset's next pass, or replace it by another Dataset."""
        self._iterator(name).reset(dataset)

    def state(self) -> dict[str, Any]:
        """Return the positions of all Datasets, as a dict by name for JSON."""
        return {name: iterator.state() for name, iterator in self._iterators.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken.

        Raises
        ------
        InvalidArgument
            The state has other names, or is of other Datasets; nothing was changed.
        """
        if not isinstance(state, dict) or set(state) != set(self._iterators):
            raise InvalidArgument(
                f"the state has {sorted(state) if isinstance(state, dict) else state!r}, this "
                f"Feedable {sorted(self._iterators)}",
                "restore",
            )
        for name, iterator in self._iterators.items():
            iterator._check(state[name])
        for name, iterator in self._iterators.items():
            iterator.restore(state[name])

    def close(self) -> None:
        """End all workers. Held batches stay valid."""
        for iterator in self._iterators.values():
            iterator.close()

    def __repr__(self) -> str:
        return shown(self, **self._iterators)

    @property
    def element_spec(self) -> dict[str, Any]:
        """The schemas of all Datasets, by name: as `penstock.Dataset.element_spec`."""
        return {name: iterator.element_spec for name, iterator in self._iterators.items()}

    def _iterator(self, name: str) -> DatasetIterator:
        try:
            return self._iterators[name]
        except KeyError:
            raise NotFound(f"{name!r}; there are {sorted(self._iterators)}", "Feedable") from None

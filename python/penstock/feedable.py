"""Several Datasets behind one iterator that is switched at any step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base.conventions import Closing, Restorable, shown
from .errors import InvalidArgument, NotFound
from .loader.settings import budget

if TYPE_CHECKING:
    from .dataset import Dataset
    from .dataset.passes import DatasetIterator


class Feedable(Restorable, Closing):
    """Datasets by names, each with a place of its own.

    Switching between them costs nothing: all of them make their batches ahead, each within its part
    of the memory that one Loader would have (``max_bytes``).

    Parameters
    ----------
    **datasets : Dataset
        Such as ``train=..., validation=...``.

    Notes
    -----
    One thread at a time. It is a context manager that closes.

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
                raise InvalidArgument(f"{name} is {dataset!r}, and no Dataset", "Feedable")
        # Each has a Loader of its own, also where one Dataset is given twice.
        part = max(budget() // len(datasets), 1)
        self._iterators: dict[str, DatasetIterator] = {
            name: iter(dataset._alone(max_bytes=part)) for name, dataset in datasets.items()
        }

    def next(self, name: str) -> Any:
        """Return the next batch of a Dataset.

        Raises
        ------
        StopIteration
            Its pass is over; `reset` begins the next one.
        NotFound
            There is none of that name.
        """
        return next(self._iterator(name))

    def rest(self, name: str) -> DatasetIterator:
        """What is left of a Dataset's pass, to iterate over."""
        return self._iterator(name)

    def reset(self, name: str, dataset: Dataset | None = None) -> None:
        """Begin a Dataset's next pass; or put another Dataset in its place."""
        self._iterator(name).reset(dataset)

    def state(self) -> dict[str, Any]:
        """Return all places, as a JSON-able dict by names."""
        return {name: iterator.state() for name, iterator in self._iterators.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken.

        Raises
        ------
        InvalidArgument
            It has other names, or is of other Datasets; nothing was changed.
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
        """End all workers. Batches that are held stay valid."""
        for iterator in self._iterators.values():
            iterator.close()

    def __repr__(self) -> str:
        return shown(self, **self._iterators)

    def _iterator(self, name: str) -> DatasetIterator:
        try:
            return self._iterators[name]
        except KeyError:
            raise NotFound(f"{name!r}; there are {sorted(self._iterators)}", "Feedable") from None

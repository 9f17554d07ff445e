"""One epoch of the torch DataLoader: the iterator of ``for batch in loader``."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..base.conventions import Closing, shown
from ..device.ahead import Ahead
from ..errors import InvalidArgument
from .types import converted, tensors_of
from .worker_set import WorkerSet

if TYPE_CHECKING:
    from ..device.place import Place
    from .data_loader import DataLoader

# The engine's error text begins so if the samples of a batch cannot be rows of the same arrays.
_UNLIKE = "samples of one batch must be alike"


class Iteration(Closing):
    """``for batch in loader``: one epoch."""

    def __init__(self, owner: DataLoader, workers: WorkerSet, epoch: int, lists: Any) -> None:
        self._owner = owner
        self._workers = workers
        self._epoch = epoch
        self._yielded = 0
        self._most = None if owner._is_map else owner._IterableDataset_len_called
        self._pins = owner.pin_memory and owner._place is None and torch.cuda.is_available()
        workers.lists.open(epoch, lists)
        workers.iteration = weakref.ref(self)
        self._batches: Iterator[Any] = iter(workers.loader)

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        workers = self._workers
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end()
            raise
        except InvalidArgument as error:
            if workers.collates or not str(error).startswith(_UNLIKE):
                self._end()
                raise
            self._batches = workers.collate_from_now_on()
            return next(self)
        except BaseException:
            self._end()
            raise
        if not workers.collates:
            batch = tensors_of(batch) if self._owner._auto_collation else converted(batch)
        if self._pins:
            from torch.utils.data._utils.pin_memory import pin_memory

            batch = pin_memory(batch)
        self._yielded += 1
        self._check_length()
        return batch

    def __repr__(self) -> str:
        return shown(self, self._owner, epoch=self._epoch)

    @property
    def element_spec(self) -> Any:
        """As for the DataLoader."""
        return self._owner.element_spec

    def close(self) -> None:
        """End this iteration, as a ``break`` does. The workers stay alive."""
        self._batches = iter(())
        self._end()

    def gave_all(self) -> bool:
        """Whether its last batch was taken; callers that know the length do not request more."""
        return self._workers.loader.epoch > self._epoch

    def __len__(self) -> int:
        return len(self._owner._index_sampler)

    def _check_length(self) -> None:
        if self._most is None or self._yielded <= self._most:
            return
        import warnings

        warnings.warn(
            f"Length of IterableDataset {self._owner.dataset} was reported to be {self._most} "
            f"(when accessing len(dataloader)), but {self._yielded} samples have been fetched. "
            "With several workers, each must yield a share of its own: see get_worker_info()",
            stacklevel=3,
        )

    def _end(self) -> None:
        workers = self._workers
        # In __del__ the weak reference to self is dead already. A later iteration must not be ended
        # here.
        if workers.iteration is not None and workers.iteration() in (None, self):
            workers.iteration = None
            self._owner._gone(workers)

    def __del__(self) -> None:
        if hasattr(self, "_workers"):
            self._end()


class PlacedIteration(Closing):
    """``for batch in loader`` with a device: the next batches are on their way to it."""

    def __init__(self, host: Iteration, workers: WorkerSet, epoch: int, place: Place) -> None:
        self._host = host
        self._ahead = Ahead(host._owner.ahead)
        workers.ahead = weakref.ref(self._ahead)
        self._batches = self._ahead.run(
            lambda: workers.loader, host, epoch, place.send, place.deliver
        )

    def __iter__(self) -> PlacedIteration:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._host)

    def __repr__(self) -> str:
        return repr(self._host)

    def close(self) -> None:
        """End this iteration, as a ``break`` does. The workers stay alive."""
        self._ahead.leave()
        self._batches = iter(())
        self._host.close()

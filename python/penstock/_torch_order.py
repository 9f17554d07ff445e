"""The indices of an epoch: drawn as torch draws them, and again where that is needed."""

from __future__ import annotations

import base64
import itertools
import threading
from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler

if TYPE_CHECKING:
    from .torch import DataLoader


class Lists:
    """A sampler's lists of an epoch, as the engine asks for them; it may ask again for recent ones.

    Parameters
    ----------
    window : int
        Lists that may have been asked for and not been delivered as batches.
    """

    def __init__(self, window: int) -> None:
        self._recent: deque[Any] = deque(maxlen=window)
        self._taken = 0
        self._source: Iterator[Any] = iter(())
        self._ahead: list[Any] = []  # asked for, and not taken yet: one at most
        self._lock = threading.Lock()  # of the sampler: a state asks it as well as the engine
        self.rows: int | None = None  # indices must be of so many rows

    def open(self, epoch: int, lists: Iterator[Any] | None) -> None:
        self._recent.clear()
        self._taken = 0
        self._ahead = []
        self._source = iter(()) if lists is None else lists

    def __call__(self, epoch: int) -> Iterator[Any]:
        # Only the engine counts steps: what was delivered long ago just takes its place.
        for _ in range(self._taken - len(self._recent)):
            yield ()
        yield from list(self._recent)
        while not self._ended():
            item = self._ahead.pop()
            if self.rows is not None:
                item = _checked(item, self.rows)
            self._recent.append(item)
            self._taken += 1
            yield item

    def ends_after(self, steps: int) -> bool:
        """Whether the sampler has so many lists and no more."""
        return self._ended() and self._taken == steps

    def _ended(self) -> bool:
        with self._lock:
            if not self._ahead:
                self._ahead = list(itertools.islice(self._source, 1))
            return not self._ahead


def _checked(indices: Any, rows: int) -> Any:
    """Say of indices what indexing a tensor with them would say."""
    array = np.asarray(indices)
    if array.size == 0 or array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"rows of tensors are taken by integers, not by {indices!r:.100}")
    if array.min() < -rows or array.max() >= rows:
        wrong = array[(array < -rows) | (array >= rows)][0]
        raise IndexError(f"index {wrong} is out of bounds for a dataset of {rows}")
    return np.where(array < 0, array + rows, array) if array.min() < 0 else array


class Order:
    """Begins a sampler's epoch so that its order can be had again; `drawn` is what that takes."""

    def __init__(self) -> None:
        self.drawn: int | str | None = None
        self._before: str | None = None

    def begin(self, owner: DataLoader) -> Iterator[Any]:
        if _draws_its_seed(owner.sampler):
            return iter(())  # see draw()
        self._before = generator_state(owner._index_sampler)
        return iter(owner._index_sampler)

    def draw(self, owner: DataLoader, lists: Iterator[Any], again: Any) -> Iterator[Any]:
        """Make what `RandomSampler` would draw at its first index; or take what it drew then."""
        sampler = owner.sampler
        self.drawn = again
        if _draws_its_seed(sampler):
            if again is None:
                self.drawn = int(torch.empty((), dtype=torch.int64).random_().item())
            generator = torch.Generator()
            generator.manual_seed(self.drawn)
            sampler = RandomSampler(
                sampler.data_source, sampler.replacement, sampler._num_samples, generator
            )
            if not owner._auto_collation:
                lists = iter(sampler)
            elif sampler.replacement:
                lists = iter(BatchSampler(sampler, owner.batch_size, owner.drop_last))
            else:
                lists = _slices(sampler, owner.batch_size, owner.drop_last)
        elif _generator_of(owner._index_sampler) is not None:
            # Most samplers draw at their first index, and some at once.
            at_first = isinstance(lists, Generator)
            if again is None:
                self.drawn = generator_state(owner._index_sampler) if at_first else self._before
            else:
                set_generator(owner._index_sampler, again)
                lists = lists if at_first else iter(owner._index_sampler)
        return lists if owner._auto_collation else ([index] for index in lists)


def generator_state(sampler: Any) -> str | None:
    """What the orders to come depend on, where that is a generator of the sampler's own."""
    generator = _generator_of(sampler)
    if generator is None:
        return None
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def set_generator(sampler: Any, coded: str | None) -> None:
    generator = _generator_of(sampler)
    if generator is None or coded is None:
        return
    state = np.frombuffer(base64.b64decode(coded), np.uint8).copy()
    generator.set_state(torch.from_numpy(state))


def base_seed(generator: torch.Generator | None) -> int:
    """Draw what an iteration of torch's draws before all else."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def base_seed_to_come(generator: torch.Generator | None) -> int:
    copy = torch.Generator()
    copy.set_state((torch.default_generator if generator is None else generator).get_state())
    return base_seed(copy)


def _slices(sampler: Any, batch_size: int, drop_last: bool) -> Iterator[Any]:
    """Batches of a RandomSampler without replacement: its numbers, in arrays instead of lists."""
    rows, wanted = len(sampler.data_source), sampler.num_samples
    passes = [torch.randperm(rows, generator=sampler.generator) for _ in range(-(-wanted // rows))]
    order = (passes[0] if len(passes) == 1 else torch.cat(passes))[:wanted].numpy()
    end = wanted - wanted % batch_size if drop_last else wanted
    for at in range(0, end, batch_size):
        yield order[at : at + batch_size]


def _draws_its_seed(sampler: Any) -> bool:
    return type(sampler) is RandomSampler and sampler.generator is None


def _generator_of(sampler: Any) -> torch.Generator | None:
    """That of a sampler, or of the one that it makes batches of."""
    for _ in range(8):  # one within another
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            return generator
        sampler = getattr(sampler, "sampler", None)
    return None

"""The indices of an epoch: drawn as torch draws them, and drawn again after a restore."""

from __future__ import annotations

import base64
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler

if TYPE_CHECKING:
    from .data_loader import DataLoader


_END = object()


def _each(iterator: Iterator[Any]) -> Iterator[Any]:
    """Iterate over an iterator without calling its ``__iter__``, which may restart it."""
    while (item := next(iterator, _END)) is not _END:
        yield item


class Lists:
    """A sampler's lists of an epoch, for the engine, which may request recent lists again.

    Parameters
    ----------
    window : int
        The largest number of requested lists whose batches are not delivered.
    """

    def __init__(self, window: int) -> None:
        self._recent: deque[Any] = deque(maxlen=window)
        self._taken = 0
        self._source: Iterator[Any] = iter(())
        self._ahead: list[Any] = []  # read from the sampler, not taken yet: at most one
        self._lock = threading.Lock()  # of the sampler: the engine and a state read it
        self.rows: int | None = None  # number of rows that indices are checked against

    def open(self, epoch: int, lists: Iterator[Any] | None) -> None:
        self._recent.clear()
        self._taken = 0
        self._ahead = []
        self._source = iter(()) if lists is None else lists

    def __call__(self, epoch: int) -> Iterator[Any]:
        # The engine skips lists by counting, so old lists are replaced by empty ones.
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
        """Whether the sampler has exactly this many lists."""
        return self._ended() and self._taken == steps

    def _ended(self) -> bool:
        with self._lock:
            if not self._ahead:
                self._ahead = [item for item in (next(self._source, _END),) if item is not _END]
            return not self._ahead


def _checked(indices: Any, rows: int) -> Any:
    """Check indices, with the errors of indexing a tensor."""
    array = np.asarray(indices)
    if array.size == 0 or array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"rows of tensors are taken by integers, not by {indices!r:.100}")
    if array.min() < -rows or array.max() >= rows:
        wrong = array[(array < -rows) | (array >= rows)][0]
        raise IndexError(f"index {wrong} is out of bounds for a dataset of {rows}")
    return np.where(array < 0, array + rows, array) if array.min() < 0 else array


class Order:
    """Begins a sampler's epoch so that its order can be repeated from `drawn`.

    For a RandomSampler without a generator, `drawn` is the seed that it draws; otherwise the states
    of the generators before the epoch. The states are set before any draw of the epoch. torch draws
    in ``__iter__``, then the base seed (perhaps from the same generator), then at the first index.
    """

    def __init__(self) -> None:
        self.drawn: int | dict[str, Any] | None = None

    def begin(self, owner: DataLoader, again: Any, base_seed: bool) -> Iterator[Any]:
        """Begin an epoch, or repeat the epoch of `again`; `base_seed`: one is drawn next."""
        sampler = owner._index_sampler
        self.drawn = again
        if _draws_its_seed(sampler):
            return iter(())  # see draw()
        if again is None:
            states = generator_states(sampler)
            if states is not None:
                self.drawn = {"generators": states, "base_seed": base_seed}
        else:
            set_generators(sampler, again["generators"])
        return iter(sampler)

    def draw(self, owner: DataLoader, lists: Iterator[Any]) -> Iterator[Any]:
        """Make the draws of `RandomSampler` at its first index, or repeat recorded ones."""
        if _draws_its_seed(owner._index_sampler):
            if self.drawn is None:
                self.drawn = int(torch.empty((), dtype=torch.int64).random_().item())
            generator = torch.Generator()
            generator.manual_seed(self.drawn)
            sampler = _seeded(owner._index_sampler, generator)
            rows: Any = getattr(sampler, "sampler", None)
            if owner._auto_collation and type(rows) is RandomSampler and not rows.replacement:
                lists = _slices(rows, sampler.batch_size, sampler.drop_last)
            else:
                lists = iter(sampler)
        return lists if owner._auto_collation else ([index] for index in _each(lists))


def is_drawn(sampler: Any) -> bool:
    """Whether `Order.drawn` records the draws of each epoch of this sampler."""
    return _draws_its_seed(sampler) or bool(_generators_of(sampler))


def is_of(sampler: Any, drawn: Any) -> bool:
    """Whether `drawn` is valid for an epoch of this sampler."""
    if drawn is None:
        return True
    if _draws_its_seed(sampler):
        return isinstance(drawn, int)
    if not isinstance(drawn, dict) or not isinstance(drawn.get("base_seed"), bool):
        return False
    return are_of(sampler, drawn.get("generators"))


def are_of(sampler: Any, states: Any) -> bool:
    return isinstance(states, list) and len(states) == len(_generators_of(sampler))


def generator_states(sampler: Any) -> list[str] | None:
    """The states of the sampler's own generators, which determine later orders; or None."""
    states = [generator.get_state() for generator in _generators_of(sampler)]
    return [base64.b64encode(state.numpy().tobytes()).decode() for state in states] or None


def set_generators(sampler: Any, coded: list[str] | None) -> None:
    for generator, text in zip(_generators_of(sampler), coded or (), strict=False):
        state = np.frombuffer(base64.b64decode(text), np.uint8).copy()
        generator.set_state(torch.from_numpy(state))


def base_seed(generator: torch.Generator | None) -> int:
    """Draw the base seed, as the start of an iteration of torch does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def base_seed_to_come(generator: torch.Generator | None) -> int:
    copy = torch.Generator()
    copy.set_state((torch.default_generator if generator is None else generator).get_state())
    return base_seed(copy)


def _slices(sampler: Any, batch_size: int, drop_last: bool) -> Iterator[Any]:
    """Batches of a RandomSampler without replacement: the same indices, as arrays."""
    rows, wanted = len(sampler.data_source), sampler.num_samples
    passes = [torch.randperm(rows, generator=sampler.generator) for _ in range(-(-wanted // rows))]
    order = (passes[0] if len(passes) == 1 else torch.cat(passes))[:wanted].numpy()
    end = wanted - wanted % batch_size if drop_last else wanted
    for at in range(0, end, batch_size):
        yield order[at : at + batch_size]


def _draws_its_seed(sampler: Any) -> bool:
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return type(sampler) is RandomSampler and sampler.generator is None


def _seeded(sampler: Any, generator: torch.Generator) -> Any:
    """Return a copy of a RandomSampler with a generator, and of BatchSamplers around it."""
    if type(sampler) is BatchSampler:
        inner = _seeded(sampler.sampler, generator)
        return BatchSampler(inner, sampler.batch_size, sampler.drop_last)
    return RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, generator)


def _generators_of(sampler: Any) -> list[torch.Generator]:
    """The generators of a sampler and of its inner samplers, each once."""
    found: list[torch.Generator] = []
    for _ in range(8):  # nested samplers
        generator = _attribute(sampler, "generator")
        if isinstance(generator, torch.Generator) and not any(generator is g for g in found):
            found.append(generator)
        sampler = _attribute(sampler, "sampler")
    return found


def _attribute(sampler: Any, name: str) -> Any:
    try:
        return getattr(sampler, name, None)
    except Exception:  # of a property; a state must not raise it
        return None

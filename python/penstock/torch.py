"""torch's DataLoader, with penstock's workers behind it.

>>> import penstock
>>> loader = penstock.torch.DataLoader(dataset, batch_size=64, num_workers=8, shuffle=True)
>>> for x, y in loader: ...

It is a `torch.utils.data.DataLoader`: the same arguments, checks, attributes, order and types of
batches. What differs is that workers are spawned once and live on, that samples are written into
their batch in place, and that tensors are views of memory that workers wrote.
"""

from __future__ import annotations

import base64
import operator
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data._utils import collate as torch_collate

from . import _interop
from ._plan import Plan
from ._torch_worker import Collated, Start, Streams
from .errors import Closed, InvalidArgument
from .loader import Loader

__all__ = ["DataLoader"]

_STATE_VERSION = 1
# How the engine begins to say that the samples of a batch cannot be rows of the same arrays.
_UNLIKE = "samples of one batch must be alike"
_STANDARD_COLLATE = dict(torch_collate.default_collate_fn_map)


class DataLoader(torch.utils.data.DataLoader):  # type: ignore[misc]
    """A `torch.utils.data.DataLoader` fed by penstock.

    Parameters
    ----------
    dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory
        As in torch.
    drop_last, worker_init_fn, generator, prefetch_factor, pin_memory_device, in_order
        As in torch.
    timeout : float
        Seconds that one batch may take to be made. The worker is then killed and replaced.
    multiprocessing_context : str or context, optional
        How workers start; None is ``"spawn"``.
    persistent_workers : bool
        Workers live on either way. False: what was changed in the dataset since the last epoch is
        sent to them when an epoch begins. True: their copy stays as it is.
    seed : int, optional
        The order of ``shuffle=True`` is then penstock's (no memory, the same everywhere), and so is
        all that is drawn in workers. By default both come from torch's generators.
    use_threads : bool
        Threads instead of processes.
    on_error, retries, max_bytes
        As for `penstock.Loader`.

    Notes
    -----
    In worker processes, NumPy's, Python's and torch's generators are keyed by (seed, epoch, index):
    samples are the same for any number of workers. Without ``seed``, the seed is drawn from torch's
    generator when the loader is first iterated over.
    """

    _lines: list[_Line]
    _latest: _Line | None
    _order: _Order
    _resumed: dict[str, Any] | None
    _epoch: int  # of the next iteration
    _key: int | None  # the seed of all that is drawn in workers
    _closed: bool

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        use_threads: bool = False,
        on_error: str = "raise",
        retries: int = 0,
        max_bytes: int | None = None,
    ) -> None:
        if isinstance(dataset, (torch.utils.data.IterDataPipe, torch.utils.data.MapDataPipe)):
            raise InvalidArgument("data pipes need torch's own DataLoader", "DataLoader")
        if use_threads and worker_init_fn is not None:
            raise InvalidArgument("worker_init_fn is for worker processes", "DataLoader")
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        self.in_order = in_order
        self.seed = seed
        self.use_threads = use_threads
        self.on_error = on_error
        self.retries = retries
        self.max_bytes = max_bytes
        # None: the order is the engine's own, and nobody needs to make lists of indices.
        self._lists_of: Iterable[Any] | None = self._index_sampler if self._is_map else None
        self._engine_shuffles = False
        if self._is_map and type(self.batch_sampler) is BatchSampler and batch_sampler is None:
            engine_shuffles = bool(shuffle) and seed is not None
            if engine_shuffles or (type(self.sampler) is SequentialSampler and sampler is None):
                self._lists_of = None
                self._engine_shuffles = engine_shuffles
        self._collates = not self._is_default_collate()
        self._forget()

    # ---- what torch's attributes say

    @property
    def _is_map(self) -> bool:
        return not isinstance(self.dataset, torch.utils.data.IterableDataset)

    def _is_default_collate(self) -> bool:
        """Whether rows may be written in place: nobody changed what default_collate does."""
        if not self._auto_collation:
            return bool(self.collate_fn is torch_collate.default_convert)
        known = torch_collate.default_collate_fn_map
        return bool(
            self.collate_fn is torch_collate.default_collate
            and all(known.get(kind) is function for kind, function in _STANDARD_COLLATE.items())
        )

    def _mode(self) -> dict[str, Any]:
        context = self.multiprocessing_context
        method = None if context is None else context.get_start_method(allow_none=True)
        return {
            "workers": self.num_workers,
            "use_multiprocessing": not self.use_threads and self.num_workers > 0,
            "start_method": method or "spawn",
            # In line, the sampler is asked for no more than what is needed now, as in torch.
            "max_queue_size": max((self.prefetch_factor or 0) * self.num_workers, 1),
            "timeout": self.timeout or None,
        }

    # ---- iterating

    def __iter__(self) -> Any:
        if self._closed:
            raise Closed("the loader was closed", "DataLoader")
        # In torch's order of draws: the sampler's own, the base seed, the shuffle's.
        lists = None if self._lists_of is None else self._order.begin(self)
        resumed, self._resumed = self._resumed, None
        if not (self.persistent_workers and self._lines):
            base_seed = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            if self._key is None:
                self._key = int(base_seed.item())
        if lists is not None:
            lists = self._order.draw(self, lists, None if resumed is None else resumed["order"])
        line = self._idle_line()
        epoch = self._epoch
        self._epoch += 1
        if resumed is not None:
            line.loader.restore(resumed["loader"])
        else:
            line.go_to(epoch)
        self._latest = line
        return _Iteration(self, line, epoch, lists)

    def _idle_line(self) -> _Line:
        for line in list(self._lines):
            if not line.is_for(self.dataset):
                self._lines.remove(line)
                line.loader.close()
            elif self.persistent_workers or not line.busy():
                return line
        line = _Line(self)
        self._lines.append(line)
        return line

    def _gone(self, line: _Line) -> None:
        """Keep one set of workers for the next epoch; more are for iterations side by side."""
        if line in self._lines and len(self._lines) > 1 and line is not self._latest:
            self._lines.remove(line)
            line.loader.close()

    # ---- place

    def state(self) -> dict[str, Any]:
        """Return the position in the latest iteration: a small JSON-able dict.

        Exact for any order that is the engine's (``seed=``, or no shuffle) or a `RandomSampler`'s;
        another sampler is run again up to the place, so its order must not depend on anything but
        ``set_epoch``.
        """
        if self._resumed is not None:
            return dict(self._resumed)
        line = self._latest
        if line is None:
            line = self._latest = self._idle_line()
        place = line.loader.state()
        inside = place["batches"] > 0 or place["ahead"]
        return {
            "version": _STATE_VERSION,
            "loader": place,
            "order": self._order.drawn if inside else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken.

        Raises
        ------
        InvalidArgument
            The state is of a loader with another seed, batch size or dataset length.
        """
        if not isinstance(state, dict) or state.get("version") != _STATE_VERSION:
            raise InvalidArgument("this is no state of a DataLoader, or of another version")
        self.close()
        self._forget()
        if self.seed is None:
            self._key = state["loader"]["seed"]
        line = self._idle_line()
        line.loader.restore(state["loader"])
        self._resumed = dict(state)
        self._latest = line
        self._epoch = state["loader"]["epoch"]

    # ---- looking, ending

    def stats(self) -> dict[str, Any]:
        """Return what was counted so far, as `penstock.Loader.stats` does."""
        return self._any_loader().stats()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows what each worker did and what the bottleneck is."""
        self._any_loader().report(path)

    def analysis(self) -> dict[str, Any]:
        """Say what the bottleneck is and what to change."""
        return self._any_loader().analysis()

    def _any_loader(self) -> Loader:
        line = self._latest
        if line is None:
            raise InvalidArgument("nothing was iterated over yet", "DataLoader")
        return line.loader

    def close(self) -> None:
        """End the workers. Batches that are held stay valid."""
        self._closed = True
        for line in self._lines:
            line.loader.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self) -> None:
        self._lines = []
        self._latest = None
        self._order = _Order()
        self._resumed = None
        self._epoch = 0
        self._key = self.seed
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {
            "_lines": [],
            "_latest": None,
            "_order": _Order(),
            "_resumed": None,
        }
        return {**self.__dict__, **fresh}


# ---- one epoch ---------------------------------------------------------------------------------


class _Iteration:
    """``for batch in loader``: one epoch."""

    def __init__(self, owner: DataLoader, line: _Line, epoch: int, lists: Any) -> None:
        self._owner = owner
        self._line = line
        self._epoch = epoch
        self._yielded = 0
        self._most = None if owner._is_map else owner._IterableDataset_len_called
        self._pins = owner.pin_memory and torch.cuda.is_available()
        line.lists.open(epoch, lists)
        line.iteration = weakref.ref(self)
        self._batches = iter(line.loader)

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        line = self._line
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end()
            raise
        except InvalidArgument as error:
            if line.collates or not str(error).startswith(_UNLIKE):
                self._end()
                raise
            self._batches = line.collate_from_now_on(error)
            return next(self)
        except BaseException:
            self._end()
            raise
        if not line.collates:
            batch = _tensors(batch) if self._owner._auto_collation else _converted(batch)
        if self._pins:
            from torch.utils.data._utils.pin_memory import pin_memory

            batch = pin_memory(batch)
        self._yielded += 1
        self._check_length()
        return batch

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
        self._line.iteration = None
        self._owner._gone(self._line)

    def __del__(self) -> None:
        line = getattr(self, "_line", None)
        if line is not None and line.iteration is not None and line.iteration() in (None, self):
            self._end()


class _Line:
    """A Loader for one iteration at a time, and whether its workers collate."""

    def __init__(self, owner: DataLoader) -> None:
        self.lists = _Lists(4 * (owner.num_workers + 1) + 4 * (owner.prefetch_factor or 0))
        self.collates = owner._collates
        self.iteration: weakref.ref[_Iteration] | None = None
        self.tensors = None if self.collates else _columns_of(owner)
        self._make = _maker(owner, self.lists, self.tensors)
        self.loader = self._make(self.collates)

    def is_for(self, dataset: Any) -> bool:
        """Whether the tensors that are gathered are the dataset's still."""
        if self.tensors is None:
            return True
        now = dataset.tensors
        return len(now) == len(self.tensors) and all(map(operator.is_, now, self.tensors))

    def busy(self) -> bool:
        return self.iteration is not None and self.iteration() is not None

    def go_to(self, epoch: int) -> None:
        state = self.loader.state()
        if (state["epoch"], state["batches"]) != (epoch, 0) or state["ahead"]:
            self.loader.restore({**state, "epoch": epoch, "batches": 0, "ahead": []})

    def collate_from_now_on(self, error: Exception) -> Iterator[Any]:
        """Make batches with default_collate, from the one on that could not be made of rows.

        It stacks what rows cannot be (numbers and arrays of several types, dicts in another order),
        and says in torch's words what cannot be stacked.
        """
        place = self.loader.state()
        self.loader.close()
        self.collates = True
        self.loader = self._make(True)
        self.loader.restore(place)
        return iter(self.loader)


def _columns_of(owner: DataLoader) -> tuple[Any, ...] | None:
    """The tensors of a dataset whose samples are rows of tensors, to be gathered natively."""
    dataset = owner.dataset
    if type(dataset) is not torch.utils.data.TensorDataset or not owner._auto_collation:
        return None
    if owner.worker_init_fn is not None or not dataset.tensors or len(dataset) == 0:
        return None
    for tensor in dataset.tensors:
        if type(tensor) is not torch.Tensor or _interop.array_of_tensor(tensor) is None:
            return None
        if not tensor[:1].is_contiguous():
            return None
    return tuple(dataset.tensors)


def _maker(
    owner: DataLoader, lists: _Lists, tensors: tuple[Any, ...] | None
) -> Callable[[bool], Loader]:
    """How to make a line's Loader; holds on to nothing that leads back to the DataLoader."""
    dataset = owner.dataset
    collate_fn = owner.collate_fn
    samples = owner._auto_collation
    rows = owner.batch_size or getattr(owner.batch_sampler, "batch_size", None) or 64
    if owner._key is None:
        owner._key = int(torch.empty((), dtype=torch.int64).random_(generator=owner.generator))
    known = torch_collate.default_collate_fn_map
    added = {kind: f for kind, f in known.items() if _STANDARD_COLLATE.get(kind) is not f}
    start = Start(dataset, owner.num_workers, owner._key, owner.worker_init_fn, added)
    options = {
        **owner._mode(),
        "seed": owner._key,
        "shuffle": owner._engine_shuffles,
        "drop_last": owner.drop_last,
        "batch_size": rows if samples else None,
        "ordered": owner.in_order,
        "on_error": owner.on_error,
        "retries": owner.retries,
        "max_bytes": owner.max_bytes,
    }
    is_map, listed, threads = owner._is_map, owner._lists_of is not None, owner.use_threads
    tracked = None if owner.persistent_workers else dataset
    title = type(dataset).__name__

    def make(collates: bool) -> Loader:
        one_by_one = collate_fn if collates and not samples else None
        plan = Plan("map", dataset, title, hooked=tracked, initialise=start, paused=True)
        if not is_map:
            plan.kind = "stream"
            plan.source = Streams(dataset, one_by_one)
            # Threads share one copy of the dataset, which cannot know whose share it is to yield.
            plan.streams = 1 if threads else max(options["workers"], 1)
        else:
            plan.length = len(dataset) if hasattr(dataset, "__len__") else 0
            if listed:
                plan.kind, plan.begin, plan.most_rows = "listed", lists, rows if samples else 1
            if tensors is not None and not collates:
                plan.kind, plan.sample = "columns", tuple(tensor[0] for tensor in tensors)
                pairs = [_interop.array_of_tensor(tensor) for tensor in tensors]
                plan.arrays = [pair[0] for pair in pairs if pair is not None]
                lists.rows = plan.length
            if one_by_one is not None:
                plan.source = Collated(dataset, one_by_one)
        collate = collate_fn if collates and samples else None
        return Loader(plan, collate=collate, **options)

    return make


# ---- order -------------------------------------------------------------------------------------


class _Lists:
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
        self.rows: int | None = None  # indices must be of so many rows

    def open(self, epoch: int, lists: Iterator[Any] | None) -> None:
        self._recent.clear()
        self._taken = 0
        self._source = iter(()) if lists is None else lists

    def __call__(self, epoch: int) -> Iterator[Any]:
        # Only the engine counts steps: what was delivered long ago just takes its place.
        for _ in range(self._taken - len(self._recent)):
            yield ()
        yield from list(self._recent)
        for item in self._source:
            if self.rows is not None:
                item = _checked(item, self.rows)
            self._recent.append(item)
            self._taken += 1
            yield item


def _checked(indices: Any, rows: int) -> Any:
    """Say of indices what indexing a tensor with them would say."""
    array = np.asarray(indices)
    if array.size == 0 or array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"rows of tensors are taken by integers, not by {indices!r:.100}")
    if array.min() < -rows or array.max() >= rows:
        wrong = array[(array < -rows) | (array >= rows)][0]
        raise IndexError(f"index {wrong} is out of bounds for a dataset of {rows}")
    return np.where(array < 0, array + rows, array) if array.min() < 0 else array


class _Order:
    """Begins a sampler's epoch so that its order can be had again; `drawn` is what that takes."""

    def __init__(self) -> None:
        self.drawn: int | str | None = None

    @staticmethod
    def begin(owner: DataLoader) -> Iterator[Any]:
        if _draws_its_seed(owner.sampler):
            return iter(())  # see draw()
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
        elif type(sampler) is RandomSampler and isinstance(sampler.generator, torch.Generator):
            if again is None:
                state = sampler.generator.get_state().numpy().tobytes()
                self.drawn = base64.b64encode(state).decode()
            else:
                state = np.frombuffer(base64.b64decode(again), np.uint8).copy()
                sampler.generator.set_state(torch.from_numpy(state))
        return lists if owner._auto_collation else ([index] for index in lists)


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


# ---- types -------------------------------------------------------------------------------------


def _tensors(nest: Any, in_sequence: bool = False) -> Any:
    """Turn a batch of the engine's (arrays, lists of what is no array) into default_collate's."""
    kind = type(nest)
    if kind is np.ndarray:
        return torch.from_numpy(nest)
    if kind is tuple:
        return [_tensors(value, True) for value in nest]
    if kind is dict:
        return {key: _tensors(value) for key, value in nest.items()}
    if kind is list:
        if nest and _is_column(nest[0]):
            values = tuple(nest) if in_sequence else nest
            return values if isinstance(nest[0], (str, bytes)) else _collated(values)
        return [_tensors(value, True) for value in nest]
    if isinstance(nest, tuple):  # a named one
        return kind(*(_tensors(value, True) for value in nest))
    return nest


def _is_column(value: Any) -> bool:
    """Whether a list that begins so has an object of each sample, and is no sample that was a list.

    The engine makes no object of what can be a row or be taken apart.
    """
    kind = type(value)
    if kind is np.ndarray:
        return bool(value.ndim == 0 or value.dtype.hasobject or value.dtype.kind == "T")
    if kind in (list, dict) or isinstance(value, tuple):
        return False
    return not isinstance(value, torch.Tensor) or _interop.array_of_tensor(value) is None


def _collated(values: Any) -> Any:
    return torch_collate.default_collate(values)


def _converted(item: Any) -> Any:
    return torch_collate.default_convert(item)

"""torch's DataLoader, with penstock's workers behind it.

>>> import penstock
>>> loader = penstock.torch.DataLoader(dataset, batch_size=64, num_workers=8, shuffle=True)
>>> for x, y in loader: ...

It is a `torch.utils.data.DataLoader`: the same arguments, checks, attributes, order and types of
batches. Differences: workers are spawned once and stay alive, samples are written into their batch
in place, and tensors are views of memory that workers wrote.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data._utils import collate as torch_collate

from ..base.arguments import MOST_QUEUED, integer, old_names
from ..base.conventions import Closing, Restorable, name_of, shown
from ..dataset import Dataset
from ..device.place import Place, stats_of, torch_place
from ..errors import Closed, InvalidArgument
from ..train.torch_module import Aliased, alias
from .accelerate import keep_loaders
from .element_spec import spec_of_loader
from .epoch import Iteration, PlacedIteration
from .order import (
    Order,
    are_of,
    base_seed,
    generator_states,
    is_drawn,
    is_of,
    set_generators,
)
from .types import STANDARD_COLLATE
from .worker_set import WorkerSet

__all__ = ["Aliased", "DataLoader", "alias"]

_STATE_VERSION = 2


class DataLoader(Restorable, Closing, torch.utils.data.DataLoader):  # type: ignore[misc]
    """A `torch.utils.data.DataLoader` fed by penstock.

    Parameters
    ----------
    dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory
        As in torch.
    drop_last, worker_init_fn, generator, prefetch_factor, pin_memory_device, in_order
        As in torch.
    timeout : float
        Maximum seconds to make one batch. A worker that takes longer is killed and replaced.
    multiprocessing_context : str or context, optional
        How workers start; None is ``"spawn"``.
    persistent_workers : bool
        Workers always stay alive. False: changes of the dataset since the last epoch are sent to
        them when an epoch begins. True: their copy is never updated.
    seed : int, optional
        The seed of penstock's order for ``shuffle=True`` (it takes no memory, and is the same on
        every machine), and of the random numbers in workers. By default both depend on torch's
        generators.
    use_multiprocessing : bool
        False: workers are threads. Ignored with ``num_workers=0``.
    on_error, retries, max_bytes
        As for `penstock.Loader`.
    device : str or torch.device, optional
        Where tensors are, such as ``"cuda:0"``; ``pin_memory`` is not needed then. None, and
        ``"cpu"``: in memory.
    ahead : int
        With a device: batches that may be on their way to it, or there, besides the one in use.

    Notes
    -----
    In worker processes, NumPy's, Python's and torch's generators are keyed by (seed, epoch, index):
    samples are the same for any number of workers. Without ``seed``, the seed is drawn from torch's
    generator when the loader is first iterated over.
    """

    __class_getitem__: Any = classmethod(types.GenericAlias)

    _worker_sets: list[WorkerSet]
    _latest: WorkerSet | None
    _order: Order
    _resumed: dict[str, Any] | None
    _epoch: int  # of the next iteration
    _key: int | None  # the seed of all random numbers in workers
    _closed: bool

    @old_names({True: False, False: True}, use_threads="use_multiprocessing")
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
        use_multiprocessing: bool = True,
        on_error: str = "raise",
        retries: int = 0,
        max_bytes: int | None = None,
        device: Any = None,
        ahead: int = 2,
    ) -> None:
        pipes = [getattr(torch.utils.data, f"{kind}DataPipe", ()) for kind in ("Iter", "Map")]
        if any(isinstance(dataset, kind) for kind in pipes):
            raise InvalidArgument("data pipes need torch's own DataLoader", "DataLoader")
        if isinstance(dataset, Dataset):
            raise InvalidArgument(
                "a penstock.Dataset determines batching and shuffling itself: feed it by "
                "penstock.torch.feed(dataset)",
                "DataLoader",
            )
        if not use_multiprocessing and worker_init_fn is not None:
            raise InvalidArgument(
                "worker_init_fn needs worker processes: use_multiprocessing=True", "DataLoader"
            )
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
        self.use_multiprocessing = bool(use_multiprocessing)
        self.on_error = on_error
        self.retries = retries
        self.max_bytes = max_bytes
        self.device = device
        self.ahead = integer("ahead", ahead, 0, 1 << 10, operation="DataLoader")
        place = self._place
        if place is not None and self._mode()["use_multiprocessing"]:
            place.check_start_method(self._mode()["start_method"])
        # None: the engine computes the order, and no lists of indices are needed.
        self._lists_of: Iterable[Any] | None = self._index_sampler if self._is_map else None
        self._engine_shuffles = False
        if self._is_map and batch_sampler is None:
            self._engine_shuffles = bool(shuffle) and seed is not None
            in_rows = self._auto_collation and sampler is None
            if self._engine_shuffles or (in_rows and type(self.sampler) is SequentialSampler):
                self._lists_of = None
        self._covers = batch_sampler is None and self._sampler_covers()
        self._forget()
        keep_loaders(_is_ours)

    # ---- what torch's attributes say

    @property
    def _place(self) -> Place | None:
        """Where batches go; made again in a process that unpickled the loader."""
        made = self.__dict__.get("_placed")
        if made is None or made[0] != self.device:
            made = self.__dict__["_placed"] = self.device, torch_place(self.device)
        return made[1]

    @property
    def _is_map(self) -> bool:
        return not isinstance(self.dataset, torch.utils.data.IterableDataset)

    def _sampler_covers(self) -> bool:
        """Whether each epoch is known to have every index of the dataset."""
        sampler = self.sampler
        if type(sampler) is RandomSampler:
            whole = not sampler.replacement and sampler.num_samples >= len(sampler.data_source)
        else:
            whole = type(sampler) is SequentialSampler
        return whole and sampler.data_source is self.dataset

    def _is_default_collate(self) -> bool:
        """Whether rows may be written in place: default_collate is unchanged."""
        if not self._auto_collation:
            return bool(self.collate_fn is torch_collate.default_convert)
        known = torch_collate.default_collate_fn_map
        return bool(
            self.collate_fn is torch_collate.default_collate
            and all(known.get(kind) is function for kind, function in STANDARD_COLLATE.items())
        )

    def _mode(self) -> dict[str, Any]:
        context = self.multiprocessing_context
        method = None if context is None else context.get_start_method(allow_none=True)
        return {
            "workers": self.num_workers,
            "use_multiprocessing": self.use_multiprocessing and self.num_workers > 0,
            "start_method": method or "spawn",
            # In line, only the indices that are needed now are requested, as in torch.
            "max_queue_size": min(
                max((self.prefetch_factor or 0) * self.num_workers, 1), MOST_QUEUED
            ),
            "timeout": self.timeout or None,
        }

    # ---- iterating

    def __iter__(self) -> Any:
        if self._closed:
            raise Closed("the loader was closed", "DataLoader")
        resumed, self._resumed = self._resumed, None
        again = None if resumed is None else resumed["order"]
        draws = self._draws_base_seed(again)
        # In torch's order of draws: the sampler's, the base seed, the shuffle's.
        lists = None if self._lists_of is None else self._order.begin(self, again, draws)
        if draws:
            drawn = base_seed(self.generator)
            if self._key is None:
                self._key = drawn
        if lists is not None:
            lists = self._order.draw(self, lists)
        workers = self._idle_workers()
        epoch = self._epoch
        self._epoch += 1
        if resumed is not None:
            workers.loader.restore(resumed["loader"])
        else:
            workers.go_to(epoch)
        self._latest = workers
        batches = Iteration(self, workers, epoch, lists)
        place = self._place
        if place is None:
            return batches
        workers.loader._device_lanes = place.lanes
        return PlacedIteration(batches, workers, epoch, place)

    def _draws_base_seed(self, again: Any) -> bool:
        """Whether the next iteration draws one, as in torch: with persistent workers, the first.

        An iteration that continues from a state does the same as the iteration of that state.
        """
        if isinstance(again, dict):
            return bool(again["base_seed"])
        return not (self.persistent_workers and self._epoch)

    def _idle_workers(self) -> WorkerSet:
        for workers in list(self._worker_sets):
            if workers.loader._core.closed() or not workers.is_for(self):
                self._worker_sets.remove(workers)
                workers.loader.close()
            elif self.persistent_workers or not workers.busy():
                return workers
        workers = WorkerSet(self)
        self._worker_sets.append(workers)
        return workers

    def _gone(self, workers: WorkerSet) -> None:
        """Keep one set of workers for the next epoch; close others, of concurrent iterations."""
        if (
            workers in self._worker_sets
            and len(self._worker_sets) > 1
            and workers is not self._latest
        ):
            self._worker_sets.remove(workers)
            workers.loader.close()

    # ---- place

    def state(self) -> dict[str, Any]:
        """Return the position in the latest iteration: a small dict for JSON.

        The state is exact if the order is the engine's (``seed=``, or no shuffle), that of a
        `RandomSampler`, also in a `BatchSampler`, or that of a sampler that draws from a torch
        ``generator`` (its own or its ``sampler``'s). Between epochs, the next order of a
        `RandomSampler` without a generator is not part of the state: torch's global generator will
        draw it. Any other sampler runs again up to the position, so its order must depend on
        ``set_epoch`` only.
        """
        if self._resumed is not None:
            return dict(self._resumed)
        workers = self._latest
        if workers is None:
            workers = self._latest = self._idle_workers()
        place = workers.state()
        begun = place["epoch"] == self._epoch - 1  # else it has ended; no next order yet
        if begun and self._was_last(place["batches"], workers):
            place = {**place, "epoch": self._epoch, "batches": 0}
            begun = False
        return {
            "version": _STATE_VERSION,
            "loader": place,
            "order": self._order.drawn if begun else None,
            # `restore` sets them, not the start of the epoch: the user may seed them in between.
            "generators": None if begun else generator_states(self._index_sampler),
        }

    def _was_last(self, taken: int, workers: WorkerSet) -> bool:
        """Whether a sampler's epoch has ended; in line, the engine did not request its end yet."""
        if self._lists_of is None:
            return False
        try:
            length = len(self._index_sampler)
        except (TypeError, NotImplementedError):  # the length is unknown
            return False
        # This also advances the generator: the epoch's last draw may be at its very end.
        return taken == length and workers.lists.ends_after(taken)

    def restore(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue where `state` was taken.

        Raises
        ------
        InvalidArgument
            The state is of a loader with another seed, batch size, dataset length or kind of
            sampler.
        """
        if (
            not isinstance(state, dict)
            or state.get("version") != _STATE_VERSION
            or not isinstance(state.get("loader"), dict)
            or not {"epoch", "seed"} <= state["loader"].keys()
            or not {"order", "generators"} <= state.keys()
        ):
            raise InvalidArgument(
                "this is no state of a DataLoader, or of another version", "restore"
            )
        if self._closed:
            raise Closed("the loader was closed", "DataLoader")
        if not self._can_draw(state):
            raise InvalidArgument(
                "the state is of a DataLoader whose order was drawn otherwise: give this one the "
                "same kind of sampler, with a generator where that one had it",
                "restore",
            )
        self.close()
        self.__dict__["_placed"] = None
        self._forget()
        if self.seed is None:
            self._key = state["loader"]["seed"]
        workers = self._idle_workers()
        workers.loader.restore(state["loader"])
        set_generators(self._index_sampler, state["generators"])
        self._resumed = dict(state)
        self._latest = workers
        self._epoch = state["loader"]["epoch"]

    def _can_draw(self, state: dict[str, Any]) -> bool:
        sampler, order, generators = self._index_sampler, state["order"], state["generators"]
        if self._lists_of is None and order is not None:
            return False
        place = state["loader"]
        amid = place.get("batches") or place.get("ahead")
        if self._lists_of is not None and amid and order is None and is_drawn(sampler):
            return False  # a state in the middle of an epoch has the draws
        return is_of(sampler, order) and (generators is None or are_of(sampler, generators))

    # ---- looking, ending

    def __repr__(self) -> str:
        facts: dict[str, object] = {"batches": self._length_if_known()}
        facts |= {"batch_size": self.batch_size, "num_workers": self.num_workers}
        if self.num_workers:
            facts["use_multiprocessing"] = self.use_multiprocessing
        if self._closed:
            facts["closed"] = True
        return shown(self, name_of(self.dataset), **facts)

    @property
    def element_spec(self) -> Any:
        """The schema of the batches, as for `penstock.Loader`, with torch's types.

        It is that of a batch that is made for it in line, by the sampler's first indices, apart
        from all epochs: orders drawn later are the same. None: the sampler or the dataset is its
        own iterator, whose schema is unknown before it is consumed.
        """
        return spec_of_loader(self)

    def _length_if_known(self) -> object:
        try:
            return len(self)
        except Exception:  # of the sampler or the dataset
            return "unknown"

    def stats(self) -> dict[str, Any]:
        """Return the counters, as `penstock.Loader.stats` does."""
        workers = self._any_workers()
        stats = workers.stats()
        if self._place is not None:
            ahead = None if workers.ahead is None else workers.ahead()
            most = self.ahead if ahead is None else ahead.most
            stats["device"] = stats_of(self._place, most, stats)
        return stats

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the activity of each worker and the bottleneck."""
        self._any_workers().loader.report(path)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the same events for chrome://tracing and Perfetto."""
        self._any_workers().loader.trace(path)

    def analysis(self) -> dict[str, Any]:
        """Return the bottleneck and what to change."""
        return self._any_workers().loader.analysis()

    def _any_workers(self) -> WorkerSet:
        workers = self._latest
        if workers is None:
            raise InvalidArgument(
                "the loader was not iterated over yet; begin an epoch first", "DataLoader"
            )
        return workers

    def close(self) -> None:
        """End the workers. Held batches stay valid."""
        self._closed = True
        for workers in self._worker_sets:
            workers.loader.close()
        made = self.__dict__.get("_placed")
        if made is not None and made[1] is not None:
            made[1].close()

    # ---- accelerate

    @property
    def _is_accelerate_prepared(self) -> bool:
        """The first attribute that accelerate reads of a loader."""
        keep_loaders(_is_ours)
        return bool(self.__dict__.get("_prepared", False))

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self.__dict__["_prepared"] = prepared

    def _like(self, other: torch.utils.data.DataLoader[Any]) -> DataLoader:
        """Return a loader like this one, with data set, batches and sampler of `other`."""
        if other.dataset is self.dataset and other.batch_sampler is self.batch_sampler:
            return self
        batches: dict[str, Any] = {"batch_sampler": other.batch_sampler}
        if other.batch_sampler is None:
            batches = {"batch_size": other.batch_size, "drop_last": other.drop_last}
            if not isinstance(other.dataset, torch.utils.data.IterableDataset):
                batches["sampler"] = other.sampler
        names = (
            *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
            *("multiprocessing_context", "prefetch_factor", "persistent_workers"),
            *("pin_memory_device", "in_order", "seed", "use_multiprocessing", "on_error"),
            *("retries", "max_bytes", "device", "ahead"),
        )
        same = {name: getattr(self, name) for name in names}
        return type(self)(other.dataset, generator=other.generator, **batches, **same)

    def _forget(self) -> None:
        self._worker_sets = []
        self._latest = None
        self._order = Order()
        self._resumed = None
        self._epoch = 0
        self._key = self.seed
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {
            "_worker_sets": [],
            "_latest": None,
            "_order": Order(),
            "_resumed": None,
            "_placed": None,
        }
        return {**self.__dict__, **fresh}


def _is_ours(loader: Any) -> bool:
    return isinstance(loader, DataLoader)

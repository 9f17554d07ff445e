"""One set of workers of a DataLoader: a Loader made from torch's arguments."""

from __future__ import annotations

import contextlib
import json
import math
import operator
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
import torch.utils.data
from torch.utils.data._utils import collate as torch_collate

from ..base import interop
from ..loader import Loader
from ..loader.source import SourceInfo
from .order import Lists, base_seed_to_come
from .types import STANDARD_COLLATE
from .worker import Collated, Start, Streams

if TYPE_CHECKING:
    from ..device.ahead import Ahead
    from .data_loader import DataLoader


class WorkerSet:
    """A Loader for one iteration at a time, and whether its workers collate."""

    def __init__(self, owner: DataLoader) -> None:
        self.lists = Lists(((owner.prefetch_factor or 0) + 2) * (owner.num_workers + 1) + 8)
        self.iteration: weakref.ref[Any] | None = None  # the current iteration
        self.ahead: weakref.ref[Ahead] | None = None  # of that iteration, if it has a device
        self._made_for = _attributes_of(owner)
        collates = not owner._is_default_collate()
        self.tensors = None if collates else _columns_of(owner)
        self._make = _maker(owner, self.lists, self.tensors)
        # Whether workers collate, the Loader, and the stats of the Loader before it, whose workers
        # did not. One tuple, so other threads read it atomically.
        self._now: tuple[bool, Loader, dict[str, Any] | None]
        self._now = collates, self._make(collates), None

    @property
    def collates(self) -> bool:
        return self._now[0]

    @property
    def loader(self) -> Loader:
        return self._now[1]

    def is_for(self, owner: DataLoader) -> bool:
        """Whether it fits the owner's current attributes, which apply from the next epoch on.

        Persistent workers do not change, as in torch.
        """
        if not owner.persistent_workers and self._made_for != _attributes_of(owner):
            return False
        if self.tensors is None:
            return True
        now = owner.dataset.tensors
        return len(now) == len(self.tensors) and all(map(operator.is_, now, self.tensors))

    def busy(self) -> bool:
        iteration = None if self.iteration is None else self.iteration()
        return iteration is not None and not iteration.gave_all()

    def go_to(self, epoch: int) -> None:
        state = self.loader.state()
        if (state["epoch"], state["batches"]) != (epoch, 0) or state["ahead"]:
            self.loader.restore({**state, "epoch": epoch, "batches": 0, "ahead": []})

    def state(self) -> dict[str, Any]:
        """The Loader's position; batches on their way to a device do not count."""
        ahead = None if self.ahead is None else self.ahead()
        position = None if ahead is None else ahead.position
        return self.loader.state() if position is None else dict(json.loads(position))

    def stats(self) -> dict[str, Any]:
        """The counters, including those of the time before workers collated."""
        _, loader, before = self._now
        now = loader.stats()
        return now if before is None else _in_all(before, now)

    def collate_from_now_on(self) -> Iterator[Any]:
        """Make batches with default_collate, from the failed batch on.

        default_collate accepts samples that cannot be rows (numbers and arrays of several types,
        dicts in another order), and raises torch's errors for samples that it cannot stack.
        """
        place, stats = self.loader.state(), self.stats()
        # Without the error that started this, which was not raised to the user.
        before = {**stats, "errors": stats["errors"] - 1}
        self.loader.close()
        loader = self._make(True)
        loader.restore(place)
        self._now = True, loader, before
        return iter(loader)


def _attributes_of(owner: DataLoader) -> tuple[Any, ...]:
    """The attributes that determine a set of workers and may change between epochs.

    For a collate function with attributes of its own, which may change, the pickle is included.
    """
    collate_fn = owner.collate_fn
    state: bytes | None = None
    if owner.num_workers and owner.use_multiprocessing and not isinstance(collate_fn, FunctionType):
        with contextlib.suppress(Exception):  # sending it will raise the error
            state = cloudpickle.dumps(collate_fn, 5)
    return (
        collate_fn,
        state,
        owner.worker_init_fn,
        owner.num_workers,
        owner.prefetch_factor,
        owner.timeout,
        owner.multiprocessing_context,
        getattr(owner.batch_sampler, "batch_size", None),
    )


_FIRST = {"first_ns", "first_wait_ns"}
_LATEST = {"last_ns", "active_workers", "queue_size", "queue", "pid", "stage"}


def _in_all(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Add up the stats of two Loaders, the second of which replaced the first."""
    total: dict[str, Any] = {}
    for key, later in now.items():
        earlier = before[key]
        if key in _FIRST:
            total[key] = earlier or later
        elif key in _LATEST:
            total[key] = later or earlier
        elif key == "workers":
            total[key] = [_in_all(*pair) for pair in zip(earlier, later, strict=True)]
        elif key in ("stages", "stream_stages"):
            stages = {stage["stage"]: stage for stage in earlier}
            for stage in later:
                known = stages.get(stage["stage"])
                stages[stage["stage"]] = stage if known is None else _in_all(known, stage)
            total[key] = list(stages.values())
        elif isinstance(later, dict):
            total[key] = _in_all(earlier, later)
        else:
            total[key] = earlier + later
    if "wait_share" in total:
        spent = total["wait_ns"] + total["busy_ns"]
        total["wait_share"] = total["wait_ns"] / spent if spent else math.nan
    return total


def _columns_of(owner: DataLoader) -> tuple[Any, ...] | None:
    """The tensors of a dataset whose samples are rows of tensors, to be gathered natively."""
    dataset = owner.dataset
    if type(dataset) is not torch.utils.data.TensorDataset or not owner._auto_collation:
        return None
    if owner.worker_init_fn is not None or not dataset.tensors or len(dataset) == 0:
        return None
    for tensor in dataset.tensors:
        if type(tensor) is not torch.Tensor or interop.array_of_tensor(tensor) is None:
            return None
        if not tensor[:1].is_contiguous():
            return None
    return tuple(dataset.tensors)


def _maker(
    owner: DataLoader, lists: Lists, tensors: tuple[Any, ...] | None
) -> Callable[[bool], Loader]:
    """Return a function that makes the Loader, without references to the DataLoader."""
    dataset = owner.dataset
    collate_fn = owner.collate_fn
    samples = owner._auto_collation
    rows = owner.batch_size or getattr(owner.batch_sampler, "batch_size", None) or 64
    if owner._key is None:
        owner._key = base_seed_to_come(owner.generator)  # for a state before the first iteration
    known = torch_collate.default_collate_fn_map
    added = {kind: f for kind, f in known.items() if STANDARD_COLLATE.get(kind) is not f}
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
    is_map, listed = owner._is_map, owner._lists_of is not None
    covers, processes = owner._covers, owner.use_multiprocessing
    tracked = None if owner.persistent_workers else dataset
    title = type(dataset).__name__
    place = owner._place
    for_device = place is not None and place.reads_in_place

    def make(collates: bool) -> Loader:
        one_by_one = collate_fn if collates and not samples else None
        info = SourceInfo("map", dataset, title, hooked=tracked, initialise=start, paused=True)
        info.falls_back = samples and not collates
        info.for_device = for_device
        if not is_map:
            info.kind = "stream"
            info.source = Streams(dataset, one_by_one, options["use_multiprocessing"])
            # Threads share one copy of the dataset, which cannot tell the threads' shares apart.
            info.streams = max(options["workers"], 1) if processes else 1
        else:
            info.length = len(dataset) if hasattr(dataset, "__len__") else 0
            if listed:
                info.kind, info.begin, info.most_rows = "listed", lists, rows if samples else 1
                info.covers = covers
            if tensors is not None and not collates:
                info.kind, info.sample = "columns", tuple(tensor[0] for tensor in tensors)
                pairs = [interop.array_of_tensor(tensor) for tensor in tensors]
                info.arrays = [pair[0] for pair in pairs if pair is not None]
                lists.rows = info.length
            if one_by_one is not None:
                info.source = Collated(dataset, one_by_one)
        collate = collate_fn if collates and samples else None
        return Loader(info, collate=collate, **options)

    return make

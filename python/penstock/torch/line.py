"""One set of workers of a DataLoader: a Loader, made of what torch's arguments say."""

from __future__ import annotations

import contextlib
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
    from .data_loader import DataLoader


class Line:
    """A Loader for one iteration at a time, and whether its workers collate."""

    def __init__(self, owner: DataLoader) -> None:
        self.lists = Lists(((owner.prefetch_factor or 0) + 2) * (owner.num_workers + 1) + 8)
        self.iteration: weakref.ref[Any] | None = None  # who iterates
        self._made_for = _attributes_of(owner)
        collates = not owner._is_default_collate()
        self.tensors = None if collates else _columns_of(owner)
        self._make = _maker(owner, self.lists, self.tensors)
        # Whether workers collate, the Loader, and stats of the one before it, which did not: at
        # once, for other threads that ask.
        self._now: tuple[bool, Loader, dict[str, Any] | None]
        self._now = collates, self._make(collates), None

    @property
    def collates(self) -> bool:
        return self._now[0]

    @property
    def loader(self) -> Loader:
        return self._now[1]

    def is_for(self, owner: DataLoader) -> bool:
        """Whether a new one would be like it: what the user assigned is seen by the next epoch.

        Persistent workers stay as they are, as in torch.
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

    def stats(self) -> dict[str, Any]:
        """What was counted, with what was until workers collated."""
        _, loader, before = self._now
        now = loader.stats()
        return now if before is None else _in_all(before, now)

    def collate_from_now_on(self) -> Iterator[Any]:
        """Make batches with default_collate, from the one on that could not be made of rows.

        It stacks what rows cannot be (numbers and arrays of several types, dicts in another order),
        and says in torch's words what cannot be stacked.
        """
        place, stats = self.loader.state(), self.stats()
        # Not one that anybody saw: that samples cannot be rows.
        before = {**stats, "errors": stats["errors"] - 1}
        self.loader.close()
        loader = self._make(True)
        loader.restore(place)
        self._now = True, loader, before
        return iter(loader)


def _attributes_of(owner: DataLoader) -> tuple[Any, ...]:
    """What may be changed between epochs, of all that a line is made of.

    Of a collate function with attributes of its own, which may have changed, the pickle.
    """
    collate_fn = owner.collate_fn
    state: bytes | None = None
    if owner.num_workers and owner.use_multiprocessing and not isinstance(collate_fn, FunctionType):
        with contextlib.suppress(Exception):  # sending it will say what is wrong
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
    """Sum up the stats of two Loaders, the second of which took the first one's place."""
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
    """How to make a line's Loader; holds on to nothing that leads back to the DataLoader."""
    dataset = owner.dataset
    collate_fn = owner.collate_fn
    samples = owner._auto_collation
    rows = owner.batch_size or getattr(owner.batch_sampler, "batch_size", None) or 64
    if owner._key is None:
        owner._key = base_seed_to_come(owner.generator)  # a state is asked for before an iteration
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

    def make(collates: bool) -> Loader:
        one_by_one = collate_fn if collates and not samples else None
        info = SourceInfo("map", dataset, title, hooked=tracked, initialise=start, paused=True)
        info.falls_back = samples and not collates
        if not is_map:
            info.kind = "stream"
            info.source = Streams(dataset, one_by_one, options["use_multiprocessing"])
            # Threads share one copy of the dataset, which cannot know whose share it is to yield.
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

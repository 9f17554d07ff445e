"""The options of a Loader as types, for functions that pass them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from ..remote.places import RemoteWorkers

Workers: TypeAlias = int | RemoteWorkers | Sequence[int | RemoteWorkers] | None


class WorkerOptions(TypedDict, total=False):
    """The options of a Loader that concern its workers. See `penstock.Loader`."""

    seed: int
    workers: Workers
    use_multiprocessing: bool | None
    start_method: str
    max_queue_size: int | None
    retries: int
    timeout: float | None
    progress: bool
    worker_init: Callable[[int], Any] | None


class RunOptions(WorkerOptions, total=False):
    """The options of a Loader that are valid for a Dataset. See `penstock.Loader`."""

    max_bytes: int | None
    ordered: bool
    on_error: str


class LoaderOptions(RunOptions, total=False):
    """All options of `penstock.Loader`."""

    batch_size: int | None
    shuffle: bool
    drop_last: bool
    collate: Callable[[list[Any]], Any] | None
    shard: tuple[int, int] | Literal["auto"]
    streams: int | None

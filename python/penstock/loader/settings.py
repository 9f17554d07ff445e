"""A Loader's arguments, checked, as settings for the engine and the workers."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, Literal

from .. import _engine
from ..base.arguments import MOST_QUEUED, MOST_ROWS, integer, one_of, shard_of
from ..errors import InvalidArgument
from ..remote.places import IN_FLIGHT, RemoteWorkers, split_workers
from ..streams import OneShot
from .options import Workers
from .source import SourceInfo, check_options, granule_of

_LONGEST_S = 1e9  # in nanoseconds it fits into 64 bits


def budget() -> int:
    """The default of `max_bytes`: a quarter of the memory that this process may use."""
    return max(_engine.memory_limit() // 4, 1 << 20)


def settings_of(
    info: SourceInfo,
    *,
    batch_size: int | None,
    shuffle: bool,
    seed: int,
    drop_last: bool,
    workers: Workers,
    use_multiprocessing: bool | None,
    start_method: str,
    max_queue_size: int | None,
    max_bytes: int | None,
    ordered: bool,
    on_error: str,
    retries: int,
    timeout: float | None,
    collate: Callable[[list[Any]], Any] | None,
    shard: tuple[int, int] | Literal["auto"],
) -> tuple[dict[str, Any], str]:
    """Return the settings, and the mode: "inline", "threads" or "processes".

    Columns become a plan; a map if they are to be collated.

    Raises
    ------
    InvalidArgument
        An argument is invalid, by itself or for this source.
    """
    rank, world = shard_of(shard, "Loader")
    batch = integer(
        "batch_size", 1 if batch_size is None else batch_size, 1, MOST_ROWS, operation="Loader"
    )
    workers, remote = split_workers(workers)
    info.remote = remote
    shared = any(each.shared for each in remote)
    # A ticket that waits in another host for its turn must not time out. Of shared workers, tickets
    # of other Loaders fill the time while a result is sent.
    in_flight = IN_FLIGHT if timeout is None and not shared else 1
    remote_places = sum(each.count for each in remote) * in_flight
    tune_workers, tune_queue = workers is None and not remote, False
    workers = (
        _engine.usable_cores()
        if workers is None
        else integer("workers", workers, 0, operation="Loader")
    )
    queue = 10 if max_queue_size is None else max_queue_size
    queue = integer("max_queue_size", queue, 1, MOST_QUEUED, operation="Loader")
    if workers + remote_places > _engine.MAX_WORKERS:
        raise InvalidArgument(
            f"workers is {workers + remote_places // in_flight}; {_engine.MAX_WORKERS} at most, "
            f"and a remote one counts as {in_flight}",
            "Loader",
        )
    one_of("on_error", on_error, ("raise", "skip", "replace"), "Loader")
    one_of("start_method", start_method, ("spawn", "forkserver", "fork"), "Loader")
    if timeout is not None and not (isinstance(timeout, numbers.Real) and timeout > 0):
        raise InvalidArgument(f"timeout is {timeout!r}; give seconds above 0", "Loader")
    if max_bytes is None:
        max_bytes = budget()
    samples = batch_size is not None
    if collate is not None and not callable(collate):
        raise InvalidArgument(f"collate is {collate!r}; give a function", "Loader")
    if collate is not None and not samples:
        raise InvalidArgument("collate= needs batch_size=: items are whole batches", "Loader")
    if info.kind == "columns" and collate is not None:
        info.kind = "map"  # its rows, one by one
    if info.kind == "stream":
        if shuffle:
            raise InvalidArgument(
                "a stream cannot be shuffled as a whole: shuffle=True needs an object with "
                "__len__ and __getitem__",
                "Loader",
            )
        if world != 1:
            raise InvalidArgument(
                "a stream is not sharded by index: let the generator of each rank yield its "
                "own share",
                "Loader",
            )
        workers = min(workers, info.streams)  # a stream has one owner
    if remote:
        _check_remote(info, use_multiprocessing)
        if any(each.locality for each in remote):
            _check_locality(info, remote, workers, timeout)
        if shared and timeout is not None:
            raise InvalidArgument(
                "timeout= cannot be given with workers that ranks share: a batch may wait for "
                "those of other ranks. Let the data set's own calls time out",
                "Loader",
            )
    if info.kind == "chain":
        given = shard if shard == "auto" else (rank, world)
        check_options(batch_size, shuffle, drop_last, collate, given, on_error)
        tune_queue = max_queue_size is None and not info.plan.queue
        queue = info.plan.queue or queue
        if use_multiprocessing is None:
            use_multiprocessing = info.plan.python and info.functions
    mode = "inline" if workers == 0 else "processes" if use_multiprocessing else "threads"
    native = info.kind == "columns" or (info.kind == "chain" and not info.plan.python)
    if workers and native:
        mode = "threads"
    if remote:
        mode = "processes"
        if info.kind == "columns":
            info.kind = "map"  # its rows, one by one
    if mode == "processes":
        from ..processes.launch import check_not_inheriting

        check_not_inheriting()
        if isinstance(info.source, OneShot):
            info.source.__reduce__()

    whole = not samples or collate is not None or hasattr(info.source, "__getitems__")
    # The first of a batch's samples determines the schema, and not the first one to be finished.
    whole = whole or (on_error != "raise" and not info.falls_back)
    whole = whole or bool(remote)  # a ticket that travels is a whole batch
    places = max(workers, 1) if not remote else workers + remote_places
    if mode == "threads" and timeout is not None:
        places = _engine.thread_places(places)  # some for replacements of stuck threads
        tune_workers = False  # replacements have the last places
    rows = max(info.most_rows, batch)
    settings: dict[str, Any] = {
        "source": info.kind,
        "listed": info.begin is not None,
        "samples": samples,
        "length": info.length,
        "batch_size": batch,
        "shuffle": bool(shuffle),
        "seed": integer("seed", seed, 0, operation="Loader"),
        "drop_last": bool(drop_last),
        "rank": rank,
        "world": world,
        "workers": workers + remote_places,
        "remote_places": remote_places,
        "shown_workers": workers + remote_places // in_flight,
        "in_flight": in_flight,
        "places": places,
        "streams": info.streams,
        "queue": queue,
        "tune_workers": tune_workers,
        "tune_queue": tune_queue,
        "max_bytes": integer("max_bytes", max_bytes, 1, operation="Loader"),
        "ordered": bool(ordered),
        "on_error": on_error,
        "retries": integer("retries", retries, 0, (1 << 32) - 1, operation="Loader"),
        "timeout": -1.0 if timeout is None else min(float(timeout), _LONGEST_S),
        # A pass that has no states may wait for other processes that begin it, too.
        "pause": info.edited or info.kind in ("stream", "listed") or bool(info.no_state),
        "granule_rows": granule_of(rows, max(workers, 1), info, whole),
        "most_rows": rows,
        "covers": info.covers,
        "falls_back": info.falls_back,
        "keep_freed_memory": True,
        "numpy_threshold": 1024,
    }
    if info.kind == "columns" and info.arrays is not None:
        info.kind = "chain"
        info.plan = (
            _engine.plan_of_columns(info.sample, info.arrays, settings)
            if info.rows is None
            else _engine.plan_of_rows(info.rows, settings)
        )
    elif info.kind != "chain":
        info.plan = _engine.plan_of_samples(settings)
    return settings, mode


def _check_remote(info: SourceInfo, use_multiprocessing: bool | None) -> None:
    """Raise an error if remote workers cannot run this source."""
    if info.kind == "stream" or (info.kind == "chain" and info.plan.streamed):
        raise InvalidArgument(
            f"{info.title} is a stream, which is read in one place: remote workers are for indexed "
            "sources (__getitem__, arrays, a Dataset without filter and generator). Use workers of "
            "this host",
            "Loader",
        )
    if use_multiprocessing is False:
        raise InvalidArgument(
            "remote workers are processes: leave use_multiprocessing=False out", "Loader"
        )


def _check_locality(
    info: SourceInfo, remote: list[RemoteWorkers], workers: int, timeout: float | None
) -> None:
    """Raise an error if tickets cannot be given to hosts by their files."""
    if info.kind in ("chain", "columns"):
        raise InvalidArgument(
            f"locality= is for data sets with __getitem__: {info.title} is read by the Loader's "
            "process, which must see all its files. Leave locality= out",
            "Loader",
        )
    if workers or len({id(each.locality and each.locality.files) for each in remote}) > 1:
        raise InvalidArgument(
            "with locality= all workers are remote, and all have the same locality: leave the "
            "number of local processes out (start a server on this host), and give the function "
            "to all of them",
            "Loader",
        )
    if timeout is not None:
        raise InvalidArgument(
            "timeout= cannot be given with locality=: a batch may wait for a host that has its "
            "files. Let the data set's own calls time out",
            "Loader",
        )


def check_worker_init(worker_init: Any, mode: str) -> None:
    """Raise an error if it would never be called; in line it is accepted and not called."""
    if not callable(worker_init):
        raise InvalidArgument(f"worker_init is {worker_init!r}; give a function", "Loader")
    if mode == "threads":
        raise InvalidArgument(
            "worker_init is for worker processes (use_multiprocessing=True), and this Loader's "
            "workers are threads",
            "Loader",
        )

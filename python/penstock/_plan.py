"""What kind of source a user gave, and what the engine is to do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import InvalidArgument
from .streams import (
    FunctionStream,
    IterableStream,
    OneShot,
    is_stream_function,
    may_begin_stream,
)

# Of a batch: every batch of the queue has a place for each. Fewer for batches that are never full.
_MOST_GRANULES = 1 << 14
_FEW_GRANULES = 1 << 10


@dataclass
class Plan:
    """A source as the engine sees it. Immutable once a Loader has it."""

    kind: str  # "map", "stream", "listed", "columns", "plan" (of a Dataset)
    source: Any  # what workers index, or call as (stream, epoch)
    title: str
    length: int = 0  # items or samples of a map
    streams: int = 1
    hooked: Any = None  # the user's object, whose epoch hooks are called
    begin: Callable[[int], Any] | None = None  # listed (or columns): a sampler's lists of an epoch
    begin_length: Callable[[], int] | None = None
    most_rows: int = 1  # listed: rows of a batch at most
    arrays: list[Any] | None = None  # columns
    sample: Any = None  # columns: what one sample looks like
    initialise: Any = None  # called with its number in every worker process before it serves
    # Nothing of an epoch is made before it begins; what was changed in `hooked` by then is sent to
    # the workers, and its hooks, if it has any, are not for us to call.
    paused: bool = False
    replayable: bool = True
    built: Any = None  # of a Dataset: the engine's plan


class _Rows:
    """Columns that are not gathered natively, as samples."""

    def __init__(self, nest: Any) -> None:
        self.nest = nest

    def __len__(self) -> int:
        return len(_leaves(self.nest)[0])

    def __getitem__(self, index: int) -> Any:
        return _map(self.nest, lambda column: column[index])


def _leaves(nest: Any) -> list[Any]:
    if isinstance(nest, dict):
        return [leaf for value in nest.values() for leaf in _leaves(value)]
    if isinstance(nest, tuple):
        return [leaf for value in nest for leaf in _leaves(value)]
    return [nest]


def _map(nest: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(nest, dict):
        return {key: _map(value, function) for key, value in nest.items()}
    if isinstance(nest, tuple):
        values = [_map(value, function) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else tuple(values)
    return function(nest)


def _is_columns(source: Any) -> bool:
    if isinstance(source, np.ndarray):
        return True
    if not isinstance(source, (tuple, dict)) or not source:
        return False
    return all(isinstance(leaf, np.ndarray) for leaf in _leaves(source))


def _columns(source: Any, samples: bool) -> Plan:
    leaves = _leaves(source)
    lengths = [len(leaf) if leaf.ndim else -1 for leaf in leaves]
    if len(set(lengths)) != 1 or lengths[0] < 0:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise InvalidArgument(
            f"arrays that are fed together must be equally long; their shapes are {shapes}",
            "Loader",
        )
    native = (
        samples
        and all(
            not leaf.dtype.hasobject
            and not hasattr(leaf, "mask")  # a masked array is more than its bytes
            and leaf.dtype.kind != "T"
            and leaf[:1].flags.c_contiguous
            and leaf.strides[0] >= 0
            for leaf in leaves
        )
        and lengths[0] > 0
    )
    plan = Plan("map", _Rows(source), type(source).__name__, lengths[0], hooked=None)
    if native:
        plan.kind = "columns"
        plan.arrays = [np.asarray(leaf) for leaf in leaves]
        # Not leaf[0]: a scalar forgets its byte order and how long a text may be.
        plan.sample = _map(source, lambda leaf: np.asarray(leaf)[:1].reshape(leaf.shape[1:]))
    return plan


def plan_of(source: Any, samples: bool) -> Plan:
    """Say what a source is.

    Raises
    ------
    InvalidArgument
        It is nothing that can be fed; the text says what can.
    """
    title = type(source).__name__
    if isinstance(source, _dataset_type()):
        chain: Any = source._alone()
        return Plan("plan", chain, repr(chain), built=chain._built())
    if isinstance(source, type):
        raise InvalidArgument(f"{source.__name__} is a class; give an instance of it", "Loader")
    if _is_columns(source):
        return _columns(source, samples)
    if isinstance(source, dict) and any(isinstance(key, str) for key in source):
        others = {k: type(v).__name__ for k, v in source.items() if not _is_columns(v)}
        raise InvalidArgument(
            f"a dict is fed when all it holds are arrays; not so {others}", "Loader"
        )
    if is_stream_function(source):
        title = getattr(source, "__name__", title)
        return Plan("stream", FunctionStream(source), title, hooked=None)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return Plan("map", source, title, _length(source), hooked=source)
    if hasattr(source, "__next__"):
        return Plan("stream", OneShot(source), title, replayable=False)
    if hasattr(source, "__iter__"):
        return Plan("stream", IterableStream(source), title, hooked=source)
    if may_begin_stream(source):
        title = getattr(source, "__name__", title)
        return Plan("stream", FunctionStream(source), title, hooked=None)
    raise InvalidArgument(
        f"{title} cannot be fed: give an object with __len__ and __getitem__, a generator "
        "function, an iterable, arrays (alone, in a tuple or a dict), or a list of samples",
        "Loader",
    )


def _dataset_type() -> Any:
    from .dataset import Dataset

    return Dataset


def check_options(
    batch_size: Any, shuffle: Any, drop_last: Any, collate: Any, shard: Any, on_error: str
) -> None:
    """Refuse what a Dataset says itself."""
    for given, option, instead in (
        (batch_size is not None, "batch_size", ".batch(n)"),
        (shuffle, "shuffle", ".shuffle()"),
        (drop_last, "drop_last", ".batch(n, drop_remainder=True)"),
        (collate is not None, "collate", ".map(function)"),
        (shard != (0, 1), "shard", ".shard(rank, world)"),
        (on_error == "replace", "on_error='replace'", ".on_error('replace')"),
    ):
        if given:
            raise InvalidArgument(f"{option} is a Dataset's own business: use {instead}", "Loader")


def _length(source: Any) -> int:
    length = len(source)
    if length < 0:
        raise InvalidArgument(f"len() of the dataset is {length}", "Loader")
    return length


def length_of(plan: Plan) -> int:
    """The length now; hooks may have changed it."""
    return _length(plan.source) if plan.kind == "map" else plan.length


def granule_of(rows: int, workers: int, plan: Plan, whole: bool) -> int:
    """Rows of a batch that one worker fills at a time."""
    if plan.kind in ("columns", "plan"):
        return rows
    if plan.kind == "stream" or whole:
        return rows
    most = _FEW_GRANULES if rows > plan.length > 0 else _MOST_GRANULES
    share = min(max(-(-rows // workers), min(8, rows)), 64)
    return max(share, -(-rows // most))


def hooks_of(hooked: Any) -> tuple[str, ...]:
    """The epoch hooks that somebody wrote; a framework's empty ones do not count."""
    found = []
    for name in ("on_epoch_begin", "on_epoch_end"):
        method = getattr(type(hooked), name, None)
        home = (getattr(method, "__module__", "") or "").partition(".")[0]
        if callable(getattr(hooked, name, None)) and home not in (
            "keras",
            "tf_keras",
            "tensorflow",
        ):
            found.append(name)
    return tuple(found)

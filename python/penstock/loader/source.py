"""The kind of a user's source, and how the engine runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _engine
from ..base.ambiguous import array_of, draw_order, is_stream_of_torch, is_tensor, refuse_misread
from ..base.arguments import MOST_STREAMS, integer
from ..base.hdf5 import hdf5_call, is_hdf5, only_hdf5, rows_of
from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument
from ..streams import (
    FunctionStream,
    IterableStream,
    OneShot,
    is_stream_function,
    may_begin_stream,
)

# Most granules of a batch: every batch of the queue has space for each. Fewer for batches that are
# never full.
_MOST_GRANULES = 1 << 14
_FEW_GRANULES = 1 << 10


@dataclass
class SourceInfo:
    """A source in the engine's terms. Immutable once a Loader has it."""

    kind: str  # "map", "stream", "listed", "chain"; "columns": a chain once its options are known
    source: Any  # workers index it, or call it with (stream, epoch)
    title: str
    length: int = 0  # items or samples of a map
    streams: int = 1
    hooked: Any = None  # the user's object with epoch hooks
    begin: Callable[[int], Any] | None = None  # listed (or columns): a sampler's lists of an epoch
    begin_length: Callable[[], int] | None = None
    most_rows: int = 1  # listed: most rows of a batch
    covers: bool = True  # listed: the epoch has every index of the dataset
    # Samples that are not rows end the feed under any policy: the caller makes another feed, which
    # collates.
    falls_back: bool = False
    arrays: list[Any] | None = None  # columns
    sample: Any = None  # columns: an example of a sample
    rows: Any = None  # columns of an HDF5 file: the engine's Dataset of their rows
    initialise: Any = None  # called with its number in every worker process before it serves
    # No batch of an epoch is made before it begins. Changes of `hooked` up to then are sent to the
    # workers. The Loader does not call the hooks of `hooked`.
    paused: bool = False
    replayable: bool = True
    no_state: str = ""  # why its positions cannot be saved; empty: they can
    plan: Any = None  # the engine's plan; except for a Dataset, None until options are known
    for_device: bool = False  # batches lie in memory that a device's driver can pin
    remote: list[Any] = field(default_factory=list)  # RemoteWorkers of ``workers=``
    functions: bool = False  # for a Dataset: it calls a user's functions, which may need the GIL

    @property
    def hooks(self) -> tuple[str, ...]:
        """The epoch hooks that the Loader calls."""
        return () if self.paused else hooks_of(self.hooked)

    @property
    def edited(self) -> bool:
        """Whether the source may change between epochs, by its hooks or by the user."""
        return self.paused or bool(self.hooks)

    def check_has_states(self, operation: str) -> None:
        """Raise an `InvalidArgument` if positions cannot be saved."""
        if self.no_state:
            raise InvalidArgument(self.no_state, operation)

    @property
    def endless_or_unknown(self) -> bool:
        """Whether the number of batches is unknown or infinite."""
        if self.kind != "chain":
            return self.kind == "stream"
        return self.plan.length is None or _engine.ENDLESS in (
            self.plan.length,
            self.plan.rounds,
        )

    def pass_of(self, epoch: int) -> int:
        """The pass of the engine's `epoch`, counted from 0; that of a Dataset may have several."""
        rounds = self.plan.rounds
        return epoch if rounds == _engine.ENDLESS else epoch // int(rounds)

    def first_epoch_of(self, number: int) -> int:
        """The first engine epoch of pass `number`."""
        rounds = self.plan.rounds
        return number if rounds == _engine.ENDLESS else number * int(rounds)


class _Rows:
    """The rows of columns as samples, if they are not gathered natively."""

    def __init__(self, nest: Any) -> None:
        self.nest = nest

    def __len__(self) -> int:
        return len(leaves_of(self.nest)[0])

    def __getitem__(self, index: int) -> Any:
        return mapped(lambda column: column[index], self.nest)


def _is_columns(source: Any) -> bool:
    """Whether it is an array or tensor, or a tuple or dict of only these.

    Raises
    ------
    InvalidArgument
        A tuple has arrays and other values: it is neither columns nor samples.
    """
    if isinstance(source, np.ndarray) or array_of(source) is not None:
        return True
    if not isinstance(source, (tuple, dict)) or not leaves_of(source):
        return False
    if _all_arrays(source):
        return True
    if isinstance(source, tuple):
        parts = [isinstance(part, np.ndarray) or is_tensor(part) for part in source]
        if any(parts):
            others = {i: type(part).__name__ for i, part in enumerate(source) if not parts[i]}
            raise InvalidArgument(
                "a tuple is fed when all it holds are arrays (columns), or none (samples); here "
                f"some are, and not {others or 'tensors of a device'}: make arrays of all by "
                "np.asarray, or give a list of samples",
                "Loader",
            )
    return False


def _all_arrays(nest: Any) -> bool:
    """Whether all leaves are arrays. A list is a list of samples, not columns."""
    if isinstance(nest, (tuple, dict)):
        parts = nest.values() if isinstance(nest, dict) else nest
        return all(_all_arrays(part) for part in parts)
    return isinstance(nest, np.ndarray) or array_of(nest) is not None


def _columns(source: Any, samples: bool) -> SourceInfo:
    given = leaves_of(source)
    leaves = [leaf if isinstance(leaf, np.ndarray) else array_of(leaf) for leaf in given]
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
            and not hasattr(leaf, "mask")  # a masked array has more than its bytes
            and leaf.dtype.kind != "T"
            and leaf[:1].flags.c_contiguous
            and leaf.strides[0] >= 0
            for leaf in leaves
        )
        and lengths[0] > 0
    )
    info = SourceInfo("map", _Rows(source), type(source).__name__, lengths[0], hooked=None)
    if native:
        info.kind = "columns"
        info.arrays = [np.asarray(leaf) for leaf in leaves]
        # Not leaf[0]: a scalar loses the byte order and the maximum length of a text.
        info.sample = mapped(_row_like, source)
    return info


def _hdf5(source: Any, samples: bool) -> SourceInfo:
    """Open data sets of an HDF5 file: read from the file, never whole into memory."""
    nest = only_hdf5(source, "Loader")
    call = hdf5_call(nest, "Loader")
    rows = rows_of(nest)
    info = SourceInfo("map", rows, "hdf5", len(rows))
    if samples and call is not None and len(rows):
        info.kind = "columns"
        info.arrays = leaves_of(nest)
        info.rows = _engine.Dataset.hdf5(*call)
    return info


def _row_like(leaf: Any) -> Any:
    """Return an example of a row of a column; batches of a torch tensor's rows are tensors."""
    if isinstance(leaf, np.ndarray):
        return np.asarray(leaf)[:1].reshape(leaf.shape[1:])
    row = leaf[0]
    return row if array_of(row) is not None and hasattr(row, "untyped_storage") else np.asarray(row)


def info_for_device(
    source: Any,
    places: Sequence[Any],
    *,
    samples: bool = False,
    on_error: str = "raise",
    streams: int | None = None,
) -> SourceInfo:
    """As `source_info`, for batches that go to `places`; each is a `device.Place` or None."""
    info = source_info(source, samples, on_error, streams)
    info.for_device = any(place is not None and place.reads_in_place for place in places)
    return info


def source_info(
    source: Any, samples: bool, on_error: str = "raise", streams: int | None = None
) -> SourceInfo:
    """Return the plan of a source.

    A Dataset's plan depends on `on_error`. With `streams`, the source is a function that is called
    with each stream's number. A plan is returned as it is.

    Raises
    ------
    InvalidArgument
        The source cannot be fed; the text lists the accepted kinds.
    """
    if isinstance(source, SourceInfo):
        return source
    title = type(source).__name__
    if streams is not None:
        return _info_of_streams(source, streams)
    described = getattr(type(source), "_source_info", None)
    if described is not None:  # a Dataset
        info: SourceInfo = described(source, on_error)
        return info
    if isinstance(source, type):
        raise InvalidArgument(f"{source.__name__} is a class; give an instance of it", "Loader")
    refuse_misread(source, "Loader")
    nested = source if isinstance(source, (tuple, dict)) else (source,)
    if any(is_hdf5(leaf) for leaf in leaves_of(nested)):
        return _hdf5(source, samples)
    if _is_columns(source):
        return _columns(source, samples)
    if isinstance(source, dict) and any(isinstance(key, str) for key in source):
        others = {k: type(v).__name__ for k, v in source.items() if not _is_columns(v)}
        raise InvalidArgument(
            f"a dict is fed when all it holds are arrays; not so {others}: make arrays of lists of "
            "numbers by np.asarray; for texts give a list of samples, or Dataset.arrow(table)",
            "Loader",
        )
    if is_stream_function(source):
        title = getattr(source, "__name__", title)
        return SourceInfo("stream", FunctionStream(source), title, hooked=None)
    if is_stream_of_torch(source):
        return SourceInfo("stream", IterableStream(source), title, hooked=source)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        draw_order(source)
        return SourceInfo("map", source, title, _length(source), hooked=source)
    if hasattr(source, "__next__"):
        return SourceInfo("stream", OneShot(source), title, replayable=False)
    if hasattr(source, "__iter__"):
        return SourceInfo("stream", IterableStream(source), title, hooked=source)
    if may_begin_stream(source):
        title = getattr(source, "__name__", title)
        return SourceInfo("stream", FunctionStream(source), title, hooked=None)
    raise InvalidArgument(
        f"{title} cannot be fed: give an object with __len__ and __getitem__, a generator "
        "function, an iterable, arrays (alone, in a tuple or a dict), or a list of samples",
        "Loader",
    )


def _info_of_streams(function: Any, streams: Any) -> SourceInfo:
    count = integer("streams", streams, 1, MOST_STREAMS, operation="Loader")
    if hasattr(type(function), "_source_info"):
        raise InvalidArgument(
            "streams= is for generator functions; for a Dataset use "
            "Dataset.generator(function, streams=n)",
            "Loader",
        )
    if not (is_stream_function(function) or may_begin_stream(function)):
        raise InvalidArgument(
            f"streams={count} needs a generator function that takes the number of its stream; "
            f"this is a {type(function).__name__}",
            "Loader",
        )
    title = getattr(function, "__name__", type(function).__name__)
    return SourceInfo("stream", FunctionStream(function, numbered=True), title, streams=count)


def check_options(
    batch_size: Any, shuffle: Any, drop_last: Any, collate: Any, shard: Any, on_error: str
) -> None:
    """Raise an error for options that a Dataset determines itself."""
    for given, option, instead in (
        (batch_size is not None, "batch_size", ".batch(n)"),
        (shuffle, "shuffle", ".shuffle()"),
        (drop_last, "drop_last", ".batch(n, drop_last=True)"),
        (collate is not None, "collate", ".map(function)"),
        (shard != (0, 1), "shard", ".shard(rank, world)"),
        (on_error == "replace", "on_error='replace'", ".on_error('replace')"),
    ):
        if given:
            raise InvalidArgument(f"{option} is not for a Dataset: use {instead}", "Loader")


def _length(source: Any) -> int:
    length = len(source)
    if length < 0:
        raise InvalidArgument(f"len() of the dataset is {length}; it must be 0 or more", "Loader")
    return length


def length_of(info: SourceInfo) -> int:
    """The current length; hooks may have changed it."""
    return _length(info.source) if info.kind == "map" else info.length


def granule_of(rows: int, workers: int, info: SourceInfo, whole: bool) -> int:
    """Rows of a batch that one worker fills at a time."""
    if info.kind in ("columns", "chain"):
        return rows
    if info.kind == "stream" or whole:
        return rows
    most = _FEW_GRANULES if rows > info.length > 0 else _MOST_GRANULES
    share = min(max(-(-rows // workers), min(8, rows)), 64)
    return max(share, -(-rows // most))


def hooks_of(hooked: Any) -> tuple[str, ...]:
    """The epoch hooks of the user's class; a framework's empty ones do not count."""
    found = []
    for name in ("on_epoch_begin", "on_epoch_end"):
        method = getattr(type(hooked), name, None)
        home = (getattr(method, "__module__", "") or "").partition(".")[0]
        owner = getattr(method, "__qualname__", "").partition(".")[0]
        empty = home in ("keras", "tf_keras", "tensorflow") and owner in ("PyDataset", "Sequence")
        if callable(getattr(hooked, name, None)) and not empty:
            found.append(name)
    return tuple(found)

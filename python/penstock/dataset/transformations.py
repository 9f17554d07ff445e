"""The stages of a chain: each method of a Dataset returns a new one."""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from ..base.arguments import (
    MOST_QUEUED,
    integer,
    integer_list,
    leaf,
    old_names,
    one_of,
    shard_of,
    text,
)
from ..base.arguments import path as path_of
from ..device.functions import BatchFunction, DeviceMapped, checked
from ..errors import InvalidArgument
from .chain import Chain, datasets
from .recipe import Operation, title_of

if TYPE_CHECKING:
    from .dataset import Dataset


class Transformations(Chain):
    """The methods of `Dataset` that add a stage to the chain."""

    def filter(self, predicate: Callable[..., Any] | Operation) -> Dataset:
        """Keep the elements for which a predicate is true.

        The result is a stream: it has no length, it cannot be shuffled as a whole, and `restore`
        reads on from an earlier position.

        Parameters
        ----------
        predicate : callable or native operation
            Gets the element as a function of `map` does, and returns a boolean. If a function made
            the elements (``map(decode).filter(keep)``), workers call the predicate. Otherwise one
            thread of this process calls it, in order. The results are the same.
        """
        return self._with("filter", predicate)

    def take_while(self, predicate: Callable[..., Any] | Operation) -> Dataset:
        """Keep the elements before the first one for which a predicate is false.

        A stream; `predicate` is as for `filter`.
        """
        return self._with("take_while", predicate)

    def _with(self, method: str, function: Callable[..., Any] | Operation) -> Dataset:
        if isinstance(function, Operation):
            return self._then(f"{method}_op", function)
        if not callable(function):
            raise InvalidArgument(f"{function!r} is not a function", method)
        return self._then(f"{method}_python", function, title_of(function))

    def unique(self, *, key: Callable[..., Any] | Operation | None = None) -> Dataset:
        """Keep the first of equal elements in a pass. A stream.

        Parameters
        ----------
        key : callable or native operation, optional
            Gets the element as a function of `map` does. Elements are equal if their keys are equal
            in type, shape and every bit. None: the key is the element. It is called in the same
            place as a predicate of `filter`.
        """
        return self._then("unique") if key is None else self._with("unique", key)

    def scan(self, function: Callable[[Any, Any], tuple[Any, Any]], initial: Any) -> Dataset:
        """Pass a carry from element to element, as tf.data's scan. A stream.

        Parameters
        ----------
        function : callable
            Gets the carry and the element, and returns ``(carry, element)``: the next carry, and
            the resulting element. One thread of this process calls it, in order. If it raises, the
            element fails, and the carry is unchanged.
        initial : nest
            The carry at the start of each pass. A carry may be any value that a function of `map`
            may return, and is passed in the form of such a result: for example, a number as a
            NumPy scalar.
        """
        if not callable(function):
            raise InvalidArgument(f"{function!r} is not a function", "scan")
        return self._then("scan_python", function, title_of(function), initial)

    def flat_map(self, function: Callable[..., Dataset]) -> Dataset:
        """Join the Datasets that a function makes from the elements. A stream.

        Parameters
        ----------
        function : callable
            Gets the element as a function of `map` does, and returns a Dataset. One thread of this
            process calls it, in order, and reads the Datasets. To restore a position, the function
            is called again for the elements whose Datasets are open there.
        """
        if not callable(function):
            raise InvalidArgument(f"{function!r} is not a function", "flat_map")
        return self._then("flat_map_python", function, title_of(function))

    @old_names(drop_remainder="drop_last")
    def bucket_by_length(
        self,
        boundaries: Sequence[int],
        batch_sizes: Sequence[int],
        *,
        field: str = "",
        drop_last: bool = False,
    ) -> Dataset:
        """Make padded batches of elements of similar length. A stream.

        Parameters
        ----------
        boundaries : list of int
            Ascending lengths: elements shorter than the first boundary are in the first bucket,
            and so on.
        batch_sizes : list of int
            The batch size of each bucket: one more item than `boundaries`.
        field : str
            The leaf whose first axis is the length, such as ``"tokens"``, or ``"0"`` of a tuple.
            Default: the element itself, if it is an array.
        drop_last : bool
            Leave out the elements that remain in the buckets at the end.
        """
        operation = "bucket_by_length"
        name = leaf("field", field, operation)
        limits = integer_list("boundaries", boundaries, 0, operation)
        sizes = integer_list("batch_sizes", batch_sizes, 1, operation)
        return self._then(operation, name, limits, sizes, bool(drop_last))

    def unbatch(self) -> Dataset:
        """Split batches: the rows of every element become elements. A stream."""
        return self._then("unbatch")

    @old_names(drop_remainder="drop_last")
    def rebatch(self, batch_size: int, *, drop_last: bool = False) -> Dataset:
        """Make batches of another size from batches. A stream."""
        return self._then(
            "rebatch",
            integer("batch_size", batch_size, 1, operation="rebatch"),
            bool(drop_last),
        )

    def shuffle(
        self,
        *given: Any,
        seed: int = 0,
        reshuffle: bool = True,
        buffer: int | None = None,
        block: int | str | None = None,
        window: int | None = None,
    ) -> Dataset:
        """Permute all elements at random, over the whole source, without using memory.

        A stream (`filter`, a generator) cannot be permuted as a whole: give a `buffer`.

        Parameters
        ----------
        seed : int
            Equal seeds, and the default, give equal orders on every machine and in every run. For
            another order in each run give another seed: ``seed=secrets.randbits(32)``.
        reshuffle : bool
            Another order in each epoch.
        buffer : int, optional
            The next element is a random one of a buffer of so many elements, which were read ahead.
        block : int or "auto", optional
            For disks that are faster when they are read sequentially: blocks of so many
            consecutive elements come in random order, and all elements of `window` blocks are
            mixed. "auto": the blocks in which the source is stored, of whatever lengths: row groups
            of `parquet`, chunks of `hdf5`. Each is then decoded once.
        window : int, optional
            How many blocks are mixed. None: 1.
        """
        if given:
            raise InvalidArgument(
                f"say what {given[0]!r} is: shuffle(seed={given[0]!r}) puts all elements in a "
                f"random order, shuffle(buffer={given[0]!r}) draws from so many read ahead",
                "shuffle",
            )
        seed = integer("seed", seed, 0, operation="shuffle")
        if buffer is not None and block is not None:
            raise InvalidArgument("give buffer or block, not both", "shuffle")
        if window is not None and block is None:
            raise InvalidArgument(
                f"window is {window!r}, of blocks: give block too, or buffer without it", "shuffle"
            )
        if buffer is not None:
            size = integer("buffer", buffer, 1, operation="shuffle")
            return self._then("shuffle_buffer", seed, size, bool(reshuffle))
        if block is None:
            return self._then("shuffle", seed, bool(reshuffle))
        rows = None if block == "auto" else integer("block", block, 1, operation="shuffle")
        window = integer("window", 1 if window is None else window, 1, operation="shuffle")
        return self._then("shuffle_blocks", seed, rows, window, bool(reshuffle))

    def take(self, count: int) -> Dataset:
        """Keep the first `count` elements; in a stream, lost elements do not count.

        `s.take(n)` and `s.skip(n)` of one stream together are the whole stream. See `on_error` for
        lost elements.
        """
        return self._then("take", integer("count", count, 0, operation="take"))

    def skip(self, count: int) -> Dataset:
        """Leave out the first `count` elements, without making them."""
        return self._then("skip", integer("count", count, 0, operation="skip"))

    def shard(
        self, rank: int | Literal["auto"], world: int | None = None, *, remainder: str = "keep"
    ) -> Dataset:
        """Keep every `world`-th element, from the `rank`-th on.

        Parameters
        ----------
        rank : int or "auto"
            "auto": rank and world of this process, by Ray Train in one of its workers, or else by
            torch's process group or ``jax.distributed`` if one is initialized, or else by the
            environment of torchrun, MPI or Slurm. A process that is alone keeps all elements.
        remainder : {"keep", "drop", "pad"}
            If the elements cannot be divided evenly. keep: the first ranks have one more. drop: the
            remainder is left out. pad: the other ranks repeat elements from the front, so all ranks
            have equally many.
        """
        rank, world = shard_of(
            "auto" if rank == "auto" and world is None else (rank, world), "shard"
        )
        one_of("remainder", remainder, ("keep", "drop", "pad"), "shard")
        return self._then("shard", rank, world, remainder)

    def concatenate(self, *others: Dataset) -> Dataset:
        """Append the elements of `others`, one Dataset after the other."""
        each = datasets("concatenate", (self, *others))
        return self._make("concatenate", (), each, several=True)

    def enumerate(self, start: int = 0) -> Dataset:
        """Number the elements: ``(number, element)``, in int64.

        If a number does not fit into int64, building is an `InvalidArgument`. If the length is
        unknown, the first element without a number fails instead.
        """
        return self._then("enumerate", integer("start", start, -(1 << 63), operation="enumerate"))

    @overload
    def map(self, function: Callable[..., Any] | Operation) -> Dataset: ...
    @overload
    def map(self, function: Callable[..., Any], *, device: Any) -> DeviceMapped: ...
    def map(
        self, function: Callable[..., Any] | Operation, *, device: Any = None
    ) -> Dataset | DeviceMapped:
        """Apply a function to every element.

        Parameters
        ----------
        function : callable or native operation
            A Python function gets the element (a tuple as its arguments) and returns the new
            element: arrays, numbers, bytes, strings, and tuples, lists and dicts of these. In it,
            `penstock.rng` is keyed by seed, epoch and the element's position. An exception is
            raised in the consumer, at the element's place.
        device : device of torch or jax, optional
            Run the function on this device, on the framework's arrays that are there: tensors, or
            arrays of jax. It runs in this process, in order and ahead of the step, and only as the
            last stage before `penstock.torch.feed`, `penstock.jax.feed` or
            `penstock.device.resident`, whose batches it then gets.
        """
        if device is not None:
            return DeviceMapped(self, device, (checked(function, device),))  # type: ignore[arg-type]
        if isinstance(function, BatchFunction):
            raise InvalidArgument(
                f'{function!r} runs on a device: give it, map(..., device="cuda:0")', "map"
            )
        return self._with("map", function)

    @old_names(drop_remainder="drop_last")
    def batch(self, batch_size: int, *, drop_last: bool = False) -> Dataset:
        """Stack `batch_size` elements: every array gets one more axis in front.

        Strings and ragged features become `penstock.Ragged`. The last batch may be short; with
        `drop_last` a short one is left out.
        """
        return self._then(
            "batch", integer("batch_size", batch_size, 1, operation="batch"), bool(drop_last)
        )

    @old_names(drop_remainder="drop_last")
    def padded_batch(
        self,
        batch_size: int,
        *,
        shapes: dict[str, Sequence[int | None]] | None = None,
        values: dict[str, float] | None = None,
        drop_last: bool = False,
    ) -> Dataset:
        """Stack elements of different lengths, padded at the end of every axis.

        Parameters
        ----------
        shapes : dict, optional
            For leaves by name: the length of every axis; None (or -1): the longest of the batch.
            Other leaves are padded to their longest.
        values : dict, optional
            For leaves by name: the padding value; 0 by default.
        """
        shapes, values = shapes or {}, values or {}
        if not isinstance(shapes, dict) or not isinstance(values, dict):
            raise InvalidArgument("give shapes and values as dicts, by leaf", "padded_batch")
        fields = [
            (
                text(name, "padded_batch"),
                _axes(name, shapes[name]) if name in shapes else None,
                _filling(name, values.get(name, 0)),
            )
            for name in dict.fromkeys([*shapes, *values])
        ]
        size = integer("batch_size", batch_size, 1, operation="padded_batch")
        return self._then("padded_batch", size, fields, bool(drop_last))

    @old_names(drop_remainder="drop_last")
    def ragged_batch(self, batch_size: int, *, drop_last: bool = False) -> Dataset:
        """Stack elements of any lengths: leaves that differ become `penstock.Ragged`."""
        return self._then(
            "ragged_batch",
            integer("batch_size", batch_size, 1, operation="ragged_batch"),
            bool(drop_last),
        )

    @old_names(drop_remainder="drop_last")
    def window(
        self,
        size: int,
        *,
        shift: int | None = None,
        stride: int = 1,
        drop_last: bool = False,
    ) -> Dataset:
        """Stack `size` consecutive elements; a window starts at every `shift`-th element.

        The last windows have fewer elements.

        Parameters
        ----------
        shift : int, optional
            Distance between the first elements of two windows. None: `size`.
        stride : int
            Distance between two elements of a window.
        drop_last : bool
            Leave out windows that are not full, for sequences of one length: for 100 elements,
            ``window(10, shift=1)`` makes 100 windows, the last of which has one element, and 91
            with `drop_last`.
        """
        return self._then(
            "window",
            integer("size", size, 1, operation="window"),
            0 if shift is None else integer("shift", shift, 1, operation="window"),
            integer("stride", stride, 1, operation="window"),
            bool(drop_last),
        )

    def cache(
        self, path: str | os.PathLike[str] | None = None, *, max_bytes: int | None = None
    ) -> Dataset:
        """Store every element when it is first made, for later passes.

        Worker threads and processes share the cache, which lives as long as this Dataset or a
        Loader of it. The stages before the cache run as in epoch 0, in every pass; elements that
        fail there are not stored, and are tried again. The elements of a stream are stored in
        order, during its first pass.

        With a path they are stored in a file, which appears when it has every element. The same
        chain with the same ``build(seed=)`` then reads them from the file, and `Dataset.snapshot`
        reads them in any other chain. A file of other stages, another length or another seed is an
        error. Functions are compared by name only: delete the file when a function has changed.

        Parameters
        ----------
        path : path, optional
            The file. None: in memory.
        max_bytes : int, optional
            Size of the cache in memory; elements that do not fit are made again each time. None: a
            quarter of the memory that this process may use.

        Raises
        ------
        InvalidArgument
            When it is built: the file has the elements of another chain. Delete it, or give
            another path.
        DataLoss
            When it is built: the file is not a snapshot, or is damaged.
        System
            In a pass: the disk is full, or the folder cannot be written to.
        """
        if path is None:
            return self._then(
                "cache",
                0 if max_bytes is None else integer("max_bytes", max_bytes, 1, operation="cache"),
            )
        if max_bytes is not None:
            raise InvalidArgument("max_bytes is of a cache in memory, and path of a file", "cache")
        return self._then("cache", path_of(path, "cache"))

    def split_batch(self, parts: int) -> Dataset:
        """Deliver every batch as a tuple of `parts` batches, one for each of several devices.

        They are views of one batch, of equal sizes if possible. Otherwise the first parts have one
        row more; with fewer rows than parts, the last parts are empty. Only after a `batch`, and
        only with `take`, `repeat` and `prefetch` around it; without a stream in the chain, also
        `skip`, `shard` and `shuffle`.
        """
        return self._then("split_batch", integer("parts", parts, 1, 4096, operation="split_batch"))

    def on_error(self, policy: str) -> Dataset:
        """Set the policy for elements that fail in the stages before this one.

        Parameters
        ----------
        policy : {"raise", "skip", "replace"}
            raise: the error is raised at the element's place. skip: the element is left out and
            counted. replace: another element of the same epoch takes its place, and is counted.
            ``stats()`` lists the losses.

        Notes
        -----
        In an indexed chain a lost element keeps its position: its batch is shorter, and `take`,
        `skip` and `enumerate` count it. In a stream it is not counted: batches are full, and stages
        count the remaining elements only. This holds for any place of the policy, in the chain or
        in ``build``.
        """
        one_of("policy", policy, ("raise", "skip", "replace"), "on_error")
        return self._then("on_error", policy)

    def assert_cardinality(self, count: int) -> Dataset:
        """Make building fail (`DataLoss`) unless there are exactly `count` elements."""
        return self._then(
            "assert_cardinality", integer("count", count, 0, operation="assert_cardinality")
        )

    def repeat(self, count: int | None = None) -> Dataset:
        """Repeat the pass `count` times, or for ever, with another order each time."""
        _refuse_minus_one("count", count, "leave it out to repeat for ever", "repeat")
        return self._then(
            "repeat", None if count is None else integer("count", count, 1, operation="repeat")
        )

    def prefetch(self, batches: int | None = None) -> Dataset:
        """Make up to `batches` batches ahead; for the end of a chain. None: tuned."""
        _refuse_minus_one(
            "batches", batches, "leave it out, and the consumer's pace determines it", "prefetch"
        )
        if batches is not None:
            batches = integer("batches", batches, 1, MOST_QUEUED, operation="prefetch")
        return self._then("prefetch", batches)


def _refuse_minus_one(name: str, value: Any, remedy: str, operation: str) -> None:
    """Raise an error for tf.data's -1, of AUTOTUNE or of an endless `repeat`."""
    if isinstance(value, numbers.Integral) and value == -1:
        raise InvalidArgument(f"{name} is -1; {remedy}", operation)


def _axes(name: str, shape: Any) -> list[int]:
    if not isinstance(shape, (tuple, list)):
        raise InvalidArgument(
            f"the shape of {name!r} is {shape!r}; give the length of each axis, or None for it",
            "padded_batch",
        )
    return [
        -1 if n is None else integer(f"a length of {name!r}", n, -1, operation="padded_batch")
        for n in shape
    ]


def _filling(name: str, value: Any) -> int | float:
    """A padding value in the engine's form: an int64 or a float."""
    whole = isinstance(value, (numbers.Integral, np.bool_))
    if whole and -(1 << 63) <= int(value) < 1 << 63:
        return int(value)
    if not whole and isinstance(value, numbers.Real):
        return float(value)
    raise InvalidArgument(
        f"{name!r} cannot be padded with {value!r}; give a number", "padded_batch"
    )

"""What may follow in a chain: each method of a Dataset gives a new one."""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
from ..errors import InvalidArgument
from .chain import Chain, datasets
from .recipe import Operation, title_of

if TYPE_CHECKING:
    from .dataset import Dataset


class Transformations(Chain):
    """The methods of `Dataset` that go on with the chain."""

    def filter(self, predicate: Callable[..., Any] | Operation) -> Dataset:
        """Keep the elements for which a predicate holds.

        What follows is a stream: only running it tells what comes next, so it has no length and
        cannot be shuffled as a whole, and its place is found by reading on from a place before.

        Parameters
        ----------
        predicate : callable or native operation
            Gets the element as a function of `map` does, and returns a boolean. Where a function
            made the elements (``map(decode).filter(keep)``), workers call it, as they do that
            function; elements that cost nothing it looks at in order, in one thread of this
            process. The results are the same.
        """
        return self._with("filter", predicate)

    def take_while(self, predicate: Callable[..., Any] | Operation) -> Dataset:
        """Keep the elements in front of the first for which a predicate does not hold.

        A stream; `predicate` as of `filter`.
        """
        return self._with("take_while", predicate)

    def _with(self, method: str, function: Callable[..., Any] | Operation) -> Dataset:
        if isinstance(function, Operation):
            return self._then(f"{method}_op", function)
        if not callable(function):
            raise InvalidArgument(f"{function!r} is no function", method)
        return self._then(f"{method}_python", function, title_of(function))

    def unique(self, *, key: Callable[..., Any] | Operation | None = None) -> Dataset:
        """Keep each element the first time only that it comes in a pass. A stream.

        Parameters
        ----------
        key : callable or native operation, optional
            Gets the element as a function of `map` does. Elements are the same if what it returns
            is: equal in type, shape and every bit. None: if they are themselves. Who calls it: as
            of `filter`.
        """
        return self._then("unique") if key is None else self._with("unique", key)

    def scan(self, function: Callable[[Any, Any], tuple[Any, Any]], initial: Any) -> Dataset:
        """Carry something on from element to element, as tf.data's scan. A stream.

        Parameters
        ----------
        function : callable
            Gets what is carried and the element, and returns ``(carry, element)``: what is carried
            on, and what becomes of the element. It is called in order, by one thread of this
            process. An exception is the element's, and leaves the carry as it was.
        initial : nest
            What each pass begins with. Like all that is carried it is anything that a function of
            `map` may return, and comes as the elements of such a function do: a number as a NumPy
            scalar, ...
        """
        if not callable(function):
            raise InvalidArgument(f"{function!r} is no function", "scan")
        return self._then("scan_python", function, title_of(function), initial)

    def flat_map(self, function: Callable[..., Dataset]) -> Dataset:
        """Go through the Datasets that a function makes of the elements. A stream.

        Parameters
        ----------
        function : callable
            Gets the element as a function of `map` does, and returns a Dataset. It is called in
            order, by one thread of this process, which also goes through the Datasets; to go back
            to a place, it is called again for the elements that are open there.
        """
        if not callable(function):
            raise InvalidArgument(f"{function!r} is no function", "flat_map")
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
        """Make padded batches of elements of about one length. A stream.

        Parameters
        ----------
        boundaries : list of int
            Ascending: elements shorter than the first are in the first bucket, ...
        batch_sizes : list of int
            Of each bucket, one more than boundaries.
        field : str
            The leaf whose first axis is the length, such as ``"tokens"``, or ``"0"`` of a tuple.
            Left out where an element is nothing but that array.
        drop_last : bool
            Leave out what is left in the buckets at the end.
        """
        operation = "bucket_by_length"
        name = leaf("field", field, operation)
        limits = integer_list("boundaries", boundaries, 0, operation)
        sizes = integer_list("batch_sizes", batch_sizes, 1, operation)
        return self._then(operation, name, limits, sizes, bool(drop_last))

    def unbatch(self) -> Dataset:
        """Take batches apart: the rows of every element, one by one. A stream."""
        return self._then("unbatch")

    @old_names(drop_remainder="drop_last")
    def rebatch(self, batch_size: int, *, drop_last: bool = False) -> Dataset:
        """Make batches of another size of batches. A stream."""
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
        block: int | None = None,
        window: int | None = None,
    ) -> Dataset:
        """Put all elements in a random order: exactly, over the whole source, in no memory.

        What follows a stream (`filter`, a generator) has no whole that could be shuffled: there
        give a `buffer`.

        Parameters
        ----------
        seed : int
            Equal seeds give equal orders, on every machine and in every run: so does the default.
            For another order in each run give one that differs: ``seed=secrets.randbits(32)``.
        reshuffle : bool
            Another order in each epoch.
        buffer : int, optional
            Each time, one of so many elements that were read ahead comes next.
        block : int, optional
            For media that want to be read in sequence: blocks of so many neighbours come in random
            order, and within each `window` of them all elements are mixed.
        window : int, optional
            How many blocks are mixed. None: each by itself.
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
        block = integer("block", block, 1, operation="shuffle")
        window = integer("window", 1 if window is None else window, 1, operation="shuffle")
        return self._then("shuffle_blocks", seed, block, window, bool(reshuffle))

    def take(self, count: int) -> Dataset:
        """Keep the first `count` elements: of a stream, those that were not lost.

        `s.take(n)` and `s.skip(n)` of one stream are all of it. See `on_error` for lost elements.
        """
        return self._then("take", integer("count", count, 0, operation="take"))

    def skip(self, count: int) -> Dataset:
        """Leave out the first `count` elements, without making them."""
        return self._then("skip", integer("count", count, 0, operation="skip"))

    def shard(self, rank: int, world: int, *, remainder: str = "keep") -> Dataset:
        """Keep every `world`-th element, from the `rank`-th on.

        Parameters
        ----------
        remainder : {"keep", "drop", "pad"}
            Of what cannot be dealt out evenly: the first ranks have one more; nobody has it; or the
            others begin again at the front, so that all ranks have equally many.
        """
        rank, world = shard_of((rank, world), "shard")
        one_of("remainder", remainder, ("keep", "drop", "pad"), "shard")
        return self._then("shard", rank, world, remainder)

    def concatenate(self, *others: Dataset) -> Dataset:
        """Go on with the elements of `others`, one Dataset after the other."""
        each = datasets("concatenate", (self, *others))
        return self._make("concatenate", (), each, several=True)

    def enumerate(self, start: int = 0) -> Dataset:
        """Number the elements: ``(number, element)``, in int64.

        More elements than there are numbers from `start` on are an `InvalidArgument` when this is
        built, or, where no length is known, in the place of the first one that has none.
        """
        return self._then("enumerate", integer("start", start, -(1 << 63), operation="enumerate"))

    def map(self, function: Callable[..., Any] | Operation) -> Dataset:
        """Apply a function to every element.

        Parameters
        ----------
        function : callable or native operation
            A Python function gets the element (a tuple as its arguments) and returns what becomes
            of it: arrays, numbers, bytes, strings, and tuples, lists and dicts of these. Inside,
            `penstock.rng` is keyed by seed, epoch and the element's position. An exception reaches
            the consumer at the element's place.
        """
        return self._with("map", function)

    @old_names(drop_remainder="drop_last")
    def batch(self, batch_size: int, *, drop_last: bool = False) -> Dataset:
        """Stack `batch_size` elements: every array gets one more axis in front.

        Strings and ragged features become `penstock.Ragged`. The last batch is short, or left out.
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
        """Stack elements of different lengths, filled up at the end of every axis.

        Parameters
        ----------
        shapes : dict, optional
            Of leaves by name: the length of every axis; None (or -1): the longest of the batch.
            Leaves that are not named are filled up to their longest.
        values : dict, optional
            Of leaves by name: what they are filled up with; 0 by default.
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
        """Stack elements whatever their lengths: what differs becomes `penstock.Ragged`."""
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
        """Stack `size` elements that follow one another, again from each `shift`-th element on.

        The last windows have fewer elements, where the elements end.

        Parameters
        ----------
        shift : int, optional
            From a window's first element to the next one's. None: `size`.
        stride : int
            From an element to the next within a window.
        drop_last : bool
            Leave out the windows that are not full, as sequences of one length need: of 100
            elements ``window(10, shift=1)`` makes 100 windows, the last of which has one element,
            and with this 91.
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
        """Keep every element when it is first made; later passes take it from there.

        Worker threads and processes share what is kept, as long as this Dataset, or a Loader of
        it, is there. What is above this line of the chain is made as in epoch 0, in every pass;
        what fails there is not kept, and tried again. Of a stream, elements are kept in their
        order as it is first gone through.

        With a path they are kept in a file, which appears when every element is there, and holds
        them for good: the same chain with the same ``build(seed=)`` takes them from it, and
        `Dataset.snapshot` gives them to any other. A file of other stages, another length or
        another seed is refused; functions are told by their names, so delete the file when one
        does something else now.

        Parameters
        ----------
        path : path, optional
            Of the file. None: in memory.
        max_bytes : int, optional
            In memory, what finds no room in so many bytes is made again each time. None: a quarter
            of the memory that this process may use.

        Raises
        ------
        InvalidArgument
            When it is built: the file has the elements of another chain. Delete it, or name
            another one.
        DataLoss
            When it is built: the file is no snapshot, or damaged.
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
        """Hand out every batch as a tuple of `parts` batches, one for each of several devices.

        They are views of the one batch, as equally long as can be: the first ones have a row more
        where it does not come out even, the last ones none where there are fewer rows than parts.
        Behind a `batch` only, with nothing around it but `take`, `repeat` and `prefetch` and, where
        no stream is in the chain, `skip`, `shard` and `shuffle`.
        """
        return self._then("split_batch", integer("parts", parts, 1, 4096, operation="split_batch"))

    def on_error(self, policy: str) -> Dataset:
        """Say what becomes of elements that fail in what is above this line of the chain.

        Parameters
        ----------
        policy : {"raise", "skip", "replace"}
            Raised at its place; left out and counted; or another element of the same epoch takes
            its place, and that is counted. ``stats()`` lists what was lost.

        Notes
        -----
        A lost element keeps its position in what is indexed: a batch is shorter by it, and `take`,
        `skip` and `enumerate` count it. In a stream it never existed: batches are full, and stages
        count survivors only. So it is wherever in the chain, or in ``build``, the policy stands.
        """
        one_of("policy", policy, ("raise", "skip", "replace"), "on_error")
        return self._then("on_error", policy)

    def assert_cardinality(self, count: int) -> Dataset:
        """Refuse to be built (`DataLoss`) unless there are just so many elements."""
        return self._then(
            "assert_cardinality", integer("count", count, 0, operation="assert_cardinality")
        )

    def repeat(self, count: int | None = None) -> Dataset:
        """Go through the pass `count` times, or for ever; each time it is shuffled anew."""
        return self._then(
            "repeat", None if count is None else integer("count", count, 1, operation="repeat")
        )

    def prefetch(self, batches: int | None = None) -> Dataset:
        """Make up to `batches` batches ahead; at the end of a chain. None: as many as help."""
        if batches is not None:
            batches = integer("batches", batches, 1, MOST_QUEUED, operation="prefetch")
        return self._then("prefetch", batches)


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
    """What a leaf is filled up with, as the engine takes it: an int64 or a float."""
    whole = isinstance(value, (numbers.Integral, np.bool_))
    if whole and -(1 << 63) <= int(value) < 1 << 63:
        return int(value)
    if not whole and isinstance(value, numbers.Real):
        return float(value)
    raise InvalidArgument(
        f"{name!r} cannot be filled up with {value!r}; give a number", "padded_batch"
    )

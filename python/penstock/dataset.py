"""Dataset: a source and a chain of transformations, run natively, exact and restorable."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _engine
from ._arguments import integer, one_of, shard_of
from ._recipe import Operation, title_of
from .errors import InvalidArgument

if TYPE_CHECKING:
    from ._iterator import DatasetIterator
    from .loader import Loader


class Dataset:
    """A pipeline: a source and a chain of transformations.

    Made by one of the class methods (`range`, ...), then by the methods of what these return. A
    Dataset is immutable, and nothing is read before it is iterated over or built.

    Iterating over it is one pass. The workers stay alive between passes, and the n-th pass of one
    Dataset object is epoch n - 1: shuffled anew, with new random numbers. Native stages are run by
    threads of the engine. As soon as a Python function is in the chain it is run by processes, each
    of which runs the whole chain; in front of a stage that is a stream, such as `filter`, functions
    run in this process.

    Notes
    -----
    Any thread may call anything; each iterator belongs to one thread at a time. Datasets pickle, by
    how they were made.

    Examples
    --------
    >>> train = penstock.Dataset.range(1000).map(decode).batch(32)
    >>> for batch in train: ...          # one pass
    >>> feed = train.build(workers=8)    # a Loader, for its options and statistics
    """

    def __init__(self) -> None:
        raise TypeError("a Dataset begins with its source: penstock.Dataset.range(...), ...")

    _recipe: tuple[str, tuple[Any, ...]]
    _inputs: tuple[Dataset, ...]
    _native: Any
    _lock: threading.RLock
    _plan: Any  # once it was built
    _loader: Loader | None  # of iter(), kept between passes
    _latest: weakref.ref[DatasetIterator] | None
    _passes: int
    _several: bool

    @classmethod
    def _make(
        cls,
        method: str,
        arguments: tuple[Any, ...],
        inputs: tuple[Dataset, ...] = (),
        native: Any = None,
        several: bool = False,  # it takes a list of inputs, even if there is one
    ) -> Dataset:
        self = object.__new__(cls)
        self._recipe = (method, arguments)
        self._inputs = inputs
        self._several = several
        self._lock = threading.RLock()
        self._plan = None
        self._loader = None
        self._latest = None
        self._passes = 0
        if native is not None:
            self._native = native
            return self
        given = [a._native if isinstance(a, Operation) else a for a in arguments]
        if not inputs:
            self._native = getattr(_engine.Dataset, method)(*given)
        elif len(inputs) == 1 and not several:
            self._native = getattr(inputs[0]._native, method)(*given)
        else:
            self._native = getattr(_engine.Dataset, method)([i._native for i in inputs], *given)
        return self

    def _then(self, method: str, *arguments: Any) -> Dataset:
        return Dataset._make(method, arguments, (self,))

    def __reduce__(self) -> tuple[Any, ...]:
        method, arguments = self._recipe
        return Dataset._make, (method, arguments, self._inputs, None, self._several)

    def __repr__(self) -> str:
        return " > ".join(self._titles())

    def _titles(self) -> list[str]:
        own = str(self._native.title())
        return [title for i in self._inputs for title in i._titles()] + [own]

    # ---- sources ---------------------------------------------------------------------------------

    @classmethod
    def range(cls, *arguments: int) -> Dataset:
        """Numbers as Python's `range` gives them, int64.

        Parameters
        ----------
        *arguments : int
            ``end``; or ``begin, end``; or ``begin, end, step``.
        """
        if not 1 <= len(arguments) <= 3:
            raise InvalidArgument("give end, or begin and end, or begin, end and step", "range")
        least = -(1 << 63)
        numbers = [integer("range", number, least) for number in arguments]
        begin, end, step = (
            (0, numbers[0], 1) if len(numbers) == 1 else (*numbers[:2], *(numbers[2:] or [1]))
        )
        return cls._make("range", (begin, end, step))

    @classmethod
    def arrays(cls, arrays: Any) -> Dataset:
        """Rows of equally long arrays: a NumPy array (memory-mapped too), or a nest of them.

        Parameters
        ----------
        arrays : array, or tuple, list or dict of them
            Row i of each is element i, in the same nest. They are not copied, and must not change
            while they are fed.
        """
        nest = _map_leaves(np.asanyarray, arrays)
        leaves = _leaves(nest)
        lengths = {len(leaf) if leaf.ndim else -1 for leaf in leaves}
        if len(lengths) != 1 or -1 in lengths:
            shapes = ", ".join(str(leaf.shape) for leaf in leaves)
            raise InvalidArgument(
                f"arrays that are fed together must be equally long; their shapes are {shapes}",
                "arrays",
            )
        # What they look like, without being looked at: a memory map is not read.
        sample = _map_leaves(lambda leaf: np.zeros(0, leaf.dtype), nest)
        return cls._make("arrays", (sample, leaves))

    @classmethod
    def source(cls, source: Any) -> Dataset:
        """Elements of any object with ``__len__`` and ``__getitem__``: a torch Dataset, a list.

        Whatever it returns may be anything that a function of `map` may return. It is called in
        worker processes, as such a function is.
        """
        if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
            raise InvalidArgument(
                f"a {type(source).__name__} has no __len__ and __getitem__", "source"
            )
        return cls._make("source_python", (source, len(source), title_of(type(source))))

    @classmethod
    def generator(cls, function: Callable[[], Iterable[Any]]) -> Dataset:
        """Elements that a generator function yields. A stream.

        It is called anew for each pass, and to go back to a place, and is pulled by one thread of
        this process, some elements ahead; a `map` behind it is spread over the workers.

        Parameters
        ----------
        function : callable
            Without arguments; what it returns is iterated over. Inside, `penstock.rng` is keyed by
            seed, epoch and how many elements there were before.
        """
        if not callable(function):
            raise InvalidArgument(
                f"{function!r} is no function: give the generator function itself", "generator"
            )
        return cls._make("generator_python", (function, f"generator({title_of(function)})"))

    @classmethod
    def tfrecord(
        cls,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        compression: str = "",
    ) -> Dataset:
        """Records of TFRecord files, as byte strings.

        Both checksums of every record are verified. Damage is a `DataLoss` at its place that names
        file, byte and record, and everything around it is fed.

        Parameters
        ----------
        files : path, pattern, or list of these
            ``*``, ``?`` and ``[...]`` as in a shell; a pattern's files come in the order of their
            names.
        compression : {"", "gzip", "zlib"}
        """
        return cls._make("tfrecord", (_paths(files), compression))

    @classmethod
    def lines(cls, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Dataset:
        """Lines of text files (UTF-8), without their ends; `files` as of `tfrecord`."""
        return cls._make("lines", (_paths(files),))

    @classmethod
    def fixed_records(
        cls,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        record_bytes: int,
        *,
        header_bytes: int = 0,
        footer_bytes: int = 0,
    ) -> Dataset:
        """Records of one length: arrays uint8 ``(record_bytes,)``; `files` as of `tfrecord`.

        Parameters
        ----------
        header_bytes, footer_bytes : int
            At the front and at the end of each file, that are no records.
        """
        sizes = (
            integer("record_bytes", record_bytes, 1),
            integer("header_bytes", header_bytes, 0),
            integer("footer_bytes", footer_bytes, 0),
        )
        return cls._make("fixed_records", (_paths(files), *sizes))

    @classmethod
    def interleave(cls, inputs: Sequence[Dataset], *, cycle: int, block: int = 1) -> Dataset:
        """Take `block` elements of each of `cycle` Datasets in turn, as tf.data's interleave."""
        each = _datasets("interleave", tuple(inputs))
        sizes = (integer("cycle", cycle, 1), integer("block", block, 1))
        return cls._make("interleave", sizes, each, several=True)

    @classmethod
    def sample_from(
        cls,
        inputs: Sequence[Dataset],
        *,
        weights: Sequence[float] | None = None,
        seed: int = 0,
        stop_on_empty: bool = False,
    ) -> Dataset:
        """Take each element from a Dataset that is drawn. A stream.

        Parameters
        ----------
        weights : list of float, optional
            How likely each is; None: all are equally.
        stop_on_empty : bool
            End when one has ended, rather than draw among the others.
        """
        each = _datasets("sample_from", tuple(inputs))
        given = [] if weights is None else [float(weight) for weight in weights]
        arguments = (given, integer("seed", seed, 0), bool(stop_on_empty))
        return cls._make("sample_from", arguments, each, several=True)

    @classmethod
    def choose_from(
        cls, choices: Dataset, inputs: Sequence[Dataset], *, stop_on_empty: bool = True
    ) -> Dataset:
        """Take each element from the Dataset whose number the next of `choices` is. A stream."""
        each = _datasets("choose_from", (choices, *inputs))
        return cls._make("choose_from", (bool(stop_on_empty),), each, several=True)

    @classmethod
    def zip(cls, *inputs: Dataset, **named: Dataset) -> Dataset:
        """Elements of several Datasets side by side: a tuple, or by names a dict.

        As long as the shortest.
        """
        if bool(inputs) == bool(named):
            raise InvalidArgument("give Datasets, or Datasets by names", "zip")
        each = _datasets("zip", inputs or tuple(named.values()))
        return cls._make("zip", (list(named),), each, several=True)

    # ---- transformations -------------------------------------------------------------------------

    def filter(self, predicate: Callable[..., Any] | Operation) -> Dataset:
        """Keep the elements for which a predicate holds.

        What follows is a stream: only running it tells what comes next, so it has no length and
        cannot be shuffled as a whole, and its place is found by reading on from a place before.

        Parameters
        ----------
        predicate : callable or native operation
            Gets the element as a function of `map` does, and returns a boolean. It, and for now
            also what is above it in the chain, is called in order, by one thread of this process:
            do behind it, in a `map`, what takes long.
        """
        return self._judged("filter", predicate)

    def take_while(self, predicate: Callable[..., Any] | Operation) -> Dataset:
        """Keep the elements in front of the first for which a predicate does not hold.

        A stream; `predicate` as of `filter`.
        """
        return self._judged("take_while", predicate)

    def _judged(self, method: str, predicate: Callable[..., Any] | Operation) -> Dataset:
        if isinstance(predicate, Operation):
            return self._then(f"{method}_op", predicate)
        if not callable(predicate):
            raise InvalidArgument(f"{predicate!r} is no function", method)
        return self._then(f"{method}_python", predicate, title_of(predicate))

    def unique(self) -> Dataset:
        """Keep each element the first time only that it comes in a pass. A stream."""
        return self._then("unique")

    def bucket_by_length(
        self,
        boundaries: Sequence[int],
        batch_sizes: Sequence[int],
        *,
        field: str = "",
        drop_remainder: bool = False,
    ) -> Dataset:
        """Make padded batches of elements of about one length. A stream.

        Parameters
        ----------
        boundaries : list of int
            Ascending: elements shorter than the first are in the first bucket, ...
        batch_sizes : list of int
            Of each bucket, one more than boundaries.
        field : str
            The leaf whose first axis is the length.
        drop_remainder : bool
            Leave out what is left in the buckets at the end.
        """
        limits = [integer("boundaries", number, 0) for number in boundaries]
        sizes = [integer("batch_sizes", number, 1) for number in batch_sizes]
        return self._then("bucket_by_length", str(field), limits, sizes, bool(drop_remainder))

    def unbatch(self) -> Dataset:
        """Take batches apart: the rows of every element, one by one. A stream."""
        return self._then("unbatch")

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> Dataset:
        """Make batches of another size of batches. A stream."""
        return self._then("rebatch", integer("batch_size", batch_size, 1), bool(drop_remainder))

    def shuffle(
        self,
        *,
        seed: int = 0,
        reshuffle: bool = True,
        buffer: int | None = None,
        block: int | None = None,
        window: int = 1,
    ) -> Dataset:
        """Put all elements in a random order: exactly, over the whole source, in no memory.

        What follows a stream (`filter`, a generator) has no whole that could be shuffled: there
        give a `buffer`.

        Parameters
        ----------
        seed : int
            Equal seeds give equal orders, on every machine.
        reshuffle : bool
            Another order in each epoch.
        buffer : int, optional
            Each time, one of so many elements that were read ahead comes next.
        block : int, optional
            For media that want to be read in sequence: blocks of so many neighbours come in random
            order, and within each `window` of them all elements are mixed.
        """
        seed = integer("seed", seed, 0)
        if buffer is not None and block is not None:
            raise InvalidArgument("give buffer or block, not both", "shuffle")
        if buffer is not None:
            size = integer("buffer", buffer, 1)
            return self._then("shuffle_buffer", seed, size, bool(reshuffle))
        if block is None:
            return self._then("shuffle", seed, bool(reshuffle))
        block, window = integer("block", block, 1), integer("window", window, 1)
        return self._then("shuffle_blocks", seed, block, window, bool(reshuffle))

    def take(self, count: int) -> Dataset:
        """Keep the first `count` elements."""
        return self._then("take", integer("count", count, 0))

    def skip(self, count: int) -> Dataset:
        """Leave out the first `count` elements, without making them."""
        return self._then("skip", integer("count", count, 0))

    def shard(self, rank: int, world: int, *, remainder: str = "keep") -> Dataset:
        """Keep every `world`-th element, from the `rank`-th on.

        Parameters
        ----------
        remainder : {"keep", "drop", "pad"}
            Of what cannot be dealt out evenly: the first ranks have one more; nobody has it; or the
            others begin again at the front, so that all ranks have equally many.
        """
        rank, world = shard_of((rank, world))
        one_of("remainder", remainder, ("keep", "drop", "pad"))
        return self._then("shard", rank, world, remainder)

    def concatenate(self, *others: Dataset) -> Dataset:
        """Go on with the elements of `others`, one Dataset after the other."""
        each = _datasets("concatenate", (self, *others))
        return Dataset._make("concatenate", (), each, several=True)

    def enumerate(self, start: int = 0) -> Dataset:
        """Number the elements: ``(number, element)``."""
        return self._then("enumerate", integer("start", start, -(1 << 63)))

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
        if isinstance(function, Operation):
            return self._then("map_op", function)
        if not callable(function):
            raise InvalidArgument(f"{function!r} is no function", "map")
        return self._then("map_python", function, title_of(function))

    def batch(self, batch_size: int, *, drop_remainder: bool = False) -> Dataset:
        """Stack `batch_size` elements: every array gets one more axis in front.

        Strings and ragged features become `penstock.Ragged`. The last batch is short, or left out.
        """
        return self._then("batch", integer("batch_size", batch_size, 1), bool(drop_remainder))

    def padded_batch(
        self,
        batch_size: int,
        *,
        shapes: dict[str, Sequence[int | None]] | None = None,
        values: dict[str, float] | None = None,
        drop_remainder: bool = False,
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
        fields = [
            (
                name,
                [-1 if n is None else int(n) for n in shapes[name]] if name in shapes else None,
                values.get(name, 0),
            )
            for name in dict.fromkeys([*shapes, *values])
        ]
        size = integer("batch_size", batch_size, 1)
        return self._then("padded_batch", size, fields, bool(drop_remainder))

    def ragged_batch(self, batch_size: int, *, drop_remainder: bool = False) -> Dataset:
        """Stack elements whatever their lengths: what differs becomes `penstock.Ragged`."""
        return self._then(
            "ragged_batch", integer("batch_size", batch_size, 1), bool(drop_remainder)
        )

    def window(
        self,
        size: int,
        *,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Stack `size` elements that follow one another, again from each `shift`-th element on.

        Parameters
        ----------
        shift : int, optional
            From a window's first element to the next one's. None: `size`.
        stride : int
            From an element to the next within a window.
        """
        return self._then(
            "window",
            integer("size", size, 1),
            0 if shift is None else integer("shift", shift, 1),
            integer("stride", stride, 1),
            bool(drop_remainder),
        )

    def on_error(self, policy: str) -> Dataset:
        """Say what becomes of elements that fail in what is above this line of the chain.

        Parameters
        ----------
        policy : {"raise", "skip", "replace"}
            Raised at its place; left out and counted; or another element of the same epoch takes
            its place, and that is counted. ``stats()`` lists what was lost.
        """
        one_of("policy", policy, ("raise", "skip", "replace"))
        return self._then("on_error", policy)

    def assert_cardinality(self, count: int) -> Dataset:
        """Refuse to be built (`DataLoss`) unless there are just so many elements."""
        return self._then("assert_cardinality", integer("count", count, 0))

    def repeat(self, count: int | None = None) -> Dataset:
        """Go through the pass `count` times, or for ever; each time it is shuffled anew."""
        return self._then("repeat", None if count is None else integer("count", count, 1))

    def prefetch(self, batches: int | None = None) -> Dataset:
        """Make up to `batches` batches ahead; at the end of a chain. None: as many as help."""
        return self._then("prefetch", None if batches is None else integer("batches", batches, 1))

    # ---- running ---------------------------------------------------------------------------------

    def build(self, **options: Any) -> Loader:
        """Return a Loader that feeds this; the same as ``penstock.Loader(dataset, **options)``."""
        from .loader import Loader

        return Loader(self, **options)

    def cardinality(self) -> float | None:
        """Batches (elements, where nothing is batched) of a pass; ``math.inf``; None: unknown."""
        plan = self._built()
        if plan.length is None:
            return None
        if _engine.ENDLESS in (plan.length, plan.rounds):
            return float("inf") if plan.length else 0
        return int(plan.length * plan.rounds)

    def __len__(self) -> int:
        """Batches (elements, where nothing is batched) of a pass.

        Raises
        ------
        TypeError
            It never ends, or only running it tells.
        """
        count = self.cardinality()
        if count is None or count == float("inf"):
            raise TypeError(f"this Dataset has no length: {self!r}")
        return int(count)

    def __iter__(self) -> DatasetIterator:
        """Begin the next pass: a `DatasetIterator`."""
        from ._iterator import DatasetIterator

        with self._lock:
            epoch = self._take_pass()
            latest = None if self._latest is None else self._latest()
            if latest is not None and latest.under_way:
                iterator = DatasetIterator(self, self.build(), epoch, own=True)
            else:
                # A forked child's copy is its parent's.
                if self._loader is None or self._loader.closed or self._loader._foreign():
                    self._loader = self.build()
                iterator = DatasetIterator(self, self._loader, epoch, own=False)
                self._latest = weakref.ref(iterator)
            return iterator

    def _take_pass(self) -> int:
        with self._lock:
            self._passes += 1
            return self._passes - 1

    def _go_on_behind(self, number: int) -> None:
        """A pass was restored: the next one is that behind it."""
        with self._lock:
            self._passes = number + 1

    def _is_latest(self, iterator: DatasetIterator) -> bool:
        with self._lock:
            return self._latest is not None and self._latest() is iterator

    def _alone(self) -> Dataset:
        """The same chain without what iterating leaves here: what a Loader may keep."""
        method, arguments = self._recipe
        alone = Dataset._make(method, arguments, self._inputs, self._native, self._several)
        alone._plan = self._built()
        return alone

    def _built(self) -> Any:
        with self._lock:
            if self._plan is None:
                self._plan = self._native.build()
            return self._plan


def _paths(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    given = [files] if isinstance(files, (str, os.PathLike)) else files
    return [os.fspath(path) for path in given]


def _datasets(method: str, inputs: tuple[Any, ...]) -> tuple[Dataset, ...]:
    for given in inputs:
        if not isinstance(given, Dataset):
            raise InvalidArgument(f"{given!r} is no Dataset", method)
    return inputs


def _leaves(nest: Any) -> list[Any]:
    if isinstance(nest, dict):
        return [leaf for value in nest.values() for leaf in _leaves(value)]
    if isinstance(nest, (tuple, list)):
        return [leaf for value in nest for leaf in _leaves(value)]
    return [nest]


def _map_leaves(function: Callable[[Any], Any], nest: Any) -> Any:
    if isinstance(nest, dict):
        return {key: _map_leaves(function, value) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        values = [_map_leaves(function, value) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else type(nest)(values)
    return function(nest)

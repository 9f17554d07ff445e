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
    of which runs the whole chain.

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

    @classmethod
    def _make(
        cls,
        method: str,
        arguments: tuple[Any, ...],
        inputs: tuple[Dataset, ...] = (),
        native: Any = None,
    ) -> Dataset:
        self = object.__new__(cls)
        self._recipe = (method, arguments)
        self._inputs = inputs
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
        elif len(inputs) == 1:
            self._native = getattr(inputs[0]._native, method)(*given)
        else:
            self._native = getattr(_engine.Dataset, method)([i._native for i in inputs], *given)
        return self

    def _then(self, method: str, *arguments: Any) -> Dataset:
        return Dataset._make(method, arguments, (self,))

    def __reduce__(self) -> tuple[Any, ...]:
        method, arguments = self._recipe
        return Dataset._make, (method, arguments, self._inputs)

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
        given = [files] if isinstance(files, (str, os.PathLike)) else list(files)
        return cls._make("tfrecord", ([os.fspath(path) for path in given], compression))

    @classmethod
    def zip(cls, *inputs: Dataset, **named: Dataset) -> Dataset:
        """Elements of several Datasets side by side: a tuple, or by names a dict.

        As long as the shortest.
        """
        if bool(inputs) == bool(named):
            raise InvalidArgument("give Datasets, or Datasets by names", "zip")
        each = _datasets("zip", inputs or tuple(named.values()))
        return cls._make("zip", (list(named),), each)

    # ---- transformations -------------------------------------------------------------------------

    def filter(self, predicate: Callable[..., Any] | Operation) -> Dataset:
        """Keep the elements for which a predicate holds.

        What follows is a stream: only running it tells what comes next, so it has no length and
        cannot be shuffled as a whole, and its place is found by reading on from a place before.

        Parameters
        ----------
        predicate : callable or native operation
            Gets the element as a function of `map` does, and returns a boolean. It is called in
            order, by one thread of this process: do in a `map` before it what takes long.
        """
        if isinstance(predicate, Operation):
            return self._then("filter_op", predicate)
        if not callable(predicate):
            raise InvalidArgument(f"{predicate!r} is no function", "filter")
        return self._then("filter_python", predicate, title_of(predicate))

    def shuffle(self, *, seed: int = 0, reshuffle: bool = True) -> Dataset:
        """Put all elements in a random order: exactly, over the whole source, in no memory.

        Parameters
        ----------
        seed : int
            Equal seeds give equal orders, on every machine.
        reshuffle : bool
            Another order in each epoch.
        """
        return self._then("shuffle", integer("seed", seed, 0), bool(reshuffle))

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
        return Dataset._make("concatenate", (), _datasets("concatenate", (self, *others)))

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
            epoch = self._passes
            self._passes += 1
            latest = None if self._latest is None else self._latest()
            if latest is not None and latest.under_way:
                iterator = DatasetIterator(self, self.build(), epoch, own=True)
            else:
                if self._loader is None or self._loader.closed:
                    self._loader = self.build()
                iterator = DatasetIterator(self, self._loader, epoch, own=False)
                self._latest = weakref.ref(iterator)
            return iterator

    def _alone(self) -> Dataset:
        """The same chain without what iterating leaves here: what a Loader may keep."""
        method, arguments = self._recipe
        alone = Dataset._make(method, arguments, self._inputs, self._native)
        alone._plan = self._built()
        return alone

    def _built(self) -> Any:
        with self._lock:
            if self._plan is None:
                self._plan = self._native.build()
            return self._plan


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

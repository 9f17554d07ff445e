"""Sources other than files, and stages that combine several Datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _engine
from ..base.ambiguous import refuse_columns, refuse_mapping, refuse_misread
from ..base.arguments import MOST_STREAMS, integer, several
from ..base.hdf5 import is_hdf5, only_hdf5, refuse_groups
from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument
from .chain import Chain, datasets
from .file_sources import of_hdf5
from .recipe import title_of

if TYPE_CHECKING:
    from .dataset import Dataset


class Zip:
    """``Dataset.zip(a, b)`` and ``a.zip(b)`` are the same."""

    def __get__(self, instance: Dataset | None, owner: type[Dataset]) -> Callable[..., Dataset]:
        return MethodType(_zip, owner) if instance is None else MethodType(_zip_with, instance)


def _zip(cls: type[Dataset], *inputs: Dataset, **named: Dataset) -> Dataset:
    """Elements of several Datasets side by side: as a tuple, or with names as a dict.

    As long as the shortest input. ``a.zip(b)`` is ``Dataset.zip(a, b)``.
    """
    if bool(inputs) == bool(named):
        raise InvalidArgument("give Datasets, or Datasets by names", "zip")
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list, dict)):
        raise InvalidArgument(
            "give the Datasets themselves: zip(a, b) for tuples, zip(x=a, y=b) for dicts", "zip"
        )
    each = datasets("zip", inputs or tuple(named.values()))
    return cls._make("zip", (list(named),), each, several=True)


def _zip_with(self: Dataset, *others: Dataset, **named: Dataset) -> Dataset:
    """Elements of this Dataset and of others side by side, as tuples."""
    if named:
        raise InvalidArgument("names are given for all: Dataset.zip(a=..., b=...)", "zip")
    if not others:
        raise InvalidArgument("give the Datasets to zip this one with", "zip")
    return _zip(type(self), self, *others)


class Sources(Chain):
    """The class methods of `Dataset`."""

    @classmethod
    def range(cls, *arguments: int) -> Dataset:
        """The numbers of Python's `range`, as int64.

        Parameters
        ----------
        *arguments : int
            ``end``; or ``begin, end``; or ``begin, end, step``.
        """
        if not 1 <= len(arguments) <= 3:
            raise InvalidArgument("give end, or begin and end, or begin, end and step", "range")
        least = -(1 << 63)
        numbers = [integer("range", number, least, operation="range") for number in arguments]
        begin, end, step = (
            (0, numbers[0], 1) if len(numbers) == 1 else (*numbers[:2], *(numbers[2:] or [1]))
        )
        return cls._make("range", (begin, end, step))

    @classmethod
    def arrays(cls, arrays: Any) -> Dataset:
        """Rows of equally long arrays: a NumPy array, or a nest of them.

        Parameters
        ----------
        arrays : array, or tuple, list or dict of them
            Element i is row i of each array, in the same nest. The arrays are not copied, and must
            not change while they are used. Elements have the machine's byte order. Arrays may be
            memory-mapped; do not truncate their file: reading the missing part is a SIGBUS, which
            ends the process. Open h5py data sets are fed from their file, as by `hdf5`.
        """
        for leaf in leaves_of(arrays):
            refuse_mapping(leaf, "arrays")
        refuse_groups(leaves_of(arrays), "arrays")
        if any(is_hdf5(leaf) for leaf in leaves_of(arrays)):
            return of_hdf5(cls, only_hdf5(arrays, "arrays"), "arrays")
        nest = mapped(np.asanyarray, arrays)
        leaves = leaves_of(nest)
        if any(isinstance(leaf, np.ma.MaskedArray) for leaf in leaves):
            raise InvalidArgument("a masked array: use .filled()", "arrays")
        if not all(leaf.ndim for leaf in leaves):
            raise InvalidArgument(
                "a single value has no rows: give arrays, such as np.array([1, 2, 3]), or "
                "elements to Dataset.items",
                "arrays",
            )
        if len({len(leaf) for leaf in leaves}) != 1:
            shapes = ", ".join(str(leaf.shape) for leaf in leaves)
            raise InvalidArgument(
                f"arrays that are fed together must be equally long; their shapes are {shapes}",
                "arrays",
            )
        # The schema of the arrays, without reading a memory map.
        sample = mapped(lambda leaf: np.zeros(0, leaf.dtype), nest)
        return cls._make("arrays", (sample, leaves))

    @classmethod
    def items(cls, elements: Iterable[Any]) -> Dataset:
        """The elements of a list, such as paths with their labels.

        Parameters
        ----------
        elements : list
            Any values that a function of `map` may return. They are copied, and must have one
            schema: only lengths may differ.
        """
        refuse_groups([elements], "items")
        each = several("elements", elements, "elements", "items")
        spec, block = _engine.pack_elements(each, batch=False) if each else (b"", b"")
        return cls._make("items", (spec, len(each), block))

    @classmethod
    def source(cls, source: Any) -> Dataset:
        """Elements of any object with ``__len__`` and ``__getitem__``: a torch Dataset, a list.

        ``__getitem__`` may return any value that a function of `map` may return. It is called in
        worker processes, like such a function.

        Raises
        ------
        InvalidArgument
            The source has no ``__len__`` or ``__getitem__``, or is something else: a path, a table,
            or a tuple or dict of columns, which `arrays` takes.
        """
        refuse_misread(source, "source")
        if is_hdf5(source):
            return of_hdf5(cls, source, "source")
        if isinstance(source, cls):
            raise InvalidArgument("this is a Dataset already: use it as it is", "source")
        refuse_columns(source)
        if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
            raise InvalidArgument(
                f"an object of {type(source).__name__} has no __len__ and __getitem__", "source"
            )
        return cls._make("source_python", (source, len(source), title_of(type(source))))

    @classmethod
    def generator(
        cls, function: Callable[..., Iterable[Any]], *, streams: int | None = None
    ) -> Dataset:
        """The values that a generator function yields. A stream.

        The function is called for each pass, and again to restore a position. One thread of this
        process reads the generator, some elements ahead; the workers run a following `map`.

        Parameters
        ----------
        function : callable
            Takes no arguments and returns an iterable. In it, `penstock.rng` is keyed by seed,
            epoch and the number of elements before.
        streams : int, optional
            n: the function takes the number of its stream, from 0 to n - 1, and yields that
            stream's share. All n streams are open at once, and elements come from them in turn
            until all have ended.
        """
        if not callable(function):
            raise InvalidArgument(
                f"{function!r} is not a function: give the generator function itself", "generator"
            )
        title = f"generator({title_of(function)})"
        if streams is None:
            return cls._make("generator_python", (function, title))
        count = integer("streams", streams, 1, MOST_STREAMS, operation="generator")
        each = [cls._make("generator_python", (partial(function, i), title)) for i in range(count)]
        return cls._make("interleave", (count, 1), tuple(each), several=True)

    @classmethod
    def sample_from(
        cls,
        inputs: Sequence[Dataset],
        *,
        weights: Sequence[float] | None = None,
        seed: int = 0,
        stop_on_empty: bool = False,
    ) -> Dataset:
        """Take each element from a Dataset that is chosen at random. A stream.

        Parameters
        ----------
        weights : list of float, optional
            The probability of each input; None: all are equal.
        stop_on_empty : bool
            End when one input has ended, instead of choosing among the others.
        """
        each = datasets("sample_from", inputs, 1)
        arguments = (
            _weights(weights),
            integer("seed", seed, 0, operation="sample_from"),
            bool(stop_on_empty),
        )
        return cls._make("sample_from", arguments, each, several=True)

    @classmethod
    def choose_from(
        cls, choices: Dataset, inputs: Sequence[Dataset], *, stop_on_empty: bool = True
    ) -> Dataset:
        """Take each element from the input whose number is the next of `choices`. A stream."""
        each = datasets("choose_from", (choices, *datasets("choose_from", inputs, 1)))
        return cls._make("choose_from", (bool(stop_on_empty),), each, several=True)

    zip = Zip()


def _weights(weights: Any) -> list[float]:
    each = [] if weights is None else several("weights", weights, "numbers", "sample_from")
    try:
        return [float(weight) for weight in each]
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(
            f"weights is {weights!r}; give a number for each input", "sample_from"
        ) from None

"""interleave: of given Datasets, and of Datasets that a function returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, overload

from ..base.arguments import integer
from ..errors import InvalidArgument
from .chain import datasets
from .recipe import title_of

if TYPE_CHECKING:
    from .dataset import Dataset


class OfDatasets(Protocol):
    def __call__(self, inputs: Sequence[Dataset], *, cycle: int, block: int = 1) -> Dataset: ...


class OfFunction(Protocol):
    def __call__(
        self, function: Callable[..., Dataset], *, cycle: int = 4, block: int = 1
    ) -> Dataset: ...


class Interleave:
    """`Dataset.interleave` is a source, and `dataset.interleave` is a stage of a chain."""

    @overload
    def __get__(self, instance: None, owner: type[Dataset]) -> OfDatasets: ...
    @overload
    def __get__(self, instance: Dataset, owner: type[Dataset]) -> OfFunction: ...
    def __get__(self, instance: Dataset | None, owner: type[Dataset]) -> Any:
        if instance is None:
            return MethodType(_of_datasets, owner)
        return MethodType(_of_function, instance)


def _of_datasets(
    cls: type[Dataset], inputs: Sequence[Dataset], *, cycle: int, block: int = 1
) -> Dataset:
    """Take `block` elements of each of `cycle` Datasets in turn, as tf.data's interleave.

    When an open Dataset ends, the next one takes its place. ``dataset.interleave(function)``, as a
    method of a Dataset object, takes turns among the Datasets that the function returns.
    """
    each = datasets("interleave", inputs, 1)
    sizes = (
        integer("cycle", cycle, 1, operation="interleave"),
        integer("block", block, 1, operation="interleave"),
    )
    return cls._make("interleave", sizes, each, several=True)


def _of_function(
    self: Dataset, function: Callable[..., Dataset], *, cycle: int = 4, block: int = 1
) -> Dataset:
    """Take turns among the Datasets that a function makes from the elements. A stream.

    As tf.data's interleave: `cycle` Datasets are open at a time and give `block` elements each in
    turn; when one ends, the Dataset of the next element takes its place.

    Parameters
    ----------
    function : callable
        As for `flat_map`.
    """
    if not callable(function):
        raise InvalidArgument(f"{function!r} is not a function", "interleave")
    sizes = (
        integer("cycle", cycle, 1, operation="interleave"),
        integer("block", block, 1, operation="interleave"),
    )
    return self._then("interleave_python", function, title_of(function), *sizes)

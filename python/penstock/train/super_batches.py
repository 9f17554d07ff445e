"""Super-batches: the batches of several steps, as views of one array or as a list."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.nests import leaves_of, mapped
from ..base.ragged import Ragged
from ..errors import InvalidArgument
from .rows import array_form, array_of, columns_of, count_of, form_of, rows_of

if TYPE_CHECKING:
    from .pace import Pace

Convert = Callable[[Any], Any] | None
Keep = Callable[[int, Any], Any] | None


class SuperBatch(NamedTuple):
    """`steps` batches of equal names, shapes and dtypes.

    Either `whole` has the rows of all batches, `size` for each, or `parts` is a list of batches.
    """

    steps: int
    size: int
    whole: Any
    parts: list[Any]

    def first(self, steps: int) -> SuperBatch:
        """Return the first `steps` batches."""
        return self if steps == self.steps else self._replace(steps=steps)

    def each(self) -> Iterable[Any]:
        """Return the batches; all views are made at once, which is cheaper."""
        if self.whole is None:
            return self.parts[: self.steps]
        columns = [_views(leaf, self.size, self.steps) for leaf in leaves_of(self.whole)]
        if isinstance(self.whole, dict) and _is_flat(self.whole.values()):
            names = tuple(self.whole)
            return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        if type(self.whole) is tuple and _is_flat(self.whole):
            return zip(*columns, strict=True)
        return (like(self.whole, row) for row in zip(*columns, strict=True))

    def stacked(self) -> Any:
        """Return one nest of arrays (steps, size, ...): views of `whole`, or copies of `parts`."""
        if self.whole is not None:
            rows = self.steps * self.size
            shape = (self.steps, self.size)
            cut = lambda leaf: _dense(leaf)[:rows].reshape(*shape, *leaf.shape[1:])  # noqa: E731
            return mapped(cut, self.whole)
        columns = columns_of(self.parts[: self.steps], "batches of a run", "Loop")
        return like(
            self.parts[0], (np.stack([array_of(_dense(x)) for x in column]) for column in columns)
        )


def _is_flat(values: Iterable[Any]) -> bool:
    return not any(isinstance(value, (dict, tuple, list)) for value in values)


def _views(leaf: Any, size: int, count: int) -> Any:
    split = getattr(leaf, "split", None)  # torch's: a tuple of views in one call
    if split is not None and hasattr(leaf, "detach"):
        return split(size)[:count]
    return [leaf[begin : begin + size] for begin in range(0, count * size, size)]


def like(nest: Any, leaves: Iterable[Any]) -> Any:
    """Return a nest of the same form with these leaves."""
    given = iter(leaves)
    return mapped(lambda _: next(given), nest)


def super_batches(
    feed: Iterable[Any], pace: Pace, size: int | None, convert: Convert, keep: Keep = None
) -> Iterator[SuperBatch]:
    """Yield one pass of a feed in super-batches, whose sizes `pace` decides.

    `keep`: called with each batch as it arrives, if there is neither `size` nor `convert`, and with
    its number among those that are taken together; returns the batch to use.
    """
    if size is not None:
        return _cut(feed, pace, size, convert)
    return _grouped(feed, pace, convert, keep if convert is None else None)


def _cut(feed: Iterable[Any], pace: Pace, size: int, convert: Convert) -> Iterator[SuperBatch]:
    for batch in feed:
        rows = count_of(batch, "a super-batch")
        whole = mapped(_as_array if convert is None else convert, batch)
        begin = 0
        while rows - begin >= size:
            full = pace.run_of((rows - begin) // size)
            yield SuperBatch(full, size, rows_of(whole, begin, begin + full * size), [])
            begin += full * size
        if rows % size:
            yield SuperBatch(1, rows % size, rows_of(whole, rows - rows % size, rows), [])


def _as_array(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "reshape") or isinstance(leaf, Ragged) else array_of(leaf)


def _dense(leaf: Any) -> Any:
    if isinstance(leaf, Ragged):
        text = f"the batches of N steps cannot be one array for a scan: a leaf is {leaf!r}"
        raise InvalidArgument(f"{text}; pad them (padded_batch)", "Loop")
    return leaf


def _grouped(feed: Iterable[Any], pace: Pace, convert: Convert, keep: Keep) -> Iterator[SuperBatch]:
    batches = iter(feed)
    while taken := _taken(itertools.islice(batches, pace.run_of(pace.most)), keep):
        # Batches of another form, such as a smaller last one, are a run of their own.
        for _, group in itertools.groupby(taken, _form):
            alike = [batch if convert is None else mapped(convert, batch) for batch in group]
            while alike:
                count = pace.run_of(len(alike))
                yield SuperBatch(count, 0, None, alike[:count])
                del alike[:count]


def _taken(batches: Iterable[Any], keep: Keep) -> list[Any]:
    if keep is None:
        return list(batches)
    return [keep(number, batch) for number, batch in enumerate(batches)]


def _form(batch: Any) -> Any:
    return form_of(batch, array_form)

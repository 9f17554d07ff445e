"""Batches as rows: cut to another size, filled up, and collected again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.nests import leaves_of, mapped
from ..base.ragged import Ragged
from ..dataset import Dataset
from ..errors import InvalidArgument
from .alike import columns_of, dtype_form, form_of, text_of

# Of these stages a Dataset's elements are single samples, as are those that a Python function makes
# of samples. What a generator, an object, items or a snapshot give may be batches.
_OF_SAMPLES = {
    "arrays", "range", "cifar10", "cifar100", "csv", "fixed_records", "idx", "lines", "tfrecord",
    "map_op", "map_python", "scan_python", "filter_op", "filter_python", "take_while_op",
    "take_while_python", "unique", "unique_op", "unique_python", "shuffle", "shuffle_blocks",
    "shuffle_buffer", "take", "skip", "shard", "repeat", "concatenate", "zip", "enumerate",
    "choose_from", "sample_from", "interleave", "cache", "on_error", "assert_cardinality",
    "prefetch",
}  # fmt: skip
_STACKING = {"batch", "padded_batch", "ragged_batch", "bucket_by_length", "window"}
# What the Datasets that a function makes give, nobody knows before it is called.
_OF_DATASETS = {"flat_map_python": "flat_map", "interleave_python": "interleave(function)"}


def array_of(value: Any) -> npt.NDArray[Any]:
    """Return a NumPy array of whatever a model gives: tensors of torch, jax and TensorFlow too."""
    if hasattr(value, "detach"):  # a tensor of torch, perhaps one that wants gradients
        value = value.detach().cpu()
    return np.asarray(value)


def count_of(batch: Any, what: str) -> int:
    """Return how many rows all leaves of `batch` have."""
    counts = {
        len(leaf) if isinstance(leaf, Ragged) or np.ndim(leaf) else -1 for leaf in leaves_of(batch)
    }
    if len(counts) != 1 or -1 in counts:
        said = "no rows" if counts <= {-1} else f"leaves of {sorted(counts)} rows"
        raise InvalidArgument(f"{what} has {said}; each leaf needs one for each sample", "train")
    return int(counts.pop())


def check_batched(batch: Any) -> None:
    """Refuse what is a single sample, and no batch: a leaf of it has no rows."""
    if any(not isinstance(leaf, Ragged) and np.ndim(leaf) == 0 for leaf in leaves_of(batch)):
        raise InvalidArgument(
            "a batch has a leaf without rows; each leaf needs one for each sample. A Dataset that "
            "gives samples needs .batch(n) behind map(...) and all else that makes them",
            "train",
        )


def rows_of(batch: Any, begin: int, end: int) -> Any:
    return mapped(lambda leaf: leaf[begin:end], batch)


def joined(parts: list[Any], what: str) -> Any:
    """Return batches of one nest, one after the other, as one; fields go by their names.

    Raises
    ------
    InvalidArgument
        They have other names or places, or rows of other shapes.
    """
    if len(parts) == 1:
        return parts[0]
    columns = columns_of(parts, what, "train")
    made = iter([_joined(list(column), what) for column in columns])
    return mapped(lambda _: next(made), parts[0])


def kept(batch: Any) -> Any:
    """Return a copy that lives on when the feed or the model uses its memory again."""
    return mapped(lambda leaf: leaf[np.arange(len(leaf))], batch)


def filled_up(batch: Any, count: int, size: int) -> Any:
    """Return a batch of `size` rows: those of `batch`, and its last one again and again."""
    places = np.minimum(np.arange(size), count - 1)
    return mapped(lambda leaf: leaf[places], batch)


def batches_of(feed: Iterable[Any], batch_size: int | None) -> Iterator[Any]:
    """Iterate over a pass of `feed`, in batches of `batch_size` rows and a last one of the rest."""
    if batch_size is None:
        yield from feed
    elif isinstance(feed, Dataset):
        yield from feed.batch(batch_size) if _gives_samples(feed) else feed.rebatch(batch_size)
    else:
        yield from _cut(feed, batch_size)


def _gives_samples(dataset: Dataset) -> bool:
    """Whether its elements are single samples, and no batches."""
    left = [(dataset, 0)]
    while left:
        chain, unbatched = left.pop()  # how many stages behind it take batches apart
        method, _ = chain._recipe
        if method == "unbatch":
            unbatched += 1
        elif method == "rebatch" and unbatched == 1:
            continue  # rows of batches are samples, whatever the batches were made of
        elif method in _STACKING and unbatched:
            unbatched -= 1
        elif method in _OF_DATASETS:
            raise InvalidArgument(
                f"what {_OF_DATASETS[method]} gives may be samples or batches; with batch_size= "
                "put .batch(n) behind it if they are samples, .rebatch(n) if they are batches",
                "train",
            )
        elif method not in _OF_SAMPLES:
            return False
        left += [(below, unbatched) for below in chain._inputs]
    return True


def _cut(feed: Iterable[Any], size: int) -> Iterator[Any]:
    waiting: list[Any] = []
    count = 0
    first: tuple[int, Any, str] | None = None  # batch: its number, form and text
    for number, batch in enumerate(feed):
        check_batched(batch)
        rows = count_of(batch, "a batch")
        if rows == 0:
            continue
        form = form_of(batch, dtype_form)
        if first is None:
            first = (number, form, text_of(batch))
        elif form != first[1]:
            text = f"batch {number} is {text_of(batch)}, batch {first[0]} was {first[2]}"
            raise InvalidArgument(f"{text}; with batch_size= all must be alike", "train")
        begin = 0
        while count + rows - begin >= size:
            end = begin + size - count
            yield joined([*waiting, rows_of(batch, begin, end)], "batches")
            waiting, count, begin = [], 0, end
        if begin < rows:
            waiting.append(rows_of(batch, begin, rows))
            count += rows - begin
    if waiting:
        yield joined(waiting, "batches")


def _joined(column: list[Any], what: str) -> Any:
    try:
        if isinstance(column[0], Ragged):
            return _joined_ragged(column)
        return np.concatenate(column)
    except (ValueError, TypeError, AttributeError) as error:
        shapes = sorted({str(getattr(leaf, "shape", "?")[1:]) for leaf in column})
        text = f"{what} have rows that are not alike, of shapes {', '.join(shapes)}"
        raise InvalidArgument(text, "train") from error


def _joined_ragged(column: list[Ragged]) -> Ragged:
    first = column[0]
    lengths = np.concatenate([np.diff(leaf.offsets) for leaf in column])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    dims = None if first.dims is None else np.concatenate([leaf.dims for leaf in column])
    values = np.concatenate([leaf.values for leaf in column])
    return Ragged(values, offsets, first.kind, dims, first.axes)

"""Batches as rows: cut to another size, padded, joined; and nests of equal form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.nests import leaves_of, mapped
from ..base.ragged import Ragged
from ..dataset import Dataset
from ..errors import InvalidArgument

Inputs = str | int | Sequence[str] | Callable[[Any], Any] | None

# Stages whose elements are single samples, if their inputs are; Python functions included. Elements
# of generators, objects, items and snapshots may be batches.
_OF_SAMPLES = {
    "arrays", "arrow", "range", "cifar10", "cifar100", "csv", "file_rows", "files", "fixed_records",
    "hdf5", "idx", "image_folder", "lines", "tar", "tfrecord",
    "map_op", "map_python", "scan_python", "filter_op", "filter_python", "take_while_op",
    "take_while_python", "unique", "unique_op", "unique_python", "shuffle", "shuffle_blocks",
    "shuffle_buffer", "take", "skip", "shard", "repeat", "concatenate", "zip", "enumerate",
    "choose_from", "sample_from", "interleave", "cache", "on_error", "assert_cardinality",
    "prefetch",
}  # fmt: skip
_STACKING = {"batch", "padded_batch", "ragged_batch", "bucket_by_length", "window"}
# The function's Datasets, and so their elements, are unknown before it is called.
_OF_DATASETS = {"flat_map_python": "flat_map", "interleave_python": "interleave(function)"}


def split(batch: Any, inputs: Inputs) -> tuple[Any, Any]:
    """Return the model's part of a batch (or of an element), and the rest or None."""
    if callable(inputs):
        return inputs(batch), None
    if inputs is None:
        if isinstance(batch, tuple) and len(batch) > 1:
            inputs = 0
        elif isinstance(batch, (tuple, dict)) and len(batch) == 1:
            inputs = 0 if isinstance(batch, tuple) else next(iter(batch))
        else:
            return batch, None
    try:
        if isinstance(inputs, int):
            x, own = batch[inputs], inputs % len(batch)
            return x, tuple(value for place, value in enumerate(batch) if place != own) or None
        names = [inputs] if isinstance(inputs, str) else list(inputs)
        x = batch[inputs] if isinstance(inputs, str) else {name: batch[name] for name in names}
        return x, {name: value for name, value in batch.items() if name not in names} or None
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        there = sorted(batch) if isinstance(batch, dict) else type(batch).__name__
        raise InvalidArgument(f"inputs={inputs!r}: the batch has {there}", "train") from error


def array_of(value: Any) -> npt.NDArray[Any]:
    """Convert a model's result, such as a tensor of torch, JAX or TensorFlow, to a NumPy array."""
    if hasattr(value, "detach"):  # a torch tensor, possibly with a gradient
        value = value.detach().cpu()
    return np.asarray(value)


def count_of(batch: Any, what: str) -> int:
    """Return the number of rows, which all leaves of `batch` must have."""
    counts = {
        len(leaf) if isinstance(leaf, Ragged) or np.ndim(leaf) else -1 for leaf in leaves_of(batch)
    }
    if len(counts) != 1 or -1 in counts:
        found = "no rows" if counts <= {-1} else f"leaves of {sorted(counts)} rows"
        text = f"{what} has {found}; each leaf needs one row for each sample"
        raise InvalidArgument(text, "train")
    return int(counts.pop())


def check_batched(batch: Any) -> None:
    """Refuse a single sample: a batch's leaves all have rows."""
    if any(not isinstance(leaf, Ragged) and np.ndim(leaf) == 0 for leaf in leaves_of(batch)):
        raise InvalidArgument(
            "a batch has a leaf without rows; each leaf needs one row for each sample. A Dataset "
            "of samples needs .batch(n) after the stages that make samples, such as map(...)",
            "train",
        )


def rows_of(batch: Any, begin: int, end: int) -> Any:
    return mapped(lambda leaf: leaf[begin:end], batch)


def joined(parts: list[Any], what: str) -> Any:
    """Concatenate batches of equal form; fields are matched by name.

    Raises
    ------
    InvalidArgument
        The batches differ in names or positions, or in the shapes of rows.
    """
    if len(parts) == 1:
        return parts[0]
    columns = columns_of(parts, what, "train")
    made = iter([_joined(list(column), what) for column in columns])
    return mapped(lambda _: next(made), parts[0])


def kept(batch: Any) -> Any:
    """Return a copy, which stays valid when the feed or the model reuses its memory."""
    return mapped(lambda leaf: leaf[np.arange(len(leaf))], batch)


def filled_up(batch: Any, count: int, size: int) -> Any:
    """Pad a batch to `size` rows with copies of its last row."""
    places = np.minimum(np.arange(size), count - 1)
    return mapped(lambda leaf: leaf[places], batch)


def batches_of(feed: Iterable[Any], batch_size: int | None) -> Iterator[Any]:
    """Yield one pass of `feed` in batches of `batch_size` rows; the last may have fewer."""
    if batch_size is None:
        yield from feed
    elif isinstance(feed, Dataset):
        yield from feed.batch(batch_size) if _gives_samples(feed) else feed.rebatch(batch_size)
    else:
        yield from _cut(feed, batch_size)


def _gives_samples(dataset: Dataset) -> bool:
    """Return whether the Dataset's elements are samples and not batches."""
    left = [(dataset, 0)]
    while left:
        chain, unbatched = left.pop()  # number of later unbatch stages
        method, _ = chain._recipe
        if method == "unbatch":
            unbatched += 1
        elif method == "rebatch" and unbatched == 1:
            continue  # rows of batches are samples
        elif method in _STACKING and unbatched:
            unbatched -= 1
        elif method in _OF_DATASETS:
            raise InvalidArgument(
                f"the elements of {_OF_DATASETS[method]} may be samples or batches; with "
                "batch_size= add .batch(n) after it for samples, or .rebatch(n) for batches",
                "train",
            )
        elif method not in _OF_SAMPLES:
            return False
        left += [(below, unbatched) for below in chain._inputs]
    return True


def _cut(feed: Iterable[Any], size: int) -> Iterator[Any]:
    waiting: list[Any] = []
    count = 0
    first: tuple[int, Any, str] | None = None  # number, form and description of the first batch
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
            raise InvalidArgument(
                f"{text}; with batch_size= all batches must have one form", "train"
            )
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
        text = f"{what} have rows of different shapes: {', '.join(shapes)}"
        raise InvalidArgument(text, "train") from error


def _joined_ragged(column: list[Ragged]) -> Ragged:
    first = column[0]
    lengths = np.concatenate([np.diff(leaf.offsets) for leaf in column])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    dims = None if first.dims is None else np.concatenate([leaf.dims for leaf in column])
    values = np.concatenate([leaf.values for leaf in column])
    return Ragged(values, offsets, first.kind, dims, first.axes)


def form_of(nest: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return a value that is equal for nests of equal names, positions and leaf forms.

    ``leaf`` returns the form of a leaf.
    """
    if isinstance(nest, dict):
        return {name: form_of(value, leaf) for name, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        return _kind(nest), [form_of(value, leaf) for value in nest]
    return leaf(nest)


def array_form(leaf: Any) -> tuple[Any, Any]:
    """Return the shape and the dtype form."""
    if isinstance(leaf, Ragged):
        return (len(leaf),), dtype_form(leaf)
    shape = getattr(leaf, "shape", None)
    return np.shape(leaf) if shape is None else shape, dtype_form(leaf)


def dtype_form(leaf: Any) -> Any:
    """Return the dtype (for strings without the length), or the type of an object without one."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return leaf.kind if isinstance(leaf, Ragged) else type(leaf)
    if isinstance(leaf, Ragged):
        return leaf.kind, dtype
    return dtype.kind if getattr(dtype, "kind", "") in ("S", "U") else dtype


def columns_of(nests: list[Any], what: str, operation: str) -> list[tuple[Any, ...]]:
    """Group the corresponding leaves of several nests, in the order of the first nest.

    Raises
    ------
    InvalidArgument
        The nests differ in names or positions; the text describes the first that differs.
    """
    first = nests[0]
    names = form_of(first, _anything)
    for number, nest in enumerate(nests):
        if form_of(nest, _anything) != names:
            text = f"number {number} is {text_of(nest)}, number 0 was {text_of(first)}"
            raise InvalidArgument(f"{what} are not alike: {text}", operation)
    return list(zip(*(_ordered(first, nest) for nest in nests), strict=True))


def _ordered(first: Any, nest: Any) -> list[Any]:
    if isinstance(first, dict):
        return [leaf for name in first for leaf in _ordered(first[name], nest[name])]
    if isinstance(first, (tuple, list)):
        return [leaf for pair in zip(first, nest, strict=True) for leaf in _ordered(*pair)]
    return [nest]


def text_of(nest: Any) -> str:
    """Describe a nest by the dtypes and shapes of its rows: ``{x: float32 (3,), y: int64 ()}``."""
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{name}: {text_of(value)}" for name, value in nest.items()) + "}"
    if isinstance(nest, (tuple, list)):
        left, right = "[]" if isinstance(nest, list) else "()"
        return left + ", ".join(map(text_of, nest)) + right
    if isinstance(nest, Ragged):
        return f"ragged {nest.dtype if nest.kind == 'array' else nest.kind}"
    if not hasattr(nest, "dtype"):
        return type(nest).__name__
    return f"{nest.dtype} {tuple(nest.shape[1:])}"


def _kind(nest: Any) -> Any:
    return getattr(nest, "_fields", None) or ("list" if isinstance(nest, list) else "tuple")


def _anything(_: Any) -> None:
    return None

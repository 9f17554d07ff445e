"""Evaluate and predict: run a model over one pass of a feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument
from .rows import (
    array_of,
    batches_of,
    check_batched,
    count_of,
    filled_up,
    joined,
    kept,
    rows_of,
)
from .sequences import Stateful

__all__ = ["Predictions", "evaluate", "predict"]

Inputs = str | int | Sequence[str] | Callable[[Any], Any] | None


class Predictions(NamedTuple):
    """A model's outputs for every row of a feed, in the feed's order.

    Attributes
    ----------
    outputs
        A nest like the model's result, of arrays with a row for each sample. With `stateful`: a
        list with a nest for each sequence, of arrays with a row for each step.
    extras
        The other parts of the feed's batches, such as ids, with a row for each sample; None if
        there are none. With `stateful`: a list, with an entry for each sequence.
    """

    outputs: Any
    extras: Any


def predict(
    model: Callable[..., Any],
    feed: Iterable[Any],
    *,
    inputs: Inputs = None,
    batch_size: int | None = None,
    pad: bool = False,
    stateful: bool = False,
    window: int | None = None,
) -> Predictions:
    """Run a model over one pass of a feed and return its outputs for every row.

    Parameters
    ----------
    model : callable
        ``model(x)``, with x the part of a batch that `inputs` selects; returns an array (of NumPy,
        torch, JAX or TensorFlow), or a nest of arrays, with a row for each row of x. Called in the
        caller's thread. With `stateful`: ``model(x, reset)``, see `Stateful`.
    feed : Dataset, Loader or iterable
        Batches, with fields matched by name; with `stateful`, single sequences. With `batch_size`,
        a `Dataset` of arrays or files without a batching stage gives samples, and is batched here;
        results of Python functions (`Dataset.map`) count as samples: add ``.rebatch(n)`` after a
        function that makes batches. Elements of a generator, `Dataset.items` or `Dataset.source`
        count as batches: add ``.batch(n)`` after samples. After `Dataset.flat_map` or
        `Dataset.interleave` of a function, one of the two is required.
    inputs : str, int, list of str, or callable, optional
        The model's part of a batch: a field of a dict, a position in a tuple, several fields (as a
        dict), or the result of a function of the whole batch. None: the first element of a tuple,
        the only field of a dict, or the whole batch. The rest is returned as `extras`, except with
        a function.
    batch_size : int, optional
        Rows of a batch, for any size of the feed's batches; the last batch may have fewer. None:
        the feed's batches. With `stateful`: the number of lanes (default 32).
    pad : bool
        Pad the last batch to `batch_size` with copies of its last row, for models of a fixed size.
        Their outputs are dropped.
    stateful : bool
        For recurrent models that keep their state from call to call: row i of a batch continues
        where row i of the last batch ended. The model resets the state of the rows in `reset`.
    window : int
        With `stateful`: the steps of a batch.

    Raises
    ------
    InvalidArgument
        The feed gave nothing; its batches, or the model's outputs, differ in names or, with
        `batch_size`, in dtypes (otherwise dtypes are promoted as by NumPy); the model returned
        another number of rows than it got; `inputs` names a missing part; `pad` without
        `batch_size`.

    Examples
    --------
    >>> outputs, extras = train.predict(model, samples, inputs="image", batch_size=256, pad=True)
    >>> dict(zip(extras["id"], outputs.argmax(axis=1)))
    """
    if stateful:
        return _predict_stateful(model, feed, inputs, batch_size or 32, window)
    size = _size_of(batch_size, pad)
    outputs, extras = [], []
    for batch in batches_of(feed, size):
        check_batched(batch)
        x, rest = split(batch, inputs)
        rows = count_of(x, "a batch")
        if rows == 0:
            continue
        padded = pad and size is not None and rows < size
        result = mapped(array_of, model(filled_up(x, rows, size) if padded and size else x))
        outputs.append(kept(_of_rows(result, rows, size if padded else rows)))
        if rest is not None:
            extras.append(kept(rest))
    if not outputs:
        raise InvalidArgument("the feed gave no batch", "predict")
    return Predictions(
        joined(outputs, "the model's outputs"), joined(extras, "extras") if extras else None
    )


def evaluate(
    step: Callable[[Any], dict[str, Any]],
    feed: Iterable[Any],
    *,
    batch_size: int | None = None,
    pad: bool = False,
) -> dict[str, float]:
    """Average the metrics of a step over all rows of one pass of a feed.

    Parameters
    ----------
    step : callable
        ``step(batch)`` returns a dict of metrics: an array with a value for each row, or a number,
        the mean over the batch. Called in the caller's thread.
    feed, batch_size, pad
        As for `predict`; with `pad` metrics must be arrays, since a mean would include copies.

    Returns
    -------
    dict of float
        The mean of each metric over all rows (float64), independent of the batching, and "rows",
        the number of rows.

    Raises
    ------
    InvalidArgument
        The feed gave nothing; a metric's number of values is not the batch's number of rows;
        batches have different metrics; a metric is called "rows".
    """
    size = _size_of(batch_size, pad)
    values: dict[str, list[Any]] = {}
    counts: list[int] = []
    for batch in batches_of(feed, size):
        check_batched(batch)
        rows = count_of(batch, "a batch")
        if rows == 0:
            continue
        padded = pad and size is not None and rows < size
        metrics = step(filled_up(batch, rows, size) if padded and size else batch)
        if counts and set(metrics) != set(values):
            text = f"metrics {sorted(metrics)} after {sorted(values)}; they must be the same"
            raise InvalidArgument(text, "evaluate")
        if "rows" in metrics:
            text = 'a metric is called "rows", the name of the number of rows; give it another name'
            raise InvalidArgument(text, "evaluate")
        for name, value in metrics.items():
            given = array_of(value).astype(np.float64)
            if given.ndim == 0 and pad:
                text = f"metric {name!r} is a mean; with pad=True give a value for each row"
                raise InvalidArgument(text, "evaluate")
            if given.ndim:
                given = _of_rows(given, rows, size if padded else rows)
            values.setdefault(name, []).append(given)
        counts.append(rows)
    if not counts:
        raise InvalidArgument("the feed gave no batch", "evaluate")
    return {name: _mean(given, counts) for name, given in values.items()} | {"rows": sum(counts)}


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


def _size_of(batch_size: int | None, pad: bool) -> int | None:
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise InvalidArgument(f"batch_size={batch_size!r}; give a number of 1 or more", "train")
    if pad and batch_size is None:
        raise InvalidArgument("pad=True needs batch_size=, the size of padded batches", "train")
    return batch_size


def _of_rows(metrics: Any, rows: int, given: int | None) -> Any:
    """Return the outputs of the first `rows` of the `given` rows that the model got."""
    count = count_of(metrics, "the model's output")
    if count != given:
        raise InvalidArgument(f"the model returned {count} rows for {given}", "train")
    return rows_of(metrics, 0, rows)


def _mean(given: list[Any], counts: list[int]) -> float:
    if all(np.ndim(value) == 0 for value in given):
        return float(np.average(np.array(given), weights=counts))
    rows = [
        value if np.ndim(value) else np.full(count, value)
        for value, count in zip(given, counts, strict=True)
    ]
    # One sum over all rows: independent of the batching.
    return float(np.mean(np.concatenate(rows)))


def _predict_stateful(
    model: Callable[..., Any], feed: Iterable[Any], inputs: Inputs, lanes: int, window: int | None
) -> Predictions:
    if window is None:
        raise InvalidArgument("stateful=True needs window=, the steps of a batch", "predict")
    extras: list[Any] = []

    def sequences() -> Any:
        for element in feed:
            x, rest = split(element, inputs)
            if rest is not None:
                extras.append(mapped(lambda leaf: np.array(leaf) if np.ndim(leaf) else leaf, rest))
            yield x

    found: dict[int, list[Any]] = {}
    for batch in Stateful(sequences(), batch_size=lanes, window=window):
        outputs = mapped(array_of, model(batch.x, batch.reset))
        for leaf in leaves_of(outputs):
            if np.shape(leaf)[:2] != (lanes, window):
                text = (
                    f"the model returned shape {np.shape(leaf)} for {lanes} lanes of {window} steps"
                )
                raise InvalidArgument(text, "predict")
        for lane in np.flatnonzero(batch.sequence >= 0):
            part = _of_lane(outputs, int(lane), int(batch.steps[lane]))
            found.setdefault(int(batch.sequence[lane]), []).append(part)
    if not found:
        raise InvalidArgument("the feed gave no sequence", "predict")
    whole = [joined(found[number], "the model's outputs") for number in range(len(found))]
    return Predictions(whole, extras or None)


def _of_lane(outputs: Any, lane: int, steps: int) -> Any:
    return mapped(lambda leaf: np.array(leaf[lane, :steps]), outputs)

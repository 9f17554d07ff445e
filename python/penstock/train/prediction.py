"""Evaluate and predict: a model over a whole feed, in batches of a size of their own."""

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
    """What a model said of every row of a feed, in the feed's order.

    Attributes
    ----------
    outputs
        The nest that the model gives, of arrays with a row for each sample. Of `stateful`
        predictions: a list with the nest of each sequence, of arrays with a row for each step.
    extras
        What else the feed's batches had, such as the samples' ids, with a row for each; None if
        there was nothing else. Of `stateful` predictions: a list, too.
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
    """Run a model over one pass of a feed and return what it says of every row.

    Parameters
    ----------
    model : callable
        ``model(x)`` with x the part of a batch that `inputs` names; returns an array (NumPy's, or a
        tensor of torch, JAX or TensorFlow), or a nest of them, with a row for each of x's. Called
        in the caller's thread. If `stateful`: ``model(x, reset)``, see `Stateful`.
    feed : Dataset, Loader or iterable
        Gives batches, whose fields go by their names; if `stateful`, single sequences: elements,
        not batches. With `batch_size`, a `Dataset` of arrays or files in which nothing is batched
        gives samples, and is batched; so does one whose Python functions (`Dataset.map`) make
        something of them: put ``.rebatch(n)`` behind one that makes batches by itself. What a
        generator, `Dataset.items` or `Dataset.source` gives may be either and is taken for
        batches: put ``.batch(n)`` behind samples. So may what `Dataset.flat_map` and
        `Dataset.interleave` of a function give, which is refused without one of the two.
    inputs : str, int, list of str, or callable, optional
        The model's part of a batch: a field of a dict, a place in a tuple, several fields (a dict
        of them), or what a function makes of the whole batch. None: a tuple's first; of a dict
        with one field that; anything else as it is. All the rest is returned as `extras`, but
        not with a function, for what it leaves over is not known.
    batch_size : int, optional
        Rows of a batch, whatever the feed's batches have; the last one has what is left. None: as
        they come. If `stateful`, the number of lanes, which is always that (32 if None).
    pad : bool
        Fill the last batch up to `batch_size` with copies of its last row, for models of a fixed
        size. What the model says of them is cut off.
    stateful : bool
        For recurrent models that keep their state from call to call: sample i of a batch goes on
        where sample i of the batch before ended. The state of those in `reset` begins anew.
    window : int
        With `stateful`: steps of a batch.

    Raises
    ------
    InvalidArgument
        The feed gave nothing; its batches, or what the model gave for them, cannot be one batch, of
        other names or, with `batch_size`, dtypes (without, they are promoted as NumPy does); the
        model gave another number of rows than it got; `inputs` names what is not there; `pad`
        without a batch size.

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
        said = mapped(array_of, model(filled_up(x, rows, size) if padded and size else x))
        outputs.append(kept(_of_rows(said, rows, size if padded else rows)))
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
    """Average what a step says of every row over one pass of a feed.

    Parameters
    ----------
    step : callable
        ``step(batch)`` returns a dict of metrics: arrays with a value for each row, or a number,
        the mean over the batch. Called in the caller's thread.
    feed, batch_size, pad
        As for `predict`; with `pad`, metrics are arrays, since a mean would count copies.

    Returns
    -------
    dict of float
        The mean of each metric over all rows (float64), however they were batched, and "rows",
        how many there were.

    Raises
    ------
    InvalidArgument
        The feed gave nothing; a metric has another number of values than the batch has rows; the
        metrics are others than those of the batch before; one is called "rows".
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
        said = step(filled_up(batch, rows, size) if padded and size else batch)
        if counts and set(said) != set(values):
            text = f"metrics {sorted(said)} after {sorted(values)}; each batch gives the same"
            raise InvalidArgument(text, "evaluate")
        if "rows" in said:
            text = 'a metric is called "rows", which is how many there were; give it another name'
            raise InvalidArgument(text, "evaluate")
        for name, value in said.items():
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
    """Return the part of a batch (or an element) that is the model's, and the rest or None."""
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
        raise InvalidArgument(f"batch_size={batch_size!r}; a number of 1 or more", "train")
    if pad and batch_size is None:
        raise InvalidArgument("pad=True needs batch_size=, the size to fill up to", "train")
    return batch_size


def _of_rows(said: Any, rows: int, given: int | None) -> Any:
    """What was said of the first `rows` of the `given` rows that the model got."""
    count = count_of(said, "what the model gave")
    if count != given:
        raise InvalidArgument(f"the model gave {count} rows for {given}", "train")
    return rows_of(said, 0, rows)


def _mean(given: list[Any], counts: list[int]) -> float:
    if all(np.ndim(value) == 0 for value in given):
        return float(np.average(np.array(given), weights=counts))
    rows = [
        value if np.ndim(value) else np.full(count, value)
        for value, count in zip(given, counts, strict=True)
    ]
    # One sum over all rows: it does not depend on how they were batched.
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

    said: dict[int, list[Any]] = {}
    for batch in Stateful(sequences(), batch_size=lanes, window=window):
        outputs = mapped(array_of, model(batch.x, batch.reset))
        for leaf in leaves_of(outputs):
            if np.shape(leaf)[:2] != (lanes, window):
                text = f"the model gave shape {np.shape(leaf)} for {lanes} lanes of {window} steps"
                raise InvalidArgument(text, "predict")
        for lane in np.flatnonzero(batch.sequence >= 0):
            part = _of_lane(outputs, int(lane), int(batch.steps[lane]))
            said.setdefault(int(batch.sequence[lane]), []).append(part)
    if not said:
        raise InvalidArgument("the feed gave no sequence", "predict")
    whole = [joined(said[number], "the model's outputs") for number in range(len(said))]
    return Predictions(whole, extras or None)


def _of_lane(outputs: Any, lane: int, steps: int) -> Any:
    return mapped(lambda leaf: np.array(leaf[lane, :steps]), outputs)

"""Evaluate and predict: run a model over one pass of a feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ..base.nests import mapped
from ..errors import InvalidArgument
from .recurrent import KerasMetrics, finished_sequences, metrics_of
from .rows import (
    Inputs,
    array_of,
    batches_of,
    check_batched,
    count_of,
    filled_up,
    joined,
    kept,
    rows_of,
    split,
)

__all__ = ["Predictions", "evaluate", "predict"]


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
        caller's thread. With `stateful`, one of

        - a Keras model with stateful recurrent layers, as it is;
        - a torch module ``model(x, state) -> (outputs, state)``, such as an LSTM, that begins with
          ``state=None``; x and outputs are (lanes, window, ...), except for a module of torch's
          without `batch_first`; the state's tensors are (layers, lanes, units) or (lanes, ...);
        - a function ``model(x, reset)`` that keeps its state itself, see `Stateful`.
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
        the feed's batches. With `stateful`: the number of lanes (default: that of the Keras model,
        or 32).
    pad : bool
        Pad the last batch to `batch_size` with copies of its last row, for models of a fixed size.
        Their outputs are dropped.
    stateful : bool
        For recurrent models: row i of a batch continues where row i of the last batch ended, and
        its state is reset where a sequence begins. Outputs are those of running each sequence
        whole. A Keras model's own state is afterwards what it was before.
    window : int
        With `stateful`: the steps of a batch; default: that of the Keras model.

    Raises
    ------
    InvalidArgument
        The feed gave nothing; its batches, or the model's outputs, differ in names or, with
        `batch_size`, in dtypes (otherwise dtypes are promoted as by NumPy); the model returned
        another number of rows than it got; `inputs` names a missing part; `pad` without
        `batch_size`. With `stateful`: no `window`; a Keras model without a stateful layer, or built
        for another size; a bidirectional model; outputs that are not one for each step.

    Examples
    --------
    >>> outputs, extras = train.predict(model, samples, inputs="image", batch_size=256, pad=True)
    >>> dict(zip(extras["id"], outputs.argmax(axis=1)))
    """
    if stateful:
        found = sorted(
            finished_sequences(model, feed, inputs, batch_size, window), key=lambda one: one[0]
        )
        if not found:
            raise InvalidArgument("the feed gave no sequence; it must have at least one", "predict")
        rests = [rest for _, _, rest in found]
        return Predictions([made for _, made, _ in found], rests if rests[0] is not None else None)
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
        raise InvalidArgument("the feed gave no batch; it must have at least one", "predict")
    return Predictions(
        joined(outputs, "the model's outputs"), joined(extras, "extras") if extras else None
    )


def evaluate(
    step: Callable[..., Any],
    feed: Iterable[Any],
    *,
    batch_size: int | None = None,
    pad: bool = False,
    stateful: bool = False,
    window: int | None = None,
    inputs: Inputs = None,
    metrics: Callable[[Any, Any], dict[str, Any]] | None = None,
) -> dict[str, float]:
    """Average metrics over all rows of one pass of a feed.

    Parameters
    ----------
    step : callable
        ``step(batch)`` returns a dict of metrics: an array with a value for each row, or a number,
        the mean over the batch. Called in the caller's thread. With `stateful`: a recurrent model,
        as for `predict`.
    feed, batch_size, pad
        As for `predict`; with `pad` metrics must be arrays, since a mean would include copies.
    stateful, window, inputs
        With `stateful`, as for `predict`.
    metrics : callable, optional
        With `stateful`: ``metrics(outputs, rest)`` is called for each whole sequence, and returns a
        dict like that of `step`, with a step of the sequence for a row. None: the loss and the
        metrics that the Keras model was compiled with, for which a step is a sample; `rest` is then
        the targets, or (targets, sample weights), with a row for each step.

    Returns
    -------
    dict of float
        The mean of each metric over all rows (float64), independent of the batching, and "rows",
        the number of rows. With `stateful`, steps are the rows.

    Raises
    ------
    InvalidArgument
        The feed gave nothing; a metric's number of values is not the batch's number of rows;
        batches have different metrics; a metric is called "rows"; with `stateful` also as for
        `predict`, or no `metrics` for a model that is no compiled Keras model.
    """
    if stateful:
        return _evaluate_recurrent(step, feed, batch_size, window, inputs, metrics)
    if window is not None or inputs is not None or metrics is not None:
        text = "window=, inputs= and metrics= are for stateful=True; step gets the whole batch"
        raise InvalidArgument(text, "evaluate")
    size = _size_of(batch_size, pad)
    means = _Means()
    for batch in batches_of(feed, size):
        check_batched(batch)
        rows = count_of(batch, "a batch")
        if rows == 0:
            continue
        padded = pad and size is not None and rows < size
        made = step(filled_up(batch, rows, size) if padded and size else batch)
        means.add(made, rows, size if padded and size else rows, only_arrays=pad)
    return means.result("batch")


def _evaluate_recurrent(
    model: Any,
    feed: Iterable[Any],
    lanes: int | None,
    window: int | None,
    inputs: Inputs,
    metrics: Callable[[Any, Any], dict[str, Any]] | None,
) -> dict[str, float]:
    given = metrics_of(model) if metrics is None else metrics
    means = _Means()
    found = []
    for number, outputs, rest in finished_sequences(model, feed, inputs, lanes, window):
        found.append((number, given(outputs, rest), count_of(outputs, "the model's output")))
    for _, made, steps in sorted(found, key=lambda one: one[0]):
        means.add(made, steps, steps)
    compiled = given.results() if isinstance(given, KerasMetrics) else {}
    return means.result("sequence") | compiled


class _Means:
    """The means of metrics over the rows of all batches."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self._counts: list[int] = []

    def add(
        self, metrics: dict[str, Any], rows: int, given: int, *, only_arrays: bool = False
    ) -> None:
        """Add the metrics of a batch: of its first `rows` rows of the `given` ones."""
        if self._counts and set(metrics) != set(self._values):
            text = f"metrics {sorted(metrics)} after {sorted(self._values)}; they must be the same"
            raise InvalidArgument(text, "evaluate")
        if "rows" in metrics:
            text = 'a metric is called "rows", the name of the number of rows; give it another name'
            raise InvalidArgument(text, "evaluate")
        for name, value in metrics.items():
            values = array_of(value).astype(np.float64)
            if values.ndim == 0 and only_arrays:
                text = f"metric {name!r} is a mean; with pad=True give a value for each row"
                raise InvalidArgument(text, "evaluate")
            if values.ndim:
                values = _of_rows(values, rows, given)
            self._values.setdefault(name, []).append(values)
        self._counts.append(rows)

    def result(self, what: str) -> dict[str, float]:
        if not self._counts:
            raise InvalidArgument(f"the feed gave no {what}; it must have at least one", "evaluate")
        means = {name: _mean(given, self._counts) for name, given in self._values.items()}
        return means | {"rows": sum(self._counts)}


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
        raise InvalidArgument(
            f"the model returned {count} rows for {given}; it must return one for each", "train"
        )
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

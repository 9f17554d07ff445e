"""Runs of several steps: one after the other, or as one jitted scan."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument
from .alike import columns_of, form_of
from .rows import array_of
from .super_batches import SuperBatch


class Said(NamedTuple):
    """What came of a run: steps that were finished, and what they said."""

    steps: int
    each: Callable[[], list[Any]]  # metrics of each, on the host
    last: Callable[[], Any]  # of the last one, if there was any
    error: Exception | None  # that ended it
    wait: Callable[[], object]  # until they are done; they may be under way


class Run:
    """Makes steps, and keeps what they hand on. What `Loop.run` calls, in this order."""

    state: Any = None

    def begin(self) -> None:
        """A run of the loop begins."""

    def begin_pass(self) -> None:
        """So does a pass over the feed."""

    def __call__(self, batches: SuperBatch) -> Said:
        """Make a step of each batch."""
        raise NotImplementedError

    def show(self) -> None:
        """Let callbacks see, and change, what the steps made so far."""

    def asks_to_stop(self) -> bool:
        """Whether a callback left a word, other than by what it returned."""
        return False

    def end(self, whole: bool) -> None:
        """The loop's run is over, and `whole` if by no exception."""


class Steps(Run):
    """One step after the other, with nothing between them but a list of what they said."""

    def __init__(self, step: Callable[..., Any], state: Any) -> None:
        self._step = step
        self._hands_on = state is not None
        self.state = state

    def __call__(self, batches: SuperBatch) -> Said:
        said: list[Any] = []
        step, keep, read = self._step, said.append, _reader()
        try:
            if self._hands_on:
                for batch in batches.each():
                    self.state, metrics = pair_of(step(self.state, batch))
                    keep(read(metrics))
            else:
                for batch in batches.each():
                    keep(read(step(batch)))
            marked = _marked()
        except Exception as error:
            return said_of(said, error)
        made = said_of(said, None)
        return made if marked is None else made._replace(wait=lambda: (marked(), made.last()))


class Scan(Run):
    """All steps in one `jax.lax.scan`, traced and compiled once for each number of them."""

    def __init__(self, step: Callable[[Any, Any], Any], state: Any, donate: bool = False) -> None:
        import jax

        def one(carry: Any, batch: Any) -> Any:
            state, said = pair_of(step(carry, batch))
            # Nothing said is nothing to wait for, and a state is gone that was donated.
            return state, (said, () if jax.tree.leaves(said) else np.int32(0))

        def steps(state: Any, batches: Any) -> Any:
            return jax.lax.scan(one, state, batches)

        # Donated: the memory of the state goes to the next one, and what it was is gone.
        self._steps = jax.jit(steps, donate_argnums=0 if donate else ())
        self._wait: Callable[[Any], object] = jax.block_until_ready
        self._flat: Callable[..., Any] = jax.tree.flatten
        self.state = state

    def __call__(self, batches: SuperBatch) -> Said:
        try:
            self.state, (said, token) = self._steps(self.state, batches.stacked())
        except Exception as error:
            return Said(0, list, lambda: None, error, lambda: None)
        count = batches.steps
        wait = partial(self._wait, (said, token))
        return Said(count, partial(self._rows, said, count), partial(self._row, said), None, wait)

    def _row(self, said: Any) -> Any:
        columns, nest = self._flat(said)
        return nest.unflatten([_plain(np.asarray(column[-1])) for column in columns])

    def _rows(self, said: Any, count: int) -> list[Any]:
        columns, nest = self._flat(said)
        return _put_together(nest.unflatten, [np.asarray(column) for column in columns], count)


def _reader() -> Callable[[Any], Any]:
    """Make numbers of torch's scalars in the host's memory at once.

    There is nothing to wait for, and their memory is the next step's while it is in the cache: that
    is cheaper than keeping them.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return lambda metrics: metrics
    tensor = torch.Tensor

    def read(metrics: Any) -> Any:
        kind = type(metrics)
        if kind is tensor:
            return metrics.item() if metrics.is_cpu and not metrics.dim() else metrics
        if kind is dict:
            return {name: read(value) for name, value in metrics.items()}
        return metrics

    return read


def _marked() -> Callable[[], object] | None:
    """Mark what steps asked of torch's current CUDA device, for what they say may not tell."""
    torch = sys.modules.get("torch")
    return mark(torch.cuda) if torch is not None and torch.cuda.is_initialized() else None


def mark(cuda: Any) -> Callable[[], object]:
    """Return what waits until all is done that the current CUDA stream was asked for so far."""
    event = cuda.Event()
    event.record()
    wait: Callable[[], object] = event.synchronize
    return wait


def said_of(said: list[Any], error: Exception | None) -> Said:
    """What steps said that were made one by one."""

    def last() -> Any:
        return on_host(said[-1:])[0] if said else None

    return Said(len(said), partial(on_host, said), last, error, last)


def rows_of_columns(said: Any, count: int) -> list[Any]:
    """Metrics of `count` steps from a nest of arrays that have a row for each."""
    columns = [np.asarray(column) for column in leaves_of(said)]
    return _put_together(_filler(said), columns, count)


def pair_of(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, tuple) or len(given) != 2:
        text = f"a step gave a {type(given).__name__}; with state= it gives (state, metrics)"
        raise InvalidArgument(text, "Loop")
    return given


def on_host(said: list[Any]) -> list[Any]:
    """The same metrics as NumPy's arrays and Python's numbers: one transfer for each column."""
    if all(_is_plain(metrics) for metrics in said):
        return said
    first = said[0]
    form = form_of(first, _leaf_form)
    if not all(form_of(metrics, _leaf_form) == form for metrics in said):
        return [mapped(lambda leaf: _plain(_array(leaf)), metrics) for metrics in said]
    columns = [_column(list(column)) for column in columns_of(said, "metrics", "Loop")]
    return _put_together(_filler(first), columns, len(said))


_PLAIN = frozenset((float, int, bool, str, type(None)))


def _is_plain(metrics: Any) -> bool:
    if type(metrics) is dict:
        return all(type(value) in _PLAIN for value in metrics.values())
    return type(metrics) in _PLAIN


def _leaf_form(leaf: Any) -> Any:
    return type(leaf), getattr(leaf, "shape", None), getattr(leaf, "dtype", None)


def _column(leaves: list[Any]) -> Any:
    if hasattr(leaves[0], "detach"):
        torch = sys.modules["torch"]
        return torch.stack([leaf.detach() for leaf in leaves]).cpu().numpy()
    return leaves if not hasattr(leaves[0], "shape") else np.stack([_array(x) for x in leaves])


def _array(leaf: Any) -> Any:
    return array_of(leaf) if hasattr(leaf, "shape") else leaf


def _plain(leaf: Any) -> Any:
    return leaf.item() if isinstance(leaf, (np.ndarray, np.generic)) and leaf.ndim == 0 else leaf


def _put_together(fill: Callable[[Any], Any], columns: list[Any], count: int) -> list[Any]:
    """Rows of columns as nests; numbers are Python's."""
    plain = [
        column.tolist() if isinstance(column, np.ndarray) and column.ndim == 1 else column
        for column in columns
    ]
    if not plain:
        return [fill(()) for _ in range(count)]
    return [fill(row) for row in zip(*plain, strict=True)]


def _filler(nest: Any) -> Callable[[Any], Any]:
    """What puts leaves into such a nest; the plain ones are quick."""
    if not isinstance(nest, (dict, list, tuple)):
        return lambda leaves: leaves[0]
    if type(nest) is dict and not any(isinstance(x, (dict, list, tuple)) for x in nest.values()):
        names = tuple(nest)
        return lambda leaves: dict(zip(names, leaves, strict=True))

    def filled(leaves: Any) -> Any:
        given = iter(leaves)
        return mapped(lambda _: next(given), nest)

    return filled

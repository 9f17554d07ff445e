"""Runs of several steps: one after the other, or as one jitted scan."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument
from .rows import array_of, columns_of, form_of
from .super_batches import SuperBatch


class RunResult(NamedTuple):
    """Result of a run: finished steps and their metrics."""

    steps: int
    each: Callable[[], list[Any]]  # metrics of each step, on the host
    last: Callable[[], Any]  # metrics of the last step, or None
    error: Exception | None  # that ended the run
    wait: Callable[[], object]  # waits until the steps are done


class Runner:
    """Runs steps and keeps their state. `Loop.run` calls the methods in this order."""

    state: Any = None

    def begin(self) -> None:
        """Begin a run of the loop."""

    def begin_pass(self) -> None:
        """Begin a pass over the feed."""

    def keep(self, number: int, batch: Any) -> Any:
        """Return what to keep of a batch that arrives, the `number`th of those of a run."""
        return batch

    def __call__(self, batches: SuperBatch) -> RunResult:
        """Run a step for each batch."""
        raise NotImplementedError

    def sync_model(self) -> None:
        """Put the steps' state into the model, for callbacks that read or change the model."""

    def stop_requested(self) -> bool:
        """Whether a callback asked to stop, other than by its result."""
        return False

    def end(self, whole: bool) -> None:
        """End a run of the loop; `whole`: without an exception."""


class Steps(Runner):
    """Runs one step after the other, and collects their metrics."""

    def __init__(self, step: Callable[..., Any], state: Any) -> None:
        self._step = step
        self._has_state = state is not None
        self.state = state

    def __call__(self, batches: SuperBatch) -> RunResult:
        found: list[Any] = []
        step, keep, read = self._step, found.append, _reader()
        try:
            if self._has_state:
                for batch in batches.each():
                    self.state, metrics = pair_of(step(self.state, batch))
                    keep(read(metrics))
            else:
                for batch in batches.each():
                    keep(read(step(batch)))
            marked = _marked()
        except Exception as error:
            return result_of(found, error)
        made = result_of(found, None)
        return made if marked is None else made._replace(wait=lambda: (marked(), made.last()))


class Scan(Runner):
    """Runs all steps in one `jax.lax.scan`, compiled once for each number of steps."""

    def __init__(self, step: Callable[[Any, Any], Any], state: Any, donate: bool = False) -> None:
        import jax

        def one(carry: Any, batch: Any) -> Any:
            state, found = pair_of(step(carry, batch))
            # A token to wait for, if there are no metrics: a donated state cannot be waited for.
            return state, (found, () if jax.tree.leaves(found) else np.int32(0))

        def steps(state: Any, batches: Any) -> Any:
            return jax.lax.scan(one, state, batches)

        # Donated: the next state reuses the memory of the last one, which is then invalid.
        self._steps = jax.jit(steps, donate_argnums=0 if donate else ())
        self._wait: Callable[[Any], object] = jax.block_until_ready
        self._flat: Callable[..., Any] = jax.tree.flatten
        self.state = state

    def __call__(self, batches: SuperBatch) -> RunResult:
        try:
            self.state, (found, token) = self._steps(self.state, batches.stacked())
        except Exception as error:
            return RunResult(0, list, lambda: None, error, lambda: None)
        count = batches.steps
        wait = partial(self._wait, (found, token))
        return RunResult(
            count, partial(self._rows, found, count), partial(self._row, found), None, wait
        )

    def _row(self, found: Any) -> Any:
        columns, nest = self._flat(found)
        return nest.unflatten([_plain(np.asarray(column[-1])) for column in columns])

    def _rows(self, found: Any, count: int) -> list[Any]:
        columns, nest = self._flat(found)
        return _nests_of(nest.unflatten, [np.asarray(column) for column in columns], count)


def _reader() -> Callable[[Any], Any]:
    """Return a function that converts torch scalars in host memory to numbers at once.

    There is nothing to wait for, and releasing their memory is cheaper than keeping them: the next
    step reuses it while it is in the cache.
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
    """Mark the work on torch's current CUDA device, for metrics without a device tensor."""
    torch = sys.modules.get("torch")
    return mark(torch.cuda) if torch is not None and torch.cuda.is_initialized() else None


def mark(cuda: Any) -> Callable[[], object]:
    """Return a function that waits for all work queued so far on the current CUDA stream."""
    event = cuda.Event()
    event.record()
    wait: Callable[[], object] = event.synchronize
    return wait


def result_of(found: list[Any], error: Exception | None) -> RunResult:
    """The result of steps that were run one by one."""

    def last() -> Any:
        return on_host(found[-1:])[0] if found else None

    return RunResult(len(found), partial(on_host, found), last, error, last)


def rows_of_columns(found: Any, count: int) -> list[Any]:
    """Return the metrics of `count` steps from a nest of arrays with a row for each step."""
    columns = [np.asarray(column) for column in leaves_of(found)]
    return _nests_of(_filler(found), columns, count)


def pair_of(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, tuple) or len(given) != 2:
        text = f"a step returned a {type(given).__name__}; with state= it returns (state, metrics)"
        raise InvalidArgument(text, "Loop")
    return given


def on_host(found: list[Any]) -> list[Any]:
    """Convert metrics to NumPy arrays and Python numbers, with one transfer for each leaf."""
    if all(_is_plain(metrics) for metrics in found):
        return found
    first = found[0]
    form = form_of(first, _leaf_form)
    if not all(form_of(metrics, _leaf_form) == form for metrics in found):
        return [mapped(lambda leaf: _plain(_array(leaf)), metrics) for metrics in found]
    columns = [_column(list(column)) for column in columns_of(found, "metrics", "Loop")]
    return _nests_of(_filler(first), columns, len(found))


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


def _nests_of(fill: Callable[[Any], Any], columns: list[Any], count: int) -> list[Any]:
    """Make nests from the rows of columns, with Python numbers."""
    plain = [
        column.tolist() if isinstance(column, np.ndarray) and column.ndim == 1 else column
        for column in columns
    ]
    if not plain:
        return [fill(()) for _ in range(count)]
    return [fill(row) for row in zip(*plain, strict=True)]


def _filler(nest: Any) -> Callable[[Any], Any]:
    """Return a function that puts leaves into such a nest; fast for flat ones."""
    if not isinstance(nest, (dict, list, tuple)):
        return lambda leaves: leaves[0]
    if type(nest) is dict and not any(isinstance(x, (dict, list, tuple)) for x in nest.values()):
        names = tuple(nest)
        return lambda leaves: dict(zip(names, leaves, strict=True))

    def filled(leaves: Any) -> Any:
        given = iter(leaves)
        return mapped(lambda _: next(given), nest)

    return filled

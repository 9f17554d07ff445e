"""Arguments and results of the steps of Hogwild and Towers."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ..base.conventions import shown
from ..errors import InvalidArgument
from .parameters import Parameters, Slab, copy_all, numbers

END = object()  # no more batches


@dataclass(frozen=True)
class Rows:
    """The gradient of some rows (axis 0) of a block; other rows are left untouched.

    Parameters
    ----------
    rows : array of integers, shape (n,)
        In any order. Repeated rows are added up.
    values : array, shape (n, ...)
        The gradient of each of these rows.
    """

    rows: Any
    values: Any


class Views:
    """The second argument of a step, beside its batch.

    Attributes
    ----------
    number : int
        Number of the worker or tower, from 0.
    step : int
        Finished steps of this worker or tower.
    weights : Slab
        The shared weights, as NumPy arrays by name; as tensors if they are on a device. With
        ``snapshot`` a copy that is valid until the step returns: wait for asynchronous computations
        with it, or copy it.
    gradients : Slab
        This worker's own; zero when a step begins. Applied after the step, unless the step returns
        gradients.
    model : object
        This worker's own. If ``model`` is a module: a replica whose parameters are views of the
        weights and whose gradients are views of `gradients`. If it is a function: its result.
    device : object
        The tower's device: from ``devices``, or the weights'.
    """

    def __init__(self, number: int, weights: Slab, gradients: Slab) -> None:
        self.number = number
        self.step = 0
        self.weights = weights
        self.gradients = gradients
        self.model: Any = None
        self.device: Any = None
        self._copied = 0  # copied_bytes of the gradients after the last step

    def __repr__(self) -> str:
        facts = {"step": self.step, "weights": self.weights, "device": self.device}
        return shown(self, number=self.number, **facts)


class Part(NamedTuple):
    """The gradient of one block, in the form that the engine takes."""

    block: str
    values: Any  # contiguous, float32
    rows: Any  # contiguous, int64; None: all


class Outcome(NamedTuple):
    """The result of a step."""

    loss: float | None
    parts: list[Part] | None  # None: the gradient is in the slab
    copied: int  # bytes of parts that were copied


def is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def views_of(
    number: int, parameters: Parameters, weights: Slab, model: Any, *, replicate: bool
) -> Views:
    """Make a worker's views. REQUIRED: called for one worker at a time.

    `replicate`: copy the module before its parameters become views.
    """
    if not is_module(model):
        views = Views(number, weights, parameters.gradients())
        if model is not None:
            if not callable(model):
                raise InvalidArgument(
                    f"model is a {type(model).__name__}; give a torch module, or a function that "
                    "makes a model from a worker's views",
                    "model",
                )
            views.model = model(views)
        return views
    from .torch_module import alias

    own = copy.deepcopy(model) if replicate else model
    # With a snapshot the module is a view of the snapshot, not of the shared weights.
    target = parameters if weights is parameters else as_parameters(weights)
    aliased = alias(own, target)
    views = Views(number, weights, aliased.gradients)
    views.model = own
    views.gradients.zero()  # gradients from before
    views._copied = aliased.gradients.copied_bytes
    return views


def as_parameters(slab: Slab) -> Parameters:
    made = Parameters.__new__(Parameters)
    Slab.__init__(made, slab._slab)
    return made


class OneThreadEach:
    """Limits torch to one thread in each worker; restores the number on exit.

    Workers that each used all cores would slow each other down.
    """

    def __enter__(self) -> OneThreadEach:
        self._torch: Any = sys.modules.get("torch")
        self._before = 0 if self._torch is None else self._torch.get_num_threads()
        return self

    def here(self) -> None:
        """Set the limit. Call on the worker's thread."""
        if self._torch is not None:
            self._torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._torch is not None:
            self._torch.set_num_threads(self._before)


def outcome_of(returned: Any, views: Views, operation: str) -> Outcome:
    """Parse the result of a step: a loss, None, gradients, or (loss, gradients)."""
    loss, gradients = loss_and_gradients(returned, operation)
    if gradients is not None and views.weights.device is None:
        parts, copied = parts_of(gradients, views.weights, operation)
        return Outcome(number_of(loss, operation), parts, copied)
    return Outcome(number_of(loss, operation), None, put_gradients(gradients, views, operation))


def loss_and_gradients(returned: Any, operation: str) -> tuple[Any, Any]:
    if isinstance(returned, Mapping):
        return None, returned
    if not isinstance(returned, tuple):
        return returned, None
    if len(returned) != 2 or not isinstance(returned[1], Mapping):
        raise InvalidArgument(
            f"a step returned a tuple of {len(returned)}; return a loss, or (loss, gradients) "
            "with gradients a dict from blocks to arrays or train.Rows",
            operation,
        )
    return returned


def put_gradients(gradients: Any, views: Views, operation: str) -> int:
    """Write the returned gradients of all blocks into the views'; return the bytes copied.

    None: the step has left them there, or a framework has them elsewhere.
    """
    if gradients is None:
        views.gradients._settle()
    elif any(isinstance(given, Rows) for given in gradients.values()):
        raise InvalidArgument(
            f"a step returned train.Rows for weights on {views.weights.device}; there, gradients "
            "are of whole blocks: return these, or leave them in views.gradients",
            operation,
        )
    else:
        copy_all(views.gradients, gradients, operation)
    before, views._copied = views._copied, views.gradients.copied_bytes
    return views._copied - before


def parts_of(gradients: Mapping[str, Any], weights: Slab, operation: str) -> tuple[list[Part], int]:
    parts, copied = [], 0
    for name, given in gradients.items():
        shape = weights[name].shape
        rows = None
        values = given
        if isinstance(given, Rows):
            rows = _row_numbers(name, shape, given.rows, operation)
            values = given.values
            shape = (len(rows), *shape[1:])
        found = numbers(name, values, operation)
        if found.shape != shape:
            raise InvalidArgument(
                f"the gradient of block {name!r} is {found.shape}; it must be {shape}", operation
            )
        array = np.asarray(found, np.float32, order="C")
        if array is not found:
            copied += array.nbytes
        parts.append(Part(name, array, rows))
    return parts, copied


def _row_numbers(
    name: str, shape: tuple[int, ...], given: Any, operation: str
) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        rows = np.asarray(given)
    except Exception:  # a framework's exception, or a ragged list
        raise InvalidArgument(
            f"rows of block {name!r} {shape} are a {type(given).__name__} that NumPy cannot read; "
            "give a list of integers",
            operation,
        ) from None
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size > 0) or not shape:
        raise InvalidArgument(
            f"rows of block {name!r} {shape} are {rows.dtype} of shape {rows.shape}; "
            "give a list of integers",
            operation,
        )
    return np.ascontiguousarray(rows, np.int64)


def number_of(loss: Any, operation: str) -> float | None:
    if loss is None:
        return None
    if hasattr(loss, "detach"):
        loss = loss.detach()
    refused = InvalidArgument(
        f"a step returned a {type(loss).__name__} as its loss; return a number or None", operation
    )
    if hasattr(loss, "numel") and loss.numel() != 1:
        raise refused
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise refused from None


class Source:
    """A feed from which several threads take batches, each batch once.

    Makes `epochs` passes (None: no limit). A lock lets one thread at a time use the feed, as feeds
    and generators require.
    """

    def __init__(self, feed: Iterable[Any], epochs: int | None) -> None:
        self._feed = feed
        self._left = epochs
        self._lock = Lock()
        self._iterator: Iterator[Any] | None = None
        self._fresh = True  # this pass has not given a batch yet
        self._ended = False
        self._returned: list[Any] = []

    def take(self) -> Any:
        """Return the next batch, or END."""
        with self._lock:
            if self._returned:
                return self._returned.pop()
            while not self._ended:
                if self._iterator is None:
                    if self._left == 0:
                        break
                    self._left = None if self._left is None else self._left - 1
                    self._iterator = iter(self._feed)
                    self._fresh = True
                for batch in self._iterator:
                    self._fresh = False
                    return batch
                self._iterator = None
                self._ended = self._fresh  # an iterator has no second pass
            self._ended = True
            return END

    def put_back(self, batch: Any) -> None:
        """Return a batch, for another thread to take."""
        with self._lock:
            self._returned.append(batch)

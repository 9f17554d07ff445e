"""What a step of Hogwild or of a tower sees, and what it gives back."""

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
from .parameters import Parameters, Slab
from .values import numbers

END = object()  # there is no further batch


@dataclass(frozen=True)
class Rows:
    """The gradient of some rows (axis 0) of a block; the others are not touched.

    Parameters
    ----------
    rows : array of integers, shape (n,)
        In any order. Rows that come twice are added up.
    values : array, shape (n, ...)
        The gradient of each of these rows.
    """

    rows: Any
    values: Any


class Views:
    """What a step gets beside its batch.

    Attributes
    ----------
    number : int
        Of the worker or tower, from 0.
    step : int
        How many steps this worker or tower has finished.
    weights : Slab
        The shared weights, as NumPy arrays by their names. With ``snapshot`` a copy, good until the
        step returns: wait for what computes with it, or copy it.
    gradients : Slab
        This worker's own, zero when a step begins. What a step leaves in it is applied, unless it
        returns gradients.
    model : object
        This worker's own: a replica of the module that was given as ``model``, whose parameters are
        views of the weights and whose gradients are views of `gradients`; or what the function
        returned that was given.
    device : object
        The tower's, of ``devices``.
    """

    def __init__(self, number: int, weights: Slab, gradients: Slab) -> None:
        self.number = number
        self.step = 0
        self.weights = weights
        self.gradients = gradients
        self.model: Any = None
        self.device: Any = None
        self._copied = 0  # of the gradients, when it was last looked at

    def __repr__(self) -> str:
        facts = {"step": self.step, "weights": self.weights, "device": self.device}
        return shown(self, number=self.number, **facts)


class Part(NamedTuple):
    """The gradient of one block as the engine takes it."""

    block: str
    values: Any  # contiguous, float32
    rows: Any  # contiguous, int64; None: all


class Outcome(NamedTuple):
    """What a step came to."""

    loss: float | None
    parts: list[Part] | None  # None: the gradients are in the slab
    copied: int  # bytes of parts that had to be copied


def is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def views_of(
    number: int, parameters: Parameters, weights: Slab, model: Any, *, replicate: bool
) -> Views:
    """Make what a worker sees. Called one worker after the other.

    `replicate`: the model is somebody else's and is copied before it becomes a view.
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
    # With a snapshot, the module sees that and not the weights that others change.
    target = parameters if weights is parameters else as_parameters(weights)
    aliased = alias(own, target)
    views = Views(number, weights, aliased.gradients)
    views.model = own
    views.gradients.zero()  # of what the module was used for before
    views._copied = aliased.gradients.copied_bytes
    return views


def as_parameters(slab: Slab) -> Parameters:
    made = Parameters.__new__(Parameters)
    Slab.__init__(made, slab._slab)
    return made


class OneThreadEach:
    """Lets torch compute with one thread in each worker's; on leaving it is as it was.

    Workers that each used all cores would wait for each other.
    """

    def __enter__(self) -> OneThreadEach:
        self._torch: Any = sys.modules.get("torch")
        self._before = 0 if self._torch is None else self._torch.get_num_threads()
        return self

    def here(self) -> None:
        """Called on a worker's thread."""
        if self._torch is not None:
            self._torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._torch is not None:
            self._torch.set_num_threads(self._before)


def outcome_of(returned: Any, views: Views, operation: str) -> Outcome:
    """Take apart what a step returned: a loss, None, or (loss, gradients)."""
    gradients: Any = None
    loss = returned
    if isinstance(returned, Mapping):
        loss, gradients = None, returned
    elif isinstance(returned, tuple):
        if len(returned) != 2 or not isinstance(returned[1], Mapping):
            raise InvalidArgument(
                f"a step returned a tuple of {len(returned)}; return a loss, or (loss, gradients) "
                "with gradients a dict from blocks to arrays or train.Rows",
                operation,
            )
        loss, gradients = returned
    parts, copied = None, 0
    if gradients is None:
        views.gradients._settle()
        before, views._copied = views._copied, views.gradients.copied_bytes
        copied = views._copied - before
    else:
        parts, copied = parts_of(gradients, views.weights, operation)
    return Outcome(_number(loss, operation), parts, copied)


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
    except Exception:  # a framework's own, or a list of lists of several lengths
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


def _number(loss: Any, operation: str) -> float | None:
    if loss is None:
        return None
    if hasattr(loss, "detach"):
        loss = loss.detach()
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"a step returned a {type(loss).__name__} as its loss; return a number or None",
            operation,
        ) from None


class Source:
    """A feed that several threads take from, whoever is first: each batch once.

    A pass after the other, `epochs` of them (None: without end). One lock, so that the feed is one
    thread's at a time, as feeds are, and generators must be.
    """

    def __init__(self, feed: Iterable[Any], epochs: int | None) -> None:
        self._feed = feed
        self._left = epochs
        self._lock = Lock()
        self._iterator: Iterator[Any] | None = None
        self._fresh = True  # nothing came of this pass yet
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
                self._ended = self._fresh  # an iterator that has no second pass
            self._ended = True
            return END

    def put_back(self, batch: Any) -> None:
        """Let somebody else have it."""
        with self._lock:
            self._returned.append(batch)

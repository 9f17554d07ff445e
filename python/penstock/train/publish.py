"""Publish weights under a name, and read them in place from other processes of the user."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any

from .. import _engine
from ..base.arguments import integer, text
from ..base.conventions import Closing
from ..errors import InvalidArgument, NotFound
from .parameters import Array, Parameters, Slab, check_all, copy_block, numbers, shape_of

__all__ = ["Follower", "Model", "attach", "publish", "unpublish"]

_publishers: dict[str, _engine.Publisher] = {}
_lock = threading.Lock()


def _forget() -> None:
    # In a forked child: names and readers remain the parent's.
    global _lock
    _lock = threading.Lock()
    _publishers.clear()


os.register_at_fork(after_in_child=_forget)


def publish(name: str, parameters: Parameters | Mapping[str, Any]) -> int:
    """Publish the current weights to all processes of this user that attach to the name.

    Copies the weights once and never waits for a reader. The first call reserves the name until
    `unpublish` or the end of this process.

    Parameters
    ----------
    name : str
        At most 64 bytes. Other processes of this user find it in the folder
        ``$XDG_RUNTIME_DIR/penstock``, or ``/run/user/UID/penstock``, or ``/tmp/penstock-UID``,
        which containers may share.
    parameters : Parameters, or a dict from names to arrays of any framework
        Should not be written meanwhile: concurrent writes are in this version or in the next.
        Parameters on a device are copied once, after all work of the current stream. Arrays, which
        may be on a device, are rounded to float32. `penstock.torch.publish`, `penstock.jax.publish`
        and `penstock.keras.publish` take whole models.

    Returns
    -------
    int
        The version: ``parameters.version`` (of a dict: 0), or the last version + 1 if that is
        larger.

    Raises
    ------
    InvalidArgument
        Another process has the name (the text has its pid); other blocks than before; a torch
        module is no longer a view of these weights.
    OutOfMemory
        Readers hold so many versions (at most 63) that there is no space for another; the text has
        their pids.

    Notes
    -----
    Threads: any. A forked child cannot publish under the parent's names.
    """
    text(name, "publish")
    if isinstance(parameters, Parameters):
        parameters._settle()
        if parameters.device is None:
            return _publisher(name, parameters._slab).publish(parameters._slab)
    if not isinstance(parameters, Mapping):
        raise InvalidArgument(
            f"parameters is a {type(parameters).__name__}; give train.Parameters, or a dict from "
            "names to arrays",
            "publish",
        )
    arrays = {text(block, "publish"): value for block, value in parameters.items()}
    for block, value in arrays.items():
        if not hasattr(value, "shape"):  # a number or a list of numbers
            arrays[block] = numbers(block, value, "publish")
    blocks = [(block, list(value.shape)) for block, value in arrays.items()]

    def write(version: dict[str, Array]) -> None:
        check_all(version, arrays, "publish")
        for block, into in version.items():
            copy_block(block, into, arrays[block], "publish")

    version = parameters.version if isinstance(parameters, Parameters) else 0
    return _publisher(name, blocks).write(write, version)


def _publisher(name: str, like: Any) -> _engine.Publisher:
    """Return this process's publisher of a name; the first call makes it, for such blocks."""
    with _lock:
        publisher = _publishers.get(name)
        if publisher is None:
            publisher = _publishers[name] = _engine.Publisher(name, like)
    return publisher


def unpublish(name: str) -> None:
    """Release a name. Readers keep the last version until another process publishes the name.

    Raises
    ------
    NotFound
        This process does not publish the name.
    """
    with _lock:
        publisher = _publishers.pop(name, None)
    if publisher is None:
        raise NotFound(
            f"this process publishes nothing under {name!r}; its publisher ends it", "unpublish"
        )


class Model(Closing):
    """Weights that another process publishes. `attach` makes one.

    A read never waits, and the learner never waits for a reader. After the learner has ended, reads
    return its last version (`alive` is False), and the next learner's as soon as it has published.
    While a learner with other blocks has the name, reads raise `InvalidArgument`.

    Threads: any. A forked child attaches anew in its first call. A context manager that closes the
    model.
    """

    def __init__(self, name: str, model: _engine.ReadModel) -> None:
        self._name = name
        self._model = model

    def read(self, max_lag: int = 0) -> AbstractContextManager[tuple[int, dict[str, Array]]]:
        """Hold the newest version: ``with model.read() as (version, weights)``.

        ``weights`` is a dict of read-only float32 NumPy arrays over the shared memory, in the
        learner's order. It is emptied at the end of the block; an array taken out of it stays valid
        and holds its version as long as it exists. Each held version costs the learner the memory
        of one version.

        Parameters
        ----------
        max_lag : int
            Return the version of the last such read again while it is at most so many versions
            old: for callers that copy the weights elsewhere.

        Raises
        ------
        Closed, InvalidArgument
            The model was closed; the name's learner now has other blocks, or is no learner.
        """
        return self._model.read(integer("max_lag", max_lag, 0, operation="read"))

    def wait(self, version: int, timeout: float | None = None) -> bool:
        """Sleep until the version is at least ``version``; False after ``timeout`` seconds.

        A new learner that counts from 0 is waited for until it gets there. Errors as `read`.
        """
        return self._model.wait(
            integer("version", version, 0, operation="wait"), _nanoseconds(timeout)
        )

    @property
    def name(self) -> str:
        """The published name."""
        return self._name

    @property
    def version(self) -> int:
        """The newest version."""
        return self._model.version

    @property
    def alive(self) -> bool:
        """Whether a learner is connected now."""
        return self._model.alive

    def close(self) -> None:
        """End all waits; later calls raise `Closed`. Arrays stay valid."""
        self._model.close()

    def __repr__(self) -> str:
        return f"<penstock.train.Model {self._name!r}>"


class Follower(Closing):
    """A framework's model that follows published weights.

    Made by `penstock.torch.attach` and `penstock.keras.attach`. A context manager that closes it.

    Threads: one at a time; the model must not be used meanwhile.
    """

    def __init__(self, weights: Model, load: Callable[[dict[str, Array]], None]) -> None:
        self._weights = weights
        self._load = load
        self._version: int | None = None
        self.update()

    def update(self, max_lag: int = 0) -> int:
        """Load the newest weights into the model if they are newer than its own.

        Parameters
        ----------
        max_lag : int
            Leave the model as it is while its weights are at most so many versions old.

        Returns
        -------
        int
            The version of the model's weights. Errors are those of `Model.read`.
        """
        newest = self._weights.version
        integer("max_lag", max_lag, 0, operation="update")
        if self._version is None or not 0 <= newest - self._version <= max_lag:
            with self._weights.read() as (version, weights):
                self._load(weights)
            self._version = version
        return self._version

    def wait(self, version: int, timeout: float | None = None) -> bool:
        """Sleep until such a version was published, as `Model.wait`; then call `update`."""
        return self._weights.wait(version, timeout)

    @property
    def version(self) -> int | None:
        """The version of the model's weights."""
        return self._version

    @property
    def alive(self) -> bool:
        """Whether a learner is connected now."""
        return self._weights.alive

    def close(self) -> None:
        """Follow no longer; the model keeps its weights."""
        self._weights.close()

    def __repr__(self) -> str:
        return f"<penstock.train.Follower of {self._weights.name!r}, version {self._version}>"


def attach(
    name: str, like: Slab | Mapping[str, Any] | None = None, timeout: float | None = 60.0
) -> Model:
    """Attach to the weights that a process of this user publishes under a name.

    Waits for the first version.

    Parameters
    ----------
    name : str
        The name given to `publish`.
    like : Parameters, or a dict from names to shapes, optional
        The blocks that the weights must have. Default: any.
    timeout : float, optional
        Seconds to wait for the first version; None: no limit, 0: do not wait.

    Raises
    ------
    Timeout
        No process publishes the name, or its learner has not published yet or does not answer.
    InvalidArgument
        Blocks other than ``like`` (the text names the first that differs); the process with that
        name is no learner, or belongs to another user.
    OutOfMemory
        The learner has 1,024 readers, the maximum; or there is no address space.

    Examples
    --------
    >>> model = train.attach("actor")
    >>> with model.read() as (version, weights):
    ...     action = act(weights["w"], weights["b"], observation)
    """
    expected: Any = None
    if isinstance(like, Slab):
        expected = like._slab
    elif isinstance(like, Mapping):
        expected = [
            (text(block, "attach"), _lengths(block, value)) for block, value in like.items()
        ]
    elif like is not None:
        raise InvalidArgument(
            f"like is a {type(like).__name__}; give Parameters, or a dict from names to shapes",
            "attach",
        )
    name = text(name, "attach")
    return Model(name, _engine.ReadModel.attach(name, expected, _nanoseconds(timeout)))


def _lengths(name: str, value: Any) -> list[int]:
    shape = shape_of(name, value)
    if shape is None:  # an array: take its shape
        try:
            shape = shape_of(name, tuple(value.shape))
        except (AttributeError, TypeError):
            raise InvalidArgument(
                f"like has a {type(value).__name__} for block {name!r}; give a shape, such as "
                "(784, 10), or an array",
                "attach",
            ) from None
    return shape or []


def _nanoseconds(seconds: float | None) -> int:
    if seconds is None:
        return -1
    if not isinstance(seconds, Real) or seconds != seconds:
        raise InvalidArgument(f"timeout is {seconds!r}; give seconds, or None for no limit", "wait")
    return int(min(max(seconds, 0.0), 1e9) * 1e9)

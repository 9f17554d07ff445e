"""Weights that one process publishes under a name and others of this user read, in place."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any

from .. import _engine
from ..base.arguments import integer, text
from ..base.conventions import Closing
from ..errors import InvalidArgument, NotFound
from .parameters import Parameters, Slab
from .values import Array, shape_of

__all__ = ["Model", "attach", "publish", "unpublish"]

_publishers: dict[str, _engine.Publisher] = {}
_lock = threading.Lock()


def _forget() -> None:
    # A child's: names and readers remain its parent's.
    global _lock
    _lock = threading.Lock()
    _publishers.clear()


os.register_at_fork(after_in_child=_forget)


def publish(name: str, parameters: Parameters) -> int:
    """Let every process of this user that attaches to a name see these weights from now on.

    One copy in memory; never waits for a reader, whatever readers do. The first call takes the
    name, which is this process's until `unpublish` or its end, however it ends. A name needs no
    file and leaves none.

    Parameters
    ----------
    name : str
        At most 64 bytes. Processes see each other's names within a network namespace (a container
        has its own, unless told otherwise).
    parameters : Parameters
        Nobody should write to them meanwhile: what is written all the same may be in this version
        or in the next.

    Returns
    -------
    int
        The version: ``parameters.version``, or one more than the last where that is not larger.

    Raises
    ------
    InvalidArgument
        Another process serves the name (it says which); the blocks are not those that were
        published before; a torch module whose weights these were has left them.
    OutOfMemory
        Readers hold so many versions (63 at most) that there is no room for one more; it says
        which processes do.

    Notes
    -----
    Any thread. A forked child publishes under other names, or none: this one is its parent's.
    """
    if not isinstance(parameters, Parameters):
        raise InvalidArgument(
            f"parameters is a {type(parameters).__name__}; give train.Parameters", "publish"
        )
    text(name, "publish")
    parameters._settle()
    with _lock:
        publisher = _publishers.get(name)
        if publisher is None:
            publisher = _publishers[name] = _engine.Publisher(name, parameters._slab)
    return publisher.publish(parameters._slab)


def unpublish(name: str) -> None:
    """Give a name up. Readers keep the last version, and go on with who publishes it next.

    Raises
    ------
    NotFound
        This process publishes no such name.
    """
    with _lock:
        publisher = _publishers.pop(name, None)
    if publisher is None:
        raise NotFound(f"this process publishes nothing under {name!r}", "unpublish")


class Model(Closing):
    """Weights that another process publishes. `attach` makes one.

    Reading waits for nobody, and nobody waits for a reader. When the learner dies, reads go on
    with its last version (`alive` is False), and with the next learner's first as soon as there is
    one. While a learner with other blocks has the name, they raise `InvalidArgument`.

    Any thread, and a forked child, which attaches anew in its first call. A context manager that
    closes it.
    """

    def __init__(self, name: str, model: _engine.ReadModel) -> None:
        self._name = name
        self._model = model

    def read(self, max_lag: int = 0) -> AbstractContextManager[tuple[int, dict[str, Array]]]:
        """Hold the newest version: ``with model.read() as (version, weights)``.

        ``weights`` is a dict of read-only NumPy arrays over the shared memory, float32, in the
        order in which the learner named them. It is emptied on leaving; an array that was taken out
        of it stays valid, and holds its version, for as long as it is kept. Each version that is
        held costs the learner the memory of one.

        Parameters
        ----------
        max_lag : int
            Hand out the version of the last read with a ``max_lag`` again while it is at most so
            many versions behind: for who copies weights elsewhere, and need not for each.

        Raises
        ------
        Closed, InvalidArgument
            The model was closed; what has the name now is another schema, or no learner.
        """
        return self._model.read(integer("max_lag", max_lag, 0, operation="read"))

    def wait(self, version: int, timeout: float | None = None) -> bool:
        """Sleep until there is this version or a later one; False after ``timeout`` seconds.

        A new learner that counts from the start has lower versions, and is waited for until it gets
        there. Raises as `read` does.
        """
        return self._model.wait(
            integer("version", version, 0, operation="wait"), _nanoseconds(timeout)
        )

    @property
    def name(self) -> str:
        """What it is published as."""
        return self._name

    @property
    def version(self) -> int:
        """The newest version."""
        return self._model.version

    @property
    def alive(self) -> bool:
        """Whether there is a learner now."""
        return self._model.alive

    def close(self) -> None:
        """End all waits; calls after this raise `Closed`. Arrays that are held stay valid."""
        self._model.close()

    def __repr__(self) -> str:
        return f"<penstock.train.Model {self._name!r}>"


def attach(
    name: str, like: Slab | Mapping[str, Any] | None = None, timeout: float | None = 60.0
) -> Model:
    """Read what a process of this user publishes, or is going to publish, under a name.

    Waits for the first version. Processes need nothing in common but the user.

    Parameters
    ----------
    name : str
        As it was given to `publish`.
    like : Parameters, or a dict from names to shapes, optional
        What the weights must look like; without it, whatever the learner has.
    timeout : float, optional
        Seconds to wait for the first version; None for ever, 0 for one look.

    Raises
    ------
    Timeout
        Nobody publishes the name; or its learner has not published yet, or does not answer.
    InvalidArgument
        Blocks other than ``like`` (it names the first that differs); who has the name is no
        learner, or another user's process.
    OutOfMemory
        The learner has 1,024 readers already; or there is no address space.

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
    if shape is None:  # that of an array
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
        raise InvalidArgument(f"timeout is {seconds!r}; give seconds, or None for ever", "wait")
    return int(min(max(seconds, 0.0), 1e9) * 1e9)

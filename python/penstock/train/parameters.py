"""Weights and gradients: named blocks of float32 in one piece of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from .. import _engine
from ..base.arguments import integer, string, text
from ..base.arguments import path as path_of
from ..base.conventions import Restorable
from ..errors import InvalidArgument, NotFound
from .values import Array, copy_block, numbers, shape_of

__all__ = ["Parameters", "Slab"]


class Slab(Mapping[str, Array]):
    """Named blocks of float32 in one piece of memory, as writable NumPy arrays.

    A mapping from names to arrays that are views: what is written to ``slab["w"]`` is in the slab.
    `Parameters.gradients` makes one. Arrays stay valid for as long as they are kept, whatever
    becomes of the slab, and torch takes them without a copy (``torch.from_numpy(slab["w"])``).

    Threads: any; who writes the same numbers synchronises. A forked child shares a ``shared`` slab
    and has a copy of any other.
    """

    _slab: _engine.Slab
    _arrays: dict[str, Array]
    _copied: int

    def __init__(self, slab: _engine.Slab) -> None:
        self._slab = slab
        self._arrays = slab.arrays()
        self._copied = 0

    def __getitem__(self, name: str) -> Array:
        try:
            return self._arrays[name]
        except KeyError:
            raise self._no_block(name) from None

    def __setitem__(self, name: str, values: Any) -> None:
        """Copy values into a block: any framework's array of the same shape, of real numbers."""
        into = self[name]
        if values is not into:  # what `slab["w"] += x` gives back
            copy_block(name, into, values, type(self).__name__)
            self._copied += into.nbytes

    # A mapping's own would look for KeyError, which a name that is not there is not here.
    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def get(self, name: str, default: Any = None) -> Any:
        """Return the block's array, a view; `default` if there is no block of that name."""
        return self._arrays.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        blocks = ", ".join(f"{name}: {array.shape}" for name, array in self.items())
        return f"<penstock.train.{type(self).__name__} of {self.size} numbers; {blocks}>"

    def update(self, values: Mapping[str, Any]) -> None:
        """Copy values into blocks by their names; other blocks stay as they are.

        Raises
        ------
        InvalidArgument, NotFound
            A shape or dtype that cannot be, a name that is not there. Blocks before it were
            written to.
        """
        for name, value in values.items():
            self[name] = value

    def copy_from(self, other: Slab) -> None:
        """Take all numbers of a slab of the same layout (`InvalidArgument` names what differs)."""
        given = engine_slab("other", other, "copy_from")
        other._settle()
        self._slab.copy_from(given)

    def zero(self) -> None:
        """Set every number to 0."""
        self._slab.zero()

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self._slab.floats

    @property
    def nbytes(self) -> int:
        """Bytes of memory, the gaps between blocks (to multiples of 64 bytes) included."""
        return self._slab.bytes

    @property
    def shared(self) -> bool:
        """Whether other processes can share the memory."""
        return self._slab.shared

    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied in by ``slab["w"] = values`` and the like, so far."""
        return self._copied

    def _settle(self) -> None:
        """Called before an update uses the slab or somebody reads all of it, for those that a
        framework writes to.
        """

    def _no_block(self, name: Any) -> NotFound:
        names = ", ".join(repr(known) for known in list(self._arrays)[:8])
        more = ", ..." if len(self._arrays) > 8 else ""
        return NotFound(f"there is no block {name!r}; there are {names}{more}", type(self).__name__)


class Parameters(Slab, Restorable):
    """Weights: a `Slab` with a version, which counts the updates that were applied.

    Parameters
    ----------
    blocks : dict
        From a name to a shape (zeroes) or to an array of real numbers, which is copied. Their order
        is the order in memory.
    shared : bool
        In memory that processes can share (a memfd); otherwise the process's own.

    Raises
    ------
    InvalidArgument
        No blocks; a name that is empty, that has no UTF-8, or that files have a use for
        ("__metadata__", "optimizer/..."); a shape or dtype that cannot be.
    OutOfMemory
        The memory is there when this returns, or it raises.

    Examples
    --------
    >>> parameters = train.Parameters({"w": (784, 10), "b": np.ones(10)})
    >>> parameters["w"][:] = rng.normal(0, 0.01, (784, 10))
    """

    def __init__(self, blocks: Mapping[str, Any], *, shared: bool = False) -> None:
        if not isinstance(blocks, Mapping):
            raise InvalidArgument(
                f"blocks is a {type(blocks).__name__}; give a dict from names to shapes or arrays",
                "Parameters",
            )
        specs: list[tuple[str, list[int]]] = []
        arrays: dict[str, Any] = {}
        for name, value in blocks.items():
            if not isinstance(name, str):
                raise InvalidArgument(f"{name!r} is no name of a block; give a str", "Parameters")
            text(name, "Parameters")
            shape = shape_of(name, value)
            if shape is None:
                arrays[name] = numbers(name, value, "Parameters")
                shape = list(arrays[name].shape)
            specs.append((name, shape))
        super().__init__(_engine.Slab.make(specs, bool(shared)))
        self.update(arrays)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, shared: bool = False) -> Parameters:
        """Make parameters of the blocks that a safetensors file has, in its order.

        An updater's file will do: its state is left out. float16 and bfloat16 are widened.

        Raises
        ------
        DataLoss, InvalidArgument, NotFound, System
            A damaged file; arrays that are no weights (of another dtype), or none; no such file.
        """
        made = cls.__new__(cls)
        slab = _engine.parameters_of_file(path_of(path, "from_file"), bool(shared))
        Slab.__init__(made, slab)
        return made

    @property
    def version(self) -> int:
        """How many updates were applied; may be set, as when a checkpoint was read."""
        return self._slab.version

    @version.setter
    def version(self, version: int) -> None:
        self._slab.version = integer("version", version, 0, operation="Parameters")

    def gradients(self, *, shared: bool = False) -> Slab:
        """Room for gradients: zeroes, of the same blocks."""
        return Slab(self._slab.like(bool(shared)))

    def save(self, path: str | os.PathLike[str], *, dtype: str = "float32") -> None:
        """Write a safetensors file, with the version in its metadata.

        It appears, or replaces the one that was there, when all of it is on the disk. Not while
        another thread applies updates: `Updater.save` sees to that.

        Parameters
        ----------
        path : str or path
        dtype : {"float32", "float16", "bfloat16"}
            To which numbers are rounded; one that would become infinite is an `InvalidArgument`.

        Raises
        ------
        InvalidArgument, System
            A torch module whose weights these were has left them; it could not be written.
        """
        self._settle()
        _engine.save_parameters(self._slab, path_of(path, "save"), string("dtype", dtype, "save"))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take all blocks and the version from a safetensors file; order and half precision may
        differ.

        Raises
        ------
        InvalidArgument
            It has other blocks: the first that differs is named. Nothing was changed.
        DataLoss, NotFound, System
            A damaged file, none, or one that could not be read; only in the last case some blocks
            may have been.
        """
        _engine.load_parameters(self._slab, path_of(path, "load"))

    def state(self) -> dict[str, Any]:
        """Copies of all blocks, and the version: ``{"version": 3, "blocks": {"w": array}}``.

        `InvalidArgument` if a torch module whose weights these were has left them.
        """
        self._settle()
        return {
            "version": self.version,
            "blocks": {name: array.copy() for name, array in self.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state`. `InvalidArgument`, with nothing changed, if it has other blocks."""
        version = integer("version", member(state, "version"), 0, operation="restore")
        copy_all(self, member(state, "blocks"), "restore")
        self.version = version


def engine_slab(name: str, given: Any, operation: str) -> _engine.Slab:
    """What the engine has of an argument that must be a slab."""
    if not isinstance(given, Slab):
        raise InvalidArgument(
            f"{name} is a {type(given).__name__}; give Parameters or another train.Slab", operation
        )
    return given._slab


def member(state: Mapping[str, Any], name: str) -> Any:
    """Look up part of a state; `InvalidArgument` if it is none."""
    if not isinstance(state, Mapping) or name not in state:
        raise InvalidArgument(f"this is no such state: it has no {name!r}", "restore")
    return state[name]


def copy_all(slab: Slab, blocks: Mapping[str, Any], operation: str) -> None:
    """Write all of a slab's blocks, or raise `InvalidArgument` before any was written to."""
    check_all(slab, blocks, operation)
    slab.update(blocks)


def check_all(slab: Slab, blocks: Mapping[str, Any], operation: str) -> None:
    """Raise `InvalidArgument` unless these are all of a slab's blocks."""
    for name in blocks:
        if name not in slab:
            raise InvalidArgument(str(slab._no_block(name)), operation)
    for name, into in slab.items():
        if name not in blocks:
            raise InvalidArgument(f"block {name!r} is missing", operation)
        shape = numbers(name, blocks[name], operation).shape
        if shape != into.shape:
            raise InvalidArgument(
                f"block {name!r} is {into.shape}; these values are {shape}", operation
            )

"""Weights and gradients: named blocks of float32 in one piece of memory."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from .. import _engine
from ..base.arguments import integer, string, text
from ..base.arguments import path as path_of
from ..base.conventions import Restorable
from ..device import place
from ..errors import InvalidArgument, NotFound
from .optimizers import Optimizer

__all__ = ["Parameters", "Slab"]

Policy = Literal["raise", "skip", "count"]  # for gradients that are not finite
_POLICIES = ("raise", "skip", "count")

_TOO_LONG = 1 << 63

Array = np.ndarray[Any, np.dtype[np.float32]]


class Slab(Mapping[str, Array]):
    """Named blocks of float32 in one piece of memory, as writable NumPy arrays.

    A mapping from names to arrays that are views of the slab. `Parameters.gradients` makes one.
    Arrays keep the slab's memory, and torch takes them without a copy
    (``torch.from_numpy(slab["w"])``).

    Threads: any; writers of the same numbers must synchronise. A forked child shares a ``shared``
    slab, and has a copy of any other.
    """

    _memory: _engine.Slab
    _arrays: dict[str, Array]
    _copied: int

    def __init__(self, slab: _engine.Slab) -> None:
        self._memory = slab
        self._arrays = slab.arrays()
        self._copied = 0

    @property
    def _slab(self) -> _engine.Slab:
        return self._memory

    def __getitem__(self, name: str) -> Array:
        try:
            return self._arrays[name]
        except KeyError:
            raise no_block(self._arrays, name, type(self).__name__) from None

    def __setitem__(self, name: str, values: Any) -> None:
        """Copy an array of real numbers, of any framework and the same shape, into a block."""
        into = self[name]
        if values is not into:  # `slab["w"] += x` assigns the block itself
            copy_block(name, into, values, type(self).__name__)
            self._copied += into.nbytes

    # Mapping.__contains__ expects KeyError for a missing name, and __getitem__ raises NotFound.
    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def get(self, name: str, default: Any = None) -> Any:
        """Return the block's array, a view; `default` if there is no such block."""
        return self._arrays.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        blocks = ", ".join(f"{name}: {tuple(array.shape)}" for name, array in self.items())
        return f"<penstock.train.{type(self).__name__} of {self.size} numbers; {blocks}>"

    def update(self, values: Mapping[str, Any]) -> None:
        """Copy arrays into blocks by name; other blocks are left untouched.

        Raises
        ------
        InvalidArgument, NotFound
            An invalid shape or dtype, an unknown name. Earlier blocks were already written.
        """
        for name, value in values.items():
            self[name] = value

    def copy_from(self, other: Slab) -> None:
        """Copy a slab of the same layout; `InvalidArgument` names the first difference."""
        given = engine_slab("other", other, "copy_from")
        other._settle()
        self._slab.copy_from(given)

    def zero(self) -> None:
        """Set every number to 0."""
        self._slab.zero()

    @property
    def size(self) -> int:
        """The number of weights."""
        return self._slab.floats

    @property
    def nbytes(self) -> int:
        """Bytes of memory, including the gaps between blocks (multiples of 64 bytes)."""
        return self._slab.bytes

    @property
    def shared(self) -> bool:
        """Whether other processes can share the memory."""
        return self._slab.shared

    @property
    def device(self) -> Any:
        """The device of the memory: None for that of the host, else a ``torch.device``."""
        return None

    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied in so far, as by ``slab["w"] = values``."""
        return self._copied

    def _on_host(self) -> dict[str, Array]:
        """Return copies of all blocks in the memory of the host."""
        return {name: array.copy() for name, array in self.items()}

    def _is_at(self, other: Slab) -> bool:
        """Whether both are the same memory."""
        return other.device is None and other._slab is self._slab

    def _settle(self) -> None:
        """Collect values that a framework stored elsewhere. Called before the slab is used."""


class Parameters(Slab, Restorable):
    """Weights: a `Slab` with a version that counts the applied updates.

    Parameters
    ----------
    blocks : dict
        Names with shapes (zeroes) or with arrays of real numbers, which are copied. Blocks lie in
        memory in this order.
    shared : bool
        Whether the memory can be shared with other processes (a memfd).

    Raises
    ------
    InvalidArgument
        No blocks; a name that is empty, not UTF-8, or reserved by files ("__metadata__",
        "optimizer/..."); an invalid shape or dtype.
    OutOfMemory
        All memory is allocated when this returns.

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
                raise InvalidArgument(
                    f"{name!r} is not a valid block name; give a str", "Parameters"
                )
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
        """Make parameters from a safetensors file, with the file's blocks in its order.

        The state in an updater's file is ignored. float16 and bfloat16 are widened.

        Raises
        ------
        DataLoss, InvalidArgument, NotFound, System
            A damaged file; arrays of another dtype, or none; no such file.
        """
        made = cls.__new__(cls)
        slab = _engine.parameters_of_file(path_of(path, "from_file"), bool(shared))
        Slab.__init__(made, slab)
        return made

    @property
    def version(self) -> int:
        """The number of applied updates. Can be set, for example after reading a checkpoint."""
        return self._slab.version

    @version.setter
    def version(self, version: int) -> None:
        self._slab.version = integer("version", version, 0, operation="Parameters")

    def gradients(self, *, shared: bool = False) -> Slab:
        """Make a slab for gradients: zeroes, of the same blocks."""
        return Slab(self._slab.like(bool(shared)))

    def _updater(self, optimizer: Optimizer, policy: str, shared: bool) -> tuple[Any, list[Slab]]:
        """Make what applies an optimizer's updates to these weights, and its slabs of state."""
        number = _POLICIES.index(policy)
        made = _engine.Updater(self._slab, optimizer._built, number, shared)
        return made, [Slab(slab) for slab in made.state]

    def save(self, path: str | os.PathLike[str], *, dtype: str = "float32") -> None:
        """Write a safetensors file, with the version in its metadata.

        The file appears, or replaces an existing one, when all of it is on the disk. REQUIRED: no
        thread applies updates meanwhile; `Updater.save` ensures that.

        Parameters
        ----------
        path : str or path
        dtype : {"float32", "float16", "bfloat16"}
            Numbers are rounded to it; a number that would become infinite is `InvalidArgument`.

        Raises
        ------
        InvalidArgument, System
            A torch module is no longer a view of these weights; the file could not be written.
        """
        self._settle()
        _engine.save_parameters(self._slab, path_of(path, "save"), string("dtype", dtype, "save"))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read all blocks and the version from a safetensors file.

        The file may have another order of blocks, and float16 or bfloat16.

        Raises
        ------
        InvalidArgument
            Other blocks: the text names the first that differs. Nothing was changed.
        DataLoss, NotFound, System
            A damaged file, no such file, or a failed read. Only after a failed read some blocks may
            have been changed.
        """
        _engine.load_parameters(self._slab, path_of(path, "load"))

    def state(self) -> dict[str, Any]:
        """Return copies of all blocks, and the version: ``{"version": 3, "blocks": {"w": array}}``.

        `InvalidArgument`: a torch module is no longer a view of these weights.
        """
        self._settle()
        return {"version": self.version, "blocks": self._on_host()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`. Other blocks are `InvalidArgument`, and nothing is changed."""
        version = integer("version", member(state, "version"), 0, operation="restore")
        copy_all(self, member(state, "blocks"), "restore")
        self.version = version


def engine_slab(name: str, given: Any, operation: str) -> _engine.Slab:
    """Return the engine's slab of an argument that must be a slab."""
    if not isinstance(given, Slab):
        raise InvalidArgument(
            f"{name} is a {type(given).__name__}; give Parameters or another train.Slab", operation
        )
    return given._slab


def member(state: Mapping[str, Any], name: str) -> Any:
    """Return a member of a state; `InvalidArgument` if it is missing."""
    if not isinstance(state, Mapping) or name not in state:
        raise InvalidArgument(f"not such a state: it has no {name!r}", "restore")
    return state[name]


def no_block(arrays: Mapping[str, Any], name: Any, operation: str = "") -> NotFound:
    """Return the error that there is no such block."""
    names = ", ".join(repr(known) for known in list(arrays)[:8])
    more = ", ..." if len(arrays) > 8 else ""
    return NotFound(f"there is no block {name!r}; there are {names}{more}", operation)


def copy_all(slab: Slab, blocks: Mapping[str, Any], operation: str) -> None:
    """Write all blocks of a slab, or raise `InvalidArgument` before any is written."""
    check_all(slab, blocks, operation)
    slab.update(blocks)


def check_all(arrays: Mapping[str, Array], blocks: Mapping[str, Any], operation: str) -> None:
    """Raise `InvalidArgument` unless these are exactly the blocks of `arrays`."""
    for name in blocks:
        if name not in arrays:
            raise InvalidArgument(str(no_block(arrays, name)), operation)
    for name, into in arrays.items():
        if name not in blocks:
            raise InvalidArgument(f"block {name!r} is missing; give all of them", operation)
        shape = getattr(blocks[name], "shape", None)  # it may be on a device
        shape = numbers(name, blocks[name], operation).shape if shape is None else tuple(shape)
        if shape != into.shape:
            raise InvalidArgument(
                f"block {name!r} is {into.shape}; these values are {shape}", operation
            )


def shape_of(name: str, shape: Any) -> list[int] | None:
    """Return the lengths of a shape (an integer or a sequence of integers); None: no shape."""
    if not isinstance(shape, (tuple, list)):
        shape = (shape,) if hasattr(shape, "__index__") and not hasattr(shape, "shape") else None
    if shape is None:
        return None
    try:
        lengths = [operator.index(length) for length in shape]
    except TypeError:
        lengths = [_TOO_LONG]
    if any(abs(length) >= _TOO_LONG for length in lengths):
        raise InvalidArgument(
            f"block {name!r} is {shape!r}; give a shape, such as (784, 10), or an array",
            "Parameters",
        )
    return lengths


def numbers(name: str, values: Any, operation: str) -> np.ndarray[Any, Any]:
    """Convert any framework's array of real numbers to NumPy, without a copy if possible."""
    detach = getattr(values, "detach", None)
    try:
        if callable(detach):
            values = detach()
            # torch cannot convert it to NumPy.
            if str(getattr(values, "dtype", "")) == "torch.bfloat16":
                values = values.float()
        array = np.asarray(values)
    except Exception as error:
        raise InvalidArgument(
            f"block {name!r} is a {type(values).__name__} that NumPy cannot read: {error}",
            operation,
        ) from error
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise InvalidArgument(
            f"block {name!r} has dtype {array.dtype}; give real numbers", operation
        )
    return array


def copy_block(name: str, into: Array, values: Any, operation: str) -> None:
    """Write an array of the block's shape into it, rounded to float32."""
    if _read_from_device(into, values):
        return
    torch = sys.modules.get("torch")
    there = torch is not None and isinstance(values, torch.Tensor) and values.device.type != "cpu"
    array = values.detach() if there else numbers(name, values, operation)
    if tuple(array.shape) != into.shape:
        raise InvalidArgument(
            f"block {name!r} is {into.shape}; these values are {tuple(array.shape)}", operation
        )
    if torch is not None and there:
        torch.from_numpy(into).copy_(array)  # one copy, from the device
    else:
        np.copyto(into, array, casting="unsafe")


def _read_from_device(into: Array, values: Any) -> bool:
    """Write an array of jax's on a CUDA device into a block, by one copy.

    NumPy would first make an array of its own. False: it is not such an array, or not in this form.
    """
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(values, jax.Array) or values.dtype != np.float32:
        return False
    if values.shape != into.shape or not values.is_fully_replicated:
        return False
    part = values.addressable_data(0)
    device = next(iter(part.devices()))
    if device.platform not in ("gpu", "cuda"):
        return False
    try:
        where = part.__cuda_array_interface__
    except (AttributeError, RuntimeError, ValueError):  # another vendor's, or another layout
        return False
    if where.get("strides") is not None:
        return False
    part.block_until_ready()
    _engine.read_device_memory(device.local_hardware_id, where["data"][0], into, place.library)
    return True

"""Where batches go: a device, by the name or object that its framework has for it."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import weakref
from collections import UserDict
from typing import Any, Protocol

import numpy as np

from .. import _engine
from ..base.interop import array_over, tensor_of_leaf
from ..base.nests import leaves_of, mapped, mapped_through
from ..errors import InvalidArgument, NotFound

# The driver's library; tests have one of their own.
library: str = _engine.CUDA_LIBRARY

# DLPack's number of the stream whose handle is 0.
_LEGACY_STREAM = 1

# Types of elements that are staged; others stay on the host.
_STAGED = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
)
# The native ones among them: a look-up is faster than a dtype's name.
_NATIVE = frozenset(np.dtype(name) for name in _STAGED - {"bfloat16"})


class Place(Protocol):
    """What sends batches to a device.

    `send` begins a transfer and returns; `deliver` makes the consumer's batch of its result.
    """

    reads_in_place: bool  # it reads shared memory where workers wrote it

    def send(self, batch: Any) -> Any: ...
    def deliver(self, sent: Any) -> Any: ...
    def check_start_method(self, method: str | None) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def lanes(self) -> list[Any]: ...
    def close(self) -> None: ...


def torch_place(device: Any) -> Place | None:
    """Return the place of one of torch's devices; None: batches stay where they are.

    Raises
    ------
    InvalidArgument
        It is not a device of torch's, or this torch cannot use it.
    NotFound
        There is no CUDA driver, or no such device.
    """
    if device is None:
        return None
    device = torch_device(device)
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return TorchDevice(device)
    place = CudaDevice(device.index)
    try:
        check_torch()
    except InvalidArgument:
        place.close()
        raise
    return place


def torch_device(device: Any) -> Any:
    """Return one of torch's devices, a CUDA device with its number.

    Raises
    ------
    InvalidArgument
        It is not a device of torch's.
    """
    import torch

    if _is_of_jax(device):
        raise InvalidArgument(
            f"device is {device!r}, which is jax's; use penstock.jax.feed, or give a device of "
            'torch\'s, such as "cuda:0"',
            "feed",
        )
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        text = str(error).partition("\n")[0]
        raise InvalidArgument(f"device is {device!r}: {text}", "feed") from None
    if device.type == "cuda" and device.index is None:
        current = torch.cuda.current_device() if torch.cuda.is_available() else 0
        device = torch.device("cuda", current)
    return device


def place_of(device: Any) -> Place | None:
    """Return the place of a device of torch's or jax's; None for None."""
    if _is_of_jax(device):
        return JaxDevice(device)
    return None if device is None else torch_place(device) or HostTensors()


def _is_of_jax(device: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(device, (jax.Device, jax.sharding.Sharding))


def stats_of(place: Place, ahead: int, stats: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a feed's device, for its `stats`: docs/device.md describes them.

    Parameters
    ----------
    ahead : int
        Batches that are sent ahead now.
    stats : dict
        Those of the Loader, whose thread's time is shared out.
    """
    device = {**place.stats(), "ahead": ahead}
    spent = stats["wait_ns"] + stats["busy_ns"]
    waited = {"host": stats["wait_ns"], "link": device.get("host_wait_ns", 0)}
    waited["step"] = spent - sum(waited.values())
    device["shares"] = {k: ns / spent if spent else math.nan for k, ns in waited.items()}
    return device


def check_torch() -> None:
    """Raise an error if this torch cannot use the tensors of a CUDA device.

    Initialises torch's CUDA, which takes long in a program that has not used it yet: before there
    is a batch, not between the host's first batch and its delivery.
    """
    import torch

    if not torch.cuda.is_available():
        raise InvalidArgument(
            f"torch {torch.__version__} has no CUDA here; install a build of torch for CUDA, or "
            'use device="cpu"',
            "feed",
        )
    torch.cuda.init()


def tensors_from(staged: _engine.StagedBatch) -> list[Any]:
    """Return tensors over the arrays of a staged batch, for torch's current stream.

    As `torch.from_dlpack` of each array, but the stream is asked for once and waits once.
    """
    import torch

    stream = torch.cuda.current_stream(staged.device).cuda_stream
    return [torch.from_dlpack(capsule) for capsule in staged.take(stream or _LEGACY_STREAM)]


class _StagedLeaf:
    """In place of a leaf that was staged.

    Parameters
    ----------
    dtype : str
        The dtype of torch that was staged as integers of its size; empty: the array's own.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


_staged_leaf = functools.cache(_StagedLeaf)


@functools.lru_cache(maxsize=1024)
def _moves_itself(kind: type) -> bool:
    """Whether a class has a method ``to(device, non_blocking=...)``, as torch's own have."""
    try:
        parameters = inspect.signature(kind.to).parameters.values()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        return False
    return any(each.name == "non_blocking" or each.kind is each.VAR_KEYWORD for each in parameters)


def _is_one(kind: Any) -> bool:
    """Whether a nest of this class moves as a whole: PackedSequence, but not BatchEncoding."""
    return _moves_itself(kind) and not issubclass(kind, (dict, UserDict))


def _moved(leaf: Any, device: Any) -> Any:
    """Move a value that has no array, such as a sparse tensor, if it can be moved."""
    torch = sys.modules.get("torch")
    kind: Any = type(leaf)
    is_tensor = torch is not None and isinstance(leaf, torch.Tensor)
    return leaf.to(device, non_blocking=True) if is_tensor or _moves_itself(kind) else leaf


class _OnHost:
    reads_in_place = False

    def check_start_method(self, method: str | None) -> None:
        """Any."""

    def lanes(self) -> list[Any]:
        """None: the framework does not tell when it copies."""
        return []

    def close(self) -> None:
        """Nothing to end."""


class HostTensors(_OnHost):
    """Tensors of torch in the memory that workers wrote: its device "cpu"."""

    def send(self, batch: Any) -> Any:
        return mapped(tensor_of_leaf, batch)

    def deliver(self, sent: Any) -> Any:
        return sent

    def stats(self) -> dict[str, Any]:
        return {"name": "cpu"}


class CudaDevice:
    """A CUDA device, by its number: batches are copied by the engine's own stream."""

    reads_in_place = True

    def __init__(self, number: int) -> None:
        self.name = f"cuda:{number}"
        self._stage = _engine.DeviceStage(number, library)
        # Also at the end of the program: copies in flight read the workers' memory.
        self._finalizer = weakref.finalize(self, self._stage.close)

    def send(self, batch: Any) -> Any:
        arrays = []

        # The engine keeps the arrays until they are copied; the nest must not keep them longer.
        def without(leaf: Any) -> Any:
            found = _array_of(leaf)
            if found is None:
                return leaf
            arrays.append(found[0])
            return _staged_leaf(found[1])

        nest = mapped_through(without, batch, _is_one)
        return nest, self._stage.put(arrays)

    def deliver(self, sent: Any) -> Any:
        nest, staged = sent
        tensors = iter(tensors_from(staged))

        def there(leaf: Any) -> Any:
            if type(leaf) is not _StagedLeaf:
                return _moved(leaf, self.name)
            tensor = next(tensors)
            return tensor.view(getattr(sys.modules["torch"], leaf.dtype)) if leaf.dtype else tensor

        return mapped_through(there, nest, _is_one)

    def check_start_method(self, method: str | None) -> None:
        if method == "fork":
            raise InvalidArgument(
                f"workers cannot be forked from a process that feeds {self.name}: the CUDA driver "
                'does not survive a fork. Use start_method="spawn" or "forkserver"',
                "feed",
            )

    def stats(self) -> dict[str, Any]:
        return {"name": self.name, **self._stage.figures()}

    def lanes(self) -> list[Any]:
        """The copies and the steps on the device, as lanes of a report: names with events."""
        copies, steps = self._stage.traces()
        return [(f"{self.name} copies", copies), (f"{self.name} step", steps)]

    def close(self) -> None:
        self._finalizer()


class TorchDevice(_OnHost):
    """Another device of torch's: torch copies, and the host does not wait where torch need not."""

    def __init__(self, device: Any) -> None:
        import torch

        try:
            torch.empty(0, device=device)
        except Exception as error:  # its class differs between devices
            text = str(error).partition("\n")[0]
            raise InvalidArgument(
                f"torch {torch.__version__} cannot use device {str(device)!r} here: {text}; "
                'install what torch needs for it, or use device="cpu"',
                "feed",
            ) from error
        self._device = device
        self._bytes = self._copies = 0

    def send(self, batch: Any) -> Any:
        return mapped_through(self._sent, batch, _is_one)

    def _sent(self, leaf: Any) -> Any:
        import torch

        tensor = tensor_of_leaf(leaf)
        if not isinstance(tensor, torch.Tensor):
            return _moved(leaf, self._device)
        if tensor.layout == torch.strided:  # others have no `nbytes`
            self._bytes += tensor.nbytes
        self._copies += 1
        return tensor.to(self._device, non_blocking=True)

    def deliver(self, sent: Any) -> Any:
        return sent

    def stats(self) -> dict[str, Any]:
        return {"name": str(self._device), "bytes": self._bytes, "copies": self._copies}


class JaxDevice(_OnHost):
    """A device, or a sharding, of jax's: jax copies, and the host does not wait."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self._bytes = self._copies = 0

    def send(self, batch: Any) -> Any:
        import jax

        leaves = leaves_of(batch)
        arrays = [_jax_array(leaf) for leaf in leaves]
        put = iter(jax.device_put([a for a in arrays if a is not None], self._place))
        for array in arrays:
            if array is not None:
                self._bytes += array.nbytes
                self._copies += 1
        sent = iter(
            [leaf if a is None else next(put) for leaf, a in zip(leaves, arrays, strict=True)]
        )
        return mapped(lambda leaf: next(sent), batch)

    def deliver(self, sent: Any) -> Any:
        return sent

    def stats(self) -> dict[str, Any]:
        return {"name": str(self._place), "bytes": self._bytes, "copies": self._copies}


def cuda_devices() -> list[tuple[str, int]]:
    """Return the names and bytes of memory of the CUDA devices; none without a driver."""
    try:
        return list(_engine.cuda_devices(library))
    except NotFound:
        return []


def link_speed(number: int, nbytes: int) -> tuple[float, float]:
    """Return the bytes per second to a CUDA device from pinned memory (0.0: there is none) and
    from other memory, measured by a few copies of `nbytes`."""
    pinned, pageable = _engine.cuda_link_speed(number, nbytes, library)
    return float(pinned), float(pageable)


def _array_of(leaf: Any) -> tuple[Any, str] | None:
    """Return a leaf as an array that can be staged; None: it stays as it is.

    With it, the dtype of a tensor whose type NumPy lacks, which is an array of integers then; or an
    empty name: that of the array.
    """
    if type(leaf) is np.ndarray and leaf.dtype in _NATIVE:
        return leaf, ""
    if isinstance(leaf, np.generic):
        leaf = np.asarray(leaf)
    if not isinstance(leaf, np.ndarray):
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(leaf, torch.Tensor):
            return None
        found = array_over(leaf)
        if found is None:
            return None
        array, name = found
        return array, "" if array.dtype.name == name else name
    if leaf.dtype.name not in _STAGED:
        return None
    return leaf if leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("=")), ""


def _jax_array(leaf: Any) -> Any:
    """Return a leaf as an array that jax takes; None: it stays as it is."""
    jax = sys.modules["jax"]
    if isinstance(leaf, jax.Array):
        return leaf
    found = _array_of(leaf)
    if found is None:
        return None
    array, name = found
    if not name:
        return array
    import ml_dtypes  # jax needs it, too

    kind = getattr(ml_dtypes, name, None)
    return None if kind is None else array.view(kind)

"""How arrays and tensors are pickled for worker processes; memory-mapped files are sent by name.

Workers import this module to rebuild them, so it imports only NumPy.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from typing import Any

import numpy as np

from .shared import is_shared

_LARGE = 64 << 10


def reduce_array(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.hasobject:
        return NotImplemented
    if array.nbytes >= _LARGE or isinstance(array, np.memmap):
        on_disk = _file_behind(array)
        if on_disk is not None:
            return on_disk
    if isinstance(array, np.memmap):
        return np.array(array, subok=False).__reduce_ex__(5)
    if array.nbytes >= _LARGE and not (array.flags.c_contiguous or array.flags.f_contiguous):
        return np.ascontiguousarray(array).__reduce_ex__(5)
    return NotImplemented


def _file_behind(array: np.ndarray[Any, Any]) -> Any:
    """The place in a file of an array's bytes; None if the array is not memory-mapped."""
    base: Any = array
    while isinstance(base, np.ndarray) and not (
        isinstance(base, np.memmap) and isinstance(base.base, mmap.mmap)
    ):
        base = base.base
    if not isinstance(base, np.memmap) or base.filename is None or array.size == 0:
        return None
    name = os.fspath(base.filename)
    file: Any = base.base
    mapping = np.frombuffer(file, np.uint8)
    start = base.offset - base.offset % mmap.ALLOCATIONGRANULARITY
    low, high = _bounds(array)
    begin = start + low - mapping.ctypes.data
    if low < mapping.ctypes.data or high > mapping.ctypes.data + mapping.nbytes:
        return None
    try:
        if os.stat(name).st_size < begin + high - low:
            return None
    except OSError:
        return None
    mode = "r"
    if base.mode != "r":
        mode = "c"
        if base.mode == "c" and _has_private_pages(low, high):
            return None
    first = array.__array_interface__["data"][0] - low
    kind = np.memmap if isinstance(array, np.memmap) else np.ndarray
    where = (begin, high - low, first)
    return _map_file, (kind, name, mode, where, array.dtype, array.shape, array.strides)


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    low = high = array.__array_interface__["data"][0]
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.itemsize


def _has_private_pages(low: int, high: int) -> bool:
    """Whether a copy-on-write mapping was written to, from the kernel's counts."""
    inside = False
    try:
        with open("/proc/self/smaps") as smaps:
            for line in smaps:
                head = line.split(maxsplit=1)[0]
                if not head.endswith(":"):
                    begin, end = (int(part, 16) for part in head.split("-"))
                    inside = begin < high and low < end
                elif inside and head in ("Anonymous:", "Swap:") and line.split()[1] != "0":
                    return True
    except (OSError, ValueError, IndexError):
        return True
    return False


def _map_file(
    kind: type,
    name: str,
    mode: Any,
    where: tuple[int, int, int],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> np.ndarray[Any, Any]:
    begin, length, first = where
    file = np.memmap(name, np.uint8, mode, begin, (length,))
    array: np.ndarray[Any, Any] = np.ndarray.__new__(kind, shape, dtype, file, first, strides)
    return array


# ---- tensors ------------------------------------------------------------------------------------


class _Memory:
    """The bytes of a storage: pickled once for all tensors that are views of it."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array  # keeps the storage alive, so its address is not reused

    def __reduce__(self) -> Any:
        return _load_memory, (self.array,)


# By the storage's address. A pickler's memo keeps the entries alive while it pickles.
_memories: weakref.WeakValueDictionary[int, _Memory] = weakref.WeakValueDictionary()


def reduce_tensor(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if (
        tensor.device.type != "cpu"
        or tensor.layout != torch.strided
        or tensor.is_quantized
        or not tensor.is_leaf
        or tensor.__dict__
    ):
        return NotImplemented
    plain = tensor.detach()
    for axis, (length, stride) in enumerate(zip(plain.shape, plain.stride(), strict=True)):
        if stride == 0 and length > 1:
            plain = plain.narrow(axis, 0, 1)  # memory that expand() repeats is sent once
    plain = plain.resolve_conj().resolve_neg()
    storage = plain.untyped_storage()
    if is_shared(storage):
        return _make_tensor, (type(tensor), storage, *_about(tensor, plain))
    memory = _memories.get(storage.data_ptr())
    if memory is None or memory.array.nbytes != storage.nbytes():
        # A small part of a large storage is sent alone, unless the storage is sent anyway.
        if storage.nbytes() > 2 * plain.numel() * plain.element_size():
            plain = plain.clone(memory_format=torch.contiguous_format)
            storage = plain.untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        memory = _memories[storage.data_ptr()] = _Memory(whole.numpy())
    return _make_tensor, (type(tensor), memory, *_about(tensor, plain))


def _about(tensor: Any, plain: Any) -> tuple[Any, ...]:
    view = plain.expand(tensor.shape)
    place = (view.storage_offset(), tuple(view.shape), view.stride())
    return tensor.dtype, place, tensor.requires_grad


def _load_memory(array: np.ndarray[Any, Any]) -> Any:
    """Make the storage for the tensors."""
    import torch

    if not array.flags.writeable or array.ctypes.data % 64:
        array = array.copy()
    return torch.from_numpy(array).untyped_storage()


def _make_tensor(
    kind: Any,
    storage: Any,
    dtype: Any,
    place: tuple[int, tuple[int, ...], tuple[int, ...]],
    gradient: bool,
) -> Any:
    import torch

    tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storage, *place)
    if kind is not torch.Tensor:
        return kind(tensor, requires_grad=gradient)
    return tensor.requires_grad_(gradient)

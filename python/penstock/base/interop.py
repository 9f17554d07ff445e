"""The engine's calls into Python: pickling, other libraries' arrays, exceptions.

The extension calls these functions by name. Workers import this module, so it imports little.
"""

from __future__ import annotations

import copyreg
import pickle
import reprlib
import sys
from typing import Any

import numpy as np

_PLAIN_STATE = getattr(object, "__getstate__", None)  # Python 3.11 and later


def dump(value: Any) -> tuple[bytes, list[memoryview]]:
    """Pickle anything; large buffers are not copied and are sent beside the pickle."""
    buffers: list[memoryview] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < 256:
            return True
        buffers.append(view)
        return False

    try:
        return pickle.dumps(value, 5, buffer_callback=take), buffers
    except Exception:
        import cloudpickle

        buffers.clear()
        return cloudpickle.dumps(value, 5, buffer_callback=take), buffers


def load(pickled: memoryview, buffers: list[Any]) -> Any:
    return pickle.loads(pickled, buffers=buffers)


_dumped: dict[Any, bytes] = {}
_loaded: dict[bytes, Any] = {}


def dump_class(value: Any) -> bytes:
    """Pickle a class, a dtype or another small value that occurs often."""
    try:
        known = _dumped.get(value)
    except TypeError:
        return dump(value)[0]
    if known is None:
        known = dump(value)[0]
        if len(_dumped) < 10_000:
            _dumped[value] = known
    return known


def load_class(pickled: bytes) -> Any:
    known = _loaded.get(pickled)
    if known is None:
        known = pickle.loads(pickled)
        if isinstance(known, (type, np.dtype, str)) and len(_loaded) < 10_000:
            _loaded[pickled] = known
    return known


def dump_key(key: Any) -> bytes:
    # Not through dump_class's cache: 1, 1.0 and True are one key there.
    return pickle.dumps(key, 5)


class _Plain:
    pass


def is_plain_dataclass(cls: Any) -> bool:
    """Whether instances have only their ``__dict__``: then fields are sent one by one."""
    return (
        hasattr(cls, "__dict__")
        and cls.__dictoffset__ != 0
        and cls.__basicsize__ <= _Plain.__basicsize__  # no list or dict base
        and cls.__itemsize__ == 0
        and getattr(cls, "__getstate__", _PLAIN_STATE) is _PLAIN_STATE
        and not hasattr(cls, "__setstate__")
        and cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ is object.__reduce__
        and not copyreg._slotnames(cls)  # type: ignore[attr-defined]
        and cls not in copyreg.dispatch_table
    )


def make_dataclass(cls: Any, fields: dict[str, Any]) -> Any:
    made = object.__new__(cls)  # the class's own __new__ may need arguments
    made.__dict__.update(fields)
    return made


def array_of_tensor(tensor: Any) -> tuple[np.ndarray[Any, Any], str] | None:
    """A NumPy array over a torch tensor's memory and the tensor's dtype; None for special ones."""
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:
        # torchvision's images are tensors with a subclass, which torch.stack drops as well. For
        # other classes only torch can define the result of stacking.
        if not type(tensor).__module__.startswith("torchvision.tv_tensors"):
            return None
        tensor = tensor.as_subclass(torch.Tensor)
    return array_over(tensor)


def array_over(tensor: Any) -> tuple[np.ndarray[Any, Any], str] | None:
    """As `array_of_tensor`, for a tensor of any class."""
    torch = sys.modules["torch"]
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.requires_grad
        or tensor.is_quantized
        or tensor.is_nested
    ):
        return None
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        return tensor.numpy(), name
    except RuntimeError:
        # Checked only here, because the call releases the GIL.
        if tensor.is_conj() or tensor.is_neg():
            return None
        raise
    except TypeError:
        pass
    # A type that NumPy lacks is sent as integers of the same size.
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(tensor.element_size())
    if same_size is None:
        return None
    return tensor.view(same_size).numpy(), name


def tensor_of_array(array: np.ndarray[Any, Any], name: str) -> Any:
    """The inverse of `array_of_tensor`; the tensor shares the array's memory."""
    import torch

    dtype = getattr(torch, name)
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def tensor_of_leaf(leaf: Any) -> Any:
    """Return a tensor over an array's memory if torch has its type; otherwise the leaf itself.

    Read-only arrays are copied.
    """
    import torch

    if isinstance(leaf, np.generic):
        leaf = np.asarray(leaf)
    if not isinstance(leaf, np.ndarray):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc":
        known = array.dtype.kind == "V" and getattr(torch, array.dtype.name, None)
        if not isinstance(known, torch.dtype):
            return leaf
        return tensor_of_array(array.view(f"i{array.dtype.itemsize}"), array.dtype.name)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:  # longdouble, and other types of the platform
        return leaf


def copy_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy an array of a subclass; a memory map becomes an ordinary array."""
    if isinstance(array, np.memmap):
        return np.array(array, subok=False)
    copy: np.ndarray[Any, Any] = array.copy()
    return copy


def copy_tensor(tensor: Any) -> Any:
    """Copy a tensor whose memory other code may write to."""
    if tensor.requires_grad:
        return tensor
    # A clone of a lazy view would be an ordinary tensor, unlike the result of `array_of_tensor`.
    if tensor.is_conj():
        return copy_tensor(tensor.conj()).conj()
    if tensor.is_neg():
        torch = sys.modules["torch"]
        return torch._neg_view(copy_tensor(torch._neg_view(tensor)))
    return tensor.clone()


def encode_indices(indices: Any) -> tuple[int, int, bytes]:
    """A sampler's batch of indices as (count, kind, bytes): kind 0 are uint64, 1 a pickled list."""
    if not isinstance(indices, (list, tuple, np.ndarray)):
        indices = list(indices) if hasattr(indices, "__iter__") else [indices]
    try:
        array = np.asarray(indices)
        if array.ndim == 1 and array.dtype.kind in "iu" and (array.size == 0 or array.min() >= 0):
            return len(indices), 0, array.astype(np.uint64).tobytes()
    except (ValueError, TypeError, OverflowError):
        pass
    return len(indices), 1, dump_class_list(list(indices))


def dump_class_list(indices: list[Any]) -> bytes:
    try:
        return pickle.dumps(indices, 5)
    except Exception:
        import cloudpickle

        return bytes(cloudpickle.dumps(indices, 5))


_shown = reprlib.Repr()  # for an index, which may be any object
_shown.maxstring = _shown.maxother = 200


def failure(
    kind: str,
    detail: Any,
    epoch: int,
    step: int,
    index: Any,
    worker: int,
    chain: list[str] | None = None,
    last: Any = None,
    call: str = "",
) -> BaseException:
    """The exception for a ticket that failed.

    `index`: None if it is unknown. `chain`: the titles of a Dataset's stages. `call`: the function
    that failed for a whole batch, "__getitems__" or "collate"; `last` is the batch's last index.
    """
    from .. import errors

    where = "" if index is None else f", index {_shown.repr(index)}"
    if last is not None:
        where = f", a batch of indices {_shown.repr(index)} ... {_shown.repr(last)}"
    place = f"epoch {epoch}{where} (step {step}), worker {worker}"
    if call == "collate":
        place += ": collate"
    if kind == "timeout":
        remedy = "mend the sample, or pass over it with on_error='skip'"
        if call == "collate":
            remedy = "or mend it: on_error passes over samples only"
        return errors.Timeout(
            f"{place} took longer than timeout allows; its worker was stopped. Raise timeout=, "
            f"{remedy}",
            "Loader",
        )
    if kind == "lost":
        alone = f"dataset.{call}(indices)" if call else "dataset[index]"
        if call == "collate":
            alone = "it on these samples"
        alone = alone if chain is None else f"element {index} of {' > '.join(chain)}"
        return errors.WorkerLost(
            f"{place} lost its worker process three times (killed, crashed or out of memory); "
            f"run {alone} alone to see why",
            "Loader",
        )
    if kind == "space":
        return errors.OutOfMemory(
            f"{detail}: epoch {epoch}, step {step}. Hold on to fewer batches, or lower "
            "max_queue_size, batch_size or the number of workers",
            "Loader",
        )
    if detail is None:
        return errors.Internal(f"{place} failed and its exception was lost", "Loader")
    carried, _row, index, worker, last = detail
    exception: BaseException
    if isinstance(carried, bytes):
        exception = errors.unpack_exception(carried)
    else:
        exception = carried
        # Ctrl-C does not belong to a sample.
        if exception.__cause__ is None and isinstance(exception, Exception):
            exception.__cause__ = errors.WorkerTraceback(
                errors._format(exception), f"worker {worker}", epoch, index, last
            )
    return _no_stop_iteration(exception)


def failure_of_stage(
    exception: BaseException, stage: str, epoch: int, index: int, worker: int
) -> BaseException:
    """The exception of a Dataset's stage, in the form that the consumer raises."""
    from .. import errors

    if exception.__cause__ is None and isinstance(exception, Exception):
        exception.__cause__ = errors.WorkerTraceback(
            errors._format(exception), f"worker {worker}, {stage}", epoch, index
        )
    return _no_stop_iteration(exception)


def _no_stop_iteration(exception: BaseException) -> BaseException:
    if not isinstance(exception, StopIteration):
        return exception
    # As in generators: a StopIteration would end the epoch without an error.
    raised = RuntimeError("the dataset raised StopIteration")
    raised.__cause__ = exception.__cause__
    return raised

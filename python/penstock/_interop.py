"""What the engine asks Python to do: pickling, other libraries' arrays, exceptions.

Called by the extension, by name. Workers import it, so it imports little.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import pickle
import reprlib
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

_PLAIN_STATE = getattr(object, "__getstate__", None)  # Python 3.11 and later


def dump(value: Any) -> tuple[bytes, list[memoryview]]:
    """Pickle anything; large buffers stay where they are and travel beside the pickle."""
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
    """Pickle a class, a dtype or another small value that comes again and again."""
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
    """Whether instances are nothing but their ``__dict__``: then fields travel one by one."""
    return (
        hasattr(cls, "__dict__")
        and cls.__dictoffset__ != 0
        and cls.__basicsize__ <= _Plain.__basicsize__  # and no list or dict beside it
        and cls.__itemsize__ == 0
        and getattr(cls, "__getstate__", _PLAIN_STATE) is _PLAIN_STATE
        and not hasattr(cls, "__setstate__")
        and cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ is object.__reduce__
        and not copyreg._slotnames(cls)  # type: ignore[attr-defined]
        and cls not in copyreg.dispatch_table
    )


def make_dataclass(cls: Any, fields: dict[str, Any]) -> Any:
    made = object.__new__(cls)  # its own may want arguments
    made.__dict__.update(fields)
    return made


def parts_of(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """What a container of a class that the engine does not know itself holds; None: it is none.

    Returns
    -------
    parts, make : list, callable
        ``make(parts)`` is a container like it of these parts. Of the class's own code only what it
        has for being copied is run, if that: the rest may refuse, or do more than put a part in
        its place.

    Notes
    -----
    Of the attributes of a dict, list or deque, a dataclass's fields among them, arrays are parts,
    and so is what is an item as well; also where tuples and built-in containers hold them, unless
    one leads to more than 10,000 things. All else stays shared: it may own `value`, or lead from
    there to all that there is, and back.
    """
    cls: Any = type(value)
    base: Any = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
    if base is None and not hasattr(cls, "__dataclass_fields__"):
        return None
    keys, parts = [], []
    if base in (list, deque):
        parts += base.__iter__(value)
    elif base is not None:
        for key, part in list(base.items(value)):
            keys.append(key)
            parts.append(part)
    items = len(parts)
    own, slots = _attributes(value)
    is_own_dict = own is value
    own = {} if is_own_dict else dict(own)
    attributes = [*own.values(), *slots.values()]
    plans: dict[int, Any] = {}  # of those that are parts or have some in them: where to put which
    if attributes:
        # An item that is an attribute, too, stays one and the same.
        places = {id(p): place for place, p in enumerate(parts) if type(p) not in _SCALARS}
        done: dict[int, Any] = {}

        def is_part(part: Any) -> bool:
            return base is None or id(part) in places or _is_array(part)

        def placed(part: Any) -> Any:
            if not is_part(part):
                return part
            place = places.setdefault(id(part), len(parts))
            if place == len(parts):
                parts.append(part)
            return _Place(place)

        for number, attribute in enumerate(attributes):
            if _leads_to(is_part, attribute):
                plans[number] = _mapped(placed, attribute, done)

    def make(parts: list[Any]) -> Any:
        made = _bare(value, base)
        if base is list:
            list.__init__(made, parts[:items])
        elif base is deque:
            deque.__init__(made, parts[:items], value.maxlen)
        for key, part in zip(keys, parts[: len(keys)], strict=True):
            base.__setitem__(made, key, part)
        if is_own_dict:
            object.__setattr__(made, "__dict__", made)
        found = list(attributes)
        done: dict[int, Any] = {}
        for number, plan in plans.items():
            found[number] = _mapped(
                lambda part: parts[part] if type(part) is _Place else part, plan, done
            )
        if own:
            fields = zip(own, found[: len(own)], strict=True)
            object.__getattribute__(made, "__dict__").update(fields)
        for name, part in zip(slots, found[len(own) :], strict=True):
            object.__setattr__(made, name, part)  # it may be frozen
        return made

    return parts, make


_CONTAINERS: tuple[Any, ...] = (OrderedDict, dict, list, deque)
_BUILT_IN = frozenset((*_CONTAINERS, defaultdict))
_COPIED_HERE = (None, defaultdict.__copy__, deque.__copy__)
_SCALARS = frozenset((type(None), bool, int, float, complex, str, bytes))
_MAX_DEPTH = 64  # as in the engine
_MOST = 10_000


class _Place(int):
    """Where a part is among the parts; stands for it."""


def _held(value: Any) -> Any:
    """What a tuple or a built-in container has in it; nothing if `value` is neither."""
    kind: Any = type(value)
    if kind in _BUILT_IN:
        return value.values() if issubclass(kind, dict) else value
    return value if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_make")) else ()


def _leads_to(wanted: Callable[[Any], bool], value: Any) -> bool:
    """Whether `value` is wanted, or has such a thing in it; not if there is too much to look at."""
    seen: dict[int, Any] = {}
    found, ahead, left = False, [value], _MOST
    while ahead:
        each = ahead.pop()
        if wanted(each):
            found = True
        elif id(each) not in seen:
            items = _held(each)
            left -= len(items)
            if left < 0:
                return False
            if items:
                seen[id(each)] = each
                ahead += items
    return found


def _mapped(
    function: Callable[[Any], Any], value: Any, done: dict[int, Any], depth: int = 0
) -> Any:
    """`value` with `function` applied to it or, in tuples and built-in containers, what is in it.

    `value` itself if nothing changes. `done`: what was gone through, by id, and what became of it:
    so that it may come twice, or lead to itself.
    """
    made = function(value)
    if made is not value:
        return made
    if not _held(value) or depth == _MAX_DEPTH:
        return value
    if id(value) in done:
        return done[id(value)][1]
    kind: Any = type(value)
    changed = False
    if issubclass(kind, tuple):
        items = [_mapped(function, item, done, depth + 1) for item in value]
        changed = any(item is not old for item, old in zip(items, value, strict=True))
        made = tuple(items) if kind is tuple else kind._make(items)
    else:
        made = copy.copy(value)  # as it is now: other threads may lead to it
        done[id(value)] = value, made
        for key, old in list(made.items() if issubclass(kind, dict) else enumerate(made)):
            item = _mapped(function, old, done, depth + 1)
            if item is not old:
                made[key] = item
                changed = True
    done[id(value)] = value, made if changed else value  # held, so that its id stays its own
    return done[id(value)][1]


def _bare(value: Any, base: Any) -> Any:
    """What `value` can be made of anew: empty where its class leaves copying to its base."""
    cls = type(value)
    if getattr(cls, "__copy__", None) not in _COPIED_HERE:
        return copy.copy(value)
    kind: Any = defaultdict if isinstance(value, defaultdict) else base or object
    args = ()
    if isinstance(value, BaseException):
        kind = next(kind for kind in cls.__mro__ if kind.__module__ == "builtins")
        args = value.args
    try:
        made = kind.__new__(cls, *args)  # its own may want others
    except TypeError:  # there is more to it than its base: a set
        return copy.copy(value)
    if kind is defaultdict:
        object.__setattr__(made, "default_factory", value.default_factory)
    return made


def _is_array(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, (np.ndarray, getattr(torch, "Tensor", np.ndarray)))


def _attributes(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its ``__dict__``, and what it has in slots; an exception's ``args`` are with them."""
    cls = type(value)
    own = object.__getattribute__(value, "__dict__") if cls.__dictoffset__ else {}
    slots = {"args": value.args} if isinstance(value, BaseException) else {}
    if cls not in _BUILT_IN:  # for which Python would look them up each time
        for name in copyreg._slotnames(cls):  # type: ignore[attr-defined]
            with contextlib.suppress(AttributeError):
                slots[name] = object.__getattribute__(value, name)
    return own, slots


def array_of_tensor(tensor: Any) -> tuple[np.ndarray[Any, Any], str] | None:
    """A NumPy array over a torch tensor's memory and the tensor's dtype; None for special ones."""
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:
        # torchvision's images are tensors with a name; torch.stack takes that away as well. What
        # other classes mean by being stacked, only torch knows.
        if not type(tensor).__module__.startswith("torchvision.tv_tensors"):
            return None
        tensor = tensor.as_subclass(torch.Tensor)
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.requires_grad
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return None
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        return tensor.numpy(), name
    except TypeError:
        pass
    # A type that NumPy lacks travels as plain integers of its size.
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(tensor.element_size())
    if same_size is None:
        return None
    return tensor.view(same_size).numpy(), name


def tensor_of_array(array: np.ndarray[Any, Any], name: str) -> Any:
    """The tensor that `array_of_tensor` took apart; shares the array's memory."""
    import torch

    dtype = getattr(torch, name)
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def copy_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy an array of a subclass; a memory map becomes an ordinary array."""
    if isinstance(array, np.memmap):
        return np.array(array, subok=False)
    copy: np.ndarray[Any, Any] = array.copy()
    return copy


def copy_tensor(tensor: Any) -> Any:
    """Copy a tensor whose memory somebody else may write to."""
    if tensor.requires_grad:
        return tensor
    # A clone of a lazy view would be an ordinary tensor: not what `array_of_tensor` made of it.
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


_shown = reprlib.Repr()  # of an index, which may be anything
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

    `index`: None where nobody knows it. `chain`: the stages' titles, of a Dataset. `call`: what
    makes a batch of several, whose `last` index it is then, "__getitems__" or "collate".
    """
    from . import errors

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
    if kind == "room":
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
        # Ctrl-C is nobody's fault.
        if exception.__cause__ is None and isinstance(exception, Exception):
            exception.__cause__ = errors.WorkerTraceback(
                errors._format(exception), f"worker {worker}", epoch, index, last
            )
    return _no_stop_iteration(exception)


def failure_of_stage(
    exception: BaseException, stage: str, epoch: int, index: int, worker: int
) -> BaseException:
    """The exception of a Dataset's stage, as it reaches the consumer."""
    from . import errors

    if exception.__cause__ is None and isinstance(exception, Exception):
        exception.__cause__ = errors.WorkerTraceback(
            errors._format(exception), f"worker {worker}, {stage}", epoch, index
        )
    return _no_stop_iteration(exception)


def _no_stop_iteration(exception: BaseException) -> BaseException:
    if not isinstance(exception, StopIteration):
        return exception
    # As in generators: it would end the epoch and nobody would know.
    raised = RuntimeError("the dataset raised StopIteration")
    raised.__cause__ = exception.__cause__
    return raised

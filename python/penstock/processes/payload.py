"""Sends a dataset to worker processes: once, in one mapping that all of them read.

`pack` and `unpack` are for the whole dataset, `Tracker` and `apply` for the changes of its epoch
hooks. Workers import this module, so it imports little.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import types
from collections import deque
from typing import Any

from .. import _engine
from ..errors import InvalidArgument, OutOfMemory
from . import memfile

__all__ = ["Payload", "Tracker", "apply", "pack", "unpack"]

# Smaller buffers stay in the pickle stream: a mapping's slice costs more than this copy.
_SMALLEST_BUFFER = 256
_LARGE_PIECE = 4096  # bytes of a piece to hash
_UPDATES_BEHIND = 16  # a worker reads an update with its next ticket of that epoch
_ABSENT = object()


class Payload:
    """A pickled object in a sealed memory file.

    Attributes
    ----------
    fd : int
        The file; owned, closed by `close` or with the last reference. -1 once closed.
    bytes : int
        Its size.
    kept : list
        Owners of the descriptors that it names and that workers open.
    names : set of str, optional
        For `Tracker.changes`: the attributes that it changes. None: all.
    """

    def __init__(self, fd: int, size: int, kept: list[Any]) -> None:
        self.fd = fd
        self.bytes = size
        self.kept = kept
        self.names: set[str] | None = None

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def tobytes(self) -> bytes:
        """Return a copy of the file, for a channel that carries no descriptors."""
        with mmap.mmap(self.fd, self.bytes, prot=mmap.PROT_READ) as mapping:
            return mapping[:]

    def __enter__(self) -> Payload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def pack(obj: Any, name: str = "dataset") -> Payload:
    """Pickle an object with all that it refers to into anonymous memory.

    Parameters
    ----------
    obj : object
        Any object. Definitions of ``__main__`` or of a module that workers cannot import are sent
        by value; arrays (NumPy, torch in CPU memory) out of band; memory-mapped arrays by name.
    name : str
        The name of `obj` in errors.

    Raises
    ------
    InvalidArgument
        A part of it cannot be pickled; the text names that part.
    OutOfMemory
        The system has no memory for it.
    """
    return _pack(obj, name, None)


def unpack(source: int | bytes | bytearray | memoryview) -> Any:
    """Rebuild an object from the result of `pack`.

    Parameters
    ----------
    source : int or bytes-like
        The descriptor of a payload: its pages are shared with every process that reads them and
        copied when they are written to. Or a copy of its bytes, which is copied again.

    Raises
    ------
    DataLoss
        The lengths in the header do not match the file.
    Exception
        Any exception that the user's modules raise when they are imported.
    """
    return _unpack(source, None)


def apply(obj: Any, update: int | bytes | bytearray | memoryview) -> None:
    """Apply an update of `Tracker.changes` to `obj`, a worker's copy of a dataset.

    Attributes that are not in the update (caches, open files) are not changed.
    """
    whole, attributes, deleted = _unpack(update, obj)
    if whole:
        obj.__setstate__(attributes)
        return
    for key in deleted:
        if key in getattr(obj, "__dict__", ()):
            del obj.__dict__[key]
        elif hasattr(obj, key):
            object.__delattr__(obj, key)
    for key, value in attributes.items():
        _set(obj, key, value)


class Tracker:
    """Detects which attributes of a dataset change, so that only these are sent again.

    REQUIRED: made before workers are forked. Then they have the same classes of ``__main__``.

    Parameters
    ----------
    dataset : object
        The object to watch. It is pickled once, attribute by attribute, into a hash.
    """

    def __init__(self, dataset: Any, name: str = "dataset") -> None:
        self._dataset = dataset
        self._name = name
        self._digests: dict[str, bytes] = {}
        self._unpicklable: dict[str, Any] = {}
        self._kept: deque[Any] = deque(maxlen=_UPDATES_BEHIND)
        whole, state = _state_of(dataset)
        if whole:
            state = {"": state}
        for key, value in state.items():
            self._note(key, value, self._digest(value))

    def changes(self) -> Payload | None:
        """Return the changes since the last call (or the start); None if there are none.

        Attributes that cannot be pickled are ignored as long as they are the same objects.

        Raises
        ------
        InvalidArgument
            An attribute has a new value that cannot be pickled.
        """
        whole, state = _state_of(self._dataset)
        parts = {"": state} if whole else state
        changed: dict[str, Any] = {}
        digests: dict[str, bytes | None] = {}
        for key, value in parts.items():
            digests[key] = digest = self._digest(value)
            if digest is None:
                if self._unpicklable.get(key, _ABSENT) is not value:
                    raise _unpicklable(value, f"{self._name}.{key}", self._dataset, None)
            elif self._digests.get(key) != digest:
                changed[key] = value
        deleted = [key for key in (*self._digests, *self._unpicklable) if key not in parts]
        if not changed and not deleted:
            return None
        # A __getstate__ may rename attributes; only the class's __setstate__ can read the result.
        if not whole and hasattr(self._dataset, "__setstate__"):
            whole = not all(_is_attribute(self._dataset, key) for key in changed)
            if whole:
                changed = {"": state}
        update = (whole, changed[""] if whole else changed, deleted)
        payload = _pack(update, self._name, self._dataset)
        payload.names = None if whole else {*changed, *deleted}
        self._kept.append(payload.kept)
        for key in deleted:
            self._digests.pop(key, None)
            self._unpicklable.pop(key, None)
        for key, value in parts.items():
            self._note(key, value, digests[key])
        return payload

    def _note(self, key: str, value: Any, digest: bytes | None) -> None:
        self._digests.pop(key, None)
        self._unpicklable.pop(key, None)
        if digest is None:
            self._unpicklable[key] = value
        else:
            self._digests[key] = digest

    def _digest(self, value: Any) -> bytes | None:
        """Hash an attribute's pickle and buffers without a copy; None: it cannot be pickled."""
        hasher = _Hasher()

        def take(buffer: pickle.PickleBuffer) -> None:
            hasher.write(buffer.raw())

        try:
            _pickle_to(hasher, value, take, self._dataset)
        except Exception:
            return None
        return hasher.digest()


class _Hasher:
    """A file for a pickler that computes a hash of 128 bits of the written data.

    Large pieces are reduced by the engine first, at the speed of memory.
    """

    def __init__(self) -> None:
        import hashlib  # in the parent only

        self._hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        size = view.nbytes
        if size >= _LARGE_PIECE:
            self._hash.update(b"%d:" % size)
            self._hash.update(_engine.digest(view))
        else:
            self._hash.update(view)
        return size

    def digest(self) -> bytes:
        return self._hash.digest()


# ---- pickling -----------------------------------------------------------------------------------


def _pack(obj: Any, name: str, root: Any) -> Payload:
    buffers: list[memoryview] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _SMALLEST_BUFFER:
            return True  # in band
        buffers.append(raw)
        return False

    stream = io.BytesIO()
    try:
        kept = _pickle_to(stream, obj, take, root)
    except MemoryError as error:
        raise OutOfMemory(f"no memory to pickle {name}", "pack") from error
    except Exception as error:
        raise _unpicklable(obj, name, root, error) from error
    return Payload(*memfile.write_new(f"penstock-{name}", stream.getvalue(), buffers), kept)


def _pickle_to(sink: Any, obj: Any, take: Any, root: Any) -> list[Any]:
    from .pickler import Pickler, RootedPickler

    # If an attribute refers to the dataset (a bound method, a child's parent), it refers to the
    # worker's own dataset after unpickling.
    made = Pickler(sink, take, numbered=True) if root is None else RootedPickler(sink, take, root)
    with made as pickler:
        pickler.dump(obj)
        pickler.dump(pickler.main_classes)
        return pickler.kept


def _unpack(source: int | bytes | bytearray | memoryview, root: Any) -> Any:
    stream, buffers = memfile.read(source)
    unpickler = _RootedUnpickler(io.BytesIO(stream), root, buffers)
    obj = unpickler.load()
    # Define the classes of the parent's __main__ in this __main__, too: then the worker can pickle
    # their instances by name, and the parent finds the classes.
    main = vars(sys.modules["__main__"])
    for name, kind in unpickler.load().items():
        main.setdefault(name, kind)
    return obj


class _RootedUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, root: Any, buffers: list[memoryview]) -> None:
        super().__init__(stream, buffers=buffers)
        self._root = root

    def persistent_load(self, _: Any) -> Any:
        return self._root


def _unpicklable(obj: Any, name: str, root: Any, error: Exception | None) -> InvalidArgument:
    from .explain import Culprit, find_culprit, type_name

    culprit: Culprit | None
    try:
        culprit = find_culprit(obj, name, root)
    except Exception:
        culprit = None
    if culprit is None:
        culprit = Culprit(name, type_name(obj), str(error) or type(error).__name__)
    return InvalidArgument(
        f"{culprit.path} (a {culprit.type_name}) cannot be sent to worker processes: "
        f"{culprit.reason}; open it lazily in __getitem__ (see docs/sending-datasets.md), "
        "drop it in __getstate__, or use threads (use_multiprocessing=False)",
        "pack",
    )


# ---- attributes ---------------------------------------------------------------------------------


def _state_of(obj: Any) -> tuple[bool, Any]:
    """Return (False, attributes by name), or (True, state) when only __setstate__ can read it."""
    custom = getattr(type(obj), "__getstate__", None)
    if custom is not None and custom is not getattr(object, "__getstate__", None):
        state = obj.__getstate__()
        if isinstance(state, dict):
            return False, dict(state)
        if state is None:
            return False, {}
        return True, state
    attributes = dict(getattr(obj, "__dict__", ()))
    for base in type(obj).__mro__:
        slots = vars(base).get("__slots__", ())
        for key in (slots,) if isinstance(slots, str) else slots:
            if key in ("__dict__", "__weakref__"):
                continue
            if key.startswith("__") and not key.endswith("__"):
                key = f"_{base.__name__.lstrip('_')}{key}"
            value = getattr(obj, key, _ABSENT)
            if value is not _ABSENT:
                attributes[key] = value
    return False, attributes


def _is_attribute(obj: Any, key: str) -> bool:
    return key in getattr(obj, "__dict__", ()) or hasattr(obj, key)


def _set(obj: Any, key: str, value: Any) -> None:
    # Without __setattr__, as in unpickling: a frozen dataclass would raise an error.
    attributes = getattr(obj, "__dict__", None)
    slot = isinstance(getattr(type(obj), key, None), types.MemberDescriptorType)
    if attributes is not None and not slot:
        attributes[key] = value
    else:
        object.__setattr__(obj, key, value)

"""The pickler for data sent to worker processes. Used in the parent only.

It derives from cloudpickle's, which sends definitions of a script or a notebook by value. Also:

- memory-mapped arrays (`numpy.memmap`) are sent as the file's name and not as its contents;
- torch's tensors in CPU memory and non-contiguous arrays are sent out of band, like other arrays;
- memory, locks and pipes that processes share stay shared (`shared`);
- locks of `threading` become new, unlocked ones (`fresh`);
- definitions of a module that a fresh interpreter could not import are sent by value;
- sets in the code of functions are sorted, and with ``numbered`` a class that is sent by value has
  the same id in all processes that run the same script, so that equal data sets have equal pickles
  (the order of a set of texts differs from process to process; cloudpickle draws a random id);
- an open text file is an error (cloudpickle would read it all and send a copy).
"""

from __future__ import annotations

import ctypes
import io
import itertools
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import cloudpickle
import numpy as np
from cloudpickle import cloudpickle as classes

from . import fresh, shared
from .arrays import reduce_array, reduce_tensor

_CTYPES = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
_found: set[str] = set()  # modules that a fresh interpreter finds
_numbers: dict[str, Iterator[int]] = {}  # of classes, by name; none is used again


class Sink(Protocol):
    def write(self, data: Any, /) -> Any: ...


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles one object graph; use as a context manager.

    Parameters
    ----------
    sink, buffer_callback
        As of `pickle.Pickler`.
    numbered : bool
        Classes that are sent by value get a number as their id. For readers that unpickle nothing
        from other processes, whose classes may have the same numbers.

    Attributes
    ----------
    main_classes : dict
        The classes of ``__main__`` that were pickled, by name.
    kept : list
        Owners of descriptors that the pickle names. Keep them until workers have read the pickle.
    """

    def __init__(
        self,
        sink: Sink,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None,
        numbered: bool = False,
    ) -> None:
        super().__init__(sink, protocol=5, buffer_callback=buffer_callback)
        self._numbered = numbered
        self.main_classes: dict[str, type] = {}
        torch: Any = sys.modules.get("torch")
        self._tensors = (torch.Tensor, torch.nn.Parameter) if hasattr(torch, "nn") else ()
        self._storage = getattr(torch, "UntypedStorage", None)
        self._semaphore = getattr(sys.modules.get("multiprocessing.synchronize"), "SemLock", ())
        self._shared = shared.reducers()
        self._spawning = shared.spawning()
        self.kept: list[Any] = []
        self._known_modules: set[str] = {"builtins", "__main__"}
        self._by_value: list[types.ModuleType] = []

    def __enter__(self) -> Pickler:
        self._spawning.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._spawning.__exit__(None, None, None)
        for module in self._by_value:
            cloudpickle.unregister_pickle_by_value(module)
        self._by_value.clear()

    def reducer_override(self, obj: Any) -> Any:
        kind: type = type(obj)
        if kind is np.ndarray:
            return reduce_array(obj)
        if kind in self._tensors:
            return reduce_tensor(obj)
        if kind in fresh.REDUCERS:
            return fresh.REDUCERS[kind](obj)
        if kind is self._storage and shared.is_shared(obj):
            self.kept.append(obj)
            return shared.reduce_storage(obj)
        if kind in self._shared and (hasattr(obj, "_wrapper") or not isinstance(obj, _CTYPES)):
            self.kept.append(obj)
            return self._shared[kind](obj)
        if isinstance(obj, self._semaphore) and shared.is_forked_lock(obj):
            return shared.reduce_forked_lock(obj)
        if isinstance(obj, type):
            self._note_class(obj)
        elif kind is types.FunctionType:
            self._find_module(obj.__module__)
        elif kind is types.CodeType and any(type(each) is frozenset for each in obj.co_consts):
            return classes._code_reduce(obj.replace(co_consts=tuple(map(_sorted, obj.co_consts))))
        elif kind is types.ModuleType:
            self._find_module(obj.__name__)
        elif isinstance(obj, np.memmap):
            return reduce_array(obj)
        elif isinstance(obj, io.TextIOBase):
            return _reduce_stream(obj)
        return super().reducer_override(obj)

    def _note_class(self, kind: type) -> None:
        name = kind.__qualname__
        if kind.__module__ == "__main__" and vars(sys.modules["__main__"]).get(name) is kind:
            self.main_classes[name] = kind
        self._find_module(kind.__module__)
        if self._numbered:
            _number_class(kind)

    def _find_module(self, name: object) -> None:
        if not isinstance(name, str) or name in self._known_modules:
            return
        self._known_modules.add(name)
        module = sys.modules.get(name)
        if (
            module is not None
            and not is_importable(name)
            and name not in cloudpickle.list_registry_pickle_by_value()
        ):
            cloudpickle.register_pickle_by_value(module)
            self._by_value.append(module)


class _Sorted:
    """A set among the constants of a function's code, as in ``x in {"a", "b"}``.

    Unpickled as the set.
    """

    def __init__(self, of: frozenset[Any]) -> None:
        self._of = of

    def __reduce__(self) -> tuple[Any, ...]:
        return frozenset, (sorted(self._of, key=repr),)


def _sorted(constant: Any) -> Any:
    return _Sorted(constant) if type(constant) is frozenset else constant


def _number_class(kind: type) -> None:
    """Give a class that cloudpickle sends by value an id, unless it has one."""
    if classes._should_pickle_by_reference(kind):
        return
    with classes._DYNAMIC_CLASS_TRACKER_LOCK:
        if kind in classes._DYNAMIC_CLASS_TRACKER_BY_CLASS:
            return
        known = classes._DYNAMIC_CLASS_TRACKER_BY_ID
        name = f"{kind.__module__}.{kind.__qualname__}"
        counted = _numbers.setdefault(name, itertools.count())
        made = next(each for n in counted if (each := f"{name} {n}") not in known)
        classes._DYNAMIC_CLASS_TRACKER_BY_CLASS[kind] = made
        known[made] = kind


def _reduce_stream(stream: io.TextIOBase) -> Any:
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        if stream is getattr(sys, name):
            return getattr, (sys, name)
    if isinstance(stream, io.TextIOWrapper):
        kind = type(stream)
        raise TypeError(f"cannot pickle '{kind.__module__}.{kind.__qualname__}' object")
    return NotImplemented


class RootedPickler(Pickler):
    """Pickles parts of `root`; the reader replaces references to it by its own root."""

    def __init__(
        self, sink: Sink, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None, root: Any
    ) -> None:
        super().__init__(sink, buffer_callback)
        self._root = root

    def persistent_id(self, obj: Any) -> str | None:
        return "root" if obj is self._root else None


def is_importable(name: str) -> bool:
    """Whether a fresh interpreter with this ``sys.path`` would find a module of this name."""
    if name in _found or name in sys.builtin_module_names:
        return True
    parent, _, _ = name.rpartition(".")
    path = None
    if parent:
        if not is_importable(parent):
            return False
        path = getattr(sys.modules.get(parent), "__path__", None)
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        try:
            if find_spec is not None and find_spec(name, path) is not None:
                _found.add(name)
                return True
        except Exception:
            continue
    # Some extension modules create their submodules themselves, so no finder finds them.
    return bool(parent) and not hasattr(sys.modules.get(parent), "__path__")

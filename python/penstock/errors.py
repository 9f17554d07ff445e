"""Exceptions by kind, and how they are sent from a worker process to the consumer.

The engine's errors (`penstock/base/error.h`) have the same kinds and names.
"""

from __future__ import annotations

import errno
import pickle
import re
from collections.abc import Callable
from typing import Any

from . import _engine

__all__ = [
    "Closed",
    "DataLoss",
    "Error",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "OutOfMemory",
    "RemoteError",
    "System",
    "Timeout",
    "WorkerLost",
    "WorkerTraceback",
]


class Error(Exception):
    """Any error that penstock itself raises.

    Parameters
    ----------
    text : str
        What failed, where, and what to do. Passwords and parameters of URLs are left out.
    operation : str, optional
        The operation that failed, such as ``"Loader"`` or ``"read_tfrecord"``.
    """

    def __init__(self, text: str = "", operation: str = "") -> None:
        super().__init__(_engine.without_secrets(text) if "://" in text else text)
        self.operation = operation


class InvalidArgument(Error, ValueError):
    """An argument is invalid; nothing was changed."""


class OutOfMemory(Error, MemoryError):
    """There is not enough memory, shared memory or address space."""


class DataLoss(Error):
    """Bytes on disk or in transit are damaged or missing."""


class NotFound(Error, FileNotFoundError, KeyError):
    """A file or name does not exist."""

    def __init__(self, text: str = "", operation: str = "") -> None:
        super().__init__(text, operation)
        self.errno = errno.ENOENT


class Closed(Error):
    """The object was closed, perhaps by another thread."""


class Timeout(Error, TimeoutError):
    """A ticket took longer than its ``timeout``."""


class WorkerLost(Error, RuntimeError):
    """Workers died repeatedly with the same ticket, or before their first one."""


class System(Error, OSError):
    """A call of the operating system failed; the text has the reason.

    Attributes
    ----------
    errno : int or None
        The system's error number, if there is one.
    """

    def __init__(self, text: str = "", operation: str = "", errno: int | None = None) -> None:
        super().__init__(text, operation)
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.operation, self.errno)


class Internal(Error):
    """A broken invariant of penstock itself."""


class RemoteError(RuntimeError):
    """Stands for a worker's exception that cannot be rebuilt in this process.

    Attributes
    ----------
    type_name : str
        The original's module and class, such as ``"botocore.exceptions.ClientError"``.
    """

    def __init__(self, text: str = "", type_name: str = "") -> None:
        super().__init__(text)
        self.type_name = type_name


class WorkerTraceback(Exception):
    """The ``__cause__`` of an exception of user code that was raised in a worker.

    Attributes
    ----------
    worker : str
        The worker's name.
    epoch, index, last : int
        The epoch and index of the sample that the worker was making; -1 if there is none. For a
        whole batch, `index` is its first and `last` its last index.
    traceback : str
        The worker's own traceback, as text.
    """

    def __init__(
        self, traceback: str, worker: str = "", epoch: int = -1, index: int = -1, last: int = -1
    ) -> None:
        super().__init__(traceback, worker, epoch, index, last)
        self.traceback = traceback
        self.worker = worker
        self.epoch = epoch
        self.index = index
        self.last = last

    def __str__(self) -> str:
        place = [self.worker or "a worker"]
        if self.epoch >= 0:
            place.append(f"epoch {self.epoch}")
        if self.index >= 0:
            place.append(indices_text(self.index, self.last))
        return f"in {', '.join(place)}:\n\n{self.traceback}"


def indices_text(index: int, last: int) -> str:
    """The text for one index, or for a batch's first and last index."""
    return f"index {index}" if last < 0 else f"a batch of indices {index} ... {last}"


def pack_exception(
    exception: BaseException, worker: str = "", epoch: int = -1, index: int = -1, last: int = -1
) -> bytes:
    """Serialise an exception for `unpack_exception`.

    Does not raise, even if the exception's own methods do, except for Ctrl-C.

    Call it in the worker, while ``exception.__traceback__`` exists.
    """
    kind = type(exception)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        text = str.__str__(str(exception))  # a str subclass might not be picklable
    except KeyboardInterrupt:
        raise
    except BaseException as broken:
        text = f"<its __str__ raised {type(broken).__name__}>"
    before = exception.__context__
    bodies = _pickle_exception(exception), None if before is None else _pickle_exception(before)
    return pickle.dumps((bodies, name, text, _format(exception), worker, epoch, index, last), 4)


def unpack_exception(packed: bytes) -> BaseException:
    """Rebuild the exception of a worker, its `WorkerTraceback` in ``__cause__``.

    An exception that cannot be rebuilt becomes a `RemoteError` that names the original. Its
    ``__context__`` is restored if possible.
    """
    bodies, name, text, trace, worker, epoch, index, last = pickle.loads(packed)
    exception, before = map(_load_exception, bodies)
    if exception is None:
        exception = RemoteError(f"{name}: {text}" if text else name, name)
    exception.__context__ = before
    exception.__cause__ = WorkerTraceback(trace, worker, epoch, index, last)
    return exception


def _load_exception(body: bytes | None) -> BaseException | None:
    if body is None:
        return None
    try:
        loaded = pickle.loads(body)
    except KeyboardInterrupt:
        raise
    except BaseException:  # for example from its constructor
        return None
    return loaded if isinstance(loaded, BaseException) else None


def _pickle_exception(exception: BaseException) -> bytes | None:
    # By reference first: then an exception of a forked worker is an instance of the same class that
    # the parent's `except` names, also if that class is defined in __main__.
    body = _if_alike(pickle.dumps, exception, exception)
    # Last, without the constructor, for classes that cannot be called with `args` only.
    for what in (exception, _Bare(exception)):
        body = body or _if_alike(_dump_by_value, what, exception)
    return body


def _dump_by_value(value: Any, protocol: int) -> bytes:
    import cloudpickle

    return bytes(cloudpickle.dumps(value, protocol))


class _Bare:
    def __init__(self, exception: BaseException) -> None:
        self.exception = exception

    def __reduce__(self) -> tuple[Any, ...]:
        exception = self.exception
        return _rebuild, (type(exception), exception.args, dict(vars(exception)))


def _rebuild(
    kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    exception = kind.__new__(kind, *args)
    exception.args = args
    exception.__dict__.update(attributes)
    return exception


def _if_alike(
    dumps: Callable[[Any, int], bytes], what: Any, original: BaseException
) -> bytes | None:
    """Pickle it if the unpickled exception has the same text as the original."""
    try:
        body = dumps(what, 4)
        copy = pickle.loads(body)
        alike = type(copy) is type(original) and _text(copy) == _text(original)
        return body if alike else None
    except KeyboardInterrupt:
        raise
    except BaseException:  # for example from its __reduce__: try another way
        return None


def _text(exception: BaseException) -> str:
    return re.sub(r"\b0x[0-9a-f]+", "", str(exception))  # without memory addresses


def _format(exception: BaseException) -> str:
    import os
    import traceback

    # Only the user's frames: penstock's frames, which called them, come first and are left out.
    here = os.path.dirname(os.path.abspath(__file__)) + os.sep
    trace = exception.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(here):
        trace = trace.tb_next
    try:
        return "".join(
            traceback.format_exception(type(exception), exception, trace or exception.__traceback__)
        )
    except KeyboardInterrupt:
        raise
    except BaseException as broken:
        return f"<no traceback: {type(broken).__name__}>\n"

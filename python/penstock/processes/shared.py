"""Pickles memory, locks and pipes that processes share, so that workers open the same ones.

That is torch's tensors in shared memory, and objects of `multiprocessing`: values and arrays,
locks, queues, pipes and managers' proxies. `multiprocessing` pickles its objects only for a
process that is being started, and asks that process's `Popen` object to pass descriptors on:
`Spawning` replaces it. A worker opens a descriptor by ``/proc/<pid>/fd``.

Workers import this module to rebuild these objects, so it imports little.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from typing import Any

from ..errors import InvalidArgument

# A forked worker has the same value as its parent, a spawned worker another one.
_FAMILY = os.urandom(8)

_MODULES = ("multiprocessing.heap", "multiprocessing.sharedctypes", "multiprocessing.connection")


class Descriptor:
    """A descriptor of this process, for a worker to open. Does not keep the file open."""

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        self._place = (os.getpid(), fd, access, (status.st_dev, status.st_ino))

    def __reduce__(self) -> Any:
        return Opener, self._place


class Opener:
    """A worker's side of a `Descriptor`, with the method that `multiprocessing` calls."""

    def __init__(self, pid: int, fd: int, access: int, identity: tuple[int, int]) -> None:
        self._place = (pid, fd, access, identity)

    def detach(self) -> int:
        """Return a descriptor that the caller closes."""
        pid, number, access, identity = self._place
        gone = "memory or a pipe that the dataset shares was closed before a worker opened it"
        try:
            fd = os.open(f"/proc/{pid}/fd/{number}", access | os.O_CLOEXEC)
        except FileNotFoundError:
            raise InvalidArgument(gone, "unpack") from None
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != identity:  # the number now belongs to another file
            os.close(fd)
            raise InvalidArgument(gone, "unpack")
        return fd


class Spawning:
    """Replaces the `Popen` object of a process that `multiprocessing` starts."""

    DupFd = Descriptor

    def duplicate_for_child(self, fd: int) -> int:
        return fd


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Allow this thread to pickle objects of `multiprocessing`."""
    context: Any = sys.modules.get("multiprocessing.context")
    if context is None:
        yield
        return
    before = context.get_spawning_popen()
    context.set_spawning_popen(Spawning())
    try:
        yield
    finally:
        context.set_spawning_popen(before)


def reducers() -> dict[type, Any]:
    """Return `multiprocessing`'s own reducers of shared objects, by class."""
    reduction: Any = sys.modules.get("multiprocessing.reduction")
    if reduction is None:
        return {}
    known = reduction.ForkingPickler._extra_reducers
    return {kind: reduce for kind, reduce in known.items() if reduce.__module__ in _MODULES}


# ---- locks --------------------------------------------------------------------------------------


def is_forked_lock(lock: Any) -> bool:
    """Whether a lock is of the "fork" context. Python 3.11.2 says so only by a missing name."""
    return bool(getattr(lock, "_is_fork_ctx", lock._semlock.name is None))


def reduce_forked_lock(lock: Any) -> Any:
    """Reduce a lock of the "fork" context, which has an address and no name."""
    semaphore = lock._semlock
    state = (semaphore.handle, semaphore.kind, semaphore.maxvalue, None)
    return _forked_lock, (_FAMILY, type(lock), state)


def _forked_lock(family: bytes, kind: Any, state: tuple[Any, ...]) -> Any:
    if family != _FAMILY:
        raise InvalidArgument(
            "the dataset has a lock or a Value with a lock that multiprocessing made for forked "
            "processes: make it by multiprocessing.get_context('spawn'), or start workers by "
            "'fork'",
            "unpack",
        )
    lock = kind.__new__(kind)
    lock.__setstate__(state)
    return lock


# ---- tensors ------------------------------------------------------------------------------------


def is_shared(storage: Any) -> bool:
    """Whether a torch storage is shared memory that workers can open, and not a user's file."""
    return bool(storage.is_shared() and storage._get_filename() is None)


def reduce_storage(storage: Any) -> Any:
    """Reduce a torch storage for which `is_shared`."""
    torch = sys.modules["torch"]
    if torch.multiprocessing.get_sharing_strategy() == "file_system":
        return _open_named_storage, storage._share_filename_cpu_()
    fd, size = storage._share_fd_cpu_()
    return _open_storage, (Descriptor(fd), size)


def _open_storage(opener: Opener, size: int) -> Any:
    import torch

    fd = opener.detach()
    try:
        return torch.UntypedStorage._new_shared_fd_cpu(fd, size)
    finally:
        os.close(fd)


def _open_named_storage(manager: bytes, name: bytes, size: int) -> Any:
    import torch

    return torch.UntypedStorage._new_shared_filename_cpu(manager, name, size)

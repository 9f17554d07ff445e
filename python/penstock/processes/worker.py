"""The life of a worker process: unpack the dataset, then serve tickets until the ring closes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from .. import _engine
from . import payload
from .bootstrap import restore_stderr


class WorkerPayload:
    """The data sent to a worker process: the dataset and the functions called with it."""

    def __init__(self, source: Any, collate: Any, initialise: Any, hooked: Any) -> None:
        self.source = source
        self.collate = collate
        self.initialise = initialise  # called with the worker's number before anything else
        self.hooked = hooked  # the object whose attributes epoch updates change


class DatasetUpdates:
    """The changes that epoch hooks make to the dataset, as they arrive over the link.

    One thread at a time. Called with the version that a ticket needs, it waits for the changes up
    to that version, applies them to `hooked`, and returns the length.
    """

    def __init__(self, link: int, hooked: Any, version: int, length: int) -> None:
        self._link = link
        self._hooked = hooked
        self._version = version
        self._length = length

    def __call__(self, wanted: int) -> int:
        while self._version < wanted:
            self._version, fd = self._receive()
            try:
                change = payload.unpack(fd)
            finally:
                os.close(fd)
            self._length = change["length"]
            if change["state"] is not None:
                payload.apply(self._hooked, change["state"])
        return self._length

    def _receive(self) -> tuple[int, int]:
        """The next change's version and descriptor. Raises `Closed` if the parent has ended."""
        received: tuple[int, int] = _engine.receive_update(self._link)
        return received


@contextlib.contextmanager
def starting(name: str, link: int, settings: dict[str, Any]) -> Iterator[None]:
    """Start a worker: report an exception to the process that started this one, and exit."""
    if settings["keep_freed_memory"]:
        _engine.keep_freed_memory()
    try:
        yield
    except BaseException as error:
        from ..errors import pack_exception

        _engine.report_failure(link, pack_exception(error, f"{name}, starting"))
        sys.exit(1)
    restore_stderr()


def unpack_source(
    index: int,
    fds: dict[str, int],
    settings: dict[str, Any],
    updates: type[DatasetUpdates] = DatasetUpdates,
) -> tuple[WorkerPayload, DatasetUpdates]:
    """Unpack the data set, and initialise the process."""
    info: WorkerPayload = payload.unpack(fds["payload"])
    os.close(fds["payload"])
    if info.initialise is not None:
        info.initialise(index)
    return info, updates(fds["link"], info.hooked, settings["version"], settings["length"])


def unpack_dataset(
    index: int, fds: dict[str, int], settings: dict[str, Any]
) -> tuple[WorkerPayload, Any, DatasetUpdates]:
    """Unpack the data set, and build the plan of a Dataset (otherwise None).

    A plan has the caches of `fds`.
    """
    info, update = unpack_source(index, fds, settings)
    if settings["source"] != "chain":
        return info, None, update
    caches = [fds[name] for name in sorted(fds) if name.startswith("cache")]
    skips = settings["on_error"] == "skip"
    return info, info.source._native.build_with(skips, fds["files"], caches or None), update


def main(index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    link = fds["link"]
    with starting(f"worker {index}", link, settings):
        info, plan, update = unpack_dataset(index, fds, settings)
    settings = dict(settings, pid=os.getpid())
    place = (index, fds["ring"], fds["arena"], link, settings["number"])
    if plan is not None:
        _engine.serve_chain(*place, settings, plan)
    else:
        _engine.serve_samples(*place, settings, info.source, info.collate, update)

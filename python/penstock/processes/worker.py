"""The life of a worker process: unpack the dataset, then serve tickets until the ring closes."""

from __future__ import annotations

import os
import sys
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


def main(index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    link = fds["link"]
    if settings["keep_freed_memory"]:
        _engine.keep_freed_memory()
    try:
        info: WorkerPayload = payload.unpack(fds["payload"])
        os.close(fds["payload"])
        if info.initialise is not None:
            info.initialise(index)
        plan: Any = None
        if settings["source"] == "chain":
            caches = [fds[name] for name in sorted(fds) if name.startswith("cache")]
            plan = info.source._native.build_with(
                settings["on_error"] == "skip", fds["files"], caches
            )
    except BaseException as error:
        from ..errors import pack_exception

        _engine.report_failure(link, pack_exception(error, f"worker {index}, starting"))
        sys.exit(1)
    restore_stderr()
    version: int = settings["version"]
    length: int = settings["length"]

    def update(wanted: int) -> int:
        nonlocal version, length
        while version < wanted:
            version, fd = _engine.receive_update(link)
            try:
                change = payload.unpack(fd)
            finally:
                os.close(fd)
            length = change["length"]
            if change["state"] is not None:
                payload.apply(info.hooked, change["state"])
        return length

    settings = dict(settings, pid=os.getpid())
    if settings["source"] == "chain":
        place = (index, fds["ring"], fds["arena"], link, settings["number"])
        _engine.serve_chain(*place, settings, plan)
        return
    _engine.serve_samples(
        index,
        fds["ring"],
        fds["arena"],
        link,
        settings["number"],
        settings,
        info.source,
        info.collate,
        update,
    )

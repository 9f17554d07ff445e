"""The life of a remote worker's process: unpack the dataset, then serve connections of Loaders."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from typing import Any

from .. import _engine
from ..errors import Closed, Error, Timeout, pack_exception
from ..processes.worker import DatasetUpdates, starting, unpack_source
from . import messages

_BEGIN_S = 30.0  # for the first message of a connection


class Updates(DatasetUpdates):
    """Ends this process if its server has ended, so that no ticket fails: Loaders open it again.

    The kernel closes the server's descriptors a moment before it kills the server's children.
    """

    def _receive(self) -> tuple[int, int]:
        try:
            return super()._receive()
        except Closed:
            os._exit(1)


class Plans:
    """The plans of a Dataset: one for each share, and for feeds that skip failures or raise them.

    Their files are the same. Any thread.
    """

    def __init__(self, chain: Any, files: int) -> None:
        self._chain = chain
        self._files = files
        self._lock = threading.Lock()
        self._made: dict[tuple[Any, ...], tuple[Any, Any]] = {}  # each with its chain

    def plan(self, settings: dict[str, Any]) -> Any:
        """The plan for the Loader with these settings."""
        skips = settings["on_error"] == "skip"
        with self._lock:
            key = (skips, *settings["ranks"])
            if key not in self._made:
                chain = self._chain._with_ranks(settings["ranks"])
                plan = chain._native.build_with(skips, os.dup(self._files), None)
                self._made[key] = chain, plan
            return self._made[key][1]


def main(index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    link = fds["link"]
    plans = None
    with starting(f"remote worker {index}", link, settings):
        info, update = unpack_source(index, fds, settings, Updates)
        if settings["source"] == "chain":
            plans = Plans(info.source, fds["files"])
            plans.plan(settings)
        secret = bytes.fromhex(settings["secret"])
        listeners = [_engine.RemoteListener(f"{settings['host']}:0", secret)]
        with contextlib.suppress(Error):  # no folder for sockets: Loaders of this host use TCP
            # A name that no other host has: a process that finds it is on this one.
            name = f"unix:@{secrets.token_hex(16)}"
            listeners.append(_engine.RemoteListener(name, secret))
    turn = _engine.RemoteTurn(fds["status"])

    def serve(connection: Any) -> None:
        try:
            head, _ = messages.receive(connection, _BEGIN_S)
            loader, given = int(head["loader"]), dict(head["settings"])
            if plans is None:
                _engine.serve_remote_samples(
                    connection, turn, loader, link, given, info.source, info.collate, update
                )
                return
            try:
                plan = plans.plan(given)
            except Exception as error:
                packed = pack_exception(error, f"remote worker {index}, starting")
                _engine.report_failure(link, packed)
                raise
            _engine.serve_remote_chain(connection, turn, loader, given, plan)
        except (Closed, Timeout):
            return  # the Loader has ended, or its host

    def accept(listener: Any) -> None:
        while not listener.closed:
            try:
                connection = listener.accept()
            except Error:
                continue  # out of descriptors; the listener waits by itself
            if connection is not None:
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    _engine.report_address(link, " ".join(each.address for each in listeners))
    for listener in listeners[1:]:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
    accept(listeners[0])

"""The life of a remote worker's process: unpack the dataset, then serve connections of a Loader."""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import Any

from .. import _engine
from ..errors import Closed, Error, Timeout
from ..processes.worker import starting, unpack_dataset


def main(index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    link = fds["link"]
    with starting(f"remote worker {index}", link, settings):
        info, plan, update = unpack_dataset(index, fds, settings)
        secret = bytes.fromhex(settings["secret"])
        listeners = [_engine.RemoteListener(f"{settings['host']}:0", secret)]
        with contextlib.suppress(Error):  # no folder for sockets: Loaders of this host use TCP
            # A name that no other host has: who finds it is on this one.
            name = f"unix:@{secrets.token_hex(16)}"
            listeners.append(_engine.RemoteListener(name, secret))
    turn = _engine.RemoteTurn(fds["status"])

    def serve(connection: Any) -> None:
        try:
            if plan is not None:
                _engine.serve_remote_chain(connection, turn, settings, plan)
            else:
                _engine.serve_remote_samples(
                    connection, turn, link, settings, info.source, info.collate, update
                )
        except (Closed, Timeout):
            return  # the Loader has ended, or its host is gone

    def accept(listener: Any) -> None:
        while (connection := listener.accept()) is not None:
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    _engine.report_address(link, " ".join(each.address for each in listeners))
    for listener in listeners[1:]:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
    accept(listeners[0])

"""The life of a remote worker's process: unpack the dataset, then serve connections of a Loader."""

from __future__ import annotations

import threading
from typing import Any

from .. import _engine
from ..errors import Closed, Timeout
from ..processes.worker import starting, unpack_dataset


def main(index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    link = fds["link"]
    with starting(f"remote worker {index}", link, settings):
        info, plan, update = unpack_dataset(index, fds, settings)
        listener = _engine.RemoteListener(
            f"{settings['host']}:0", bytes.fromhex(settings["secret"])
        )
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

    _engine.report_address(link, listener.address)
    while (connection := listener.accept()) is not None:
        threading.Thread(target=serve, args=(connection,), daemon=True).start()

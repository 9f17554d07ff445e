"""The life of a remote worker's process: unpack the dataset, then serve connections of a Loader."""

from __future__ import annotations

import threading
from typing import Any

from .. import _engine
from ..errors import Closed, Timeout
from ..processes.bootstrap import restore_stderr
from ..processes.worker import DatasetUpdates, reporting_failure, unpack_dataset


def main(index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    link = fds["link"]
    if settings["keep_freed_memory"]:
        _engine.keep_freed_memory()
    with reporting_failure(link, f"remote worker {index}"):
        info, plan = unpack_dataset(index, fds, settings)
        listener = _engine.RemoteListener(
            f"{settings['host']}:0", bytes.fromhex(settings["secret"])
        )
    restore_stderr()
    turn = _engine.RemoteTurn(fds["status"])
    update = DatasetUpdates(link, info.hooked, settings["version"], settings["length"])

    def serve(connection: Any) -> None:
        try:
            if plan is not None:
                _engine.serve_remote_chain(connection, turn, settings, plan)
                return
            _engine.serve_remote_samples(
                connection, turn, link, settings, info.source, info.collate, update
            )
        except (Closed, Timeout):
            return  # the Loader has ended, or its host is gone

    _engine.report_address(link, listener.address)
    while (connection := listener.accept()) is not None:
        threading.Thread(target=serve, args=(connection,), daemon=True).start()

"""The process that supervises the shards of a parameter server. Imports only the engine."""

from __future__ import annotations

from typing import Any

from .. import _engine


def main(_index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    """Start the shards of ``settings["text"]``, and again when they end.

    Returns when the descriptor "control" is closed at its other end. The descriptor "lock", if
    there is one, is the lock of the folder for snapshots. The others are the shards' memories, by
    number.
    """
    control, lock = fds.pop("control"), fds.pop("lock", -1)
    memories = [fds[str(number)] for number in range(len(fds))]
    _engine.supervise_shards(settings["text"], memories, control, lock)

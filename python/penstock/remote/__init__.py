"""Workers on other hosts, for a Loader here: the servers that run them, and where they are."""

from __future__ import annotations

from .places import RemoteWorkers, workers
from .server import Server

__all__ = ["RemoteWorkers", "Server", "workers"]

"""Under Ray on several hosts: shares of data sets, workers, parameter servers, relays."""

from __future__ import annotations

from .feed import feed
from .parameter_server import ParameterServer, parameter_server
from .relay import Relay, relay
from .rows import rows
from .workers import workers

__all__ = [
    "ParameterServer",
    "Relay",
    "feed",
    "parameter_server",
    "relay",
    "rows",
    "workers",
]

"""Training on several hosts under Ray: shares of data sets, rows of ray.data, parameter servers."""

from __future__ import annotations

from .feed import feed
from .parameter_server import ParameterServer, parameter_server
from .relay import Relay, relay
from .rows import rows

__all__ = ["ParameterServer", "Relay", "feed", "parameter_server", "relay", "rows"]

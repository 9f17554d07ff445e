"""Under Ray on several hosts: shares of data sets, workers, servers, populations, relays."""

from __future__ import annotations

from .feed import feed
from .parameter_server import ParameterServer, parameter_server
from .population import Population, PopulationRun, population
from .relay import Relay, relay, relay_channel
from .report import Report, report
from .rows import rows
from .workers import node_workers, workers

__all__ = [
    "ParameterServer",
    "Population",
    "PopulationRun",
    "Relay",
    "Report",
    "feed",
    "node_workers",
    "parameter_server",
    "population",
    "relay",
    "relay_channel",
    "report",
    "rows",
    "workers",
]

"""Counts of penstock in Ray's metrics, which its dashboard and Prometheus show."""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..loader import Loader

SECONDS = 2.0  # between two times that a count is given to Ray

_FEED = (
    "delivered",
    "samples",
    "bytes",
    "epochs",
    "skipped",
    "replaced",
    "errors",
    "restarts",
    "wait_share",
    "active_workers",
    "queue_size",
)
_numbers = itertools.count()


class Gauges:
    """Gauges ``penstock_{part}_{key}``, all with the same tags. Threads: one at a time."""

    def __init__(self, part: str, keys: Iterable[str], **tags: str) -> None:
        from ray.util.metrics import Gauge

        self._gauges = {}
        for key in keys:
            gauge = Gauge(f"penstock_{part}_{key}", f"{key} of a {part}", tuple(tags))
            gauge.set_default_tags(tags)
            self._gauges[key] = gauge

    def show(self, counts: Mapping[str, Any]) -> None:
        """Set each gauge that has a number in `counts`."""
        for key, gauge in self._gauges.items():
            number = counts.get(key)
            if number is not None and not math.isnan(number):
                gauge.set(number)


def show_feed(feed: Loader, rank: int) -> None:
    """Give a feed's counts to Ray until it is closed or deleted; only where Ray runs."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    threading.Thread(
        target=_show_feed,
        args=(weakref.ref(feed), {"rank": str(rank), "feed": str(next(_numbers))}),
        name="penstock metrics",
        daemon=True,
    ).start()


def _show_feed(feed: weakref.ref[Loader], tags: dict[str, str]) -> None:  # in a thread
    gauges = Gauges("feed", _FEED, **tags)
    while (its := feed()) is not None:
        closed = its.closed
        gauges.show(its.stats())
        del its
        if closed:
            return
        time.sleep(SECONDS)

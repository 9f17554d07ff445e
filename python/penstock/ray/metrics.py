"""Counts of penstock in Ray's metrics, which its dashboard and Prometheus show, and its report."""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .report import send, send_page

if TYPE_CHECKING:
    from ..loader import Loader

SECONDS = 2.0  # between two times that a count is given to Ray
_POLL = 0.1  # seconds between two looks at whether a feed's epoch has ended

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
    """Gauges ``penstock_{part}_{key}``, all with the same tags; the report has their numbers, too.

    Threads: one at a time.
    """

    def __init__(self, part: str, keys: Iterable[str], **tags: str) -> None:
        from ray.util.metrics import Gauge

        self._part, self._tags = part, tags
        self._gauges = {}
        for key in keys:
            gauge = Gauge(f"penstock_{part}_{key}", f"{key} of a {part}", tuple(tags))
            gauge.set_default_tags(tags)
            self._gauges[key] = gauge

    def show(self, counts: Mapping[str, Any]) -> None:
        """Set each gauge that has a number in `counts`."""
        numbers = {
            key: number
            for key in self._gauges
            if (number := counts.get(key)) is not None and not math.isnan(number)
        }
        for key, number in numbers.items():
            self._gauges[key].set(number)
        send(self._part, self._tags, numbers)


def show_feed(feed: Loader, rank: int) -> None:
    """Give a feed's counts to Ray until it is closed or deleted; only where Ray runs."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    shown = _Feed({"rank": str(rank), "feed": str(next(_numbers))})
    feed._closing = shown.show
    threading.Thread(
        target=shown.run, args=(weakref.ref(feed),), name="penstock metrics", daemon=True
    ).start()


class _Feed:
    """A feed's counts, and its page for the report."""

    def __init__(self, tags: dict[str, str]) -> None:
        self._tags = tags
        self._gauges = Gauges("feed", _FEED, **tags)
        self._lock = threading.Lock()

    def show(self, feed: Loader) -> None:
        """Give the counts and the page to Ray."""
        with self._lock:
            self._gauges.show(feed.stats())
            send_page(feed, self._tags)

    def run(self, feed: weakref.ref[Loader]) -> None:  # in a thread
        epochs = 0
        counted = sent = time.monotonic()
        gap = SECONDS  # until the page is sent again
        while (its := feed()) is not None and not its.closed:
            now, counts = time.monotonic(), its.stats()
            # A worker of Ray Train ends soon after its last epoch.
            if counts["epochs"] != epochs or now - sent >= gap:
                epochs, counted, sent, gap = counts["epochs"], now, now, min(2 * gap, 60.0)
                self.show(its)
            elif now - counted >= SECONDS:
                counted = now
                with self._lock:
                    self._gauges.show(counts)
            del its
            time.sleep(_POLL)

"""``penstock online module:object``: a model that learns from a live stream, until it ends."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

from . import Failed
from .target import last_line, load_online


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "online",
        help="run a model that learns from a live stream",
        description="Runs a train.Online until its source ends. Ctrl-C or SIGTERM end it after the "
        "batch that it is at; a snapshot is written before it ends.",
    )
    add = parser.add_argument
    add("target", metavar="module:object", help="the Online, or a function that returns one")
    add("--watch", action="store_true", help="show rates, ages, losses and predictions")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    live = load_online(options.target)
    try:
        with live:
            with _stopped_by_signals(live.stop):
                live.run(watch=options.watch)
            print(summary(live.stats()))
    except Exception as error:
        raise Failed(f"{options.target} has failed: {last_line(error)}") from error
    return 0


def summary(stats: dict[str, Any]) -> str:
    """Describe a run in one line."""
    text = (
        f"{stats['trained']:,} messages trained on in {stats['batches']:,} batches "
        f"({stats['batch_size']:.1f} a batch), ages {stats['age_p50'] * 1e3:.1f} ms (p50) and "
        f"{stats['age_p99'] * 1e3:.1f} ms (p99)"
    )
    for name in ("spooled", "dropped", "malformed", "queued"):
        text += f", {stats[name]:,} {name}"
    return f"{text}; loss {stats['loss']:.4g}"


@contextlib.contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM. The second one does what it did before."""
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def handle(number: int, frame: object) -> None:
        restore()
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        restore()

"""``penstock report module:object``: feed a dataset, or run an Online, and write a report."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import Failed
from .numbers import positive, seconds
from .target import last_line, load_dataset

if TYPE_CHECKING:
    from ..train import Online


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="feed a dataset or run a train.Online, and write a page that shows what happened",
        description="Feeds a dataset for some seconds, writes a page that shows what each worker "
        "did, and says what the bottleneck is and what to change. Nothing is trained: give "
        "--step-ms for a training step. A train.Online runs as it is.",
    )
    add = parser.add_argument
    add("target", metavar="module:object", help="the dataset, or what returns it when called")
    add("-o", "--output", default="report.html", help="the page (report.html)")
    add("--trace", metavar="FILE", help="the same events for chrome://tracing and Perfetto, too")
    add("--batch-size", type=positive, help="items are samples, so many make a batch")
    add("--workers", type=_count, help="so many; 0: in line; as many as cores unless given")
    add("--threads", action="store_true", help="workers are threads, not processes")
    add("--queue", type=positive, metavar="N", help="max_queue_size")
    add("--step-ms", type=_milliseconds, default=0.0, help="that a training step takes (0)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive, help="batches")
    length.add_argument("--seconds", type=seconds, default=5.0, help="time (5)")
    parser.set_defaults(run=run)


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)


def _milliseconds(text: str) -> float:
    return 0.0 if text == "0" else seconds(text)


def run(options: argparse.Namespace) -> int:
    from ..loader import Loader
    from ..train import Online

    source = load_dataset(options.target)
    if isinstance(source, Online):
        return _run_online(source, options)
    try:
        with Loader(
            source,
            batch_size=options.batch_size,
            workers=options.workers,
            use_multiprocessing=not options.threads,
            max_queue_size=options.queue,
        ) as feed:
            _feed(feed, options)
            found = feed.analysis()
            count = feed.stats()["delivered"]
            _write(feed.report, options.output)
            if options.trace:
                _write(feed.trace, options.trace)
    except Failed:
        raise
    except Exception as error:
        text = f"{options.target} cannot be fed: {type(error).__name__}: {error}"
        raise Failed(text) from error
    _say(f"{count} batches. ", found)
    print(f"{options.output} shows what each worker did.")
    return 0


_FEED_ONLY = ("batch_size", "workers", "threads", "queue", "step_ms", "trace")


def _run_online(live: Online, options: argparse.Namespace) -> int:
    given = [name for name in _FEED_ONLY if getattr(options, name)]
    if given:
        option = "--" + given[0].replace("_", "-")
        raise Failed(f"{options.target} is a train.Online, for which there is no {option}", 2)
    timer = threading.Timer(options.seconds, live.stop)
    timer.daemon = True
    try:
        with live:
            if not options.steps:
                timer.start()
            live.run(options.steps)
            found, trained = live.analysis(), live.stats()["trained"]
            _write(live.report, options.output)
    except Failed:
        raise
    except Exception as error:
        raise Failed(f"{options.target} has failed: {last_line(error)}") from error
    finally:
        timer.cancel()
    _say(f"{trained:,} messages. ", found)
    print(f"{options.output} shows rates, ages and batch sizes.")
    return 0


def _say(begin: str, found: dict[str, Any]) -> None:
    print(begin + found["verdict"])
    for advice in found["recommendations"]:
        print(f"- {advice}")


def _write(write: Callable[[str], object], path: str) -> None:
    try:
        write(path)
    except OSError as error:  # has a filename only if the file could not be opened
        raise Failed(f"cannot write {path}: {error.strerror or error}") from error


def _feed(feed: Any, options: argparse.Namespace) -> None:
    stop = time.perf_counter() + options.seconds
    for _ in feed.steps(options.steps or sys.maxsize):
        time.sleep(options.step_ms / 1e3)
        if not options.steps and time.perf_counter() >= stop:
            break

"""``penstock report module:object``: feed a dataset, and write a report of each worker."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from . import Failed
from .numbers import positive, seconds
from .target import load_dataset


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="feed a dataset, and write a page that shows what each worker did",
        description="Feeds a dataset for some seconds, writes a page that shows what each worker "
        "did, and says what the bottleneck is and what to change. Nothing is trained: give "
        "--step-ms for a training step.",
    )
    add = parser.add_argument
    add("target", metavar="module:object", help="the dataset, or what gives it when called")
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

    source = load_dataset(options.target)
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
    print(f"{count} batches. {found['verdict']}")
    for advice in found["recommendations"]:
        print(f"- {advice}")
    print(f"{options.output} shows what each worker did.")
    return 0


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

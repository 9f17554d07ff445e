"""``penstock bench module:object``: feed a dataset in several modes, and recommend one."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..device.functions import DeviceMapped
from . import Failed, bytes_text, meters
from .numbers import counts, positive, seconds
from .target import load_dataset

_KINDS = ("in line", "threads", "processes")
# If the speeds of two modes differ by less than this factor, the cheaper mode is chosen.
_NOTICEABLE = 1.10
# A batch that takes less time (in seconds) than this gains nothing from workers.
_TRIVIAL = 50e-6


@dataclass
class Mode:
    """One way of feeding, and its figures."""

    kind: str
    workers: int
    batches: int = 0
    batches_per_s: float = 0.0
    ms_per_batch: float = 0.0
    first_batch_ms: float = 0.0
    cpu: float = 0.0  # cores kept busy
    memory: int = 0  # bytes of all processes together
    link_gb_per_s: float = 0.0  # to a device
    failed: str = ""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="feed a dataset in every way, and say which to choose",
        description="Feeds a dataset in line, by threads and by processes, and says which to "
        "choose, and why. Nothing is trained: the figures are what the feed can do.",
    )
    add = parser.add_argument
    add("target", metavar="module:object", help="the dataset, or what gives it when called")
    add("--batch-size", type=positive, help="items are samples, so many make a batch")
    add("--workers", type=counts, default=[], help="worker counts to try: 1,2,8")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive, help="batches per way")
    length.add_argument("--seconds", type=seconds, default=3.0, help="time per way (3)")
    add("--device", help="also send the batches to this device of torch's, such as cuda:0")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def worker_counts() -> list[int]:
    """The usable cores and the powers of two below them; the last three of these."""
    from .. import _engine

    usable = _engine.usable_cores()
    smaller = itertools.takewhile(lambda n: n < usable, (1 << k for k in itertools.count()))
    return sorted({*smaller, usable})[-3:]


def run(options: argparse.Namespace) -> int:
    source = load_dataset(options.target)
    if options.device is None and isinstance(source, DeviceMapped):
        options.device = source._device
    if options.device is not None:
        _torch_feed()  # the import's time is not that of a first batch
    inline = Mode(_KINDS[0], 0)
    numbers = options.workers or worker_counts()
    kinds = _kinds(source, options.batch_size)
    ways = [inline, *(Mode(kind, count) for kind in kinds for count in numbers)]
    if not options.json:
        print(HEADER + ("" if options.device is None else LINK))
    for mode in ways:
        measure(mode, source, options)
        if inline.failed:  # a failure in line fails in every mode
            raise Failed(f"{options.target} cannot be fed: {inline.failed}")
        if not options.json:
            print(line_of(mode, inline), flush=True)
    _, why = choose(ways)
    if options.json:
        print(json.dumps({"modes": [asdict(mode) for mode in ways], "advice": why}, indent=1))
        return 0
    for said in dict.fromkeys(mode.failed for mode in ways if mode.failed):
        which = dict.fromkeys(mode.kind for mode in ways if mode.failed == said)
        print(f"\n{' and '.join(which)} failed: {said}")
    print(f"\n{why}")
    return 0


def _kinds(source: Any, batch_size: int | None) -> tuple[str, ...]:
    """The kinds of workers. Arrays are always gathered by native threads."""
    from ..errors import InvalidArgument
    from ..loader.source import source_info

    try:
        native = source_info(source, batch_size is not None).kind == "columns"
    except InvalidArgument:
        native = False  # the first measurement reports the error
    return _KINDS[1:2] if native else _KINDS[1:]


def _feed(source: Any, device: str | None, **options: Any) -> Any:
    if device is None:
        from ..loader import Loader

        return Loader(source, **options)
    return _torch_feed()(source, device=device, **options)


def _torch_feed() -> Callable[..., Any]:
    try:
        from ..torch import feed
    except ImportError as error:
        raise Failed(f"--device needs torch: {error}") from None
    return feed


def measure(mode: Mode, source: Any, options: argparse.Namespace) -> None:
    """Fill in the figures of one mode. A dataset's exception becomes the mode's failure."""
    began = time.perf_counter()
    try:
        with _feed(
            source,
            options.device,
            batch_size=options.batch_size,
            workers=mode.workers,
            use_multiprocessing=mode.kind == "processes",
        ) as feed:
            _time(mode, feed, began, options)
    except (KeyboardInterrupt, Failed):
        raise
    except Exception as error:
        mode.failed = f"{type(error).__name__}: {error}"


def _time(mode: Mode, feed: Any, began: float, options: argparse.Namespace) -> None:
    batches: Iterator[Any] = feed.steps(options.steps or sys.maxsize)
    next(batches)
    started = time.perf_counter()
    mode.first_batch_ms = (started - began) * 1e3
    cpu = meters.cpu_seconds()
    sent = _sent(feed)
    started = time.perf_counter()
    stop = started + options.seconds
    count, now = 0, started
    for _ in batches:
        count += 1
        now = time.perf_counter()
        if not options.steps and now >= stop:
            break
    if sent:
        mode.link_gb_per_s = (_sent(feed) - sent) / (now - started) / 1e9
    if count == 0:  # --steps 1
        count, now = 1, started + mode.first_batch_ms / 1e3
    mode.cpu = (meters.cpu_seconds() - cpu) / (time.perf_counter() - started)
    mode.memory = meters.resident_bytes()
    mode.batches = count + 1
    mode.batches_per_s = count / (now - started)
    mode.ms_per_batch = 1e3 / mode.batches_per_s


def _sent(feed: Any) -> int:
    """Bytes that went to a device."""
    return int(feed.stats().get("device", {}).get("bytes", 0))


# ---- choosing ------------------------------------------------------------------------------------


def choose(modes: list[Mode]) -> tuple[Mode, str]:
    """Return the best mode, and the reason in one sentence."""
    inline, *others = [mode for mode in modes if not mode.failed]
    fastest = max((inline, *others), key=lambda mode: mode.batches_per_s)
    enough = fastest.batches_per_s / _NOTICEABLE
    # `modes` are sorted by cost: in line, few threads, many threads, few processes, many processes.
    best = next(mode for mode in (inline, *others) if mode.batches_per_s >= enough)
    threads = [mode for mode in others if mode.kind == "threads"]
    if best is inline:
        if best.ms_per_batch <= _TRIVIAL * 1e3:
            return best, (
                f"Choose workers=0: a batch takes {_ms(best.ms_per_batch)} to make, less than "
                "handing it over is worth."
            )
        if not others:
            return best, "Choose workers=0: nothing else works."
        return others[0], (
            f"Choose {_arguments(others[0])}: no way is faster than in line, but then batches are "
            "made while the model trains."
        )
    choice = (
        f"Choose {_arguments(best)}: {best.batches_per_s / inline.batches_per_s:.1f} times as fast "
        "as in line"
    )
    if best.kind == "threads":
        return best, (
            f"{choice}; what the dataset does leaves the interpreter free, and threads cost least."
        )
    if not threads:
        return best, f"{choice}; threads do not work."
    share = max(mode.batches_per_s for mode in threads) / best.batches_per_s
    return best, (
        f"{choice}; threads reach {share:.0%} of that, as Python lets one of them run at a time."
    )


def _arguments(mode: Mode) -> str:
    processes = ", use_multiprocessing=True" if mode.kind == "processes" else ""
    return f"workers={mode.workers}{processes}"


# ---- printing ------------------------------------------------------------------------------------

HEADER = (
    f"{'fed':10}{'workers':>8}{'batches/s':>12}{'per batch':>12}{'speed-up':>10}{'cores busy':>12}"
    f"{'memory':>12}{'first batch':>13}"
)
LINK = f"{'link':>12}"


def line_of(mode: Mode, inline: Mode) -> str:
    start = f"{mode.kind:10}{mode.workers or '-':>8}"
    if mode.failed:
        return f"{start}{'failed':>12}"
    gain = f"{mode.batches_per_s / inline.batches_per_s:.2f}"
    line = (
        f"{start}{mode.batches_per_s:>12,.1f}{_ms(mode.ms_per_batch):>12}{gain:>10}{mode.cpu:>12.1f}"
        f"{bytes_text(mode.memory):>12}{_ms(mode.first_batch_ms):>13}"
    )
    return f"{line}{mode.link_gb_per_s:>7.2f} GB/s" if mode.link_gb_per_s else line


def _ms(ms: float) -> str:
    if ms < 1:
        return f"{ms * 1e3:.1f} us"
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1e3:.1f} s"

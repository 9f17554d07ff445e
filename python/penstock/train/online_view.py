"""A view of a running Online in the terminal."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from ..base.screen import Screen
from .rows import array_of

_REDRAW_SECONDS, _LINE_SECONDS = 0.25, 1.0
_WIDTH = 64  # batches in a curve
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_COUNTS = ("received", "trained")


class View:
    """Shows rates, ages, batch sizes, losses and the last prediction while Online runs.

    On a terminal: lines that are redrawn in place four times a second. Elsewhere: a line each
    second. A context manager; drawn by a thread of its own, so also while the model computes.

    Threads: `seen` by the one that runs Online.

    Parameters
    ----------
    stats : callable
        `Online.stats`.
    out : file, optional
        Default: stdout.
    """

    def __init__(self, stats: Callable[[], dict[str, Any]], out: TextIO | None = None) -> None:
        self._stats, self._out = stats, out or sys.stdout
        self._screen = Screen(self._out)
        self._bars = bars_for(getattr(self._out, "encoding", None))
        self._lock = threading.Lock()  # of the two below
        # Of the batches since the last drawing. Bounded, should the thread be starved.
        self._batches: deque[tuple[int, Any, float]] = deque(maxlen=1 << 16)
        self._numbers: deque[tuple[float | None, float | None]] = deque(maxlen=_WIDTH)
        self._begun = self._drawn = time.monotonic()
        self._before = dict.fromkeys(_COUNTS, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock view", daemon=True)

    def seen(self, step: Any) -> None:
        """Take note of a batch."""
        inputs = step.inputs
        pair = isinstance(inputs, (tuple, list)) and len(inputs) == 2
        truth = last_number(inputs[1]) if pair else None
        with self._lock:
            self._batches.append((len(step.messages), step.ages, step.loss))
            self._numbers.append((last_number(step.predictions), truth))

    def __enter__(self) -> View:
        self._before = {name: self._stats()[name] for name in _COUNTS}
        self._begun = self._drawn = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        every = _REDRAW_SECONDS if self._screen.redraws else _LINE_SECONDS
        try:
            while not self._stop.wait(every):
                self._draw()
            if self._drawn == self._begun or time.monotonic() - self._drawn > every / 2:
                self._draw()
        except (OSError, ValueError):  # the terminal or the pipe's reader is gone, or it is closed
            return  # the run goes on

    def _draw(self) -> None:
        now = time.monotonic()
        seconds = max(now - self._drawn, 1e-9)
        stats = self._stats()
        rates = {name: (stats[name] - self._before[name]) / seconds for name in _COUNTS}
        with self._lock:
            batches, numbers = list(self._batches), list(self._numbers)
            self._batches.clear()
        if self._screen.redraws:
            lines = lines_of(now - self._begun, stats, rates, batches, seconds, numbers)
            self._screen.show([*lines, *curves_of(numbers, self._bars)])
        else:
            parts = parts_of(stats, rates, batches, seconds, numbers)
            texts = [f"{name} {value}" for name, value in parts]
            text = ", ".join(filter(None, [*texts, source_of(stats)]))
            self._screen.show([f"{now - self._begun:.0f} s: {text}"])
        self._before, self._drawn = {name: stats[name] for name in _COUNTS}, now


def parts_of(
    stats: dict[str, Any],
    rates: dict[str, float],
    batches: list[tuple[int, Any, float]],
    seconds: float,
    numbers: list[tuple[float | None, float | None]],
) -> list[tuple[str, str]]:
    """Names and values, of the batches since the last drawing."""
    sizes = [size for size, _, _ in batches]
    ages = np.concatenate([ages for _, ages, _ in batches]) if batches else np.zeros(0)
    p50, p99 = np.percentile(ages, (50, 99)) if len(ages) else (math.nan, math.nan)
    mean, most = (np.mean(sizes), max(sizes)) if sizes else (0.0, 0)
    loss = np.mean([loss for _, _, loss in batches]) if batches else stats["loss"]
    parts = [
        ("received", f"{rates['received']:,.0f}/s"),
        ("trained", f"{rates['trained']:,.0f}/s"),
        ("age p50", _milliseconds(p50)),
        ("p99", _milliseconds(p99)),
        ("batches", f"{len(batches) / seconds:,.0f}/s"),
        ("batch size", f"{mean:,.1f}"),
        ("at most", f"{most:,}"),
        ("queued", f"{stats['queued']:,}"),
        ("dropped", f"{stats['dropped']:,}"),
        ("spooled", f"{stats['spooled']:,}"),
        ("loss", f"{loss:.4g}"),
    ]
    prediction, truth = numbers[-1] if numbers else (None, None)
    if prediction is not None:
        parts.append(("prediction", f"{prediction:.4g}"))
    if truth is not None:
        parts.append(("truth", f"{truth:.4g}"))
    return parts


def source_of(stats: dict[str, Any]) -> str:
    """Whether the source is connected, and why not; empty if it has no connection."""
    source = stats["source"]
    connected = source.get("connected")
    if connected is None:
        return ""
    if connected:
        return "connected"
    return f"not connected: {source['error']}" if "error" in source else "not connected"


def lines_of(
    elapsed: float,
    stats: dict[str, Any],
    rates: dict[str, float],
    batches: list[tuple[int, Any, float]],
    seconds: float,
    numbers: list[tuple[float | None, float | None]],
) -> list[str]:
    """The lines on a terminal: the parts in rows."""
    parts = parts_of(stats, rates, batches, seconds, numbers)
    first = [f"{elapsed:.1f} s", f"{stats['trained']:,} messages trained on", source_of(stats)]
    lines = [", ".join(filter(None, first))]
    for row in (parts[:2], parts[2:4], parts[4:7], parts[7:10], parts[10:]):
        lines.append("  ".join(f"{name:>11} {value:<11}" for name, value in row).rstrip())
    return lines


def curves_of(numbers: list[tuple[float | None, float | None]], bars: str) -> list[str]:
    """Curves of the last predictions and of the truth, on one scale."""
    predicted = [each for each, _ in numbers]
    known = [each for _, each in numbers]
    shown = [value for value in (*predicted, *known) if value is not None and math.isfinite(value)]
    if not shown:
        return []
    low, high = min(shown), max(shown)
    return [
        f"{name:>11} {curve(values, low, high, bars)}"
        for name, values in (("prediction", predicted), ("truth", known))
        if any(value is not None for value in values)
    ]


def curve(values: list[float | None], low: float, high: float, bars: str) -> str:
    """Draw a number in each column, by the height of a block."""
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(
        " " if value is None or not math.isfinite(value) else bars[round((value - low) * scale)]
        for value in values
    )


def bars_for(encoding: str | None) -> str:
    """Blocks of growing height that this encoding has."""
    try:
        _BARS.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return _ASCII_BARS
    return _BARS


def last_number(rows: Any) -> float | None:
    """Return the last row as a number; None if it is no single number."""
    if isinstance(rows, (dict, tuple, str, bytes)):
        return None
    try:
        array = array_of(rows)
    except (TypeError, ValueError):  # rows of different lengths, objects of other libraries
        return None
    last = array[-1:] if array.ndim > 0 else array
    return float(last.reshape(())) if last.size == 1 and last.dtype.kind in "fiub" else None


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.1f} ms"

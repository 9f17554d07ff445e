"""The parts of a benchmark case: entries, figures, targets, and the meters.

A case measures one thing with several entries: penstock's, its peers, and the limits (the machine
without any hand-over). Each entry is a function of a `Size` that sets itself up, measures, checks
the batches, and returns figures. run.py calls every entry in a process of its own, in turns, so
other load on the machine affects all of them equally.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# The number of workers and threads of every entry. turns.py sets another one.
WORKERS = int(os.environ.get("BENCH_WORKERS", "2"))
_TICK = os.sysconf("SC_CLK_TCK")

# The variable that names an entry's folder in memory.
MEMORY = "BENCH_MEMORY"

Figures = dict[str, Any]  # name -> number; "note" -> text

# Instead of an entry, a target may name the best of the peers, or of the limits, in each round.
BEST_PEER, BEST_LIMIT = "the best peer", "the limit"


class Size(SimpleNamespace):
    """The sizes of a run of a case, and `data`, a folder for inputs."""

    data: str

    def path(self, name: str) -> Path:
        return Path(self.data) / name


@dataclass
class Figure:
    """One number that entries of a case return.

    Attributes
    ----------
    unit : str
        The printed unit.
    scale : float
        Factor from the returned values (seconds, bytes, items per second) to the unit.
    more_is_better : bool
    compared : bool
        Whether ratios to penstock's figure are meaningful.
    """

    unit: str
    scale: float = 1.0
    more_is_better: bool = False
    compared: bool = True


@dataclass
class Target:
    """A target of a case.

    With `against`, the ratio of penstock's entry to that entry, round by round: an entry's name,
    `BEST_PEER` or `BEST_LIMIT`. Every speed is a ratio, because seconds depend on the machine.
    Without `against`, penstock's figure as its entry returns it: counts, shares, limits of memory.
    `at_least` or `at_most` is the bound.
    """

    figure: str
    ours: str
    against: str = ""
    at_least: float | None = None
    at_most: float | None = None
    says: str = ""


@dataclass
class Entry:
    name: str
    role: str  # "ours", "peer", "limit"
    run: Callable[[Size], Figures]
    quick: bool
    note: str
    beside: str  # penstock's entry that it is compared with; "": the first


@dataclass
class Case:
    key: str
    title: str
    figures: dict[str, Figure]
    full: dict[str, Any]
    quick: dict[str, Any]
    targets: list[Target] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    prepare: Callable[[Size], None] = lambda size: None
    on_device: bool = False  # uses a GPU where there is one

    def entry(
        self, name: str, role: str, note: str = "", quick: bool = True, beside: str = ""
    ) -> Callable[[Callable[[Size], Figures]], Callable[[Size], Figures]]:
        """Register a function as an entry. quick: also part of the short form."""

        def register(run: Callable[[Size], Figures]) -> Callable[[Size], Figures]:
            self.entries[name] = Entry(name, role, run, quick, note, beside)
            return run

        return register


class Wrong(AssertionError):
    """An entry got other batches than expected."""


def expect(condition: object, what: str) -> None:
    if not condition:
        raise Wrong(what)


def exactly_once(ids: Any, count: int) -> None:
    """Check that `ids` (numbers, or arrays of them) are 0 .. count - 1, each once."""
    import numpy as np

    flat = np.concatenate([np.atleast_1d(np.asarray(part)).ravel() for part in ids])
    flat = flat.astype(np.int64)
    expect(flat.size == count, f"{flat.size} ids came, not {count}")
    expect(flat.min() >= 0 and flat.max() < count, f"ids outside 0 .. {count - 1}")
    seen = np.bincount(flat, minlength=count)
    expect((seen == 1).all(), f"{(seen == 0).sum()} missing, {(seen > 1).sum()} repeated")


# ---- meters --------------------------------------------------------------------------------------


def processes_below(root: int | None = None) -> list[int]:
    """Return `root` (this process) and all of its descendants."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parents[int(name)] = int(_stat(int(name))[1])
    found = [root or os.getpid()]
    for pid in found:  # the list grows during the loop
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _stat(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    return text[text.rindex(")") + 2 :].split()


def cpu_seconds() -> float:
    """CPU time of this process and its descendants, including ended ones."""
    ticks = 0
    for pid in processes_below():
        with contextlib.suppress(OSError):
            ticks += sum(map(int, _stat(pid)[11:15]))
    return ticks / _TICK


def machine_seconds() -> float:
    """CPU time that the whole machine was not idle."""
    parts = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return (sum(parts) - parts[3] - parts[4]) / _TICK


def resident_bytes() -> int:
    """Memory of this process and its descendants together; shared memory counts once."""
    total = 0
    for pid in processes_below():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


class Others:
    """The share of the machine that other processes used meanwhile."""

    def __init__(self) -> None:
        self._began = (time.perf_counter(), machine_seconds(), cpu_seconds())

    def share(self) -> float:
        clock, machine, own = self._began
        busy = (machine_seconds() - machine) - (cpu_seconds() - own)
        return max(busy, 0.0) / (time.perf_counter() - clock) / (os.cpu_count() or 1)


# ---- measuring -----------------------------------------------------------------------------------


def one_epoch(
    start: Callable[[], Iterable[Any]],
    look: Callable[[Any], Any],
    warm: int,
    began: float | None = None,
) -> tuple[Figures, list[Any], Any]:
    """Iterate over an epoch.

    Parameters
    ----------
    start : callable
        Returns the epoch.
    look : callable
        Returns the part of a batch to keep for checks; its time counts, so it should be fast.
    warm : int
        The steady figure begins after this many batches.
    began : float, optional
        When the clock started (`time.perf_counter`); now by default.

    Returns
    -------
    figures : dict
        Seconds: ``first`` (batch), ``total`` and ``steady`` (per batch).
    kept : list
        The results of `look`.
    last : object
        The last batch.
    """
    clock = time.perf_counter
    kept = []
    t0 = clock() if began is None else began
    batches = iter(start())
    batch = next(batches)
    first = clock() - t0
    kept.append(look(batch))
    count = 1
    t_warm = clock()
    if warm > 1:
        for batch in batches:
            kept.append(look(batch))
            count += 1
            if count == warm:
                t_warm = clock()
                break
    for batch in batches:
        kept.append(look(batch))
    end = clock()
    expect(len(kept) > count, f"{len(kept)} batches came, too few")
    figures = {
        "first": first,
        "total": (end - t0) / len(kept),
        "steady": (end - t_warm) / (len(kept) - count),
    }
    return figures, kept, batch


def epochs(
    start: Callable[[], Iterable[Any]],
    look: Callable[[Any], Any],
    check: Callable[[list[Any], Any], None],
    seconds: float,
    warm: int = 1,
    began: float | None = None,
) -> Figures:
    """Iterate over epochs for about `seconds`, at least one; check each.

    ``first`` and ``total`` are of the first epoch; ``steady`` and ``whole`` (as ``total``) are of
    the best epoch.
    """
    result: Figures = {}
    count = 0
    stop = time.perf_counter() + seconds
    while not result or time.perf_counter() < stop:
        figures, kept, last = one_epoch(start, look, warm, began)
        check(kept, last)
        began = None
        count += 1
        if not result:
            result = {**figures, "whole": figures["total"]}
        result["steady"] = min(result["steady"], figures["steady"])
        result["whole"] = min(result["whole"], figures["total"])
        result["epochs"] = count
    return result


def best_of(run: Callable[[], Any], seconds: float, least: int = 3) -> float:
    """Return the shortest of repeated runs, in seconds."""
    best, count, stop = float("inf"), 0, time.perf_counter() + seconds
    while count < least or time.perf_counter() < stop:
        t = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - t)
        count += 1
    return best


def keep_heap(*_: object) -> None:
    """Make glibc keep freed memory, so the next batch does not fault its pages in again."""
    import ctypes

    libc = ctypes.CDLL(None)
    trim_threshold, mmap_max = -1, -4
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(mmap_max, 0)


def folder_in_memory() -> str:
    """The folder for an entry's files in memory; run.py empties it after each entry."""
    return os.environ.get(MEMORY, "/dev/shm")


@contextlib.contextmanager
def closing(feed: Any) -> Iterator[Any]:
    try:
        yield feed
    finally:
        feed.close()


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """Make a file unless it exists; it appears when it is complete.

    Then it is read once, so that it is in the page cache.
    """
    if not path.exists():
        part = path.with_name(f"{path.name}.part{os.getpid()}")
        make(part)
        part.replace(path)
    if path.is_file():
        with path.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass
    return path

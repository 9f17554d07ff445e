"""Estimates how sparse Hogwild scales with more cores, by counting cache lines.

python bench/cache_lines.py [--rounds N]

Uses the rows of the case hogwild_sparse. From the rows it counts the lines that an update changes,
how often other updates change them, and, for n workers that update in turn, how many of them
another worker changed last: a core must fetch these from another core's cache. The cost of a fetch
is measured with the two workers of the case: the additional time of an update compared with
separate weights, divided by the number of fetched lines. The resulting estimate for n cores is for
cores that are as near to each other as these two. Prints all figures; the estimate only if both
cores were otherwise idle.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import hogwild_sparse as case
from harness import WORKERS, Others, Size

LINE = 64  # bytes
BLOCK = 64  # consecutive rows that a worker visits in order
COUNTED = 256 * BLOCK  # number of updates for the counts with n workers
CALM = 0.1  # largest share of the machine for others: two threads on one core fetch no lines
MANY = (1, 2, 4, 8, 16, 32, 64)  # workers


def lines_of(size: Size) -> tuple[Any, Any]:
    """The line of each non-zero, sorted by row, and whether it is the first of its line."""
    at = np.fromfile(case.folder(size) / "at", np.int32).reshape(size.rows, size.per_row)
    lines = np.sort(at // (LINE // 4), axis=1)
    first = np.ones(lines.shape, bool)
    first[:, 1:] = lines[:, 1:] != lines[:, :-1]
    return lines, first


def fetched(lines: Any, first: Any, workers: int) -> float:
    """Lines of an update that another worker changed last, if workers take turns."""
    blocks = np.random.default_rng(2).permutation(len(lines) // BLOCK)[: COUNTED // BLOCK]
    # Each worker's blocks are in order, and the rows of all workers alternate.
    mine = (blocks.reshape(workers, -1, 1) * BLOCK + np.arange(BLOCK)).reshape(workers, -1)
    rows = mine.T.ravel()
    update, place = np.nonzero(first[rows])
    line, who = lines[rows[update], place], update % workers
    order = np.lexsort((update, line))
    line, who = line[order], who[order]
    others = (line[1:] == line[:-1]) & (who[1:] != who[:-1])
    return float(others.sum()) / len(rows)


def shared(lines: Any, rows: int) -> float:
    """The share of a step's lines that another worker's step of as many rows changes, too."""
    rng, parts = np.random.default_rng(3), []
    for one, other in rng.choice(len(lines) // rows, (500, 2), replace=True):
        if one != other:
            a, b = (np.unique(lines[i * rows : (i + 1) * rows]) for i in (one, other))
            parts.append(np.isin(a, b).mean())
    return float(np.mean(parts))


def measured(size: Size, rounds: int) -> tuple[float, float, float, float]:
    """Nanoseconds of an update: one worker, two on shared weights, two on separate weights.

    Also those of moving one line. Each is the best of several rounds, in turns.
    """
    ways = (("ours", 1), ("ours", WORKERS), ("own", WORKERS))
    took: list[list[float]] = [[], [], [], []]
    for _ in range(rounds):
        for each, (way, workers) in zip(took, ways, strict=False):
            each.append(1e9 * workers / case.of_program(size, way, workers)["rate"])
        command = [str(case.program(size)), "move"]
        took[3].append(float(subprocess.run(command, capture_output=True, check=True).stdout))
    alone, two, own, move = map(min, took)
    return alone, two, own, move


def print_counts(size: Size, lines: Any, first: Any) -> float:
    """Print the counts of the rows; return the share of updates that change the hottest line."""
    often = np.bincount(lines[first], minlength=-(-size.features * 4 // LINE))
    touched, hottest = first.sum() / size.rows, float(often.max() / size.rows)
    print(f"{size.features:,} weights in {often.size:,} lines of {LINE} bytes")
    print(f"an update changes {size.per_row} weights in {touched:.1f} lines")
    print(
        f"a line is changed by {often.mean():,.0f} of {size.rows:,} updates in the mean, the "
        f"middle one by {np.median(often):,.0f}, the hottest by {hottest:.1%} of all"
    )
    for rows in (1, BLOCK):
        print(
            f"of the lines that {rows} row{'s' * (rows > 1)} of a worker change, "
            f"{shared(lines, rows):.0%} are changed by {rows} of another's"
        )
    print(
        "\n| workers on one vector | lines that an update fetches from others' caches |\n|---|---|"
    )
    for workers in MANY:
        print(f"| {workers} | {fetched(lines, first, workers):.1f} of {touched:.1f} |")
    return hottest


def print_estimate(size: Size, rounds: int, lines: Any, first: Any, hottest: float) -> None:
    others = Others()
    alone, two, own, move = measured(size, rounds)
    share = others.share()
    each = max(two - own, 0.0) / fetched(lines, first, WORKERS)
    print(
        f"\nan update takes {alone:.0f} ns in one worker, {two:.0f} ns in each of {WORKERS}, "
        f"{own:.0f} ns in each of {WORKERS} with weights of their own: {each:.2f} ns for each line "
        f"that it fetched\nmoving one line there and back takes {move:.0f} ns each way: at most "
        f"{1e3 / (hottest * move):.1f} M updates/s can change the hottest line"
    )
    if share > CALM:
        print(f"meanwhile other processes had {share:.0%} of the machine: no estimate from that")
        return
    print("\n| workers on one vector | estimate, M updates/s |\n|---|---|")
    for workers in MANY:
        free = workers * 1e3 / (own + fetched(lines, first, workers) * each)
        print(f"| {workers} | {min(free, 1e3 / (hottest * move)):.1f} |")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", default=str(Path(__file__).resolve().parent / "data"))
    options = parser.parse_args()
    size = Size(**case.CASE.full, data=options.data)
    Path(size.data).mkdir(parents=True, exist_ok=True)
    case.prepare(size)
    lines, first = lines_of(size)
    hottest = print_counts(size, lines, first)
    try:
        print_estimate(size, options.rounds, lines, first, hottest)
    except ImportError as error:
        print(f"\nno times: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

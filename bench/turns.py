"""Two builds of penstock against each other, in turns: which one is faster, and by how much.

    python bench/turns.py --only small,stages --workers 1,2 \
        now=.venv/bin/python without=../without/.venv/bin/python

Runs penstock's entries of the cases with each build's Python. A turn runs every build once, and
each turn begins with another build, so other load on the machine affects all of them. Prints, for
each entry: the median and the best over the turns, the median of the ratios to the first build
within one turn, and what an epoch costs in CPU time and context switches (workers included).

A build may have environment variables: ``without=../without/.venv/bin/python,NAME=value``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from all_cases import CASES
from harness import Case, Figure
from run import progress, run_child

HERE = Path(__file__).resolve().parent
COSTS = {
    "cost_cpu": Figure("ms of CPU time per epoch", 1e3),
    "cost_switches": Figure("context switches per epoch"),
}


@dataclass
class Build:
    name: str
    python: str
    variables: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Build:
        name, _, rest = text.partition("=")
        python, *variables = rest.split(",")
        if not python:
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=PYTHON[,KEY=VALUE]")
        return cls(name, python, dict(each.split("=", 1) for each in variables))


def take_turns(case: Case, entry: str, workers: int, options: argparse.Namespace) -> None:
    size = {**(case.quick if options.quick else case.full), "data": options.data}
    builds: list[Build] = options.builds
    runs: dict[str, list[dict[str, Any]]] = {build.name: [] for build in builds}
    for turn in range(options.turns):
        shift = turn % len(builds)
        for build in builds[shift:] + builds[:shift]:
            progress(f"{case.key}, {entry}: turn {turn + 1} of {options.turns}, {build.name}")
            variables = {**build.variables, "BENCH_WORKERS": str(workers)}
            result = run_child(case.key, entry, size, build.python, variables)
            if "failed" in result or "missing" in result:
                progress("")
                print(f"{case.key}, {entry}, {workers} workers, {build.name}: {result}")
                return
            epochs = result.get("epochs", 1)
            for cost in COSTS:
                result[cost] /= epochs
            runs[build.name].append(result)
    progress("")
    print(f"{case.key}, {entry}, {workers} workers")
    for name, figure in {**case.figures, **COSTS}.items():
        if name in runs[builds[0].name][0] and figure.compared:
            print_figure(name, figure, runs, builds)


def print_figure(
    name: str, figure: Figure, runs: dict[str, list[dict[str, Any]]], builds: list[Build]
) -> None:
    first = [result[name] for result in runs[builds[0].name]]
    for build in builds:
        values = [result[name] for result in runs[build.name]]
        best = max(values) if figure.more_is_better else min(values)
        ratios = [b / a for a, b in zip(first, values, strict=True) if a > 0]
        ratio = statistics.median(ratios) if ratios else float("nan")
        print(
            f"    {build.name:14}{statistics.median(values) * figure.scale:12.4g}"
            f"  best {best * figure.scale:10.4g}  ratio {ratio:5.2f}  {figure.unit}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    words = lambda text: [word for word in text.split(",") if word]  # noqa: E731
    add("builds", nargs="+", type=Build.parse, help="NAME=PYTHON[,KEY=VALUE]")
    add("--only", type=words, required=True, help="cases, by their keys: a,b")
    add("--entries", type=words, default=[], help="entries whose name has one of these words")
    add("--workers", type=words, default=["2"], help="numbers of workers: 1,2")
    add("--turns", type=int, default=9)
    add("--quick", action="store_true", help="smaller sizes")
    add("--data", default=str(HERE / "data"), help="where inputs are made, once")
    options = parser.parse_args()
    unknown = [key for key in options.only if key not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    Path(options.data).mkdir(parents=True, exist_ok=True)
    for build in options.builds:
        subprocess.run([build.python, "-c", "import penstock"], check=True, env=os.environ)
    for key in options.only:
        case = CASES[key]
        size = {**(case.quick if options.quick else case.full), "data": options.data}
        prepared = run_child(key, "--prepare", size)
        if "failed" in prepared:
            print(f"{key}: {json.dumps(prepared)}")
            return 1
        for name, entry in case.entries.items():
            if entry.role != "ours" or "in line" in name:
                continue
            if options.entries and not any(word in name for word in options.entries):
                continue
            for workers in options.workers:
                take_turns(case, name, int(workers), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

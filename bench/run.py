"""Speed and memory against the peers: every case, in rounds, each entry in a process of its own.

    make bench                 everything
    make bench QUICK=1         the short form
    python bench/run.py --only small,order --rounds 7
    python bench/run.py --only loop --update      replaces the stored results of these cases
    python bench/run.py --judge                   the current targets for stored results

Prints, for each case, every entry's median and spread over the rounds, the ratios to penstock's
entries, and whether the targets are met; stores all of it as JSON (bench/table.py prints tables).
Entries take turns within a round, and each round begins with another entry. An entry that other
processes disturbed (they used more of the machine than --calm) is run again, at most twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from all_cases import CASES
from harness import MEMORY, Case, Figures, folder_in_memory
from machine import describe_machine, name_of_machine
from summary import judge_again, print_case, summarise

HERE = Path(__file__).resolve().parent
# No entry takes longer than this many seconds.
TIMEOUT = 180.0
# And no longer than this after it was asked to stop.
PATIENCE = 10.0


def run_child(
    key: str,
    entry: str,
    size: dict[str, Any],
    python: str = sys.executable,
    variables: dict[str, str] | None = None,
) -> Figures:
    """Run one entry in a new process and return its output; ends processes that it left behind."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder_in_memory()) as folder:
        child = subprocess.Popen(
            [python, str(HERE / "child.py"), key, entry, json.dumps(size)],
            env={**os.environ, **(variables or {}), MEMORY: folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        out, err = "", ""
        try:
            out, err = child.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)  # it may close resources in order
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=PATIENCE)
            err = f"no result within {TIMEOUT:.0f} s"
        finally:
            # The group is the child's own: workers that it left behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    for line in reversed(out.splitlines()):
        if line.startswith("RESULT "):
            result: Figures = json.loads(line[7:])
            if "failed" in result and os.environ.get("BENCH_TRACE"):
                print(err, file=sys.stderr)
            return result
    return {"failed": f"ended with {child.returncode}: {err.strip()[-300:]}"}


def run_calm(key: str, entry: str, size: dict[str, Any], calm: float) -> Figures:
    best = run_child(key, entry, size)
    for _ in range(2):
        if best.get("others", 0.0) <= calm:
            break
        again = run_child(key, entry, size)
        best = min(best, again, key=lambda result: result.get("others", 1.0))
    return best


def run_case(case: Case, rounds: int, options: argparse.Namespace) -> dict[str, Any]:
    size = {**(case.quick if options.quick else case.full), "data": options.data}
    names = [name for name, entry in case.entries.items() if entry.quick or not options.quick]
    if options.entries:
        names = [name for name in names if any(word in name for word in options.entries)]
    runs: dict[str, list[Figures]] = {name: [] for name in names}
    prepared = run_child(case.key, "--prepare", size)
    for turn in range(rounds):
        shift = turn % len(names) if names else 0
        for at, name in enumerate(names[shift:] + names[:shift]):
            earlier = runs[name]
            if earlier and ("missing" in earlier[0] or "failed" in earlier[0]):
                continue
            if "failed" in prepared:
                runs[name].append(prepared)
                continue
            progress(f"{case.key}: round {turn + 1} of {rounds}, {at + 1} of {len(names)}: {name}")
            runs[name].append(run_calm(case.key, name, size, options.calm))
    progress("")
    del size["data"]
    return {**summarise(case, size, runs), "rounds": rounds}


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    words = lambda text: [word for word in text.split(",") if word]  # noqa: E731
    add("--quick", action="store_true", help="smaller sizes, the main peers")
    add("--only", type=words, default=[], help="cases, by their keys: a,b")
    add("--entries", type=words, default=[], help="entries whose name has one of these words")
    add("--rounds", type=int, default=0, help="rounds of every case (3)")
    add("--calm", type=float, default=0.10, help="share of the machine that others may take")
    add("--data", default=str(HERE / "data"), help="where inputs are made, once")
    add("--update", action="store_true", help="with --only: kept among the results of all cases")
    add("--json", type=Path, help="where the results go (bench/results/<machine>.json)")
    add("--judge", action="store_true", help="judge kept results by today's targets, and stop")
    add("--list", action="store_true", help="print the cases and their entries, and stop")
    options = parser.parse_args()
    unknown = [key for key in options.only if key not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    if options.update and (options.quick or options.entries):
        parser.error("--update keeps whole cases in their full form")
    return options


def kept_before(path: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Cases that were measured before but not in this run."""
    if not options.update or not path.exists():
        return []
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return [case for case in cases if case["key"] in CASES and case["key"] not in options.only]


def judge_kept(path: Path) -> None:
    """Write stored results again with the current targets of the cases."""
    results = json.loads(path.read_text(encoding="utf-8"))
    results["cases"] = [
        judge_again(CASES[case["key"]], case) for case in results["cases"] if case["key"] in CASES
    ]
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for case in results["cases"]:
        print_case(case)


def main() -> int:
    options = arguments()
    cases = [case for key, case in CASES.items() if not options.only or key in options.only]
    if options.list:
        for case in cases:
            print(f"{case.key}: {case.title}")
            for entry in case.entries.values():
                print(f"    {entry.role:6}{entry.name:<52}{entry.note}")
        return 0
    if options.judge:
        for path in [options.json] if options.json else sorted((HERE / "results").glob("*.json")):
            judge_kept(path)
        return 0
    rounds = options.rounds or 3
    machine = describe_machine()
    form = "quick" if options.quick else "full"
    # Results of a partial run stay local, and never replace those of a full run.
    whole = options.update or not (options.quick or options.only or options.entries)
    name = f"{name_of_machine(machine)}.{'json' if whole else 'local.json'}"
    path = options.json or HERE / "results" / name
    Path(options.data).mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"{machine['cores']} cores of {machine['processor']}, {rounds} rounds, {form} form\n")
    began = time.monotonic()
    results: dict[str, Any] = {"machine": machine, "form": form}
    before = kept_before(path, options)
    measured: list[dict[str, Any]] = []
    for case in cases:
        done = run_case(case, rounds, options)
        print_case(done)
        measured.append(done)
        order = list(CASES)
        results["cases"] = sorted(before + measured, key=lambda case: order.index(case["key"]))
        results["seconds"] = round(time.monotonic() - began)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    targets = [target for case in measured for target in case["targets"]]
    verdicts = [target["met"] for target in targets]
    print(
        f"{verdicts.count(True)} targets met, {verdicts.count(False)} not, "
        f"{verdicts.count(None)} not measured, in {results['seconds']} s; kept in {path}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

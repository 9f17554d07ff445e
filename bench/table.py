"""Prints tables of a run that run.py stored.

python bench/table.py                    the README's ten rows: penstock and the best peer
python bench/table.py --full             that of docs/benchmarks.md: all entries, targets and limits
python bench/table.py [--full] FILE      of this file; default: the one with most cases in results
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from summary import limit_text, number, shown

# The README's rows: several parts of the library, and one case in which a peer is better.
README = (
    "large-rand",
    "small",
    "samples",
    "in-memory",
    "tfrecord",
    "tfrecord-shuffled",
    "first-batch",
    "memory-batches",
    "hogwild_lenet",
    "server_kill",
)
RESULTS = Path(__file__).resolve().parent / "results"


def full_row(case: dict[str, Any]) -> str:
    """One case: penstock, the peers and the limit by its first figure, and the targets."""
    key, figure = next(iter(case["figures"].items()))
    cells: dict[str, list[str]] = {"ours": [], "peer": [], "limit": []}
    for entry in case["entries"]:
        values = entry.get("figures", {}).get(key)
        if values is None:
            continue
        name = short(entry["name"])
        if entry["role"] == "ours":
            cells["ours"].append(f"{name}: **{shown(values, figure['scale'])}**")
        else:
            cells[entry["role"]].append(beside(entry, key, figure))
    missed = [target for target in case["targets"] if target["met"] is False]
    met = met_of(case)
    if missed:
        met += "; not: " + ", ".join(wanted(target, case["figures"]) for target in missed)
    title = f"{case['title']}; {figure['unit']}"
    return line(title, *("<br>".join(cells[role]) for role in cells), met)


def short_row(case: dict[str, Any]) -> str:
    """One case: penstock's first entry, the best of its peers, and the ratio."""
    key, figure = next(iter(case["figures"].items()))
    entries = [entry for entry in case["entries"] if key in entry.get("figures", {})]
    ours = next(entry for entry in entries if entry["role"] == "ours")
    best = min(
        (
            entry
            for entry in entries
            if entry["role"] == "peer" and entry["beside"] == ours["name"] and key in entry["times"]
        ),
        key=lambda entry: entry["times"][key]["median"],
    )
    reached = [number(entry["figures"][key]["median"] * figure["scale"]) for entry in (ours, best)]
    return line(
        f"{case['title']}; {figure['unit']}",
        f"**{reached[0]}**",
        f"{short(best['name'])}: {reached[1]}",
        f"x {number(best['times'][key]['median'])}",
        f"`--only {case['key']}`",
    )


def short(name: str) -> str:
    return name.removeprefix("penstock, ").removeprefix("limit: ")


def wanted(target: dict[str, Any], figures: dict[str, Any]) -> str:
    """A target, and the limit's distance from it."""
    text, against = target["says"], short(target["against"])
    if against:
        text += (": " if text.endswith("the limit") else " ") + against
    limit = limit_text(target, figures)
    return text + (f" ({limit})" if limit else "")


def beside(entry: dict[str, Any], key: str, figure: dict[str, Any]) -> str:
    """An entry's figure, and the ratio to penstock's."""
    text = f"{short(entry['name'])}: {number(entry['figures'][key]['median'] * figure['scale'])}"
    times = entry["times"].get(key)
    return text + (f" (x {number(times['median'])})" if times else "")


def met_of(case: dict[str, Any]) -> str:
    measured = [target for target in case["targets"] if target["met"] is not None]
    return f"{sum(1 for target in measured if target['met'])} of {len(measured)} targets"


def line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    words = sys.argv[1:]
    full = "--full" in words
    files = [Path(word) for word in words if word != "--full"] or list(RESULTS.glob("*.json"))
    if not files:
        print("no results: run `make bench` first", file=sys.stderr)
        return 1
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    results = max(kept, key=lambda run: len(run["cases"]))
    machine = results["machine"]
    if full:
        print(line("case; unit", "penstock", "peers (ours is better by)", "limit", "met"))
    else:
        print(line("case; unit", "penstock", "the best peer", "ours is better by", "command"))
    print("|---|---|---|---|---|")
    for case in results["cases"]:
        if full:
            print(full_row(case))
        elif case["key"] in README:
            print(short_row(case))
    rounds = sorted({case["rounds"] for case in results["cases"]})
    versions = ", ".join(
        f"{name} {version}"
        for name, version in machine["versions"].items()
        if version != "not installed"
    )
    device = "".join(f" with {name}" for name in machine.get("devices", ()))
    print(
        f"\nMedians {'(and spread) ' if full else ''}of {' to '.join(map(str, rounds))} rounds on "
        f"{machine['cores']} cores of {machine['processor']}{device}, "
        f"{machine['memory_gib']:.0f} GiB, {machine['system']}, "
        f"Python {machine['python']}; {versions}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

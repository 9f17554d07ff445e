"""Prints the README's table of a run that run.py kept.

python bench/table.py                          the newest file in bench/results
python bench/table.py bench/results/X.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from summary import limit_text, number, shown

RESULTS = Path(__file__).resolve().parent / "results"


def row(case: dict[str, Any]) -> str:
    """One case: ours, the peers and the limit by its first figure, and the targets."""
    key, figure = next(iter(case["figures"].items()))
    cells: dict[str, list[str]] = {"ours": [], "peer": [], "limit": []}
    for entry in case["entries"]:
        values = entry.get("figures", {}).get(key)
        if values is None:
            continue
        name = entry["name"].removeprefix("penstock, ").removeprefix("limit: ")
        if entry["role"] == "ours":
            cells["ours"].append(f"{name}: **{shown(values, figure['scale'])}**")
        else:
            text = f"{name}: {number(values['median'] * figure['scale'])}"
            times = entry["times"].get(key)
            cells[entry["role"]].append(text + (f" (x {number(times['median'])})" if times else ""))
    targets = case["targets"]
    missed = [t for t in targets if t["met"] is False]
    measured = [t for t in targets if t["met"] is not None]
    met = f"{sum(1 for t in measured if t['met'])} of {len(measured)} targets"
    if missed:
        met += "; not: " + ", ".join(
            t["says"]
            + (f" {t['against']}" if t["against"] else "")
            + (f" ({limit})" if (limit := limit_text(t, case["figures"])) else "")
            for t in missed
        )
    title = f"{case['title']}; {figure['unit']}"
    parts = [title, *("<br>".join(cells[role]) for role in cells), met]
    return "| " + " | ".join(parts) + " |"


def main() -> int:
    files = sorted(RESULTS.glob("*.json"), key=lambda path: path.stat().st_mtime)
    if len(sys.argv) < 2 and not files:
        print("no results: run `make bench` first", file=sys.stderr)
        return 1
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else files[-1]
    results = json.loads(path.read_text(encoding="utf-8"))
    machine = results["machine"]
    print("| case; unit | penstock | peers (ours is better by) | limit | met |")
    print("|---|---|---|---|---|")
    for case in results["cases"]:
        print(row(case))
    versions = ", ".join(
        f"{name} {version}"
        for name, version in machine["versions"].items()
        if version != "not installed"
    )
    print(
        f"\nMedians (and spread) of {results['rounds']} rounds on {machine['cores']} cores of "
        f"{machine['processor']}, {machine['memory_gib']:.0f} GiB, {machine['system']}, "
        f"Python {machine['python']}; {versions}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

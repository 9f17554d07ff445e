"""Computes medians, spreads, ratios and verdicts from the rounds of a case, and prints them."""

from __future__ import annotations

import statistics
from typing import Any

from harness import BEST_LIMIT, BEST_PEER, Case, Figures, Target

Summary = dict[str, Any]

# This share of the limit counts as the limit: rounds differ by as much.
AT_LIMIT = 0.95


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def times_better(case: Case, figure: str, ours: list[Figures], its: list[Figures]) -> list[float]:
    """Ratios to penstock's entry, round by round, because load affects both in a round.

    A figure that is a difference may be zero or negative because of noise; then there is no ratio.
    """
    more = case.figures[figure].more_is_better
    return [
        (a[figure] / b[figure]) if more else (b[figure] / a[figure])
        for a, b in zip(ours, its, strict=False)
        if a.get(figure, 0) > 0 and b.get(figure, 0) > 0
    ]


def summarise(case: Case, size: dict[str, Any], runs: dict[str, list[Figures]]) -> Summary:
    """All figures of a case as plain data, for printing and storing."""
    first = next((name for name in runs if case.entries[name].role == "ours"), "")
    return {
        "key": case.key,
        "title": case.title,
        "size": size,
        "figures": {key: vars(figure) for key, figure in case.figures.items()},
        "entries": [summarise_entry(case, name, first, runs) for name in runs],
        "targets": judge_all(case, runs),
    }


def summarise_entry(case: Case, name: str, first: str, runs: dict[str, list[Figures]]) -> Summary:
    entry, rounds = case.entries[name], runs[name]
    summary: Summary = {"name": name, "role": entry.role, "setting": entry.note}
    for word in ("missing", "failed"):
        said = [figures[word] for figures in rounds if word in figures]
        if said:
            summary[word] = said[0]
    good = [figures for figures in rounds if "missing" not in figures and "failed" not in figures]
    if not good:
        return summary
    beside = entry.beside if entry.beside in runs else first
    summary["beside"] = beside if beside != name else ""
    summary["figures"], summary["times"] = {}, {}
    for key, figure in case.figures.items():
        values = [figures[key] for figures in good if key in figures]
        if values:
            summary["figures"][key] = spread(values)
        if figure.compared and summary["beside"]:
            ratios = times_better(case, key, runs[beside], rounds)
            if ratios:
                summary["times"][key] = spread(ratios)
    summary["others"] = max(figures.get("others", 0.0) for figures in good)
    notes = [figures["note"] for figures in good if figures.get("note")]
    if notes:
        summary["note"] = notes[-1]
    summary["rounds"] = [
        {key: value for key, value in figures.items() if key != "note"} for figures in good
    ]
    return summary


def judge_again(case: Case, kept: Summary) -> Summary:
    """Return stored results with the case's current targets."""
    runs = {entry["name"]: entry.get("rounds", []) for entry in kept["entries"]}
    runs = {name: rounds for name, rounds in runs.items() if name in case.entries}
    return {**kept, "targets": judge_all(case, runs)}


def judge_all(case: Case, runs: dict[str, list[Figures]]) -> list[Summary]:
    return [
        judge(case, target, runs)
        for target in case.targets
        if target.ours in runs and (not target.against or rivals(case, target, runs))
    ]


def rivals(case: Case, target: Target, runs: dict[str, list[Figures]]) -> list[str]:
    """Return the entries that a target is measured against."""
    role = {BEST_PEER: "peer", BEST_LIMIT: "limit"}.get(target.against)
    if role is None:
        return [target.against] if target.against in runs else []
    first = next((name for name in runs if case.entries[name].role == "ours"), "")
    found = [name for name in runs if case.entries[name].role == role]
    own = [name for name in found if (case.entries[name].beside or first) == target.ours]
    return own or [name for name in found if (case.entries[name].beside or first) == first]


def rival_rounds(case: Case, target: Target, runs: dict[str, list[Figures]]) -> list[Figures]:
    """Return the figure that a target is measured against, round by round."""
    best = max if case.figures[target.figure].more_is_better else min
    rounds = [runs[name] for name in rivals(case, target, runs)]
    result: list[Figures] = []
    for turn in range(len(runs[target.ours])):
        values = [each[turn].get(target.figure) for each in rounds if turn < len(each)]
        good = [value for value in values if value]
        result.append({target.figure: best(good)} if good else {})
    return result


def judge(case: Case, target: Target, runs: dict[str, list[Figures]]) -> Summary:
    if target.against:
        its = rival_rounds(case, target, runs)
        values = times_better(case, target.figure, runs[target.ours], its)
    else:
        values = [f[target.figure] for f in runs[target.ours] if target.figure in f]
    says = target.says or (
        "better" if target.at_least == 1 else f"{number(target.at_least or 0)} times"
    )
    result: Summary = {
        "figure": target.figure,
        "ours": target.ours,
        "against": target.against,
        "at_least": target.at_least,
        "at_most": target.at_most,
        "says": says,
        "met": None,
    }
    if values:
        result.update(spread(values))
        middle = result["median"]
        result["met"] = reaches(target, middle)
        if not result["met"]:
            limit = result["limit"] = limit_of(case, target, runs)
            # In the same run the limit misses the target, and penstock is at the limit.
            result["met"] = limit is not None and at_limit(target, middle, limit)
    return result


def at_limit(target: Target, value: float, limit: float) -> bool:
    share = limit / value if target.at_least is None else value / limit
    return share >= AT_LIMIT


def reaches(target: Target, value: float) -> bool:
    return (target.at_least is None or value >= target.at_least) and (
        target.at_most is None or value <= target.at_most
    )


def limit_of(case: Case, target: Target, runs: dict[str, list[Figures]]) -> float | None:
    """The limit's own figure, if it misses the target, too.

    A target may be measured against a limit: then other limits count, those that do more.
    """
    itself = rivals(case, target, runs) if target.against else []
    its = rival_rounds(case, target, runs) if target.against else []
    best: float | None = None
    for name, rounds in runs.items():
        if case.entries[name].role != "limit" or name in itself:
            continue
        if target.against:
            values = times_better(case, target.figure, rounds, its)
        else:
            values = [figures[target.figure] for figures in rounds if target.figure in figures]
        if not values:
            continue
        middle = statistics.median(values)
        if reaches(target, middle):
            return None
        if best is None or (middle > best) == (target.at_least is not None):
            best = middle
    return best


# ---- printing ------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three significant digits, with separators of thousands."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size < 0.005:
        return f"{value:.2g}"
    return f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2}f}"


def shown(values: dict[str, float], scale: float = 1.0) -> str:
    """Median (lowest - highest)."""
    low, middle, high = (number(values[key] * scale) for key in ("min", "median", "max"))
    return middle if low == high else f"{middle} ({low} - {high})"


def print_case(case: Summary) -> None:
    sizes = ", ".join(f"{name} {value}" for name, value in case["size"].items())
    print(f"== {case['key']}: {case['title']} ({sizes})")
    for entry in case["entries"]:
        if "figures" not in entry:
            why = entry.get("missing") or f"failed: {entry.get('failed')}"
            print(f"  {entry['name']:<50} {why}")
            continue
        parts = []
        for key, figure in case["figures"].items():
            if key not in entry["figures"]:
                continue
            text = f"{shown(entry['figures'][key], figure['scale'])} {figure['unit']}"
            times = entry["times"].get(key)
            parts.append(text + (f" [ours x {shown(times)}]" if times else ""))
        if entry.get("note"):
            parts.append(entry["note"])
        if entry["others"] > 0.1:
            parts.append(f"others took {entry['others']:.0%}")
        print(f"  {entry['name']:<50} {'; '.join(parts)}")
    for target in case["targets"]:
        print(f"  {verdict(target, case['figures'])}")
    print(flush=True)


def verdict(target: Summary, figures: dict[str, Summary]) -> str:
    name, against = target["figure"], target["against"]
    what = f"{name}: {target['says']}" + (f" [{target['ours']} : {against}]" if against else "")
    if not against:
        what += f" [{target['ours']}]"
    if target["met"] is None:
        return f"      -  {what}: not measured"
    mark = "met" if target["met"] else "NOT MET"
    if against:
        text = f"{mark:>7}  {what}: x {shown(target)}, at least {number(target['at_least'])}"
    else:
        figure = figures[name]
        text = f"{mark:>7}  {what}: {shown(target, figure['scale'])} {figure['unit']}"
    limit = limit_text(target, figures)
    return text + (f"; {limit}" if limit else "")


def limit_text(target: Summary, figures: dict[str, Summary]) -> str:
    """Describe the limit's distance from a target that was not met, if the limit misses it, too."""
    limit = target.get("limit")
    if limit is None:
        return ""
    if target["against"]:
        return f"the limit itself: x {number(limit)}"
    figure = figures[target["figure"]]
    return f"the limit itself: {number(limit * figure['scale'])}"

"""``penstock top ADDRESS...``: shows the shards of a parameter server and their workers."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from ..base.screen import Screen
from . import Failed, bytes_text, secrets

_PATIENCE_SECONDS = 5.0


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        help="watch a parameter server",
        description="Shows what the shards of a parameter server do: versions, rates, staleness, "
        "and who works on them. Ends at Ctrl-C. Nothing waits for who only watches.",
    )
    add = parser.add_argument
    add("addresses", nargs="+", metavar="ADDRESS", help="those of some or all shards")
    secrets.add_options(parser)
    add("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks (1)")
    add("--once", action="store_true", help="look once; rates are those since the shards began")
    add("--json", action="store_true", help="print one JSON object for each look")
    parser.set_defaults(run=run)


@dataclass
class Look:
    """A shard's answer, or the reason why there is none, and its counts per second."""

    address: str
    stats: dict[str, Any]
    failure: str = ""
    rates: dict[str, float] | None = None


def run(options: argparse.Namespace) -> int:
    if not options.interval > 0:
        raise Failed(f"--interval {options.interval}: give seconds, more than 0", 2)
    secret = secrets.read(options.secret_file)
    before: list[Look] = []
    screen = Screen(sys.stdout, redraw=not options.once)
    try:
        while True:
            looks = [look_at(address, secret, options.encrypt) for address in options.addresses]
            for at, look in enumerate(looks):
                look.rates = rates(look.stats, before[at].stats if before else {})
            if options.json:
                print(json.dumps({"shards": [_plain(look) for look in looks]}), flush=True)
            else:
                screen.show(lines_of(looks))
            if options.once:
                return 1 if any(look.failure for look in looks) else 0
            before = looks
            time.sleep(options.interval)
    except KeyboardInterrupt:
        return 0


def look_at(address: str, secret: str, encrypt: bool | None) -> Look:
    from .. import _engine
    from ..errors import Error, InvalidArgument

    try:
        said = _engine.shard_stats(address, secret, encrypt, _PATIENCE_SECONDS)
        return Look(address, json.loads(said))
    except InvalidArgument as error:  # no such address, another secret: permanent
        raise Failed(str(error)) from None
    except Error as error:
        return Look(address, {}, str(error))


_COUNTS = ("pushes", "pulls", "bytes_in", "bytes_out")


def rates(now: dict[str, Any], before: dict[str, Any]) -> dict[str, float]:
    """Counts per second since an earlier look, or since the shard's start if that is later."""
    if not now:
        return {}
    if not before or before["seconds"] >= now["seconds"]:
        before = dict.fromkeys((*_COUNTS, "seconds"), 0)
    seconds = max(now["seconds"] - before["seconds"], 1e-9)
    return {name: (now[name] - before[name]) / seconds for name in _COUNTS}


def staleness(counts: list[int]) -> str:
    """Upper bounds of the staleness of half of the pushes, and of all, as text."""
    total = sum(counts)
    if total == 0:
        return "-"
    seen, half = 0, 0
    for at, count in enumerate(counts):
        if seen * 2 < total:
            half = at
        seen += count
    most = max(at for at, count in enumerate(counts) if count)
    return f"{2**half - 1:,} / {2**most - 1:,}"


def _plain(look: Look) -> dict[str, Any]:
    found: dict[str, Any] = {"address": look.address}
    if look.failure:
        return {**found, "failure": look.failure}
    return {**found, **look.stats, "rates": look.rates}


# ---- printing ------------------------------------------------------------------------------------


def lines_of(looks: list[Look]) -> list[str]:
    width = max(len("shard"), *(len(look.address) for look in looks))
    lines = [
        f"{'shard':{width}}{'version':>11}{'pushes/s':>10}{'pulls/s':>10}{'in/s':>11}{'out/s':>11}"
        f"{'stale, half / most':>20}{'skipped':>9}{'repeated':>10}"
    ]
    for look in looks:
        if look.failure:
            lines.append(f"{look.address:{width}}  {look.failure}")
            continue
        said, rate = look.stats, look.rates or {}
        lines.append(
            f"{look.address:{width}}{said['version']:>11,}{rate['pushes']:>10,.1f}"
            f"{rate['pulls']:>10,.1f}{bytes_text(rate['bytes_in']):>11}"
            f"{bytes_text(rate['bytes_out']):>11}{staleness(said['staleness']):>20}"
            f"{said['skipped']:>9,}{said['repeated']:>10,}"
        )
        if said["saving_failed"]:
            lines.append(f"  its snapshot could not be written: {said['saving_failed']}")
    # Each worker is connected to all shards; its row is the first shard's.
    workers: dict[int, dict[str, Any]] = {}
    for look in looks:
        for worker in look.stats.get("workers", []):
            workers.setdefault(worker["worker"], worker)
    lines.append("")
    if not workers:
        return [*lines, "no workers"]
    names = max(len("worker"), *(len(worker["name"]) for worker in workers.values()))
    where = max(len("at"), *(len(worker["address"]) for worker in workers.values()))
    lines.append(f"{'worker':{names}}  {'at':{where}}{'pushes':>10}{'clock':>10}{'lease':>9}")
    for worker in sorted(workers.values(), key=lambda each: str(each["name"])):
        state = "  waits" if worker["waiting"] else "  lapsed" if worker["lapsed"] else ""
        lines.append(
            f"{worker['name']:{names}}  {worker['address']:{where}}{worker['pushes']:>10,}"
            f"{worker['clock']:>10,}{worker['lease_left_s']:>7.1f} s{state}"
        )
    return lines

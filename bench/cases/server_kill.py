"""A parameter server with a process that is killed by SIGKILL while two workers push continuously.

`again` is the time from the kill until each worker has an acknowledgement for a push that it began
after the kill, over several kills at any moment of a push. `lost` counts acknowledged pushes that
are not in the final weights, `doubled` those that are in them more than once: each push leaves its
own mark, and the sum of the marks must equal the other weights.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    BEST_PEER,
    WORKERS,
    Case,
    Figure,
    Figures,
    Size,
    Target,
    expect,
    folder_in_memory,
)
from peers import Program

from cases import server_kill_ways as ways

OURS = "penstock.train.ParameterServer, processes=True"
PEERS = {"Ray actor, restarted": "Ray", "unix sockets + NumPy, started again": "Sockets"}
# Seconds for a server's start and restart.
PATIENCE = 60.0


class Pushes:
    """The records of two workers' pushes."""

    def __init__(self, way: str, where: Path, floats: int) -> None:
        self.moments = [ways.times(where, each, "w+") for each in range(WORKERS)]
        self.programs = [
            Program("cases.server_kill_ways", way, where, floats, each) for each in range(WORKERS)
        ]

    def begun_after(self, moment: float) -> float:
        """When the last worker got its first acknowledgement of a push begun after `moment`."""
        found: list[float] = []
        while len(found) < WORKERS:
            expect(time.monotonic() < moment + PATIENCE, f"no push within {PATIENCE:.0f} s")
            for program in self.programs:
                expect(program.process.poll() is None, "a worker has ended")
            time.sleep(0.002)
            first = [((each[:, 0] > moment) & (each[:, 1] > 0)).argmax() for each in self.moments]
            ends = [each[at] for each, at in zip(self.moments, first, strict=True)]
            found = [float(end) for begin, end in ends if begin > moment and end > 0]
        return max(found)

    def acknowledged(self) -> list[int]:
        return [int((each[:, 1] > 0).sum()) for each in self.moments]


def count(weights: Any, acknowledged: list[int]) -> Figures:
    """The numbers of pushes that are not in the weights, and that are in them more than once."""
    weights = np.rint(-weights).astype(np.int64)
    lost = doubled = 0
    applied = np.zeros(ways.SHARDS, np.int64)
    for worker, pushes in enumerate(acknowledged):
        often = ways.rows(weights, worker)
        lost += int((often[:, :pushes] == 0).any(0).sum())
        doubled += int((often > 1).any(0).sum())
        applied += often.sum(1)
    rest = ways.others(weights)
    expect((rest == applied[:, None]).all(), "some weights know of other pushes than others")
    return {"lost": lost, "doubled": doubled, "pushes": sum(acknowledged)}


def measure(size: Size, way: str) -> Figures:
    chance = random.Random(1)
    with tempfile.TemporaryDirectory(dir=folder_in_memory()) as folder:
        where = Path(folder)
        server = ways.WAYS[way][0](size.floats)
        (where / "address").write_text(server.address)
        pushes = Pushes(way, where, size.floats)
        again = []
        try:
            for turn in range(size.kills):
                pushes.begun_after(time.monotonic())
                time.sleep(chance.uniform(0.05, 0.1))
                victim = server.victim(turn)
                began = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                again.append(pushes.begun_after(began) - began)
            (where / "stop").touch()
            for program in pushes.programs:
                expect(program.read_line() == "done", "a worker has ended")
            result = count(server.weights(), pushes.acknowledged())
        finally:
            for program in pushes.programs:
                program.end()
            server.close()
    known = result["pushes"] - result["lost"]
    return {
        "again": float(np.median(again)),
        "worst": max(again),
        **result,
        "note": f"knows {known:,} of {result['pushes']:,} pushes",
    }


CASE = Case(
    "server_kill",
    "1,000,000 weights, 2 workers push; a process of the server is killed by SIGKILL",
    {
        "again": Figure("ms until pushes are acknowledged again", 1e3),
        "worst": Figure("ms, the longest", 1e3),
        "lost": Figure("acknowledged pushes lost", compared=False),
        "doubled": Figure("doubled", compared=False),
    },
    full={"floats": 1_000_000, "kills": 10},
    quick={"floats": 1_000_000, "kills": 4},
    targets=[
        Target("worst", OURS, BEST_PEER, at_least=3),
        Target("lost", OURS, at_most=0, says="no acknowledged push lost"),
        Target("doubled", OURS, at_most=0, says="none applied twice"),
    ],
)
CASE.entry(OURS, "ours")(partial(measure, way="Penstock"))
for name, way in PEERS.items():
    CASE.entry(name, "peer")(partial(measure, way=way))

CASES = [CASE]

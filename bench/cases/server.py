"""A parameter server: two worker processes that push a gradient and pull the weights, in rounds.

``rounds`` counts those of both workers. Servers written by hand use torch's updates on one thread.
"""

from __future__ import annotations

import json
import time
from functools import partial

import numpy as np
from harness import WORKERS, Case, Figure, Figures, Size, Target, expect
from peers import Program

from cases import server_ways

WARM = 3
OURS = "penstock.train.ParameterServer"
OURS_PROCESSES = "the same, processes=True"


def measure(size: Size, way: str) -> Figures:
    server = server_ways.WAYS[way][0](size.floats, size.optimizer)
    # No zero bytes on a command line.
    addresses = [text.replace("\0", "@@") for text in server.address]
    arguments = (way, size.floats, size.rounds, WARM, *addresses)
    workers = [Program("cases.server_ways", *arguments) for _ in range(WORKERS)]
    try:
        for worker in workers:
            expect(worker.hear() == "ready", "a worker has ended")
        began = time.perf_counter()
        for worker in workers:
            worker.go()
        took = [each for worker in workers for each in json.loads(worker.hear())]
        seconds = time.perf_counter() - began
        for worker in workers:
            worker.go()
            worker.process.wait()
        weights = server.weights()
        if weights is not None and size.optimizer == "sgd":
            rounds = WORKERS * (WARM + size.rounds)
            expected = -server_ways.RATE * server_ways.VALUE * rounds
            expect(np.allclose(weights, expected, rtol=1e-3), f"{weights[0]}, not {expected}")
        return {
            "rounds": len(took) / seconds,
            "p50": float(np.median(took)),
            "p99": float(np.quantile(took, 0.99)),
        }
    finally:
        for worker in workers:
            worker.end()


LOCAL = {OURS: "Penstock", OURS_PROCESSES: "PenstockProcesses", "unix sockets + NumPy": "Sockets"}
TCP = {OURS: "PenstockTcp", "TCP sockets + NumPy": "TcpSockets"}


def case(key: str, where: str, ways: dict[str, str], optimizer: str, least: int) -> Case:
    formula = {"sgd": "SGD", "adam": "Adam"}[optimizer]
    made = Case(
        key,
        f"10,000,000 weights, {WORKERS} workers {where}, push + pull, {formula}",
        {
            "rounds": Figure("rounds/s", more_is_better=True),
            "p50": Figure("ms a round", 1e3),
            "p99": Figure("ms a round, p99", 1e3),
        },
        full={"floats": 10_000_000, "rounds": 60, "optimizer": optimizer},
        quick={"floats": 10_000_000, "rounds": 20, "optimizer": optimizer},
        targets=[Target("rounds", OURS, at_least=least, says=f"{least} rounds a second")],
    )
    for name, way in {**ways, "limit: two copies": "Copies"}.items():
        role = "ours" if way.startswith("Penstock") else "limit" if way == "Copies" else "peer"
        made.entry(name, role)(partial(measure, way=way))
    return made


CASES = [
    case("server_sgd", "on one host", LOCAL, "sgd", least=190),
    case("server_adam", "on one host", LOCAL, "adam", least=125),
    case("server_tcp", "over loopback TCP", TCP, "sgd", least=70),
]

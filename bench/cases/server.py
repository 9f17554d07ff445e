"""A parameter server: two worker processes that push a gradient and pull the weights, in rounds.

``rounds`` counts those of both workers. Servers written by hand use torch's updates on one thread.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import numpy as np
from harness import BEST_PEER, WORKERS, Case, Figure, Figures, Size, Target, expect
from peers import Program

from cases import server_tensorflow
from cases.server_ways import RATE, VALUE, WARM
from cases.server_worker import WAYS

OURS = "penstock.train.ParameterServer"
OURS_PROCESSES = "the same, processes=True"


def check(size: Size, weights: Any, pulled: list[list[float]]) -> None:
    """Check that every gradient is in the weights once, and all are in the last pull."""
    one = -RATE * VALUE * (WARM + size.rounds)
    expected = WORKERS * one
    if weights is not None:
        expect(np.allclose(weights, expected, rtol=1e-3), f"{weights[0]}, not {expected}")
    lows, highs = zip(*pulled, strict=True)
    expect(np.isclose(min(lows), expected, rtol=1e-3), f"{min(lows)} was pulled, not {expected}")
    expect(max(highs) <= one * 0.999, f"{max(highs)} was pulled, without some that were pushed")


def measure(size: Size, way: str) -> Figures:
    server = WAYS[way][0](size.floats, size.optimizer)
    workers: list[Program] = []
    try:
        # No zero bytes on a command line.
        addresses = [text.replace("\0", "@@") for text in server.address]
        for me in range(WORKERS):
            arguments = (way, me, size.floats, size.rounds, WARM, *addresses)
            workers.append(Program("cases.server_worker", *arguments))
        for worker in workers:
            expect(worker.read_line() == "ready", "a worker has ended")
        began = time.perf_counter()
        for worker in workers:
            worker.go()
        took = [each for worker in workers for each in json.loads(worker.read_line())]
        seconds = time.perf_counter() - began
        for worker in workers:
            worker.go()
        pulled = [json.loads(worker.read_line()) for worker in workers]
        if size.optimizer == "sgd" and all(pulled):
            check(size, server.weights(), pulled)
        return {
            "rounds": len(took) / seconds,
            "p50": float(np.median(took)),
            "p99": float(np.quantile(took, 0.99)),
        }
    finally:
        for worker in workers:
            worker.end()
        server.close()


LOCAL = {OURS: "Penstock", OURS_PROCESSES: "PenstockProcesses", "unix sockets + NumPy": "Sockets"}
LIBRARIES = {
    "ZeroMQ, ROUTER and REQ": "ZeroMq",
    "torch.distributed.rpc": "TorchRpc",
    "gloo all_reduce, in step": "Gloo",
    "TensorFlow ParameterServerStrategy": "TensorFlow",
}
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
        targets=[Target("rounds", OURS, BEST_PEER, at_least=least)],
    )
    for name, way in {**ways, "limit: two copies": "Copies"}.items():
        role = "ours" if way.startswith("Penstock") else "limit" if way == "Copies" else "peer"
        whole = way == "TensorFlow"  # this process starts each step of its workers
        made.entry(name, role)(server_tensorflow.measure if whole else partial(measure, way=way))
    return made


CASES = [
    case("server_sgd", "on one host", {**LOCAL, **LIBRARIES}, "sgd", least=1.5),
    case("server_adam", "on one host", LOCAL, "adam", least=1.5),
    case("server_tcp", "over loopback TCP", TCP, "sgd", least=1),
]

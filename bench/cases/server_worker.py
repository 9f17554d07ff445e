"""A worker of a parameter server, as a process: it warms up, waits for the start, and runs."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from cases import server_peers, server_ways

# The server and the worker of each.
WAYS: dict[str, tuple[Any, Any]] = {
    "Penstock": (server_ways.Penstock, server_ways.PenstockWorker),
    "PenstockProcesses": (server_ways.PenstockProcesses, server_ways.PenstockWorker),
    "PenstockTcp": (server_ways.PenstockTcp, server_ways.PenstockWorker),
    "Sockets": (server_ways.Sockets, server_ways.SocketsWorker),
    "TcpSockets": (server_ways.TcpSockets, server_ways.SocketsWorker),
    "Copies": (server_ways.Copies, server_ways.CopiesWorker),
    **server_peers.WAYS,
}


def main() -> None:
    """Print `ready` after the warm-up; after a line of input, the times and the last pull."""
    way, me, floats, rounds, warm = sys.argv[1], *map(int, sys.argv[2:6])
    worker = WAYS[way][1](floats, [text.replace("@@", "\0") for text in sys.argv[6:]], me)
    for _ in range(warm):
        worker.round()
    print("ready", flush=True)
    sys.stdin.readline()
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        worker.round()
        took.append(time.perf_counter() - began)
    print(json.dumps(took), flush=True)
    sys.stdin.readline()
    pulled = worker.pulled
    held = [] if pulled is None else [float(pulled.min()), float(pulled.max())]
    print(json.dumps(held), flush=True)
    sys.stdin.readline()  # until all are done: some libraries end the peers of a process that ends
    os._exit(0)


if __name__ == "__main__":
    main()

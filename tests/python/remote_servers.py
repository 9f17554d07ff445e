"""Servers of remote workers for tests: processes on this machine, over loopback.

A process with a runtime folder of its own does not share memory with this one, so that its batches
come over the network.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil

import penstock

SECRET = b"only for the tests of penstock"


def add_one(element: Any) -> Any:
    return {"x": element["x"] + 1, "draw": penstock.rng().integers(1 << 40)}


class ServerProcess:
    """A process with a `penstock.remote.Server`. SIGTERM drains it; a context manager ends it.

    `neighbour`: Loaders of this process share memory with its workers, as on one host.
    """

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:0",
        folder: Path | None = None,
        neighbour: bool = False,
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        self._runtime = tempfile.TemporaryDirectory()  # mode 0700
        if not neighbour:
            environment["XDG_RUNTIME_DIR"] = self._runtime.name
        self._process = subprocess.Popen(
            [sys.executable, __file__, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address.startswith("tcp://"), "the server has not started"

    @property
    def pid(self) -> int:
        return self._process.pid

    def workers(self, count: int = 2) -> Any:
        return penstock.remote.workers(self.address, count, secret=SECRET)

    def worker_pids(self) -> list[int]:
        return [child.pid for child in psutil.Process(self._process.pid).children()]

    def drain(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self._process.wait(30)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._runtime.cleanup()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._runtime.cleanup()


def serve(address: str) -> None:
    server = penstock.remote.Server(address, secret=SECRET)
    draining = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: draining.set())
    ended = threading.Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    print(server.address, flush=True)
    while ended.is_alive():
        if draining.wait(0.05):
            server.drain(20)
            return
    server.close()


if __name__ == "__main__":
    serve(sys.argv[1])

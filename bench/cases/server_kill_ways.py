"""Parameter servers that lose a process, their worker processes, and counts of applied pushes.

A server has ``address``, ``victim(turn)``, the process to kill now, ``weights()`` and ``close()``.
A worker has ``gradient`` and ``push()``, which returns only when the push is acknowledged. The
learning rate is 1 and gradients are whole numbers, so no sum is rounded. A worker's push i adds 1
at place i of its own row, in the part of the weights of each shard. So the weights show how often
each push was applied.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import WORKERS
from peers import Program, ray_end, ray_head, ray_join

from cases.server_ways import receive_into

SHARDS = 2
# Places of each worker in each shard: more than the pushes of any run.
PLACES = 40_000


def rows(array: Any, worker: int) -> Any:
    """A view of the places of a worker, a line for each shard."""
    return array.reshape(SHARDS, -1)[:, worker * PLACES : (worker + 1) * PLACES]


def others(array: Any) -> Any:
    """A view of all weights outside the places: each push adds 1 there."""
    return array.reshape(SHARDS, -1)[:, WORKERS * PLACES :]


class Penstock:
    """Shards are processes; their supervisor forks an ended one again."""

    def __init__(self, floats: int) -> None:
        from penstock import train

        parameters = train.Parameters({"w": (floats,)})
        self.server = train.ParameterServer(
            parameters, train.SGD(1.0), shards=SHARDS, use_multiprocessing=True
        )
        self.address = "\n".join(self.server.addresses)

    def victim(self, turn: int) -> int:
        while self.server.restarts < turn:  # the previous one was replaced, and its pid is known
            time.sleep(0.001)
        return self.server.pids[turn % SHARDS]

    def weights(self) -> Any:
        self.server.pull()
        return self.server.parameters["w"]

    def close(self) -> None:
        self.server.close()


class PenstockWorker:
    def __init__(self, floats: int, address: str) -> None:
        from penstock import train

        self.client = train.connect(address.split("\n"))
        self.gradient = self.client.gradients["w"]

    def push(self) -> None:
        self.client.push(self.client.gradients)


class Sockets:
    """A process that serves a Unix socket with NumPy, and is restarted when it ends."""

    def __init__(self, floats: int) -> None:
        self.address, self.floats = f"penstock-bench-{time.time_ns()}", floats
        self.closed = False
        self.program = self._start()
        self.watching = threading.Thread(target=self._watch, daemon=True)
        self.watching.start()

    def _start(self) -> Program:
        return Program("cases.server_kill_ways", "serve", self.address, self.floats)

    def _watch(self) -> None:
        while True:
            self.program.process.wait()
            if self.closed:
                return
            self.program = self._start()

    def victim(self, turn: int) -> int:
        return self.program.process.pid

    def weights(self) -> Any:
        worker = SocketsWorker(self.floats, self.address)
        worker.talk(b"w", worker.gradient)
        return worker.gradient

    def close(self) -> None:
        self.closed = True
        while self.watching.is_alive():
            self.program.process.kill()
            self.watching.join(0.1)


class SocketsWorker:
    """Reconnects and sends again until it succeeds."""

    def __init__(self, floats: int, address: str) -> None:
        self.name = "\0" + address
        self.gradient: Any = np.zeros(floats, np.float32)
        self.acknowledged = np.zeros(1, np.uint8)
        self.socket: socket.socket | None = None

    def push(self) -> None:
        self.talk(b"p", self.acknowledged)

    def talk(self, what: bytes, answer: Any) -> None:
        while True:
            try:
                if self.socket is None:
                    self.socket = socket.socket(socket.AF_UNIX)
                    self.socket.connect(self.name)
                self.socket.sendall(what)
                self.socket.sendall(memoryview(self.gradient).cast("B"))
                if receive_into(self.socket, memoryview(answer).cast("B")):
                    return
            except OSError:
                time.sleep(0.001)
            if self.socket is not None:
                self.socket.close()
            self.socket = None


def serve(address: str, floats: int) -> None:
    weights: Any = np.zeros(floats, np.float32)
    lock = threading.Lock()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + address)
    listener.listen()

    def answer(connection: socket.socket) -> None:
        gradient: Any = np.empty_like(weights)
        while what := connection.recv(1):
            if not receive_into(connection, memoryview(gradient).cast("B")):
                return
            with lock:
                if what == b"p":
                    np.subtract(weights, gradient, out=weights)
            connection.sendall(b"k" if what == b"p" else memoryview(weights).cast("B"))

    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


class Ray:
    """An actor that Ray restarts, with the calls that it had not answered."""

    def __init__(self, floats: int) -> None:
        self.address = ray_head(1 << 30)
        import ray

        class Store:
            def __init__(self) -> None:
                self.weights = np.zeros(floats, np.float32)

            def pid(self) -> int:
                return os.getpid()

            def push(self, gradient: Any) -> None:
                self.weights -= gradient

            def all(self) -> Any:
                return self.weights

        again = {"max_restarts": -1, "max_task_retries": -1}
        self.ray = ray
        self.store = ray.remote(Store).options(name="store", num_cpus=1, **again).remote()

    def victim(self, turn: int) -> int:
        return int(self.ray.get(self.store.pid.remote()))

    def weights(self) -> Any:
        return self.ray.get(self.store.all.remote()).copy()

    def close(self) -> None:
        ray_end()


class RayWorker:
    def __init__(self, floats: int, address: str) -> None:
        ray_join(address)
        import ray

        self.ray, self.store = ray, ray.get_actor("store")
        self.gradient = np.zeros(floats, np.float32)

    def push(self) -> None:
        self.ray.get(self.store.push.remote(self.gradient))


WAYS: dict[str, tuple[Any, Any]] = {
    "Penstock": (Penstock, PenstockWorker),
    "Sockets": (Sockets, SocketsWorker),
    "Ray": (Ray, RayWorker),
}


def times(where: Path, worker: int, mode: Any) -> Any:
    """The times at which a worker's pushes began and were acknowledged (0: not yet)."""
    return np.memmap(where / f"worker-{worker}", np.float64, mode, shape=(PLACES, 2))


def work(way: str, where: Path, floats: int, me: int) -> None:
    """Push until there is a file `stop`."""
    worker = WAYS[way][1](floats, (where / "address").read_text())
    mine, moments = rows(worker.gradient, me), times(where, me, "r+")
    worker.gradient[:] = 0
    others(worker.gradient)[:] = 1
    for push in range(PLACES):
        if (where / "stop").exists():
            break
        mine[:, push - 1] = 0
        mine[:, push] = 1
        moments[push, 0] = time.monotonic()
        worker.push()
        moments[push, 1] = time.monotonic()
    print("done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

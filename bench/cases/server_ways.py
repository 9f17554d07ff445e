"""Ways to push gradients to one set of weights and pull them: penstock's, and hand-written ones.

A server has ``address``, arguments for its workers, ``weights()`` and ``close()``. A worker has
``round()``: push a gradient, pull the weights; and ``pulled``, the last pulled weights. All numbers
of a gradient are equal, so the weights show how many were applied.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import numpy as np

RATE, VALUE = 0.01, 1e-3
# Rounds of a worker that are not measured.
WARM = 3


def torch_update(weights: Any, optimizer: str) -> Any:
    """The update of the hand-written servers: torch's own, on one thread."""
    import torch

    torch.set_num_threads(1)
    tensor = torch.from_numpy(weights)
    if optimizer == "sgd":

        def apply(gradient: Any) -> None:
            tensor.add_(torch.from_numpy(gradient), alpha=-RATE)

        return apply
    parameter = torch.nn.Parameter(tensor)
    adam = torch.optim.Adam([parameter], lr=RATE, fused=True)

    def apply_adam(gradient: Any) -> None:
        parameter.grad = torch.from_numpy(gradient)
        adam.step()

    return apply_adam


class Penstock:
    """Shards as threads of the server's process."""

    listen: str | None = None
    processes = False

    def __init__(self, floats: int, optimizer: str) -> None:
        from penstock import train

        self.parameters = train.Parameters({"w": (floats,)})
        formula = train.SGD(RATE) if optimizer == "sgd" else train.Adam(RATE)
        options: dict[str, Any] = {"processes": True} if self.processes else {}
        self.server = train.ParameterServer(
            self.parameters, formula, shards=2, listen=self.listen, **options
        )
        self.address = self.server.addresses

    def weights(self) -> Any:
        self.server.pull()
        return self.parameters["w"]

    def close(self) -> None:
        self.server.close()


class PenstockProcesses(Penstock):
    processes = True


class PenstockTcp(Penstock):
    listen = "tcp://127.0.0.1:0"


class PenstockWorker:
    def __init__(self, floats: int, address: list[str], me: int) -> None:
        from penstock import train

        self.client = train.connect(address)
        self.client.gradients["w"][:] = VALUE
        self.pulled = self.client.parameters["w"]

    def round(self) -> None:
        self.client.push(self.client.gradients)
        self.client.pull()


class Sockets:
    """Plain sockets and NumPy: a thread for each worker, one lock."""

    family = socket.AF_UNIX

    def __init__(self, floats: int, optimizer: str) -> None:
        self.array: Any = np.zeros(floats, np.float32)
        self.apply = torch_update(self.array, optimizer)
        self.lock = threading.Lock()
        self.listener = socket.socket(self.family)
        local = self.family == socket.AF_UNIX
        self.listener.bind(f"\0penstock-bench-{time.time_ns()}" if local else ("127.0.0.1", 0))
        self.listener.listen()
        name = self.listener.getsockname()
        self.address = [name.decode() if local else str(name[1])]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        gradient: Any = np.empty_like(self.array)
        while receive_into(connection, memoryview(gradient).cast("B")):
            with self.lock:
                self.apply(gradient)
            connection.sendall(memoryview(self.array).cast("B"))

    def weights(self) -> Any:
        return self.array

    def close(self) -> None:
        self.listener.close()


class TcpSockets(Sockets):
    family = socket.AF_INET


class SocketsWorker:
    def __init__(self, floats: int, address: list[str], me: int) -> None:
        local = not address[0].isdigit()
        self.socket = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        self.socket.connect(address[0] if local else ("127.0.0.1", int(address[0])))
        if not local:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.gradient: Any = np.full(floats, VALUE, np.float32)
        self.pulled: Any = np.empty(floats, np.float32)

    def round(self) -> None:
        self.socket.sendall(memoryview(self.gradient).cast("B"))
        receive_into(self.socket, memoryview(self.pulled).cast("B"))


def receive_into(connection: socket.socket, view: memoryview) -> bool:
    got = 0
    while got < len(view):
        more = connection.recv_into(view[got:])
        if not more:
            return False
        got += more
    return True


class Copies:
    """No server: a round is two copies in memory."""

    def __init__(self, floats: int, optimizer: str) -> None:
        self.address: list[str] = []

    def weights(self) -> Any:
        return None

    def close(self) -> None:
        pass


class CopiesWorker:
    def __init__(self, floats: int, address: list[str], me: int) -> None:
        self.one, self.other = np.ones(floats, np.float32), np.ones(floats, np.float32)
        self.pulled = None

    def round(self) -> None:
        self.other[:] = self.one
        self.one[:] = self.other

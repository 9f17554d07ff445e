"""Parameter servers built with messaging libraries; the interface is that of server_ways.

This code never copies the content of a message: it is sent from its array, and used in the
library's memory.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from typing import Any

import numpy as np
from harness import WORKERS, folder_in_memory, keep_heap

from cases.server_ways import RATE, VALUE, torch_update

# Otherwise torch looks up this machine's network addresses.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}


class ZeroMq:
    """A ROUTER for workers with REQ, over a Unix socket."""

    def __init__(self, floats: int, optimizer: str) -> None:
        import zmq

        keep_heap()  # each message has memory of its own
        self.array: Any = np.zeros(floats, np.float32)
        self.apply = torch_update(self.array, optimizer)
        self.socket = zmq.Context(io_threads=WORKERS).socket(zmq.ROUTER)
        self.address = [f"ipc://@penstock-bench-{time.time_ns()}"]
        self.socket.bind(self.address[0])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            who, empty, gradient = self.socket.recv_multipart(copy=False)
            self.apply(np.frombuffer(gradient.buffer, np.float32))
            self.socket.send_multipart([who, empty, self.array], copy=False)

    def weights(self) -> Any:
        return self.array

    def close(self) -> None:
        pass


class ZeroMqWorker:
    def __init__(self, floats: int, address: list[str], me: int) -> None:
        import zmq

        keep_heap()
        self.gradient: Any = np.full(floats, VALUE, np.float32)
        self.socket = zmq.Context().socket(zmq.REQ)
        self.socket.connect(address[0])

    def round(self) -> None:
        self.socket.send(self.gradient, copy=False)
        self.pulled = np.frombuffer(self.socket.recv(copy=False).buffer, np.float32)


class _Meeting:
    """A folder in which torch's processes find each other."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=folder_in_memory())
        self.address = [f"file://{self.folder.name}/store"]

    def close(self) -> None:
        self.folder.cleanup()


# The object that a worker's call uses in the server's process.
_served: TorchRpc | None = None


def _update_and_fetch(gradient: Any) -> Any:
    assert _served is not None
    with _served.lock:
        _served.apply(gradient.numpy())
    return _served.tensor


def _join_rpc(name: str, rank: int, address: str) -> Any:
    os.environ.update(_LOOPBACK)
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=address)
    rpc.init_rpc(name, rank=rank, world_size=WORKERS + 1, rpc_backend_options=options)
    return rpc


class TorchRpc(_Meeting):
    """torch.distributed.rpc: one call applies a gradient and returns the weights."""

    def __init__(self, floats: int, optimizer: str) -> None:
        global _served
        import torch

        keep_heap()
        self.array: Any = np.zeros(floats, np.float32)
        self.apply = torch_update(self.array, optimizer)
        self.tensor, self.lock = torch.from_numpy(self.array), threading.Lock()
        _served = self
        super().__init__()
        # It returns when all workers have joined.
        arguments = ("server", 0, self.address[0])
        threading.Thread(target=_join_rpc, args=arguments, daemon=True).start()

    def weights(self) -> Any:
        return self.array


class TorchRpcWorker:
    def __init__(self, floats: int, address: list[str], me: int) -> None:
        import torch

        keep_heap()
        torch.set_num_threads(1)
        self.gradient = torch.full((floats,), VALUE)
        self.rpc = _join_rpc(f"worker{me}", 1 + me, address[0])

    def round(self) -> None:
        self.tensor = self.rpc.rpc_sync("server", _update_and_fetch, args=(self.gradient,))

    @property
    def pulled(self) -> Any:
        return self.tensor.numpy()


class Gloo(_Meeting):
    """No server: each worker has all weights, and gradients are added up in each round."""

    def __init__(self, floats: int, optimizer: str) -> None:
        super().__init__()

    def weights(self) -> Any:
        return None


class GlooWorker:
    def __init__(self, floats: int, address: list[str], me: int) -> None:
        os.environ.update(_LOOPBACK)
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        self.gradient, self.weights = torch.full((floats,), VALUE), torch.zeros(floats)
        self.pulled = self.weights.numpy()
        self.sum = distributed.all_reduce
        distributed.init_process_group("gloo", init_method=address[0], rank=me, world_size=WORKERS)

    def round(self) -> None:
        self.sum(self.gradient)
        self.weights.add_(self.gradient, alpha=-RATE)
        self.gradient.div_(WORKERS)  # what it was


WAYS: dict[str, tuple[Any, Any]] = {
    "ZeroMq": (ZeroMq, ZeroMqWorker),
    "TorchRpc": (TorchRpc, TorchRpcWorker),
    "Gloo": (Gloo, GlooWorker),
}

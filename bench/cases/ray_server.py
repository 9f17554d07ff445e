"""A parameter server over four nodes of Ray: one worker pushes 10 M floats and pulls the weights.

The nodes are on this machine, at addresses of the loopback device; the worker is on the first. Each
entry has a quarter of the weights on each node, or in each process. All push and pull by one call
of each quarter, all at the same time. A worker of penstock reads a quarter of its own node in
place, as Ray's does; the others come over TCP. The limit does the same without a server: plain
sockets of as many processes, a thread of the worker for each quarter, and one pass of the update
over each; its own quarter is updated and copied in memory.

`ray_server_tls` is the same encrypted, beside plain. AES-GCM takes time of both ends, which are on
one machine here. Its limit is a plain round during which two threads seal and open as many bytes in
memory: what encryption costs without a connection, a copy or a wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from harness import BEST_PEER, Case, Figure, Figures, Size, Target, expect
from peers import ray_nodes

ADDRESSES = tuple(f"127.0.0.{number}" for number in range(2, 6))
NODES = len(ADDRESSES)
RATE, VALUE, WARM = 0.01, 1e-3, 3
THREADS = 2  # that seal and open
STORE_BYTES = 300 << 20
OURS = "penstock.ray.parameter_server"
SOCKETS = "limit: plain sockets and one pass"
ENCRYPTED, TWICE = "the same, encrypt=True", "the same, replicas=2"
LIMIT = "limit: sealed and opened in memory alone"

FIGURES = {"rounds": Figure("rounds/s", more_is_better=True), "p50": Figure("ms a round", 1e3)}
CASE = Case(
    "ray_server",
    f"a parameter server over {NODES} nodes of Ray, 10,000,000 weights, push + pull, SGD",
    FIGURES,
    full={"floats": 10_000_000, "rounds": 60},
    quick={"floats": 10_000_000, "rounds": 20},
    targets=[Target("rounds", OURS, BEST_PEER, at_least=2.0, says="2 times the best peer")],
)
TLS_CASE = Case(
    "ray_server_tls",
    f"the same over {NODES} nodes, encrypted",
    FIGURES,
    full=CASE.full,
    quick=CASE.quick,
    targets=[Target("rounds", ENCRYPTED, OURS, at_least=0.5, says="half of plain")],
)


def measured(size: Size, one_round: Callable[[], None]) -> Figures:
    for _ in range(WARM):
        one_round()
    took = []
    for _ in range(size.rounds):
        began = time.perf_counter()
        one_round()
        took.append(time.perf_counter() - began)
    return {"rounds": size.rounds / sum(took), "p50": float(np.median(took))}


def check(size: Size, weights: Any) -> None:
    """Check that every gradient is in the weights once."""
    expected = -RATE * VALUE * (WARM + size.rounds)
    for each in (weights.min(), weights.max()):
        expect(np.isclose(each, expected, rtol=1e-3), f"{each}, not {expected}")


# ---- penstock ------------------------------------------------------------------------------------


def ours(size: Size, replicas: int = 1, encrypt: bool = False, seals: bool = False) -> Figures:
    import penstock
    from penstock import train

    # With one replica a node has room for one shard; with two, for any choice of their nodes.
    cpus = 1 if replicas == 1 else NODES
    with ray_nodes(ADDRESSES, cpus, STORE_BYTES), tempfile.TemporaryDirectory() as folder:
        server = penstock.ray.parameter_server(
            train.Parameters({"w": (size.floats,)}),
            train.SGD(RATE),
            shards=NODES,
            replicas=replicas,
            snapshots=folder if replicas > 1 else None,
            snapshot_seconds=1000,
            encrypt=encrypt,
        )
        until_replicated(server, replicas)
        sealing = contextlib.nullcontext(lambda: None) if not seals else sealed(size)
        with server.connect() as client, sealing as wait_sealed:
            client.gradients["w"][:] = VALUE

            def one_round() -> None:
                client.push_pull(client.gradients)
                wait_sealed()

            found = measured(size, one_round)
            check(size, client.parameters["w"])
        expect(all(each["replicas"] == replicas for each in server.stats()), "a replica was lost")
        server.close(save=False)
    return found


def until_replicated(server: Any, replicas: int) -> None:
    end = time.monotonic() + 60
    while any(each["replicas"] < replicas for each in server.stats()):
        expect(time.monotonic() < end, "no followers")
        time.sleep(0.05)


@contextlib.contextmanager
def sealed(size: Size) -> Iterator[Callable[[], None]]:
    """Yield a function that returns when a round's bytes were sealed and opened by two threads.

    The next round's begin at its return.
    """
    each = 2 * size.floats * 4 * (NODES - 1) // NODES // THREADS  # there and back, but for one node
    with ThreadPoolExecutor(THREADS) as threads:
        ciphers = [Aes128Gcm() for _ in range(THREADS)]
        running: list[Any] = []

        def wait() -> None:
            for future in running:
                future.result()
            running[:] = [threads.submit(cipher.seal_and_open, each) for cipher in ciphers]

        wait()
        yield wait


class Aes128Gcm:
    """OpenSSL's cipher of TLS, on a piece of memory that stays in a core's cache."""

    PIECE = 1 << 17

    def __init__(self) -> None:
        self.crypto = ctypes.CDLL(ctypes.util.find_library("crypto"))
        for name in ("EVP_CIPHER_CTX_new", "EVP_aes_128_gcm"):
            getattr(self.crypto, name).restype = ctypes.c_void_p
        self.memory = (ctypes.c_char * self.PIECE)()
        self.contexts = []
        for opens in (False, True):
            context = ctypes.c_void_p(self.crypto.EVP_CIPHER_CTX_new())
            begin = self.crypto.EVP_DecryptInit_ex if opens else self.crypto.EVP_EncryptInit_ex
            cipher = ctypes.c_void_p(self.crypto.EVP_aes_128_gcm())
            expect(begin(context, cipher, None, b"k" * 16, b"n" * 12) == 1, "no AES-128-GCM")
            self.contexts.append(context)

    def seal_and_open(self, size: int) -> None:
        seals, opens = self.contexts
        wrote = ctypes.byref(ctypes.c_int())
        for _ in range(size // self.PIECE):
            self.crypto.EVP_EncryptUpdate(seals, self.memory, wrote, self.memory, self.PIECE)
            self.crypto.EVP_DecryptUpdate(opens, self.memory, wrote, self.memory, self.PIECE)


CASE.entry(OURS, "ours")(ours)
CASE.entry(TWICE, "ours", "acknowledged on two nodes")(partial(ours, replicas=2))
TLS_CASE.entry(ENCRYPTED, "ours", "TLS 1.3, AES-128-GCM")(partial(ours, encrypt=True))
TLS_CASE.entry(OURS, "ours")(ours)
TLS_CASE.entry(LIMIT, "limit", "a plain round meanwhile")(partial(ours, seals=True))


# ---- the limit of the same run -------------------------------------------------------------------


def _serve_plain(address: str, port: Any, floats: int) -> None:
    import torch

    torch.set_num_threads(1)
    weights, gradient = torch.zeros(floats), torch.zeros(floats)
    with socket.create_server((address, 0)) as listening:
        port.send(listening.getsockname())
        line, _ = listening.accept()
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with line:
        while _received(line, gradient):
            weights.add_(gradient, alpha=-RATE)
            line.sendall(memoryview(weights.numpy()).cast("B"))


def _received(line: socket.socket, into: Any) -> bool:
    left = memoryview(into.numpy()).cast("B")
    while left:
        count = line.recv_into(left, 0, socket.MSG_WAITALL)
        if count == 0:
            return False
        left = left[count:]
    return True


@CASE.entry(SOCKETS, "limit", "a thread of the worker for each quarter")
def plain_sockets(size: Size) -> Figures:
    import torch

    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    quarter = size.floats // NODES
    gradients = torch.full((size.floats,), VALUE).split(quarter)
    pulled = torch.zeros(size.floats).split(quarter)
    own = torch.zeros(quarter)
    servers, lines = [], []
    for address in ADDRESSES[1:]:
        here, there = context.Pipe()
        servers.append(context.Process(target=_serve_plain, args=(address, there, quarter)))
        servers[-1].start()
        lines.append(socket.create_connection(here.recv()))
        lines[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(number: int) -> None:
        if number == 0:
            own.add_(gradients[0], alpha=-RATE)
            pulled[0].copy_(own)
            return
        line = lines[number - 1]
        line.sendall(memoryview(gradients[number].numpy()).cast("B"))
        expect(_received(line, pulled[number]), "a server ended")

    with ThreadPoolExecutor(NODES) as threads:

        def one_round() -> None:
            for _ in threads.map(exchange, range(NODES)):
                pass

        found = measured(size, one_round)
    check(size, torch.cat(pulled).numpy())
    for line in lines:
        line.close()
    for server in servers:
        server.join()
    return found


# ---- peers ---------------------------------------------------------------------------------------


@CASE.entry("Ray actors that hold tensors", "peer", "update and weights in one call")
def ray_actors(size: Size) -> Figures:
    with ray_nodes(ADDRESSES, 1, STORE_BYTES):
        import ray

        # Nested, so that Ray sends them by value.
        class Holder:
            def __init__(self, floats: int) -> None:
                import torch

                torch.set_num_threads(1)
                self.weights = torch.zeros(floats)

            def update_and_fetch(self, gradient: Any, rate: float) -> Any:
                import torch

                self.weights.add_(torch.from_numpy(gradient), alpha=-rate)
                return self.weights.numpy()

        kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(Holder)
        holders = [kind.remote(size.floats // NODES) for _ in range(NODES)]
        gradients = np.split(np.full(size.floats, VALUE, np.float32), NODES)
        pulled: list[Any] = []

        def one_round() -> None:
            asked = [
                holder.update_and_fetch.remote(gradient, RATE)
                for holder, gradient in zip(holders, gradients, strict=True)
            ]
            pulled[:] = ray.get(asked)

        found = measured(size, one_round)
        check(size, np.concatenate(pulled))
    return found


_weights: Any = None  # of a process of torch RPC


def _update_and_fetch(gradient: Any) -> Any:
    _weights.add_(gradient, alpha=-RATE)
    return _weights


@contextlib.contextmanager
def _rpc(rank: int, meeting: str) -> Iterator[Any]:
    # Otherwise torch looks up this machine's network addresses.
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(
        init_method=meeting,
        _transports=["uv"],  # TCP, as between hosts
        _channels=["basic"],
    )
    rpc.init_rpc(str(rank), rank=rank, world_size=NODES + 1, rpc_backend_options=options)
    yield rpc
    rpc.shutdown()


def _serve_rpc(rank: int, meeting: str, floats: int) -> None:
    global _weights
    import torch

    torch.set_num_threads(1)
    _weights = torch.zeros(floats)
    with _rpc(rank, meeting):
        pass


@CASE.entry("torch.distributed.rpc", "peer", "TensorPipe over TCP, update and weights in one call")
def torch_rpc(size: Size) -> Figures:
    import torch

    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/store"
        servers = [
            context.Process(target=_serve_rpc, args=(rank, meeting, size.floats // NODES))
            for rank in range(1, NODES + 1)
        ]
        for server in servers:
            server.start()
        gradients = torch.full((size.floats,), VALUE).split(size.floats // NODES)
        pulled: list[Any] = []
        with _rpc(0, meeting) as rpc:

            def one_round() -> None:
                asked = [
                    rpc.rpc_async(str(1 + i), _update_and_fetch, args=(gradient,))
                    for i, gradient in enumerate(gradients)
                ]
                pulled[:] = [each.wait() for each in asked]

            found = measured(size, one_round)
            check(size, torch.cat(pulled).numpy())
        for server in servers:
            server.join()
    return found


CASES = (CASE, TLS_CASE)

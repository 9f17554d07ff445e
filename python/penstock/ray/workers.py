"""Workers on the nodes of a Ray cluster, for a Loader in any process of the cluster.

>>> import penstock
>>> feed = penstock.Loader(dataset, batch_size=64, workers=penstock.ray.workers(32))
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _engine
from ..base.arguments import integer, real
from ..errors import InvalidArgument
from ..remote.places import IN_FLIGHT, Host, RemoteWorkers, shares
from ..remote.server import Server

_OPERATION = "ray.workers"
_FIND_S = 10.0


def workers(count: int, *, num_cpus: float = 1, per_actor: int | None = None) -> RemoteWorkers:
    """Name workers that Ray places on the nodes of its cluster.

    Each Loader has actors of its own. An actor runs several workers, which are processes that share
    one copy of the data set. Actors are spread over the nodes and restarted when they or their node
    die. Those for which no node has room start when one joins. Batches do not pass through Ray's
    object store: workers send them to the Loader over TCP.

    Parameters
    ----------
    count : int
        How many workers.
    num_cpus : float
        The processors that Ray reserves for each.
    per_actor : int, optional
        Workers of an actor: they are on one node, which must have room for all of them. None:
        `count` divided by the number of nodes.

    Returns
    -------
    RemoteWorkers
        For ``workers=`` of a `penstock.Loader`, and of other feeds that take its options.
        ``workers=[2, remote]``, or ``2 + remote``, adds two processes of this host.

    Raises
    ------
    InvalidArgument
        An argument is invalid. When the Loader starts: no node has processors for one worker.
    """
    most = _engine.MAX_WORKERS // IN_FLIGHT
    count = integer("count", count, 1, most, operation=_OPERATION)
    num_cpus = real("num_cpus", num_cpus, _OPERATION)
    if not 0 <= num_cpus < 1e6:
        raise InvalidArgument(f"num_cpus is {num_cpus}; give 0 or more", _OPERATION)
    if per_actor is not None:
        per_actor = integer("per_actor", per_actor, 1, operation=_OPERATION)
    return _RayWorkers(count, num_cpus, per_actor)


class _Serving:
    """The actor: a server of remote workers with one data set."""

    def __init__(self, secret: bytes) -> None:
        import ray

        self._server = Server(f"tcp://{ray.util.get_node_ip_address()}:0", secret=secret)

    def address(self, key: str, payload: Any, files: Any) -> str:
        """Keep the data set, and return the server's address."""
        self._server.store(key, memoryview(payload), memoryview(files))
        return self._server.address


@dataclass(kw_only=True)
class _Actor(Host):
    title: str
    workers: int
    key: str
    actor: Any
    dataset: list[Any]  # references, which must live as long as the actor may be restarted
    secret: bytes

    def find(self) -> tuple[str, bytes]:
        import ray

        found = self.actor.address.remote(self.key, *self.dataset)
        return ray.get(found, timeout=_FIND_S), self.secret


class _RayWorkers(RemoteWorkers):
    def __init__(self, count: int, num_cpus: float, per_actor: int | None) -> None:
        self.count = count
        self._num_cpus = num_cpus
        self._per_actor = per_actor

    def open(self, payload: bytes, files: bytes) -> list[Host]:
        import ray

        if not ray.is_initialized():
            ray.init()
        each = self._per_actor or self._divided(ray.nodes())
        # In the object store once per node, however many actors it has.
        dataset = [ray.put(np.frombuffer(part, np.uint8)) for part in (payload, files)]
        key, secret = secrets.token_hex(16), secrets.token_bytes(32)
        serving = ray.remote(_Serving)
        hosts: list[Host] = []
        for i, share in enumerate(shares(self.count, -(-self.count // each))):
            actor = serving.options(
                num_cpus=share * self._num_cpus, scheduling_strategy="SPREAD", max_restarts=-1
            ).remote(secret)
            hosts.append(
                _Actor(
                    title=f"Ray's actor {i}",
                    workers=share,
                    key=key,
                    actor=actor,
                    dataset=dataset,
                    secret=secret,
                )
            )
        return hosts

    def _divided(self, nodes: list[dict[str, Any]]) -> int:
        processors = [node["Resources"].get("CPU", 0) for node in nodes if node["Alive"]]
        share = -(-self.count // max(len(processors), 1))
        if not self._num_cpus:
            return share
        room = int(max(processors, default=0) // self._num_cpus)
        if room == 0:
            raise InvalidArgument(
                f"no node of Ray's cluster has {self._num_cpus:g} processors for a worker",
                _OPERATION,
            )
        return min(share, room)

    def close(self, hosts: list[Host]) -> None:
        import ray

        if ray.is_initialized():
            for host in hosts:
                assert isinstance(host, _Actor)
                ray.kill(host.actor)

    def __repr__(self) -> str:
        return f"penstock.ray.workers({self.count}, num_cpus={self._num_cpus:g})"

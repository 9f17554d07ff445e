"""Workers on the nodes of a Ray cluster, for a Loader in any process of the cluster.

>>> import penstock
>>> feed = penstock.Loader(dataset, batch_size=64, workers=penstock.ray.workers(32))
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _engine
from ..base.arguments import integer, real
from ..errors import InvalidArgument
from ..remote.locality import Locality
from ..remote.places import IN_FLIGHT, Host, RemoteWorkers, shares
from ..remote.server import Server

_OPERATION = "ray.workers"
_FIND_S = 10.0
_DRAIN_LOOK_S = 1.0


def workers(
    count: int, *, num_cpus: float = 1, per_actor: int | None = None, locality: Any = None
) -> RemoteWorkers:
    """Name workers that Ray places on the nodes of its cluster.

    Each Loader has actors of its own. An actor runs several workers, which are processes that share
    one copy of the data set. Actors are spread over the nodes and restarted when they or their node
    die. An actor whose node is drained finishes its batches, then starts on another node. Actors
    for which no node has free processors start when one joins. Batches do not pass through Ray's
    object store: workers send them to the Loader over TCP.

    Parameters
    ----------
    count : int
        How many workers.
    num_cpus : float
        The processors that Ray reserves for each.
    per_actor : int, optional
        Workers of an actor: they are on one node, which must have processors for all of them. None:
        `count` divided by the number of nodes.
    locality : callable, list or dict, optional
        For a data set with ``__getitem__`` whose files only some nodes have: ``locality(index)`` or
        ``locality[index]`` is the path, or an iterable of paths, that the sample is read from. A
        batch is made on a node that has the files of all its samples. Called in the Loader's
        process, in any of its threads. Ray is asked to place an actor on each node.

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
    made = _RayWorkers(count, num_cpus, per_actor)
    if locality is not None:
        made.locality = Locality(locality, _OPERATION)
    return made


class _Serving:
    """The actor: a server of remote workers with one data set.

    When Ray drains the actor's node, the server finishes its tickets and accepts no others. Then
    the actor ends, and Ray starts it again on another node.
    """

    def __init__(self, secret: bytes) -> None:
        import ray

        self._server = Server(f"tcp://{ray.util.get_node_ip_address()}:0", secret=secret)
        threading.Thread(target=self._watch_node, name="penstock drain", daemon=True).start()

    def _watch_node(self) -> None:
        import ray

        context = ray.get_runtime_context()
        node = context.get_node_id()
        while not self._server.wait(_DRAIN_LOOK_S):
            if node in _draining_nodes():
                self._server.drain()
                ray.kill(context.current_actor, no_restart=False)

    def address(self, key: str, payload: Any, files: Any) -> str:
        """Keep the data set, and return the server's address."""
        self._server.store(key, memoryview(payload), memoryview(files))
        return self._server.address


def _draining_nodes() -> dict[str, int]:
    """The nodes that Ray drains. Ray reports them by a function that is not public."""
    from ray._private.state import state

    try:
        return dict(state.get_draining_nodes())
    except Exception:  # Ray's head is away for a moment, or this version has no such function
        return {}


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
        nodes = [node for node in ray.nodes() if node["Alive"]]
        each = self._per_actor or self._divided(nodes)
        # In the object store once per node, however many actors it has.
        dataset = [ray.put(np.frombuffer(part, np.uint8)) for part in (payload, files)]
        key, secret = secrets.token_hex(16), secrets.token_bytes(32)
        serving = ray.remote(_Serving)
        hosts: list[Host] = []
        for i, share in enumerate(shares(self.count, -(-self.count // each))):
            actor = serving.options(
                num_cpus=share * self._num_cpus,
                scheduling_strategy=self._strategy(i, nodes),
                max_restarts=-1,
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

    def _strategy(self, actor: int, nodes: list[dict[str, Any]]) -> Any:
        """Where Ray starts an actor: with a locality, one on each node with resources."""
        if self.locality is None:
            return "SPREAD"
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = nodes[actor % len(nodes)]
        return NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)

    def _divided(self, nodes: list[dict[str, Any]]) -> int:
        processors = [node["Resources"].get("CPU", 0) for node in nodes]
        share = -(-self.count // max(len(processors), 1))
        if not self._num_cpus:
            return share
        free = int(max(processors, default=0) // self._num_cpus)
        if free == 0:
            raise InvalidArgument(
                f"no node of Ray's cluster has {self._num_cpus:g} processors for a worker",
                _OPERATION,
            )
        return min(share, free)

    def close(self, hosts: list[Host]) -> None:
        import ray

        if ray.is_initialized():
            for host in hosts:
                assert isinstance(host, _Actor)
                ray.kill(host.actor)

    def __repr__(self) -> str:
        return f"penstock.ray.workers({self.count}, num_cpus={self._num_cpus:g})"

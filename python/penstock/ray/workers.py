"""Workers on the nodes of a Ray cluster, for a Loader in any process of the cluster.

>>> import penstock
>>> feed = penstock.Loader(dataset, batch_size=64, workers=penstock.ray.workers(32))

The ranks of a node share workers:

>>> feed = penstock.ray.feed(dataset, batch_size=256, workers=penstock.ray.node_workers(16))
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _engine
from ..base.arguments import integer, real
from ..errors import Closed, InvalidArgument
from ..remote.locality import Locality
from ..remote.places import IN_FLIGHT, Host, RemoteWorkers, shares
from ..remote.server import Server
from .names import NAMESPACE

_OPERATION = "ray.workers"
_NODE_OPERATION = "ray.node_workers"
# Without a Loader for so long, the actor of a node ends itself.
_IDLE_S = 30.0
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
    num_cpus = _processors(num_cpus, _OPERATION)
    if per_actor is not None:
        per_actor = integer("per_actor", per_actor, 1, operation=_OPERATION)
    made = _RayWorkers(count, num_cpus, per_actor)
    if locality is not None:
        made.locality = Locality(locality, _OPERATION)
    return made


def node_workers(count: int | None = None, *, num_cpus: float = 0) -> RemoteWorkers:
    """Name workers of this node that all its Loaders with the same data set share.

    A node has `count` worker processes for a data set, however many ranks it has, and they have one
    copy of its pickled bytes. Batches come through shared memory. An actor of the node runs the
    processes. The first Loader starts it, Ray restarts it when it dies, and it ends itself after
    half a minute without a Loader. Works in every process of a Ray cluster.

    Loaders share workers if they are of one Ray job and their data sets, ``collate`` and
    ``worker_init`` pickle to equal bytes. Their other options and the rank of ``Dataset.shard`` may
    differ. A data set must not have the rank in it. The log ``penstock`` has a warning where two
    data sets of one class have equal sizes and different bytes.

    Parameters
    ----------
    count : int, optional
        How many processes on the node; the first Loader's number holds. None: the cores of the node
        that this process may use.
    num_cpus : float
        The processors that Ray reserves for each, beside those of the ranks.

    Returns
    -------
    RemoteWorkers
        For ``workers=`` of a `penstock.Loader`, of `penstock.ray.feed`, and of other feeds.

    Raises
    ------
    InvalidArgument
        An argument is invalid. When a Loader is made: the source is a stream, or ``timeout=`` is
        given, because a batch may wait for those of other ranks. When an epoch begins: the data set
        was changed after the workers started.
    """
    if count is None:
        count = min(_engine.usable_cores(), _engine.MAX_WORKERS)
    count = integer("count", count, 1, _engine.MAX_WORKERS, operation=_NODE_OPERATION)
    return _NodeWorkers(count, _processors(num_cpus, _NODE_OPERATION))


def _processors(num_cpus: Any, operation: str) -> float:
    num_cpus = real("num_cpus", num_cpus, operation)
    if not 0 <= num_cpus < 1e6:
        raise InvalidArgument(f"num_cpus is {num_cpus}; give 0 or more", operation)
    return float(num_cpus)


class _Serving:
    """An actor: a server of remote workers, with a random secret."""

    def __init__(self) -> None:
        import ray

        self._secret = secrets.token_bytes(32)
        address = f"tcp://{ray.util.get_node_ip_address()}:0"
        self._server = Server(address, secret=self._secret)
        threading.Thread(target=self._watch, name="penstock watch node", daemon=True).start()

    def _watch(self) -> None:
        raise NotImplementedError

    def address(self) -> tuple[str, bytes]:
        """The server's address and secret."""
        return self._server.address, self._secret


class _ServingLoader(_Serving):
    """The actor of one Loader: a server with its data set.

    When Ray drains the actor's node, the server finishes its tickets and accepts no others. Then
    the actor ends, and Ray starts it again on another node.
    """

    def _watch(self) -> None:
        import ray

        context = ray.get_runtime_context()
        node = context.get_node_id()
        while not self._server.wait(_DRAIN_LOOK_S):
            if node in _draining_nodes():
                self._server.drain()
                ray.kill(context.current_actor, no_restart=False)

    def store(self, key: str, payload: Any, files: Any) -> tuple[str, bytes]:
        """Keep the data set, and return the server's address and secret."""
        self._server.store(key, memoryview(payload), memoryview(files))
        return self.address()


class _ServingNode(_Serving):
    """The actor of a node: a server whose Loaders share workers. It ends itself when it is idle.

    States: in use (a Loader is connected) <-> idle -> ended (idle for `idle_s` seconds). A Loader
    that finds the actor just before its end asks for another one.
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        super().__init__()

    def _watch(self) -> None:
        import ray

        actor = ray.get_runtime_context().current_actor
        while not self._server.close_if_idle(self._idle_s):
            self._server.wait(min(_DRAIN_LOOK_S, self._idle_s))
        ray.kill(actor, no_restart=True)


def _draining_nodes() -> dict[str, int]:
    """The nodes that Ray drains. Ray reports them by a function that is not public."""
    from ray._private.state import state

    try:
        return dict(state.get_draining_nodes())
    except Exception:  # Ray's head is away for a moment, or this version has no such function
        return {}


def _check_running(node: str) -> None:
    """Raise `Closed` if this process has left the Ray cluster in which `node` was its node.

    Otherwise Ray's functions would start another cluster.
    """
    import ray

    if not ray.is_initialized() or ray.get_runtime_context().get_node_id() != node:
        raise Closed(
            "Ray was shut down in this process, and with it the Loader's workers: close a Loader "
            "before ray.shutdown(), and make another one after ray.init()",
            "Loader",
        )


@dataclass(kw_only=True)
class _Actor(Host):
    title: str
    workers: int
    node: str  # of this process
    key: str
    actor: Any
    dataset: list[Any]  # references, which must live as long as the actor may be restarted

    def find(self) -> tuple[str, bytes]:
        import ray

        _check_running(self.node)
        found: tuple[str, bytes] = ray.get(
            self.actor.store.remote(self.key, *self.dataset), timeout=_FIND_S
        )
        return found


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
        key = secrets.token_hex(16)
        here = ray.get_runtime_context().get_node_id()
        serving = ray.remote(_ServingLoader)
        hosts: list[Host] = []
        for i, share in enumerate(shares(self.count, -(-self.count // each))):
            actor = serving.options(
                num_cpus=share * self._num_cpus,
                scheduling_strategy=self._strategy(i, nodes),
                max_restarts=-1,
            ).remote()
            hosts.append(
                _Actor(
                    title=f"Ray's actor {i}",
                    workers=share,
                    node=here,
                    key=key,
                    actor=actor,
                    dataset=dataset,
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


@dataclass(kw_only=True)
class _Node(Host):
    title: str
    workers: int
    name: str
    node: str
    num_cpus: float

    def find(self) -> tuple[str, bytes]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        _check_running(self.node)
        # Each time, because an idle actor ends itself.
        actor = (
            ray.remote(_ServingNode)
            .options(
                name=self.name,
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",  # the rank that starts it may be the first to end
                num_cpus=self.num_cpus,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self.node, soft=False),
                max_restarts=-1,
            )
            .remote(_IDLE_S)
        )
        found: tuple[str, bytes] = ray.get(actor.address.remote(), timeout=_FIND_S)
        return found


class _NodeWorkers(RemoteWorkers):
    shared = True

    def __init__(self, count: int, num_cpus: float) -> None:
        self.count = count
        self._num_cpus = num_cpus

    def open(self, payload: bytes, files: bytes) -> list[Host]:
        import ray

        if not ray.is_initialized():
            ray.init()
        context = ray.get_runtime_context()
        node = context.get_node_id()
        return [
            _Node(
                title=f"Ray's node {ray.util.get_node_ip_address()}",
                workers=self.count,
                # Of one job, whose modules its worker processes can import.
                name=f"workers {context.get_job_id()} {node}",
                node=node,
                num_cpus=self.count * self._num_cpus,
            )
        ]

    def __repr__(self) -> str:
        return f"penstock.ray.node_workers({self.count}, num_cpus={self._num_cpus:g})"

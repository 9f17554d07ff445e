"""The actors of a relay: one that sends published weights, one on each node that publishes them."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .. import _engine
from ..errors import Error

NAMESPACE = "penstock"
# Seconds: between two looks at the cluster's nodes; for one wait; between two attempts to connect.
_NODES, _WAIT, _PAUSE = 1.0, 0.5, 0.5
_START, _ATTACH = 60.0, 10.0  # seconds: for a copy's actor; for the learner's first version


class RelayCopy:
    """Publishes on its node what a `RelaySource` sends."""

    def __init__(self, name: str, secret: str, encrypt: bool | None) -> None:
        host = ray.util.get_node_ip_address()
        self._receiver = _engine.RelayReceiver(name, f"tcp://{host}:0", secret, encrypt)
        threading.Thread(target=self._run, daemon=True).start()

    def address(self) -> str:
        return self._receiver.address

    def _run(self) -> None:  # in a thread
        while True:
            try:
                self._receiver.receive(_WAIT)
            except Error:  # the sender is told, or connects again
                time.sleep(0.01)


class RelaySource:
    """Sends each version of a learner of its node to a `RelayCopy` on every other node."""

    def __init__(self, name: str, to: str, secret: str, encrypt: bool | None) -> None:
        self._name, self._to, self._line = name, to, (secret, encrypt)
        self._node = ray.get_runtime_context().get_node_id()
        self._sending: dict[str, _Sending] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def stats(self) -> dict[str, dict[str, Any]]:
        return {node: each.stats() for node, each in dict(self._sending).items()}

    def _run(self) -> None:  # in a thread
        while True:
            alive = {each["NodeID"] for each in ray.nodes() if each["Alive"]} - {self._node}
            for node in alive - set(self._sending):
                self._sending[node] = _Sending(node, self._name, self._to, self._line)
            for node in set(self._sending) - alive:
                self._sending.pop(node).stop()
            time.sleep(_NODES)


class _Sending:
    """A thread that keeps one node's copy up to date."""

    def __init__(self, node: str, name: str, to: str, line: tuple[str, bool | None]) -> None:
        self._node, self._name, self._to, self._line = node, name, to, line
        self._stop = threading.Event()
        self._counts: dict[str, Any] = {
            "version": None,
            "behind": None,
            "sent": 0,
            "skipped": 0,
            "bytes": 0,
            "seconds": None,
            "failure": "it has not begun",
        }
        self._sender: _engine.RelaySender | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def stats(self) -> dict[str, Any]:
        counts, sender = dict(self._counts), self._sender
        if sender is not None and counts["version"] is not None:
            counts["behind"] = max(sender.newest - counts["version"], 0)
        return counts

    def _run(self) -> None:  # in a thread
        actor = None
        while not self._stop.is_set():
            try:
                if actor is None:
                    actor = self._make()
                address = ray.get(actor.address.remote(), timeout=_START)
                self._sender = _engine.RelaySender(self._name, _ATTACH, address, *self._line)
                while not self._stop.is_set():
                    self._send(self._sender)
            except ray.exceptions.RayError as error:  # the actor, or its node
                self._counts["failure"] = str(error)
                actor = None
            except Error as error:  # the connection, the learner, or the name on that node
                self._counts["failure"] = str(error)
            self._stop.wait(_PAUSE)

    def _make(self) -> Any:
        here = NodeAffinitySchedulingStrategy(self._node, soft=False)
        return (
            ray.remote(RelayCopy)
            .options(num_cpus=0, scheduling_strategy=here)
            .remote(self._to, *self._line)
        )

    def _send(self, sender: _engine.RelaySender) -> None:
        sent = sender.send(_WAIT)
        self._counts["failure"] = ""
        if sent is None:
            return
        version, skipped, size, seconds = sent
        self._counts.update(
            version=version,
            sent=self._counts["sent"] + 1,
            skipped=self._counts["skipped"] + skipped,
            bytes=self._counts["bytes"] + size,
            seconds=seconds,
        )

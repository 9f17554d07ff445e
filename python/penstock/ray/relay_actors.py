"""The actors of a relay: one on the learner's node, and one on each other node."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .. import _engine
from ..errors import Error
from .metrics import SECONDS, Gauges

# Seconds: between two looks at the cluster's nodes; for one wait; between two attempts to connect.
_NODES, _WAIT, _PAUSE = 1.0, 0.5, 0.5
_START, _ATTACH = 60.0, 10.0  # seconds: for a copy's actor; for the learner's first version


class RelayCopy:
    """Publishes on its node what a `RelaySource` sends."""

    def __init__(self, name: str, secret: str, encrypt: bool | None) -> None:
        self._receiver = _engine.RelayReceiver(name, _any_port(), secret, encrypt)
        threading.Thread(target=self._run, daemon=True).start()

    def address(self) -> str:
        return self._receiver.address

    def _run(self) -> None:  # in a thread
        while True:
            try:
                self._receiver.receive(_WAIT)
            except Error:  # the sender gets the error, or connects again
                time.sleep(0.01)


class ChannelCopy:
    """Has a channel on its node, and gives its items to a `RelaySource`."""

    def __init__(self, name: str, secret: str, encrypt: bool | None) -> None:
        self._sender = _engine.ItemSender(name, _any_port(), secret, encrypt)
        threading.Thread(target=self._run, daemon=True).start()

    def address(self) -> str:
        return self._sender.address

    def _run(self) -> None:  # in a thread
        while True:
            try:
                self._sender.answer(_WAIT)
            except Error:  # the receiver gets the error, or connects again
                time.sleep(0.01)


def _any_port() -> str:
    return f"tcp://{ray.util.get_node_ip_address()}:0"


class RelaySource:
    """Keeps a link to an actor of its own on every other node. `kind`: a key of `_KINDS`."""

    def __init__(self, kind: str, name: str, to: str, secret: str, encrypt: bool | None) -> None:
        self._kind, self._name, self._to, self._line = _KINDS[kind], name, to, (secret, encrypt)
        self._node = ray.get_runtime_context().get_node_id()
        self._links: dict[str, _Link] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def stats(self) -> dict[str, dict[str, Any]]:
        return {node: each.stats() for node, each in dict(self._links).items()}

    def _run(self) -> None:  # in a thread
        shown = 0.0
        while True:
            alive = {each["NodeID"] for each in ray.nodes() if each["Alive"]} - {self._node}
            for node in alive - set(self._links):
                self._links[node] = self._kind(node, self._name, self._to, self._line)
            for node in set(self._links) - alive:
                self._links.pop(node).stop()
            if time.monotonic() - shown > SECONDS:
                shown = time.monotonic()
                for each in self._links.values():
                    each.show()
            time.sleep(_NODES)


class _Link(ABC):
    """A thread that starts an actor on one node, and moves weights or items between the two."""

    actor: type  # of the other node
    part: str  # of the names of its metrics

    def __init__(self, node: str, name: str, to: str, line: tuple[str, bool | None]) -> None:
        self._node, self._name, self._to, self._line = node, name, to, line
        self._stop = threading.Event()
        self._counts: dict[str, Any] = {**self.begin(), "failure": "it has not begun"}
        self._gauges = Gauges(self.part, self._counts.keys() - {"failure"}, name=name, node=node)
        threading.Thread(target=self._run, daemon=True).start()

    @abstractmethod
    def begin(self) -> dict[str, Any]:
        """The counts, before anything was moved."""

    @abstractmethod
    def open(self, address: str) -> None:
        """Use the actor at this address."""

    @abstractmethod
    def move(self) -> None:
        """Move what there is, and count it; wait for it `_WAIT` seconds at most."""

    def stats(self) -> dict[str, Any]:
        return dict(self._counts)

    def show(self) -> None:
        """Give the counts to Ray's metrics."""
        self._gauges.show(self.stats())

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:  # in a thread
        actor = None
        while not self._stop.is_set():
            try:
                if actor is None:
                    actor = self._make()
                self.open(ray.get(actor.address.remote(), timeout=_START))
                while not self._stop.is_set():
                    self.move()
                    self._counts["failure"] = ""
            except ray.exceptions.RayError as error:  # the actor, or its node
                self._counts["failure"] = str(error)
                actor = None
            except Error as error:  # the connection, the learner, or the name on that node
                self._counts["failure"] = str(error)
            self._stop.wait(_PAUSE)

    def _make(self) -> Any:
        here = NodeAffinitySchedulingStrategy(self._node, soft=False)
        return (
            ray.remote(self.actor)
            .options(num_cpus=0, scheduling_strategy=here)
            .remote(self._to, *self._line)
        )


class _Sending(_Link):
    """Keeps one node's copy of the weights up to date."""

    actor = RelayCopy
    part = "relay"
    _sender: _engine.RelaySender | None = None

    def begin(self) -> dict[str, Any]:
        names = ("version", "behind", "seconds")
        return {**dict.fromkeys(names), "sent": 0, "skipped": 0, "bytes": 0}

    def stats(self) -> dict[str, Any]:
        counts, sender = super().stats(), self._sender
        if sender is not None and counts["version"] is not None:
            counts["behind"] = max(sender.newest - counts["version"], 0)
        return counts

    def open(self, address: str) -> None:
        self._sender = _engine.RelaySender(self._name, _ATTACH, address, *self._line)

    def move(self) -> None:
        assert self._sender is not None
        sent = self._sender.send(_WAIT)
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


class _Taking(_Link):
    """Brings the items of one node to the learner's channel."""

    actor = ChannelCopy
    part = "channel"
    _receiver: _engine.ItemReceiver | None = None
    _address = ""

    def begin(self) -> dict[str, Any]:
        there = dict.fromkeys(("put", "dropped_oldest", "dropped_newest", "queued"), 0)
        return {"items": 0, "bytes": 0, "seconds": None, **there}

    def open(self, address: str) -> None:
        # After a broken connection it is the same actor: the receiver knows what has arrived.
        if self._receiver is None or address != self._address:
            self._receiver = _engine.ItemReceiver(self._name, address, *self._line)
            self._address = address

    def move(self) -> None:
        assert self._receiver is not None
        taken = self._receiver.take(_WAIT)
        self._counts.update(self._receiver.there)
        if taken is None:
            return
        items, size, seconds = taken
        self._counts.update(
            items=self._counts["items"] + items,
            bytes=self._counts["bytes"] + size,
            seconds=seconds,
        )


_KINDS: dict[str, type[_Link]] = {"weights": _Sending, "channel": _Taking}

"""The actors of a parameter server on several hosts: one for each shard, one for the snapshots."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import pickle
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import ray

from .. import _engine
from ..errors import Closed, Error, InvalidArgument, NotFound
from .metrics import SECONDS, Gauges
from .shard_places import Place, actors, leaders

_WATCH = 1.0  # seconds between two checks of a shard: whether it has been replaced
_ATTEND = 0.2  # seconds between two attempts of a replica to follow or to lead
_TRIES = 20  # of a snapshot of replicas that change
_RETRY = 5.0  # seconds until a snapshot that failed is tried again
# Seconds that a step of a snapshot may take at all shards together: in memory; on the disk.
_STEP, _WRITE = 10.0, 600.0
_PIECE = 60_000  # bytes; Ray keeps larger arguments in the object store of the process that gave it
_COUNTS = (
    *("version", "pushes", "pulls", "repeated", "lapsed", "bytes_in", "bytes_out"),
    *("workers", "saved_version", "replicas", "epoch"),
)
_log = logging.getLogger("penstock")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What all actors of a server know. Restarted actors get it again from Ray."""

    name: str
    blocks: list[tuple[str, tuple[int, ...]]]
    optimizer: Any
    shards: int
    mode: tuple[int | None, float, int, float, int]
    encrypt: bool | None
    snapshots: str
    seconds: float
    replicas: int
    replica_timeout: float
    server: int  # the server's id
    secret: str

    def same_as(self, other: Plan) -> bool:
        """Whether the two are plans of the same server, apart from what is drawn at random."""
        return dataclasses.replace(other, server=self.server, secret=self.secret) == self

    def pieces(self) -> list[bytes]:
        packed = zlib.compress(pickle.dumps(self))
        return [packed[i : i + _PIECE] for i in range(0, len(packed), _PIECE)]

    @staticmethod
    def of(pieces: tuple[bytes, ...]) -> Plan:
        plan = pickle.loads(zlib.decompress(b"".join(pieces)))
        assert isinstance(plan, Plan)
        return plan

    def actor(self, part: str) -> str:
        return f"{self.name}/{part}"


def _restarted() -> bool:
    return bool(ray.get_runtime_context().was_current_actor_reconstructed)


class ShardActor:
    """One shard, or one of its two replicas.

    A restarted actor without a replica continues from the newest snapshot. With one, the actor
    attends to the other: it follows it, takes its place, or, if both were restarted, continues from
    the newest snapshot. HostedShard.attend decides.
    """

    def __init__(self, shard: int, replica: int, *pieces: bytes) -> None:
        self._plan = Plan.of(pieces)
        self._number = shard
        self._replica = replica
        self._node = ray.get_runtime_context().get_node_id()
        self._host = ray.util.get_node_ip_address()
        self._opening = threading.Lock()
        self._opened: _engine.HostedShard | None = None  # not restored yet
        self._shard: _engine.HostedShard | None = None
        self._why_not = "it has not begun"
        restarted = _restarted()
        if restarted and self._plan.replicas == 1:
            self._why_not = "it continues from a snapshot"
        replicated = self._plan.replicas > 1
        watch = threading.Thread(
            target=self._attend if replicated else self._watch,
            args=() if replicated else (restarted,),
            daemon=True,
        )
        watch.start()

    def plan(self) -> Plan:
        return self._plan

    def prepare(self) -> None:
        """Take the memory of a replica, which may fail."""
        with self._opening:
            if self._plan.replicas > 1:
                self._opened = self._opened or self._open()

    def begin(self, snapshot: tuple[int, int] | None, weights: bytes, version: int) -> list[str]:
        """Serve the state of a snapshot, or these weights; return warnings."""
        with self._opening:
            if self._shard is not None:
                return []
            shard = self._opened = self._opened or self._open()
            if self._plan.replicas > 1 and shard.assignment()[1] == self._plan.server:
                return []  # a replica leads, or will
            if snapshot is None:
                shard.begin(weights, version)
            else:
                shard.restore(snapshot)
            self._shard = shard
            return shard.damaged_snapshots

    def locate(self) -> Place | str:
        """Return node, address on that node, address elsewhere and epoch; or why there is none."""
        shard = self._shard
        if shard is None or not (addresses := shard.addresses):
            return f"shard {self._number} of {self._plan.name} does not serve: {self._why_not}"
        return self._node, addresses[0], addresses[1], shard.epoch

    def replica(self) -> tuple[int, str, list[str]]:
        """Return the id of this process's shard, the node, and the addresses at which it serves."""
        with self._opening:
            shard = self._opened
        return (0, "", []) if shard is None else (shard.id, self._node, shard.addresses)

    def lose_leader(self, leader: int) -> None:
        """The process with this id, which leads, was replaced."""
        with self._opening:
            shard = self._opened
        if shard is not None:
            shard.lose_leader(leader)

    def hold(self, writer: int) -> None:
        self._serving().hold(writer)

    def copy(self, writer: int) -> int:
        return self._serving().copy(writer)

    def write(self, writer: int, generation: int) -> tuple[int, int, int, int]:
        return self._serving().write(writer, generation)

    def set_saved(self, writer: int, failure: str) -> None:
        self._serving().set_saved(writer, failure)

    def unsaved(self) -> bool:
        return self._serving().unsaved

    def read(self) -> tuple[bytes, int]:
        return self._serving().read()

    def stats(self) -> str:
        return self._serving().stats()

    def _open(self) -> _engine.HostedShard:
        plan = self._plan
        return _engine.HostedShard(
            plan.blocks,
            plan.optimizer._built,
            plan.shards,
            self._number,
            plan.server,
            _engine.ServerMode(*plan.mode),
            ["unix:@", f"tcp://{self._host}:0"],
            plan.secret,
            plan.encrypt,
            plan.snapshots,
            plan.replicas,
            plan.replica_timeout,
        )

    def _serving(self) -> _engine.HostedShard:
        if self._shard is None:
            raise Closed(f"shard {self._number} does not serve: {self._why_not}", "ParameterServer")
        return self._shard

    def _watch(self, restarted: bool) -> None:  # in a thread
        while restarted and not self._restore():
            time.sleep(_WATCH)
        gauges = self._gauges()
        counted = 0.0
        while True:
            time.sleep(_WATCH)
            shard = self._shard
            if shard is None:
                continue
            if shard.fence():
                self._why_not = f"another process has replaced its epoch {shard.epoch}"
                _log.warning("shard %d of %s: %s", self._number, self._plan.name, self._why_not)
                return
            if time.monotonic() - counted > SECONDS:
                counted = time.monotonic()
                _show(gauges, shard)

    # ---- two replicas

    def _attend(self) -> None:  # in a thread
        gauges = self._gauges()
        counted, single_since, warned = 0.0, time.monotonic(), False
        while True:
            shard = self._shard
            time.sleep(_ATTEND if shard is None else _WATCH)
            try:
                if shard is None:
                    self._attend_once()
                    single_since, warned = time.monotonic(), False
                    continue
                if shard.fence():
                    self._log(f"another process leads it now, instead of epoch {shard.epoch}")
                    with self._opening:  # follows with a new state, as a new process would
                        self._shard = self._opened = None
                    continue
            except Exception as error:  # tried again: the folder, or the other actor, may come back
                self._why_not = str(error)
                continue
            now = time.monotonic()
            if shard.replicas > 1:
                single_since, warned = now, False
            elif not warned and now - single_since > self._plan.replica_timeout:
                warned = True
                self._log("has one replica; pushes are acknowledged when one host has them")
            if now - counted > SECONDS:
                counted = now
                _show(gauges, shard)

    def _attend_once(self) -> None:
        self.prepare()
        shard = self._opened
        assert shard is not None
        # Read before the other actor is asked: see HostedShard.attend.
        seen = shard.assignment()
        if seen[1] != self._plan.server:
            return
        other = actors(self._plan, self._number)[1 - self._replica]
        number, node, addresses = ray.get(other.replica.remote(), timeout=_STEP)
        address = ""
        if addresses:
            address = addresses[0] if node == self._node else addresses[1]
        attended = shard.attend(seen, number, address)
        if attended == "leads":
            for damage in shard.damaged_snapshots:
                _log.warning("%s. Continuing from an older snapshot", damage)
            self._shard = shard
        else:
            self._why_not = shard.why_not
            if attended == "other follows":
                other.lose_leader.remote(seen[2])

    def _gauges(self) -> Gauges:
        return Gauges("server", _COUNTS, server=self._plan.name, shard=str(self._number))

    def _log(self, text: str) -> None:
        _log.warning("shard %d of %s: %s", self._number, self._plan.name, text)

    # ---- without replicas

    def _restore(self) -> bool:
        with self._opening:
            try:
                shard = self._opened = self._opened or self._open()
                if not shard.restore(None):
                    raise NotFound(
                        f"{self._plan.snapshots} has no snapshot; its state is lost",
                        "ParameterServer",
                    )
            except Error as error:  # tried again: the folder may come back
                self._why_not = str(error)
                return False
            for damage in shard.damaged_snapshots:
                _log.warning("%s. Continuing from an older snapshot", damage)
            self._shard = shard
            return True


def _show(gauges: Gauges, shard: _engine.HostedShard) -> None:
    counts = json.loads(shard.stats())
    gauges.show({**counts, "workers": len(counts["workers"]), "epoch": shard.epoch})


class SnapshotActor:
    """Has the shards write snapshots of one moment, and writes their manifests."""

    def __init__(self, *pieces: bytes) -> None:
        self._plan = Plan.of(pieces)
        self._saving = threading.Lock()
        self._ending = threading.Event()
        self._folder: _engine.SnapshotFolder | None = None
        self._thread: threading.Thread | None = None
        if _restarted():
            self._start()

    def find(self) -> tuple[tuple[int, int] | None, list[str]]:
        """Reserve the folder; return its newest undamaged snapshot, and warnings."""
        with self._saving:
            if self._folder is None:
                self._folder = self._open(locked=True)
            return self._folder.find(), self._folder.damaged

    def begin(self) -> None:
        """Save a snapshot, then others at intervals. All shards serve."""
        if self._thread is None:
            self._save()
            self._start()

    def save(self) -> None:
        """Save a snapshot now if anything has changed."""
        if self._unsaved():
            self._save()

    def close(self) -> None:
        """Save a last snapshot, and no others."""
        self._ending.set()
        self.save()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _open(self, locked: bool) -> _engine.SnapshotFolder:
        plan = self._plan
        return _engine.SnapshotFolder(
            plan.snapshots, plan.blocks, plan.optimizer._built, plan.shards, locked
        )

    def _reopen(self) -> _engine.SnapshotFolder:
        """The folder for a restarted actor: its host may still hold the lock of the earlier one."""
        try:
            return self._open(locked=True)
        except InvalidArgument:
            return self._open(locked=False)

    def _run(self) -> None:  # in a thread
        pause = 0.0 if self._folder is None else self._plan.seconds
        while not self._ending.wait(pause):
            pause = self._plan.seconds
            try:
                self.save()
            except Exception as error:
                _log.warning("no snapshot of %s: %s", self._plan.name, error)
                pause = min(pause, _RETRY)

    def _unsaved(self) -> bool:
        return any(_all(leaders(self._plan, _STEP), "unsaved", _STEP))

    def _save(self) -> None:
        """Save a snapshot. A shard whose follower or leader changes meanwhile refuses it."""
        for _ in range(_TRIES if self._plan.replicas > 1 else 0):
            try:
                return self._save_once()
            except Closed:
                time.sleep(_ATTEND)
        self._save_once()

    def _save_once(self) -> None:
        with self._saving:
            shards = leaders(self._plan, _STEP)
            if self._folder is None:
                self._folder = self._reopen()
            epoch, generation = self._folder.next()
            try:
                # All are held before the first copy begins: the copies are of one moment.
                _all(shards, "hold", _STEP, epoch)
                _all(shards, "copy", _STEP, epoch)
                parts = _all(shards, "write", _WRITE, epoch, generation)
                self._folder.commit((epoch, generation), parts)
            except Exception as error:
                with contextlib.suppress(Exception):
                    _all(shards, "set_saved", _STEP, epoch, str(error) or repr(error))
                raise
            _all(shards, "set_saved", _STEP, epoch, "")


def _all(actors: list[Any], method: str, timeout: float, *arguments: Any) -> list[Any]:
    """Call a method of all actors at the same time; return their results."""
    with causes():
        return list(
            ray.get([getattr(each, method).remote(*arguments) for each in actors], timeout=timeout)
        )


@contextlib.contextmanager
def causes() -> Iterator[None]:
    """Raise penstock's own errors as they were raised in an actor."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Error):
            raise error.cause from None
        raise

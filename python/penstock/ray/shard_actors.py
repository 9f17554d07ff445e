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

NAMESPACE = "penstock"
_WATCH = 1.0  # seconds between two checks of a shard: whether it has been replaced
_RETRY = 5.0  # seconds until a snapshot that failed is tried again
# Seconds that a step of a snapshot may take at all shards together: in memory; on the disk.
_STEP, _WRITE = 10.0, 600.0
_PIECE = 60_000  # bytes; Ray keeps larger arguments in the object store of the process that gave it
_COUNTS = (
    *("version", "pushes", "pulls", "repeated", "lapsed", "bytes_in", "bytes_out"),
    *("workers", "saved_version"),
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
    """One shard. A restarted actor continues from the newest snapshot."""

    def __init__(self, shard: int, *pieces: bytes) -> None:
        self._plan = Plan.of(pieces)
        self._number = shard
        self._node = ray.get_runtime_context().get_node_id()
        self._host = ray.util.get_node_ip_address()
        self._opening = threading.Lock()
        self._opened: _engine.HostedShard | None = None  # not restored yet
        self._shard: _engine.HostedShard | None = None
        self._why_not = "it has not begun"
        restarted = _restarted()
        if restarted:
            self._why_not = "it continues from a snapshot"
        threading.Thread(target=self._watch, args=(restarted,), daemon=True).start()

    def plan(self) -> Plan:
        return self._plan

    def begin(self, snapshot: tuple[int, int] | None, weights: bytes, version: int) -> list[str]:
        """Serve the state of a snapshot, or these weights; return warnings."""
        with self._opening:
            if self._shard is not None:
                return []
            shard = self._opened or self._open()
            if snapshot is None:
                shard.begin(weights, version)
            else:
                shard.restore(snapshot)
            self._shard = shard
            return shard.damaged_snapshots

    def locate(self) -> tuple[str, str, str, int] | str:
        """Return node, address on that node, address elsewhere and epoch; or why there is none."""
        shard = self._shard
        if shard is None or not (addresses := shard.addresses):
            return f"shard {self._number} of {self._plan.name} does not serve: {self._why_not}"
        return self._node, addresses[0], addresses[1], shard.epoch

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
        )

    def _serving(self) -> _engine.HostedShard:
        if self._shard is None:
            raise Closed(f"shard {self._number} does not serve: {self._why_not}", "ParameterServer")
        return self._shard

    def _watch(self, restarted: bool) -> None:  # in a thread
        while restarted and not self._restore():
            time.sleep(_WATCH)
        gauges = Gauges(
            "server", (*_COUNTS, "saved_version"), server=self._plan.name, shard=str(self._number)
        )
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
                counts = json.loads(shard.stats())
                gauges.show({**counts, "workers": len(counts["workers"])})

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
        return any(_all(self._shards(), "unsaved", _STEP))

    def _shards(self) -> list[Any]:
        return [
            ray.get_actor(self._plan.actor(f"shard-{i}"), NAMESPACE)
            for i in range(self._plan.shards)
        ]

    def _save(self) -> None:
        with self._saving:
            shards = self._shards()
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

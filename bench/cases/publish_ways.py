"""Ways to give the newest weights to processes that only have a name; and a reader process.

A way has ``weights``, which the learner fills, ``publish(version)``, and for readers
``next(seen)``: a context of (version, array) newer than `seen`, or of None if there is none yet.
``close()`` removes objects that would outlive the learner.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import keep_heap
from peers import ray_end, ray_head, ray_join, redis_end, redis_server, redis_socket

READERS = 3
Found = tuple[int, Any] | None
_PAUSE = 0.0005


class Penstock:
    def __init__(self, where: Path, floats: int, learner: bool) -> None:
        from penstock import train

        self.train, self.name = train, f"bench-{where.name}"
        if learner:
            self.parameters = train.Parameters({"w": (floats,)})
            self.weights = self.parameters["w"]
        else:
            self.model = train.attach(self.name)

    def publish(self, version: int) -> None:
        self.parameters.version = version
        self.train.publish(self.name, self.parameters)

    @contextlib.contextmanager
    def next(self, seen: int) -> Iterator[Found]:
        self.model.wait(seen + 1)
        with self.model.read() as (version, weights):
            yield version, weights["w"]

    def close(self) -> None:
        pass


class Locked:
    """multiprocessing.shared_memory, writer and readers under flock; readers copy."""

    def __init__(self, where: Path, floats: int, learner: bool) -> None:
        from multiprocessing import resource_tracker, shared_memory

        at = where / "segment"
        if learner:
            self.memory = shared_memory.SharedMemory(create=True, size=64 + floats * 4)
            at.write_text(self.memory.name)
            self.weights = np.zeros(floats, np.float32)
        else:
            self.memory = shared_memory.SharedMemory(at.read_text())
            # Otherwise the end of this process would remove the segment for all others.
            resource_tracker.unregister(self.memory._name, "shared_memory")  # type: ignore[attr-defined]
            self.weights = np.empty(floats, np.float32)
        buffer: Any = self.memory.buf
        self.version = np.frombuffer(buffer, np.int64, 1)
        self.shared = np.frombuffer(buffer, np.float32, floats, 64)
        self.lock = (where / "lock").open("a")

    def publish(self, version: int) -> None:
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.shared[:] = self.weights
        self.version[0] = version
        fcntl.flock(self.lock, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def next(self, seen: int) -> Iterator[Found]:
        if int(self.version[0]) == seen:
            time.sleep(_PAUSE)
            yield None
            return
        fcntl.flock(self.lock, fcntl.LOCK_SH)
        version = int(self.version[0])
        self.weights[:] = self.shared
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        yield version, self.weights

    def close(self) -> None:
        self.memory.unlink()


class TorchFile:
    """torch.save to a new file in RAM, renamed; readers check its time and torch.load it."""

    def __init__(self, where: Path, floats: int, learner: bool) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch, self.path, self.stamp = torch, where / "weights.pt", (0, 0)
        self.weights = np.zeros(floats if learner else 0, np.float32)

    def publish(self, version: int) -> None:
        fresh = self.path.with_suffix(".new")
        self.torch.save({"version": version, "w": self.torch.from_numpy(self.weights)}, fresh)
        os.replace(fresh, self.path)

    @contextlib.contextmanager
    def next(self, seen: int) -> Iterator[Found]:
        status = self.path.stat()
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp == self.stamp:
            time.sleep(_PAUSE)
            yield None
            return
        self.stamp = stamp
        found = self.torch.load(self.path)
        yield found["version"], found["w"].numpy()

    def close(self) -> None:
        pass


class ZeroMq:
    """PUB and SUB over a Unix socket; both keep only the newest message."""

    def __init__(self, where: Path, floats: int, learner: bool) -> None:
        import zmq

        self.where, self.received = where, where / f"received-{os.getpid()}"
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUB if learner else zmq.SUB)
        self.socket.setsockopt(zmq.CONFLATE, 1)
        if learner:
            keep_heap()  # a message is a copy, and the learner continues meanwhile
            self.weights = np.zeros(floats, np.float32)
            self.socket.bind(f"ipc://{where}/socket")
        else:
            self.socket.setsockopt(zmq.SUBSCRIBE, b"")
            self.socket.connect(f"ipc://{where}/socket")

    def publish(self, version: int) -> None:
        self._send(version)
        # Only connected readers receive the first version: repeat until all have it.
        while version == 1 and len(list(self.where.glob("received-*"))) < READERS:
            time.sleep(0.01)
            self._send(version)

    def _send(self, version: int) -> None:
        message = np.empty(self.weights.size + 1, np.float32)
        message[:-1], message[-1] = self.weights, version
        self.socket.send(message, copy=False)

    @contextlib.contextmanager
    def next(self, seen: int) -> Iterator[Found]:
        message = np.frombuffer(self.socket.recv(copy=False).buffer, np.float32)
        if seen == 0:
            self.received.touch()
        version = int(message[-1])
        yield (version, message[:-1]) if version > seen else None

    def close(self) -> None:
        self.context.destroy(linger=0)


class Redis:
    """MSET of weights and version, and a message to subscribers, which read both by MGET."""

    def __init__(self, where: Path, floats: int, learner: bool) -> None:
        from redis import Redis
        from redis.connection import Encoder, PythonRespSerializer

        # hiredis reads large answers faster than Python, and writes arrays more slowly.
        packer = PythonRespSerializer(6000, Encoder("utf-8", "strict", False).encode)
        self.client = Redis.from_url(f"unix://{redis_socket(where)}", command_packer=packer)
        if learner:
            self.weights = np.zeros(floats, np.float32)
            self.server = redis_server(where)
        else:
            self.news = self.client.pubsub(ignore_subscribe_messages=True)
            self.news.subscribe("newest")

    def publish(self, version: int) -> None:
        both = self.client.pipeline(transaction=False)
        both.mset({"version": version, "w": memoryview(self.weights).cast("B")})
        both.publish("newest", version)
        both.execute()

    @contextlib.contextmanager
    def next(self, seen: int) -> Iterator[Found]:
        if seen > 0:
            message = self.news.get_message(timeout=None)
            if message is None or int(message["data"]) <= seen:
                yield None
                return
        version, weights = self.client.mget("version", "w")
        yield (int(version), np.frombuffer(weights, np.float32)) if version else None

    def close(self) -> None:
        redis_end(self.server)


class Ray:
    """ray.put, and an actor with the newest reference; each process is a driver of one cluster."""

    def __init__(self, where: Path, floats: int, learner: bool) -> None:
        if learner:
            (where / "address").write_text(ray_head(max(1 << 30, floats * 4 * 12)))
        else:
            ray_join((where / "address").read_text())
        import ray

        self.ray = ray
        if not learner:
            self.newest = ray.get_actor("newest")
            return

        class Newest:
            def __init__(self) -> None:
                self.held: tuple[int, list[Any]] = (0, [])

            def set(self, version: int, reference: list[Any]) -> None:
                self.held = (version, reference)

            def newer(self, seen: int) -> Any:
                return self.held if self.held[0] > seen else None

        self.newest = ray.remote(Newest).options(name="newest", num_cpus=0).remote()
        self.weights = np.zeros(floats, np.float32)

    def publish(self, version: int) -> None:
        # In a list it stays a reference, and is not passed to the actor as an array.
        self.ray.get(self.newest.set.remote(version, [self.ray.put(self.weights)]))

    @contextlib.contextmanager
    def next(self, seen: int) -> Iterator[Found]:
        found = self.ray.get(self.newest.newer.remote(seen))
        if found is None:
            time.sleep(_PAUSE)
            yield None
            return
        yield found[0], self.ray.get(found[1][0])

    def close(self) -> None:
        ray_end()


WAYS = {way.__name__: way for way in (Penstock, Locked, TorchFile, ZeroMq, Redis, Ray)}


def main() -> None:
    """Hold every available version up to the last one; return the times, and the torn ones."""
    way, where, floats, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    ways: Any = WAYS[way](where, floats, False)
    seen, when, torn = 0, [], 0
    while seen < last:
        with ways.next(seen) as found:
            if found is None:
                continue
            seen, weights = found
            when.append((seen, time.monotonic()))
            some = weights[:: max(1, floats // 4096)]
            torn += bool(some.min() != seen or some.max() != seen)
        if len(when) == 1:
            print("ready", flush=True)
    print(json.dumps({"when": when, "torn": torn}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

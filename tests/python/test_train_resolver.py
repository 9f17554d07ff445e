"""Clients of a parameter server whose shards move: resolvers, epochs, signs of life."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _engine, train

SECRET = "a secret of tests"
FLOATS = 64


class Places:
    """A resolver whose answers tests change."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.answers: dict[int, Any] = {}
        self.asked = 0

    def locate(self, shard: int, timeout: float) -> Any:
        self.asked += 1
        answer = self.answers[shard]
        if isinstance(answer, Exception):
            raise answer
        return answer


def shard_of(folder: Path, number: int = 0, shards: int = 1, mode: Any = None) -> Any:
    made = _engine.HostedShard(
        [("w", (FLOATS * shards,))],
        train.SGD(1.0)._built,
        shards,
        number,
        7,
        mode or _engine.ServerMode(None, 30.0, 0, 0.0, 0),
        ["unix:@"],
        SECRET,
        False,
        folder,
        1,
        30.0,
    )
    return made


def begun(folder: Path, **options: Any) -> Any:
    shard = shard_of(folder, **options)
    shard.begin(struct.pack(f"{FLOATS}f", *[0.0] * FLOATS), 0)
    return shard


def place(shard: Any) -> tuple[str, int]:
    return shard.addresses[0], shard.epoch


def push(client: train.ParameterClient, times: int = 1) -> None:
    for _ in range(times):
        client.gradients["w"][:] = -1
        client.push(client.gradients)


def save(folder: Path, *shards: Any) -> None:
    blocks = [("w", (FLOATS * len(shards),))]
    writer = _engine.SnapshotFolder(folder, blocks, train.SGD(1.0)._built, len(shards), False)
    epoch, generation = writer.next()
    for step in ("hold", "copy"):
        for shard in shards:
            getattr(shard, step)(epoch)
    writer.commit((epoch, generation), [shard.write(epoch, generation) for shard in shards])


def test_a_shard_that_moved_is_found_and_an_old_one_is_refused(tmp_path: Path) -> None:
    places = Places(1)
    first = begun(tmp_path)
    places.answers[0] = place(first)
    with train.connect(places, secret=SECRET, worker_id=3, timeout=0.5) as client:
        push(client, 2)
        save(tmp_path, first)
        old = place(first)
        second = shard_of(tmp_path)
        assert second.restore(None)
        assert second.epoch == first.epoch + 1
        # The client is connected to the old shard, which has not noticed yet; a new one is not.
        places.answers[0] = place(second)
        with train.connect(places, secret=SECRET, worker_id=3, timeout=0.5) as again:
            assert again.sequence == 2
            push(again)
            assert again.pull() == [3]
            places.answers[0] = (old[0], second.epoch)
            second.close()
            with pytest.raises(penstock.Timeout, match="has replaced this shard with epoch 1"):
                again.pull()
        assert first.fence()
        assert first.addresses == []
        places.answers[0] = "shard 0 is being restarted"
        with pytest.raises(penstock.Timeout, match="shard 0 is being restarted"):
            client.pull()


def test_an_exception_of_a_resolver_reaches_the_caller(tmp_path: Path) -> None:
    places = Places(1)
    places.answers[0] = RuntimeError("no such cluster")
    with pytest.raises(RuntimeError, match="no such cluster"):
        train.connect(places, secret=SECRET)
    places.answers[0] = place(begun(tmp_path))
    with pytest.raises(penstock.InvalidArgument, match="shards is 0"):
        train.connect(Places(0))


def test_two_shards_are_restored_from_one_snapshot(tmp_path: Path) -> None:
    places = Places(2)
    shards = [begun(tmp_path, number=i, shards=2) for i in range(2)]
    places.answers = dict(enumerate(map(place, shards)))
    with train.connect(places, secret=SECRET, worker_id=1) as client:
        push(client, 3)
        save(tmp_path, *shards)
        push(client)
    for shard in shards:
        shard.close()
    again = [shard_of(tmp_path, i, 2) for i in range(2)]
    writer = _engine.SnapshotFolder(
        tmp_path, [("w", (2 * FLOATS,))], train.SGD(1.0)._built, 2, False
    )
    for shard in again:
        assert shard.restore(writer.find())
    places.answers = dict(enumerate(map(place, again)))
    with train.connect(places, secret=SECRET, worker_id=1) as client:
        assert client.sequence == 3
        push(client)
        assert client.pull() == [4, 4]
        np.testing.assert_array_equal(client.parameters["w"], 4)


@pytest.mark.parametrize("heartbeat", [False, True])
def test_a_heartbeat_keeps_the_lease_in_a_long_step(tmp_path: Path, heartbeat: bool) -> None:
    places = Places(1)
    shard = begun(tmp_path, mode=_engine.ServerMode(1, 0.2, 0, 0.0, 0))
    places.answers[0] = place(shard)
    with train.connect(places, secret=SECRET, heartbeat=heartbeat) as client:
        client.pull()
        time.sleep(0.8)  # the step
        client.gradients["w"][:] = -1
        assert client.push(client.gradients) is heartbeat
        assert client.lapses == (not heartbeat)

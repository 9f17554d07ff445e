"""A parameter server on a cluster of two nodes: actors and nodes that are killed during pushes.

All gradients are -1 and the learning rate is 1, so each weight counts the pushes at its shard.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _engine, train

pytest.importorskip("ray")

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ray_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray" / "parameter_server.py"
BLOCKS = {"w": (300, 500), "v": (70_000,)}
SHARDS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.cluster(cpus=4) as made:
        yield made


@pytest.fixture
def server(cluster: Any, tmp_path: Path) -> Iterator[Any]:
    made = served(snapshots=tmp_path / "snapshots", snapshot_seconds=1000)
    yield made
    made.close(save=False)


def served(**options: Any) -> penstock.ray.ParameterServer:
    return penstock.ray.parameter_server(
        train.Parameters(BLOCKS), train.SGD(1.0), shards=SHARDS, **options
    )


def push(client: train.ParameterClient, times: int = 1) -> None:
    for block in client.gradients.values():
        block[:] = -1
    for _ in range(times):
        client.push(client.gradients)


def counts(server: penstock.ray.ParameterServer) -> list[int]:
    """The pushes in each shard's weights, which are all equal."""
    weights = train.Parameters(BLOCKS)
    versions = server.pull(weights)
    flat = np.concatenate([weights["w"].ravel(), weights["v"]])
    cut = len(flat) // SHARDS
    found = []
    for i, version in enumerate(versions):
        # The cut may be some weights further on.
        part = flat[i * cut + 1000 : (i + 1) * cut - 1000]
        assert set(part.tolist()) == {float(version)}
        found.append(version)
    return found


def actor(server: penstock.ray.ParameterServer, part: str) -> Any:
    return ray.get_actor(f"{server.name}/{part}", "penstock")


def nodes(server: penstock.ray.ParameterServer) -> list[str]:
    return [ray.get(actor(server, f"shard-{i}").locate.remote())[0] for i in range(SHARDS)]


def until(done: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


class Pushing:
    """Pushes in a thread, from before something is killed until after it."""

    def __init__(self, server: penstock.ray.ParameterServer) -> None:
        self._client = server.connect(worker_id=1, timeout=100)
        self._stop = threading.Event()
        self.done = 0  # acknowledged pushes
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                push(self._client)
                self.done += 1
        except BaseException as error:
            self.error = error

    def wait_for(self, more: int) -> None:
        end = self.done + more
        until(lambda: self.error or self.done >= end, 100)

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        self._client.close()
        if self.error is not None:
            raise self.error
        return self.done


@ray.remote(num_cpus=0.5)
def work(server: penstock.ray.ParameterServer, worker: int, times: int) -> str:
    with server.connect(worker_id=worker) as client:
        push(client, times)
        assert client.sequence == times
    return ray.get_runtime_context().get_node_id()


def test_workers_on_all_nodes_push_to_shards_on_all_nodes(server: Any) -> None:
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in set(nodes(server))]
    assert len(places) == 2
    handles = [pickle.loads(pickle.dumps(server)), server]
    running = [
        work.options(scheduling_strategy=places[i // 2]).remote(handles[i % 2], i + 1, 20)
        for i in range(4)
    ]
    assert len(set(ray.get(running))) == 2
    assert counts(server) == [80, 80]
    stats = server.stats()
    assert [each["pushes"] for each in stats] == [80, 80]
    assert all(each["epoch"] >= 1 for each in stats)


def test_a_server_with_a_name_is_found_by_a_driver_that_is_started_again(server: Any) -> None:
    folder = server._plan.snapshots
    with server.connect() as client:
        push(client, 3)
    again = served(name=server.name, snapshots=folder, snapshot_seconds=1000)
    assert counts(again) == [3, 3]
    with pytest.raises(penstock.InvalidArgument, match="runs with other weights or options"):
        served(name=server.name, snapshots=folder, snapshot_seconds=5)
    with pytest.raises(penstock.InvalidArgument, match="in use by process"):
        served(snapshots=folder)
    assert counts(server) == [3, 3]


def test_a_killed_shard_continues_from_the_snapshot_on_its_own(server: Any) -> None:
    with server.connect(worker_id=1) as client:
        push(client, 5)
        server.save()
        push(client, 2)
        epoch = server.stats()[1]["epoch"]
        ray.kill(actor(server, "shard-1"), no_restart=False)
        until(lambda: actor_epoch(server, 1) > epoch)
        push(client, 4)
        assert client.sequence == 11
    # The other shard has all; the killed one has lost what came after the snapshot, and that only.
    assert counts(server) == [11, 9]


def actor_epoch(server: penstock.ray.ParameterServer, shard: int) -> int:
    try:
        return int(server.stats()[shard]["epoch"])
    except (penstock.Closed, penstock.System):
        return 0


@pytest.mark.parametrize("part", ["shard-0", "snapshots"])
def test_actors_that_are_killed_during_pushes_lose_nothing_that_was_saved(
    cluster: Any, tmp_path: Path, part: str
) -> None:
    server = served(snapshots=tmp_path, snapshot_seconds=0.2)
    pushing = Pushing(server)
    for _ in range(3):
        pushing.wait_for(20)
        ray.kill(actor(server, part), no_restart=False)
        pushing.wait_for(20)
    total = pushing.stop()
    found = counts(server)
    assert found[1] == total
    assert total >= found[0] > 0
    if part == "snapshots":
        assert found[0] == total
        newest = server.stats()[0]["saved_version"]
        with server.connect(worker_id=1) as client:
            push(client)
        # Another process writes the snapshots now.
        until(lambda: server.stats()[0]["saved_version"] > newest)
    server.close()
    # All state is in the last snapshot.
    again = served(snapshots=tmp_path, snapshot_seconds=1000)
    assert counts(again) == [each + (part == "snapshots") for each in found]
    again.close()


def test_a_node_that_is_killed_during_pushes_loses_nothing_that_was_saved(
    cluster: Any, tmp_path: Path
) -> None:
    extra = cluster.add_node(num_cpus=4, node_ip_address="127.0.0.4", include_dashboard=False)
    server = None
    for _ in range(10):  # Ray spreads at random
        server = served(snapshots=tmp_path / "s", snapshot_seconds=1000)
        if extra.node_id in nodes(server):
            break
        server.close()
    assert server is not None
    lost = [node == extra.node_id for node in nodes(server)]
    assert any(lost)
    with server.connect(worker_id=2) as client:
        push(client, 6)
    server.save()
    stats = server.stats()
    pushing = Pushing(server)
    pushing.wait_for(10)
    cluster.remove_node(extra, allow_graceful=False)
    until(
        lambda: all(actor_epoch(server, i) > stats[i]["epoch"] for i in range(SHARDS) if lost[i]),
        150,  # Ray notices the end of a node late on a busy machine
    )
    # A shard that is still alive after its node acknowledges pushes until it sees its successor.
    time.sleep(2.5)
    before = pushing.done
    pushing.wait_for(10)
    after = pushing.stop() - before
    for i, count in enumerate(counts(server)):
        if lost[i]:
            # Saved pushes, and those since the restart, each once.
            assert 6 + after <= count <= 6 + before + after - 10
        else:
            assert count == 6 + before + after
    assert extra.node_id not in nodes(server)
    server.close()


def test_a_shard_that_wakes_up_after_it_was_replaced_refuses_to_serve(server: Any) -> None:
    with server.connect(worker_id=1) as client:
        push(client, 3)
        server.save()
        push(client)
    sleeping = actor(server, "shard-1")
    pid = ray.get(sleeping.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGSTOP)
    try:
        plan = server._plan
        successor = _engine.HostedShard(
            plan.blocks,
            plan.optimizer._built,
            SHARDS,
            1,
            plan.server,
            _engine.ServerMode(*plan.mode),
            ["unix:@"],
            plan.secret,
            False,
            plan.snapshots,
            plan.replicas,
            plan.replica_timeout,
        )
        assert successor.restore(None)
        assert json.loads(successor.stats())["version"] == 3
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: isinstance(ray.get(sleeping.locate.remote()), str))
    assert "another process has replaced its epoch 1" in ray.get(sleeping.locate.remote())
    with pytest.raises(penstock.Timeout, match="has replaced its epoch 1"):
        server.connect(timeout=1)
    with pytest.raises(penstock.Closed, match="does not serve"):  # its state is in no snapshot
        server.save()
    successor.close()


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_minute_of_random_kills_loses_nothing_that_was_saved(
    cluster: Any, tmp_path: Path
) -> None:
    dice = random.Random(7)
    server = served(snapshots=tmp_path, snapshot_seconds=0.3)
    times = 10**9  # the workers do not end before the kills do
    workers = [
        work.options(max_retries=-1, num_cpus=0.1).remote(server, i + 1, times) for i in range(3)
    ]
    end = time.monotonic() + 60
    kills = 0
    while time.monotonic() < end:
        time.sleep(dice.uniform(0.5, 3))
        stats = server.stats()
        part = dice.choice(["shard-0", "shard-1", "snapshots"])
        ray.kill(actor(server, part), no_restart=False)
        kills += 1
        until(lambda: all(actor_epoch(server, i) for i in range(SHARDS)), 100)
        for before, after in zip(stats, server.stats(), strict=True):
            assert after["version"] >= before["saved_version"]
            assert after["epoch"] >= before["epoch"]
    for each in workers:
        ray.cancel(each, force=True)
    ray.wait(workers, num_returns=len(workers), timeout=60)
    assert kills >= 10
    found = counts(server)
    for count, shard in zip(found, server.stats(), strict=True):
        # Each push in the weights is in the ledger, once.
        assert count <= sum(each["sequence"] for each in shard["workers"])
    server.close()
    again = served(snapshots=tmp_path)
    assert counts(again) == found
    again.close()


def test_without_snapshots_a_lost_shard_is_an_error_and_not_a_new_one(cluster: Any) -> None:
    server = served()
    with server.connect(timeout=1) as client:
        push(client)
        ray.kill(actor(server, "shard-0"))
        with pytest.raises(penstock.Timeout, match="shard 0"):
            push(client, 100)
    with pytest.raises(penstock.Closed, match="lost a shard"):
        server.stats()
    server.close()
    server.close()


def test_the_example_counts_every_push(cluster: Any, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "error of the weights" in done.stdout.splitlines()[-1]

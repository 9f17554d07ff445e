"""Shards with two replicas on a cluster: actors and nodes that are killed during pushes.

All gradients are -1 and the learning rate is 1, so each weight counts the pushes at its shard.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import train

pytest.importorskip("ray")

import ray
from ray.util.placement_group import placement_group_table

import ray_cluster
from test_ray_parameter_server import Pushing, actor, counts, push, served, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PARTS = ("shard-0", "shard-0-replica", "shard-1", "shard-1-replica")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.cluster(cpus=4) as made:
        yield made


@pytest.fixture
def server(cluster: Any, tmp_path: Path) -> Iterator[Any]:
    made = served(snapshots=tmp_path / "snapshots", replicas=2, snapshot_seconds=1000)
    yield made
    made.close(save=False)


def complete(server: Any) -> bool:
    try:
        return all(each["replicas"] == 2 for each in server.stats())
    except penstock.Error:
        return False


def stats_of(server: Any, part: str) -> Any:
    return json.loads(ray.get(actor(server, part).stats.remote()))


def process(server: Any, part: str) -> int:
    """The id of the process that has this part; 0: it has begun, and has none yet."""
    return int(ray.get(actor(server, part).replica.remote())[0])


def leading(server: Any) -> list[bool]:
    """For each of PARTS, whether it serves."""
    return [not isinstance(ray.get(actor(server, part).locate.remote()), str) for part in PARTS]


def test_replicas_are_on_two_nodes_and_end_with_the_server(cluster: Any, tmp_path: Path) -> None:
    made = served(snapshots=tmp_path / "snapshots", replicas=2)
    until(lambda: complete(made))
    nodes = [ray.get(actor(made, part).replica.remote())[1] for part in PARTS]
    assert nodes[0] != nodes[1]
    assert nodes[2] != nodes[3]
    assert leading(made) == [True, False, True, False]
    with made.connect() as client:
        push(client, 3)
    assert counts(made) == [3, 3]
    made.close()
    groups = [each["state"] for each in placement_group_table().values()]
    assert set(groups) == {"REMOVED"}
    again = served(snapshots=tmp_path / "snapshots", replicas=2)
    assert counts(again) == [3, 3]
    again.close()


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_killed_actor_takes_no_acknowledged_push_with_it(server: Any, victim: str) -> None:
    until(lambda: complete(server))
    pushing = Pushing(server)
    pushing.wait_for(20)
    ray.kill(actor(server, PARTS[victim == "follower"]), no_restart=False)
    pushing.wait_for(20)
    until(lambda: complete(server))
    if victim == "leader":
        assert leading(server)[:2] == [False, True]
    pushing.wait_for(20)
    done = pushing.stop()
    assert counts(server) == [done, done]


def test_a_lost_node_takes_no_acknowledged_push_with_it(cluster: Any, tmp_path: Path) -> None:
    extra = cluster.add_node(
        num_cpus=4,
        object_store_memory=ray_cluster.STORE_BYTES,
        node_ip_address="127.0.0.4",
        include_dashboard=False,
    )
    made = None
    for attempt in range(10):  # Ray chooses two of three nodes
        made = served(snapshots=tmp_path / str(attempt), replicas=2, snapshot_seconds=1000)
        while not complete(made):
            time.sleep(0.05)
        nodes = [ray.get(actor(made, part).replica.remote())[1] for part in PARTS]
        if extra.node_id in (nodes[0], nodes[2]):  # of a leader
            break
        made.close()
    assert made is not None
    pushing = Pushing(made)
    pushing.wait_for(20)
    cluster.remove_node(extra, allow_graceful=False)
    pushing.wait_for(20)
    until(lambda: complete(made), 150)  # Ray notices the end of a node late on a busy machine
    done = pushing.stop()
    assert counts(made) == [done, done]
    made.close()


def test_without_a_second_node_pushes_go_on_after_the_timeout(cluster: Any, tmp_path: Path) -> None:
    made = served(snapshots=tmp_path / "snapshots", replicas=2, replica_timeout=1)
    until(lambda: complete(made))
    with made.connect(timeout=100) as client:
        for part in PARTS[1::2]:
            ray.kill(actor(made, part))  # for good
        until(lambda: [stats_of(made, part)["replicas"] for part in PARTS[::2]] == [1, 1])
        begin = time.monotonic()
        push(client, 2)
        assert time.monotonic() - begin < 30
        weights = train.Parameters({name: tuple(w.shape) for name, w in client.parameters.items()})
        client.pull(weights)
        assert set(weights["v"].tolist()) == {2.0}
    made.close(save=False)


@pytest.mark.soak
def test_random_kills_lose_no_acknowledged_push(server: Any) -> None:
    choose = random.Random(7)
    until(lambda: complete(server))
    pushing = Pushing(server)
    end, kills = time.monotonic() + 100, 0
    while time.monotonic() < end:
        time.sleep(choose.uniform(0, 1))
        until(lambda: complete(server), 100)
        part = choose.choice(PARTS)
        before = process(server, part)
        ray.kill(actor(server, part), no_restart=False)
        # It ends some time later; the state would be lost if the other one was killed meanwhile.
        until(lambda: process(server, part) not in (0, before), 100)  # noqa: B023
        kills += 1
    until(lambda: complete(server), 100)
    pushing.wait_for(5)
    done = pushing.stop()
    assert kills > 10
    assert counts(server) == [done, done]

"""Relays on a cluster of two nodes: weights that the other node reads, items that it puts."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import penstock
from penstock import train

pytest.importorskip("ray")

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ray_cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray" / "actors.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.cluster() as made:
        yield made


@ray.remote(num_cpus=0)
class Reader:
    """A process of another node that attaches by the relayed name."""

    def __init__(self, name: str) -> None:
        self._model = train.attach(name, timeout=60)

    def read(self, value: float) -> int:
        """Wait for these weights; return their version."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with self._model.read() as (version, weights):
                seen = set(weights["w"].ravel().tolist())
                assert len(seen) == 1  # whole
                if seen == {value}:
                    return version
            time.sleep(0.01)
        raise AssertionError(f"not seen: {value}")


def node_there() -> Any:
    """The other node's id, and a strategy to run there."""
    here = ray.get_runtime_context().get_node_id()
    (there,) = {each["NodeID"] for each in ray.nodes() if each["Alive"]} - {here}
    return there, NodeAffinitySchedulingStrategy(there, soft=False)


def test_readers_of_another_node_read_what_the_learner_publishes(cluster: Any) -> None:
    there, strategy = node_there()
    parameters = train.Parameters({"w": (500, 100)})
    name = "relayed"
    train.publish(name, parameters)
    # Both nodes are this machine, where a name has one publisher.
    relay = penstock.ray.relay(name, to="relayed-there")
    try:
        readers = [
            Reader.options(scheduling_strategy=strategy).remote("relayed-there") for _ in range(2)
        ]
        while relay.stats().get(there, {}).get("version") != 0:  # the first has arrived
            time.sleep(0.1)
        versions = []
        for step in range(1, 6):
            parameters["w"] = np.full((500, 100), step)
            parameters.version = step
            train.publish(name, parameters)
            versions.append(ray.get([each.read.remote(step) for each in readers]))
        assert [each[0] for each in versions] == sorted(each[0] for each in versions)
        for step in range(6, 200):  # faster than they are sent
            parameters["w"] = np.full((500, 100), step)
            parameters.version = step
            train.publish(name, parameters)
        ray.get([each.read.remote(199) for each in readers])
        stats = relay.stats()[there]
        assert stats["version"] == 199
        assert stats["behind"] == 0
        assert stats["failure"] == ""
        assert stats["sent"] + stats["skipped"] == 200  # 0 to 199
        assert stats["bytes"] == stats["sent"] * parameters.nbytes
        # A relay of this name runs already.
        assert set(penstock.ray.relay(name, to="relayed-there").stats()) == {there}
    finally:
        relay.close()
        train.unpublish(name)
    relay.close()
    with pytest.raises(penstock.Closed, match="relay of relayed has ended"):
        for _ in range(100):
            relay.stats()
            time.sleep(0.1)


@ray.remote(num_cpus=0)
class Actor:
    """A process of another node that puts numbered items into the relayed channel."""

    def __init__(self, name: str, reconnect: bool = False) -> None:
        self._channel = train.attach_channel(name, timeout=60, reconnect=reconnect)

    def put(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            assert self._channel.put({"number": number, "x": np.full(100, number)}, timeout=60)

    def end(self) -> str:
        """Put until the channel ends; return why."""
        while True:
            try:
                self._channel.put({"number": -1}, timeout=60)
            except penstock.Closed as error:
                return str(error)


def test_a_learner_gets_the_items_of_another_node(cluster: Any) -> None:
    there, strategy = node_there()
    channel = train.channel("gathered", capacity=1 << 20)
    relay = penstock.ray.relay_channel("gathered", to="gathered-there")
    try:
        actors = [
            Actor.options(scheduling_strategy=strategy).remote("gathered-there") for _ in range(2)
        ]
        puts = [each.put.remote(1000 * who, 1000) for who, each in enumerate(actors)]
        numbers: list[int] = []
        while len(numbers) < 2000:
            for item in channel.get(256, timeout=60, stack=False):
                assert set(item["x"].tolist()) == {item["number"]}  # whole
                numbers.append(int(item["number"]))
        ray.get(puts)
        for who in range(2):  # of each producer in their order, nothing lost or twice
            mine = [number for number in numbers if number // 1000 == who]
            assert mine == list(range(1000 * who, 1000 * who + 1000))
        while (stats := relay.stats()[there])["items"] < 2000:
            time.sleep(0.1)
        assert (stats["items"], stats["put"], stats["queued"]) == (2000, 2000, 0)
        assert stats["failure"] == ""
        assert stats["seconds"] < 60
        # The learner ends: so does the channel on the other node.
        channel.close()
        assert all("has ended" in why for why in ray.get([each.end.remote() for each in actors]))
    finally:
        channel.close()
        relay.close()


def processes_of(actor: str) -> set[psutil.Process]:
    """Those of this cluster's actors of a class; another test may have a cluster."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] == [f"ray::{actor}"]:
                found.add(process)
    return found


@pytest.mark.parametrize("killed", ["RelaySource", "ChannelCopy"])
def test_items_go_on_when_an_actor_of_the_relay_was_killed(cluster: Any, killed: str) -> None:
    _, strategy = node_there()
    name, there = f"restarted-{killed}", f"restarted-there-{killed}"
    channel = train.channel(name)
    before = processes_of(killed)
    relay = penstock.ray.relay_channel(name, to=there)
    try:
        actor = Actor.options(scheduling_strategy=strategy).remote(there, True)
        numbers: list[int] = []

        def take_until(last: int) -> None:
            while not numbers or numbers[-1] != last:
                items = channel.get(256, timeout=60, stack=False)
                assert items is not None
                numbers.extend(int(item["number"]) for item in items)

        ray.get(actor.put.remote(0, 300))
        take_until(299)
        assert numbers == list(range(300))
        (process,) = processes_of(killed) - before
        process.kill()
        after = 300
        while numbers[-1] < 300:  # until the new actors run, items may be lost
            ray.get(actor.put.remote(after, 1))
            after += 1
            for item in channel.get(256, timeout=0.1, stack=False) or ():
                numbers.append(int(item["number"]))
        ray.get(actor.put.remote(after, 300))
        take_until(after + 299)
        assert numbers == sorted(set(numbers))  # nothing twice
        assert numbers[-300:] == list(range(after, after + 300))
    finally:
        channel.close()
        relay.close()


def test_the_example_learns_from_actors_of_all_nodes(cluster: Any) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--actors", "2"],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (error,) = re.findall(r"300 updates, every weight within ([\d.]+) of the best", done.stdout)
    assert float(error) < 0.3  # from 1

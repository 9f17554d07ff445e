"""penstock.ray.relay on a cluster of two nodes: weights of one node, read in place on the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import train

pytest.importorskip("ray")

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ray_cluster

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


def test_readers_of_another_node_read_what_the_learner_publishes(cluster: Any) -> None:
    here = ray.get_runtime_context().get_node_id()
    (there,) = {each["NodeID"] for each in ray.nodes() if each["Alive"]} - {here}
    parameters = train.Parameters({"w": (500, 100)})
    name = "relayed"
    train.publish(name, parameters)
    # Both nodes are this machine, where a name has one publisher.
    relay = penstock.ray.relay(name, to="relayed-there")
    try:
        strategy = NodeAffinitySchedulingStrategy(there, soft=False)
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

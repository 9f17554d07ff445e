"""penstock.ray.workers on a cluster of two nodes; actors and nodes are killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock

pytest.importorskip("ray")


import ray_cluster
from contract import assert_same
from faults import Slow, right, wait_until
from loader_datasets import Samples, Trouble, Troubled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray" / "remote_workers.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.cluster() as made:
        yield made


def actors() -> set[psutil.Process]:
    """The processes of this cluster's actors that run workers; another test may have a cluster."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended since
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::_Serving"):
                found.add(process)
    return found


def test_batches_from_two_nodes_are_those_of_one_process(cluster: Any) -> None:
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}
    with penstock.Loader(Samples(), workers=0, **options) as alone:
        wanted = [list(alone) for _ in range(2)]
    with penstock.Loader(Samples(), workers=penstock.ray.workers(4), **options) as feed:
        for epoch in wanted:
            assert_same(list(feed), epoch)
        hosts = feed._pool.running.hosts._hosts
        wait_until(lambda: all(host.connection for host in hosts))
        addresses = {host.connection.peer for host in hosts}
    hosts = {address.split("//")[1].split(":")[0] for address in addresses}
    assert hosts == set(ray_cluster.ADDRESSES)
    wait_until(lambda: not actors(), "the end of the actors")


def test_a_chain_with_functions_is_run_there(cluster: Any) -> None:
    chain = penstock.Dataset.range(60).map(lambda x: x * 2).batch(8)
    wanted = list(chain)
    with chain.build(workers=[1, penstock.ray.workers(2, num_cpus=0.5)]) as feed:
        assert_same(list(feed), wanted)


def test_an_exception_names_the_sample(cluster: Any) -> None:
    with penstock.Loader(Troubled({7}), workers=penstock.ray.workers(2)) as feed:
        with pytest.raises(Trouble) as raised:
            list(feed)
        assert "index 7" in str(raised.value.__cause__)


def test_an_actor_that_is_killed_is_restarted_by_ray(cluster: Any) -> None:
    with penstock.Loader(Slow(400, 300, 0.01), workers=penstock.ray.workers(2)) as feed:
        batches = iter(feed)
        seen = [next(batches) for _ in range(20)]
        wait_until(lambda: len(actors()) == 2, "the second actor")
        killed = actors().pop()
        killed.kill()
        wait_until(lambda: len(actors() - {killed}) == 2, "the actor's successor")
        seen += list(batches)
        assert right(seen, 400)
        assert feed.stats()["losses"] == []


def test_a_node_that_dies_loses_no_batch_and_one_that_joins_is_used(cluster: Any) -> None:
    third = {
        "num_cpus": 2,
        "object_store_memory": ray_cluster.STORE_BYTES,
        "node_ip_address": "127.0.0.4",
        "include_dashboard": False,
    }
    node = cluster.add_node(**third)
    with penstock.Loader(Slow(2000, 300, 0.01), workers=penstock.ray.workers(6)) as feed:
        batches = iter(feed)
        seen = [next(batches) for _ in range(50)]
        hosts = feed._pool.running.hosts._hosts
        wait_until(lambda: len(hosts) == 3 and all(host.workers for host in hosts))
        cluster.remove_node(node, allow_graceful=False)
        seen += [next(batches) for _ in range(100)]
        wait_until(lambda: not all(host.workers for host in hosts))
        node = cluster.add_node(**third)
        wait_until(lambda: all(host.workers for host in hosts), "the workers of the new node")
        seen += list(batches)
        assert right(seen, 2000)
    cluster.remove_node(node)


def test_arguments_are_checked(cluster: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match="num_cpus"):
        penstock.ray.workers(2, num_cpus=-1)
    with (
        penstock.Loader(
            Samples(), batch_size=2, workers=penstock.ray.workers(1, num_cpus=99)
        ) as feed,
        pytest.raises(penstock.InvalidArgument, match="no node of Ray's cluster has 99"),
    ):
        next(iter(feed))


def test_the_example_runs(cluster: Any) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("2 epochs, 64 batches")

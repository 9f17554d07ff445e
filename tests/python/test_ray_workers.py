"""penstock.ray.workers on a cluster of two nodes; actors and nodes are killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock

pytest.importorskip("ray")


import ray

import ray_cluster
from contract import assert_same
from faults import Slow, right, wait_until
from loader_datasets import Samples, Trouble, Troubled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
THIRD = {
    "num_cpus": 2,
    "object_store_memory": ray_cluster.STORE_BYTES,
    "node_ip_address": "127.0.0.4",
    "include_dashboard": False,
}
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
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::_ServingLoader"):
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
    node = cluster.add_node(**THIRD)
    with penstock.Loader(Slow(2000, 300, 0.01), workers=penstock.ray.workers(6)) as feed:
        batches = iter(feed)
        seen = [next(batches) for _ in range(50)]
        hosts = feed._pool.running.hosts._hosts
        wait_until(lambda: len(hosts) == 3 and all(host.workers for host in hosts))
        cluster.remove_node(node, allow_graceful=False)
        seen += [next(batches) for _ in range(100)]
        wait_until(lambda: not all(host.workers for host in hosts))
        node = cluster.add_node(**THIRD)
        wait_until(lambda: all(host.workers for host in hosts), "the workers of the new node")
        seen += list(batches)
        assert right(seen, 2000)
    cluster.remove_node(node)


def drain(node: Any) -> None:
    """Tell Ray that the node is about to be taken away, as a cloud's notice does."""
    options = {
        "address": ray.get_runtime_context().gcs_address,
        "node-id": node.node_id,
        "reason": "DRAIN_NODE_REASON_PREEMPTION",
        "reason-message": "a test",
        "deadline-remaining-seconds": "120",
    }
    drained = subprocess.run(
        [
            str(Path(sys.executable).parent / "ray"),
            "drain-node",
            *(f"--{name}={value}" for name, value in options.items()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert drained.returncode == 0, drained.stderr[-2000:]


def test_a_node_that_drains_finishes_its_batches_and_gets_no_others(cluster: Any) -> None:
    third = cluster.add_node(**THIRD)
    with penstock.Loader(Slow(2000, 300, 0.01), workers=penstock.ray.workers(6)) as feed:
        batches = iter(feed)
        seen = [next(batches) for _ in range(50)]
        hosts = feed._pool.running.hosts._hosts
        wait_until(lambda: len(hosts) == 3 and all(host.workers for host in hosts))
        at = THIRD["node_ip_address"]
        drained = next(host for host in hosts if at in host.connection.peer)
        drain(third)
        while drained.connection is not None:
            seen.append(next(batches))
        wait_until(lambda: len(actors()) == 2, "the end of the actor")
        seen += list(batches)
        assert right(seen, 2000)
        stats = feed.stats()
    assert (stats["restarts"], stats["reissued"], stats["losses"]) == (0, 0, [])
    cluster.remove_node(third)


class Parts:
    """Item i is read from file i. Only the node whose working folder this is has the even ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 100

    def path(self, index: int) -> Path:
        return Path(f"even/{index}") if index % 2 == 0 else self.folder / "odd"

    def __getitem__(self, index: int) -> tuple[int, bool]:
        time.sleep(0.01)  # so that each node gets some
        return int(self.path(index).read_text()), Path.cwd() == self.folder


def test_a_batch_is_made_on_the_node_that_has_its_file(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "even").mkdir()
    (tmp_path / "odd").write_text("1")
    for index in range(0, 100, 2):
        (tmp_path / "even" / str(index)).write_text(str(index))
    monkeypatch.chdir(tmp_path)
    third = cluster.add_node(**THIRD)
    monkeypatch.undo()
    data = Parts(tmp_path)
    workers = penstock.ray.workers(3, locality=data.path)
    with penstock.Loader(data, workers=workers) as feed:
        batches = iter(feed)
        seen = [next(batches)]
        hosts = feed._pool.running.hosts._hosts
        wait_until(lambda: all(host.workers for host in hosts), "the workers of all nodes")
        seen += list(batches)
    assert [int(value) for value, _ in seen] == [i if i % 2 == 0 else 1 for i in range(100)]
    assert all(there for _, there in seen[::2])
    assert not all(there for _, there in seen[1::2])
    cluster.remove_node(third)


def test_arguments_are_checked(cluster: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match="locality is 'x'"):
        penstock.ray.workers(2, locality="x")
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

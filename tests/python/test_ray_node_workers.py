"""penstock.ray.node_workers on a cluster of two nodes: the ranks of a node share its workers."""

from __future__ import annotations

import contextlib
import json
import os
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

pytest.importorskip("ray")

import ray
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ray_cluster
import ray_functions
from faults import Slow, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WORLD = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.cluster(cpus=4) as made:
        yield made
        wait_until(lambda: not servers(), "the end of the idle actors")


def servers() -> list[psutil.Process]:
    """The processes of this cluster's actors that run the workers of a node."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended since
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::_ServingNode"):
                found.append(process)
    return found


def worker_counts() -> list[int]:
    """How many worker processes the actor of each node has."""
    counts = []
    for process in servers():
        with contextlib.suppress(psutil.Error):
            children = [child.cmdline() for child in process.children()]
            counts.append(sum("penstock" in " ".join(command) for command in children))
    return sorted(counts)


@ray.remote(num_cpus=1)
class Rank:
    """A rank that is fed by the workers of its node."""

    def __init__(self, rank: int, kind: str, idle_s: float) -> None:
        ray_functions.shorten_idle(idle_s)
        remote = penstock.ray.node_workers(2)
        if kind == "chain":
            chain = penstock.Dataset.range(400).map(waiting).shuffle(seed=1).shard(rank, WORLD)
            self.feed = chain.batch(4).build(workers=remote)
        else:
            self.feed = penstock.Loader(
                Slow(400, 300, 0.005), batch_size=4, shard=(rank, WORLD), workers=remote
            )
        self.batches = iter(self.feed)

    def take(self, count: int | None = None) -> list[list[int]]:
        """The next batches of the epoch: `count`, or all that are left."""
        found: list[list[int]] = []
        for batch in self.batches:
            found.append(np.ravel(batch[1] if isinstance(batch, tuple) else batch).tolist())
            if len(found) == count:
                break
        return found

    def losses(self) -> Any:
        return self.feed.stats()["losses"]

    def close(self) -> None:
        self.feed.close()


def waiting(element: Any) -> Any:
    time.sleep(0.002)
    return element


def ranks(cluster: Any, kind: str, idle_s: float = 2.0) -> list[Any]:
    """Two ranks on each node."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    assert len(nodes) == 2
    made = []
    for rank in range(WORLD):
        place = NodeAffinitySchedulingStrategy(nodes[rank // 2], soft=False)
        made.append(Rank.options(scheduling_strategy=place).remote(rank, kind, idle_s))
    return made


@pytest.mark.parametrize("kind", ["samples", "chain"])
def test_a_node_has_as_many_processes_as_it_was_given_however_many_ranks(
    cluster: Any, kind: str
) -> None:
    made = ranks(cluster, kind)
    first = ray.get([rank.take.remote(3) for rank in made])
    assert worker_counts() == [2, 2]
    rest = ray.get([rank.take.remote() for rank in made])
    rows = [row for each in (*first, *rest) for batch in each for row in batch]
    assert sorted(rows) == list(range(400))
    if kind == "samples":
        # Batch i of the epoch is of rank i mod 4.
        assert first[1][:2] == [[4, 5, 6, 7], [20, 21, 22, 23]]
    ray.get([rank.close.remote() for rank in made])
    wait_until(lambda: not servers(), "the end of the idle actors")
    for rank in made:
        ray.kill(rank)


def test_an_actor_that_is_killed_comes_back_and_no_batch_is_lost(cluster: Any) -> None:
    made = ranks(cluster, "samples")
    first = ray.get([rank.take.remote(3) for rank in made])
    killed = servers()[0]
    killed.kill()
    rest = [rank.take.remote() for rank in made]
    wait_until(lambda: len(servers()) == 2 and killed not in servers(), "the actor's successor")
    rows = [row for each in (*first, *ray.get(rest)) for batch in each for row in batch]
    assert sorted(rows) == list(range(400))
    assert ray.get([rank.losses.remote() for rank in made]) == [[]] * WORLD
    for rank in made:
        ray.kill(rank)  # without close()
    wait_until(lambda: not servers(), "the end of the idle actors")


def test_ranks_of_ray_train_share_the_workers_of_their_node(cluster: Any, tmp_path: Path) -> None:
    DataParallelTrainer(
        ray_functions.feed_from_node,
        train_loop_config={"rows": 320, "folder": str(tmp_path), "part": "node"},
        scaling_config=ray.train.ScalingConfig(
            num_workers=WORLD, placement_strategy="SPREAD", resources_per_worker={"CPU": 1}
        ),
        run_config=ray.train.RunConfig(name="run", storage_path=str(tmp_path / "runs")),
    ).fit()
    facts = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("node-*.json"))]
    assert len(facts) == WORLD
    rows = [row for each in facts for batch in each["seen"]["batches"] for row in batch]
    assert sorted(rows) == list(range(320))
    by_node: dict[str, list[set[int]]] = {}
    for each in facts:
        by_node.setdefault(each["node"], []).append(set(each["seen"]["workers"]))
    for first, second in by_node.values():  # its two ranks
        assert first & second
        assert len(first | second) <= 2


SCRIPT = """
import importlib, os, time
import numpy as np
import penstock
import ray

class Numbers:
    def __len__(self):
        return 80
    def __getitem__(self, index):
        time.sleep(0.002)
        if str(index) in {"a", "b", "c", "d", "e", "f", "g"}:
            raise ValueError
        return np.array([index, os.getpid()])

@ray.remote(num_cpus=1)
class Rank:
    def __init__(self, rank, data):
        importlib.import_module("penstock.ray.workers")._IDLE_S = 1.0
        workers = penstock.ray.node_workers(2)
        self.feed = penstock.Loader(data, batch_size=4, shard=(rank, 2), workers=workers)
    def take(self):
        return np.concatenate(list(self.feed))

if __name__ == "__main__":
    ray.init(logging_level="error", log_to_driver=False)
    node = ray.get_runtime_context().get_node_id()
    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    ranks = [Rank.options(scheduling_strategy=place).remote(r, Numbers()) for r in range(2)]
    taken = ray.get([rank.take.remote() for rank in ranks])
    first, second = (set(rows[:, 1].tolist()) for rows in taken)
    print(sorted(np.concatenate(taken)[:, 0].tolist()) == list(range(80)))
    print(len(first | second) <= 2 and bool(first & second))
"""


def test_a_data_set_of_the_drivers_script_is_shared(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-2:] == ["True", "True"]  # all rows; from the same processes
    wait_until(lambda: not servers(), "the end of the idle actor")


SHUTDOWN = """
import os, time
import penstock
import ray
from faults import Slow

for make in (penstock.ray.node_workers, penstock.ray.workers):
    ray.init("local", num_cpus=2, logging_level="error", log_to_driver=False)
    feed = penstock.Loader(Slow(40, 300, 0.005), workers=make(1))
    batches = iter(feed)
    next(batches)
    ray.shutdown()
    begin = time.monotonic()
    try:
        list(batches)
    except penstock.WorkerLost as error:
        print("shut down" in str(error), time.monotonic() - begin < 30, ray.is_initialized())
    feed.close()
"""


def test_a_loader_starts_no_other_cluster_when_ray_was_shut_down() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", SHUTDOWN],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["True", "True", "False"] * 2


def test_arguments_are_checked() -> None:
    for count in (0, 10_000):
        with pytest.raises(penstock.InvalidArgument, match=f"count is {count}"):
            penstock.ray.node_workers(count)
    with pytest.raises(penstock.InvalidArgument, match="num_cpus is -1"):
        penstock.ray.node_workers(2, num_cpus=-1)
    assert penstock.ray.node_workers().count >= 1

"""penstock.ray on a cluster of two nodes: ranks that feed themselves, and rows of ray.data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

pytest.importorskip("ray")

import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import ray_cluster
import ray_functions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray" / "train_feed.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.cluster() as made:
        yield made


def run(
    function: Any, folder: Path, part: str, workers: int, datasets: Any = None, **config: Any
) -> list[dict[str, Any]]:
    """Run a function on ranks that are spread over the nodes; return what they wrote down."""
    DataParallelTrainer(
        function,
        train_loop_config={"folder": str(folder), "part": part, **config},
        scaling_config=ray.train.ScalingConfig(
            num_workers=workers, placement_strategy="SPREAD", resources_per_worker={"CPU": 1}
        ),
        run_config=ray.train.RunConfig(name="run", storage_path=str(folder / "runs")),
        datasets=datasets,
    ).fit()
    found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{part}-*.json"))]
    assert [each["rank"] for each in found] == list(range(workers))
    return found


def test_an_epoch_is_finished_by_another_number_of_ranks(cluster: Any, tmp_path: Path) -> None:
    first = run(ray_functions.feed_some, tmp_path, "first", 2, steps=6, rows=120)
    assert {each["node"] for each in first} == set(ray_cluster.ADDRESSES)
    # The example goes on with more ranks.
    second = run(ray_functions.feed_some, tmp_path, "second", 1, steps=None, rows=120)
    for kind in ("chain", "samples"):
        assert [len(each["seen"][kind]) for each in first + second] == [6, 6, 18]
        seen = [
            [i for each in part for b in each["seen"][kind] for i in b] for part in (first, second)
        ]
        assert Counter(seen[0] + seen[1]) == Counter(range(120))
        # The order is that of one process alone.
        alone = [int(i) for i in penstock.Permutation(120, 7, 0)]
        assert set(seen[0]) == set(alone[:48])


def test_ranks_are_fed_with_their_shards_of_ray_data(cluster: Any, tmp_path: Path) -> None:
    data = ray.data.range(103, override_num_blocks=4)
    found = run(ray_functions.feed_shard, tmp_path, "shard", 2, {"train": data})
    for epoch in (0, 1):
        rows = [row for each in found for row in each["seen"][epoch]]
        assert len(set(rows)) == len(rows) >= 102  # Ray Data leaves out what does not divide
    assert all("no position that could be restored" in each["seen"][2] for each in found)


def test_rows_of_ray_data_have_arrays_of_tensors_strings_and_lists(cluster: Any) -> None:
    items = [
        {"i": i, "s": f"x{i}", "t": np.full((2, 3), i, np.float32), "l": list(range(i % 3))}
        for i in range(50)
    ]
    data = ray.data.from_items(items, override_num_blocks=7)
    rows = penstock.ray.rows(data)
    with rows.batch(16).build(workers=2) as feed:
        for _ in range(2):
            batches = list(feed)
            assert [len(batch["i"]) for batch in batches] == [16, 16, 16, 2]
            found = np.concatenate([batch["i"] for batch in batches])
            assert sorted(found.tolist()) == list(range(50))
    for batch in batches:  # blocks come in any order
        for i, s, t, part in zip(*(batch[name] for name in "istl"), strict=True):
            assert (s, t.shape, set(t.ravel())) == (f"x{i}", (2, 3), {i})
            assert part.tolist() == list(range(i % 3))
    with penstock.ray.rows(data, columns=["i", "l"]).build(workers=0) as feed:
        assert all(row.keys() == {"i", "l"} for row in feed)
    assert list(penstock.ray.rows(data.limit(0)).batch(4)) == []


def test_rows_go_through_functions_in_worker_processes(cluster: Any) -> None:
    data = ray.data.range(40, override_num_blocks=4)
    rows = penstock.ray.rows(data).map(lambda row: row["id"] * 2).batch(8)
    with rows.build(workers=1, use_multiprocessing=True) as feed:
        found = np.concatenate(list(feed)).tolist()
    assert sorted(found) == list(range(0, 80, 2))


def test_an_abandoned_pass_stops_ray_data(cluster: Any) -> None:
    data = ray.data.range(1000, override_num_blocks=10)
    source = penstock.ray.rows(data)
    blocks = source._inputs[0]._recipe[1][0]
    with source.build(workers=1) as feed:
        next(iter(feed))
    del feed
    assert blocks._passes == {}


def test_the_driver_is_told_where_a_feed_belongs(cluster: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match="not a worker of Ray Train"):
        penstock.ray.feed(penstock.Dataset.range(5), batch_size=2)
    assert list(penstock.Dataset.range(3).shard("auto")) == [0, 1, 2]


def test_the_example_goes_on_with_another_number_of_ranks(cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def example(*options: str) -> str:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), str(tmp_path), *options],
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, "RAY_ADDRESS": cluster.address},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()[-1]

    assert example("--workers", "1", "--stop-after", "30").startswith("epoch 0, 30 steps, 600 rows")
    # 5,400 rows of the first epoch by two ranks, and then 6,000: 135 and 150 steps.
    assert example("--workers", "2").startswith("epoch 2, 315 steps, 12000 rows")

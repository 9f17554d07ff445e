"""Two ranks of Ray Train on this machine read one data set: 784 bytes a row, batches of 256.

penstock: each rank feeds itself. Ray Data: a coordinator splits the blocks of the same files, and
each rank iterates over its shard. Both give tensors of torch. A Parquet file is decoded by both
ranks of penstock, because their rows are in the same row groups; once by Ray Data. The figure is
the rows of three epochs of both ranks by the time from the first one's begin to the last one's end,
so batches that are read ahead count.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import BEST_PEER, Case, Figure, Figures, Size, Target, expect, once
from peers import ray_end, ray_head

RANKS, BATCH, WIDTH, FILES, EPOCHS = 2, 256, 784, 8, 3
OURS = "penstock.ray.feed"

CASE = Case(
    "ray_feed",
    f"{RANKS} ranks of Ray Train, Parquet files of {WIDTH} bytes a row, batches of {BATCH}",
    {"rate": Figure(f"rows/s of all ranks, {EPOCHS} epochs", more_is_better=True)},
    full={"count": 400_000},
    quick={"count": 80_000},
    targets=[Target("rate", OURS, BEST_PEER, at_least=5.0, says="5 times Ray Data's shards")],
)


def folder_of(size: Size) -> Path:
    """A folder of Parquet files, with row groups of 5,000 rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(folder: Path) -> None:
        folder.mkdir()
        rng = np.random.default_rng(0)
        rows = size.count // FILES
        for number in range(FILES):
            x = pa.array(rng.integers(0, 256, rows * WIDTH, np.uint8))
            ids = pa.array(np.arange(number * rows, (number + 1) * rows))
            columns = {"x": pa.FixedSizeListArray.from_arrays(x, WIDTH), "id": ids}
            pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=5_000)

    return once(size.path(f"ray-feed-{size.count}"), write)


def prepare(size: Size) -> None:
    folder_of(size)


CASE.prepare = prepare


def trained(size: Size, batches: Callable[[], Any], datasets: Any = None) -> Figures:
    """Run the ranks; `batches` makes a rank's feed, whose every ``for`` is an epoch.

    Functions that run in the ranks are nested, so that Ray sends them by value.
    """
    import ray.train
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    def loop(config: dict[str, Any]) -> None:
        import time

        import ray.train.collective

        feed, found = batches(), []
        for _ in range(EPOCHS):
            ray.train.collective.barrier()
            began, rows, total = time.time(), 0, 0
            for batch in feed():
                rows += len(batch["x"])
                total += int(batch["id"].sum())
            found.append((began, time.time(), rows, total))
        rank = ray.train.get_context().get_world_rank()
        Path(config["folder"], f"{rank}.json").write_text(json.dumps(found))

    with tempfile.TemporaryDirectory() as folder:
        DataParallelTrainer(
            loop,
            train_loop_config={"folder": folder},
            scaling_config=ray.train.ScalingConfig(num_workers=RANKS),
            run_config=ray.train.RunConfig(name="ray-feed", storage_path=folder),
            datasets=datasets() if datasets else None,
        ).fit()
        ranks = [json.loads(Path(folder, f"{r}.json").read_text()) for r in range(RANKS)]
    for epoch in zip(*ranks, strict=True):
        _, _, rows, total = zip(*epoch, strict=True)
        expect(size.count - RANKS < sum(rows) <= size.count, f"{sum(rows)} rows came")
        if sum(rows) == size.count:
            expect(sum(total) == size.count * (size.count - 1) // 2, "other rows came")
    began = min(epoch[0] for rank in ranks for epoch in rank)
    ended = max(epoch[1] for rank in ranks for epoch in rank)
    return {"rate": sum(epoch[2] for rank in ranks for epoch in rank) / (ended - began)}


def on_a_cluster(run: Callable[[], Figures], store_bytes: int) -> Figures:
    ray_head(store_bytes)
    try:
        return run()
    finally:
        ray_end()


@CASE.entry(OURS, "ours", "Dataset.parquet, a share for each rank")
def ours(size: Size) -> Figures:
    files = str(folder_of(size) / "*.parquet")

    def batches() -> Any:
        import penstock

        feed = penstock.ray.feed(penstock.Dataset.parquet(files), batch_size=BATCH, device="cpu")
        return lambda: feed

    return on_a_cluster(lambda: trained(size, batches), 100 << 20)


@CASE.entry("Ray Data, get_dataset_shard", "peer", "iter_torch_batches")
def ray_data(size: Size) -> Figures:
    folder = str(folder_of(size))

    def batches() -> Any:
        import ray.train

        shard = ray.train.get_dataset_shard("train")
        return lambda: shard.iter_torch_batches(batch_size=BATCH)

    def datasets() -> Any:
        import ray.data

        return {"train": ray.data.read_parquet(folder)}

    return on_a_cluster(lambda: trained(size, batches, datasets), 2 << 30)


CASES = (CASE,)

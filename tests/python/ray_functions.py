"""Functions that workers of Ray Train run in tests. Each worker writes down what it was fed."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray.train

import penstock


def chain(rows: int) -> penstock.Dataset:
    return penstock.Dataset.range(rows).shuffle(seed=7)


class Numbers:
    """A data set with __getitem__."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(3, index)


def take_down(config: dict[str, Any], seen: Any) -> None:
    """Write a file with the rank, its host's address, and what it has seen."""
    context = ray.train.get_context()
    facts = {
        "rank": context.get_world_rank(),
        "node": ray.util.get_node_ip_address(),
        "seen": seen,
    }
    Path(config["folder"], f"{config['part']}-{facts['rank']}.json").write_text(json.dumps(facts))


def feed_some(config: dict[str, Any]) -> None:
    """Take `steps` batches, or all, of the epoch that the last checkpoint is in; save another."""
    feeds = {
        "chain": penstock.ray.feed(chain(config["rows"]), batch_size=4),
        "samples": penstock.ray.feed(Numbers(config["rows"]), batch_size=4, shuffle=True, seed=7),
    }
    before: dict[str, Any] = {}
    states: dict[str, Any] = {}
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            before = json.loads(Path(folder, "feeds.json").read_text())
    seen: dict[str, list[list[int]]] = {}
    for name, feed in feeds.items():
        with feed:
            if before:
                feed.load_state_dict(before[name])
            batches = itertools.islice(feed, config["steps"])
            seen[name] = [np.reshape(b, (len(b), -1))[:, 0].tolist() for b in batches]
            states[name] = feed.state_dict()
    take_down(config, seen)
    with tempfile.TemporaryDirectory() as folder:
        kept = None
        if ray.train.get_context().get_world_rank() == 0:
            Path(folder, "feeds.json").write_text(json.dumps(states))
            kept = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({}, checkpoint=kept)


def feed_shard(config: dict[str, Any]) -> None:
    """Take this rank's shard of a ray.data Dataset, for two epochs."""
    seen = []
    with penstock.ray.feed(ray.train.get_dataset_shard("train"), batch_size=8) as feed:
        for _ in range(2):
            seen.append([row for batch in feed for row in batch["id"].tolist()])
        try:
            feed.state_dict()
        except penstock.InvalidArgument as error:
            seen.append(str(error))
    take_down(config, seen)


def feed_epoch(config: dict[str, Any]) -> None:
    """Take an epoch, and end at once."""
    with penstock.ray.feed(chain(config["rows"]), batch_size=4, drop_last=True) as feed:
        seen = len(list(feed))
    take_down(config, seen)


def with_pid(element: Any) -> Any:
    time.sleep(0.002)  # so that every worker gets some
    return {"row": element, "pid": os.getpid()}


def shorten_idle(seconds: float) -> None:
    """Let actors of nodes that this process starts end after so many seconds without a Loader."""
    module: Any = importlib.import_module("penstock.ray.workers")
    module._IDLE_S = seconds


def feed_from_node(config: dict[str, Any]) -> None:
    """Take an epoch from two worker processes of the node; note them."""
    shorten_idle(2.0)
    rows = penstock.Dataset.range(config["rows"]).map(with_pid).shuffle(seed=7)
    workers = penstock.ray.node_workers(2)
    with penstock.ray.feed(rows, batch_size=4, workers=workers) as feed:
        batches = list(feed)
        # Not at once: the other ranks of the node may still use the processes.
        ray.train.report({})
    seen = {
        "batches": [batch["row"].tolist() for batch in batches],
        "workers": sorted({int(pid) for batch in batches for pid in batch["pid"]}),
    }
    take_down(config, seen)

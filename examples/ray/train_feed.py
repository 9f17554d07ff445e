"""A network trained by Ray Train: each rank feeds itself, and a stopped run goes on.

python examples/ray/train_feed.py folder --workers 2 --stop-after 40   # stops in mid-epoch
python examples/ray/train_feed.py folder --workers 3                   # goes on, the rest by three

Needs torch, and a cluster of Ray; without one, Ray starts on this machine. On several hosts the
folder must be shared, or be a URL of a bucket.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import ray.train.torch
import torch

import penstock

ROWS, EPOCHS, BATCH = 6_000, 2, 20


def dataset() -> penstock.Dataset:
    """Points of a plane, each with the class of its side of a line, and its number."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 2), np.float32)
    y = (x @ np.array([1, -2], np.float32) > 0).astype(np.float32)
    columns = {"x": x, "y": y, "row": np.arange(ROWS)}
    return penstock.Dataset.arrays(columns).shuffle(seed=7)


def train_loop(config: dict[str, Any]) -> None:
    """Run on every rank."""
    network = torch.nn.Linear(2, 1)
    model = ray.train.torch.prepare_model(network)  # with one rank, the network itself
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed = penstock.ray.feed(dataset(), batch_size=BATCH, device="cpu")
    steps = seen = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "model.pt"))
            feed.load_state_dict(json.loads(Path(folder, "feed.json").read_text()))
        network.load_state_dict(saved["network"])
        steps, seen = saved["steps"], saved["seen"]

    def report(loss: torch.Tensor) -> None:
        """Save a checkpoint: the ranks have taken equally many batches, so one rank's will do."""
        metrics = {"epoch": feed.epoch, "steps": steps, "seen": seen, "loss": loss.item()}
        with tempfile.TemporaryDirectory() as folder:
            kept = None
            if ray.train.get_context().get_world_rank() == 0:
                saved = {"network": network.state_dict(), "steps": steps, "seen": seen}
                torch.save(saved, Path(folder, "model.pt"))
                Path(folder, "feed.json").write_text(json.dumps(feed.state_dict()))
                kept = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=kept)

    while feed.epoch < EPOCHS:
        for batch in feed:
            logits = model(batch["x"]).ravel()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows = torch.tensor(len(batch["row"]))
            if torch.distributed.is_initialized():  # the rows of all ranks
                torch.distributed.all_reduce(rows)
            steps, seen = steps + 1, seen + int(rows)
            if steps == config["stop_after"]:
                report(loss)
                return
        report(loss)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=0, help="steps; 0: train to the end")
    options = parser.parse_args()
    trainer = ray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config={"stop_after": options.stop_after},
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=options.workers, placement_strategy="SPREAD"
        ),
        # A second run of this name begins with the last checkpoint of the first.
        run_config=ray.train.RunConfig(name="train_feed", storage_path=options.folder),
    )
    metrics = trainer.fit().metrics
    print("epoch {epoch}, {steps} steps, {seen} rows, loss {loss:.3f}".format(**metrics))


if __name__ == "__main__":
    main()

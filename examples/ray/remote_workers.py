"""Batches from worker processes on all nodes of a Ray cluster, for a loop in one process.

python examples/ray/remote_workers.py --workers 8              # all on the cluster
python examples/ray/remote_workers.py --workers 8 --local 2    # and two processes here

Needs a cluster of Ray (RAY_ADDRESS names it); without one, Ray starts on this machine.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import ray

import penstock

SAMPLES, BATCH, EPOCHS = 2_048, 64, 2


class Pictures:
    """Noise with a square in it, costly to make: any data set with these two methods will do."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        draw = penstock.rng()  # keyed by the sample: the same picture on every node
        picture = draw.standard_normal((32, 32, 3), np.float32)
        row, column = draw.integers(0, 24, 2)
        picture[row : row + 8, column : column + 8] += index % 10
        return np.sort(picture, axis=0), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--local", type=int, default=0)
    options = parser.parse_args()
    ray.init(log_to_driver=False)
    remote = penstock.ray.workers(options.workers, num_cpus=0.5)
    batches = 0
    with penstock.Loader(
        Pictures(), batch_size=BATCH, shuffle=True, workers=[options.local, remote]
    ) as feed:
        begin = time.perf_counter()
        for _ in range(EPOCHS):
            for pictures, labels in feed:
                batches += len(pictures) == len(labels)
        seconds = time.perf_counter() - begin
    print(f"{EPOCHS} epochs, {batches} batches, {batches / seconds:.0f} a second")


if __name__ == "__main__":
    main()

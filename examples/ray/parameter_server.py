"""A linear model that workers on all hosts train together, by a parameter server of Ray actors.

python examples/ray/parameter_server.py folder

The folder is for snapshots; on several hosts it must be shared. Without a cluster, Ray starts on
this machine. A task that Ray runs again continues where its pushes ended.
"""

from __future__ import annotations

import argparse

import numpy as np
import ray

import penstock
from penstock import train

WORKERS, STEPS, BATCH = 3, 100, 32
TRUE = np.linspace(-1, 1, 64, dtype=np.float32)


@ray.remote(num_cpus=0.5, max_retries=-1, scheduling_strategy="SPREAD")
def work(server: penstock.ray.ParameterServer, rank: int) -> int:
    """Push the gradients of STEPS batches; return the number of this worker's pushes."""
    with server.connect(worker_id=rank + 1) as client:
        for step in range(client.sequence, STEPS):
            rng = np.random.default_rng([rank, step])
            x = rng.standard_normal((BATCH, len(TRUE)), np.float32)
            client.pull()
            error = x @ (client.parameters["w"] - TRUE)
            client.push({"w": x.T @ error / BATCH})
        return client.sequence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="for snapshots")
    folder = parser.parse_args().folder
    ray.init(log_to_driver=False, logging_level="error")
    weights = train.Parameters({"w": TRUE.shape})
    with penstock.ray.parameter_server(
        weights, train.SGD(0.05), shards=2, snapshots=folder, num_cpus=0.5
    ) as server:
        pushes = ray.get([work.remote(server, rank) for rank in range(WORKERS)])
        server.pull(weights)
        for shard in server.stats():
            print(f"shard with epoch {shard['epoch']}: {shard['pushes']} pushes")
    print(f"{sum(pushes)} pushes, error of the weights {np.abs(weights['w'] - TRUE).max():.4f}")


if __name__ == "__main__":
    main()

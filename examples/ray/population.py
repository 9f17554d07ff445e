"""Small networks with learning rates of their own, trained on all hosts; bad ones copy good ones.

    python examples/ray/population.py [steps]

Population based training (Jaderberg et al. 2017). Without a cluster, Ray starts on this machine.
"""

from __future__ import annotations

import sys

import numpy as np
import ray
import torch

import penstock

MEMBERS, BATCH, ROUNDS = 8, 32, 3
RATES = [float(rate) for rate in np.geomspace(1e-4, 1e-1, MEMBERS)]


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def data(member: int, seed: int) -> penstock.Loader:
    """Batches of a member, made on its node."""
    x = np.random.default_rng(0).standard_normal((2048, 16)).astype(np.float32)
    y = np.argmax(x[:, :4] * x[:, 4:8], axis=1)
    return penstock.Loader((x, y), batch_size=BATCH, shuffle=True, seed=seed, workers=0)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    ray.init(log_to_driver=False, logging_level="error")
    with penstock.ray.population(
        network, members=MEMBERS, hyper={"lr": RATES}, snapshot_seconds=1.0
    ) as networks:
        run = networks.train(data, steps=steps)
        losses = dict.fromkeys(range(MEMBERS), np.inf)
        rounds = dict.fromkeys(range(MEMBERS), 0)
        for result in run.as_completed():  # the others train on
            member = result.member
            losses[member] = float(result.losses[-10:].mean()) if result.error is None else np.inf
            rounds[member] += 1
            print(f"network {member}: rate {result.hyper['lr']:.5f}, loss {losses[member]:.3f}")
            if rounds[member] == ROUNDS:
                continue
            best = min(losses, key=losses.__getitem__)
            if losses[member] > 1.5 * losses[best]:
                networks.copy(best, member)
                networks.perturb(member, lr=(0.8, 1.25))
            run.add(member, steps)
        best = min(losses, key=losses.__getitem__)
        print(f"the best of {MEMBERS}: network {best} with the loss {losses[best]:.3f}")


if __name__ == "__main__":
    main()

"""One of two processes of a job: prints the elements of its share, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import penstock

ELEMENTS = 24


class Numbers:
    def __len__(self) -> int:
        return ELEMENTS

    def __getitem__(self, i: int) -> np.ndarray:
        return np.full(3, i, np.float32)


def rows() -> penstock.Dataset:
    return penstock.Dataset.range(ELEMENTS).shuffle(seed=7).shard("auto").batch(4)


def with_torch(rank: int, place: str) -> dict[str, Any]:
    """Train by DistributedDataParallel; return what was fed, and the weights after it."""
    import torch

    import penstock.torch

    torch.distributed.init_process_group("gloo", f"file://{place}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = []
    with penstock.torch.feed(Numbers(), batch_size=4, shuffle=True, seed=7, shard="auto") as feed:
        for x in feed:
            seen += x[:, 0].int().tolist()
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    found = {
        "loader": seen,
        "dataset": [int(i) for batch in penstock.torch.feed(rows()) for i in batch],
        "weights": model.module.weight.detach().ravel().tolist(),
    }
    torch.distributed.destroy_process_group()
    return found


def share_of(rank: int) -> list[np.ndarray]:
    """Batches of several sizes, others for each rank."""
    rng = np.random.default_rng(rank)
    return [rng.standard_normal((2 + i % 3, 3)).astype(np.float32) for i in range(8)]


def step(batch: Any, views: Any) -> Any:
    import torch

    loss = (views.model(torch.as_tensor(batch)) ** 2).mean()
    loss.backward()
    return loss


def towers_of(rank: int, towers: int, feed: Any, group: Any = None) -> tuple[Any, Any]:
    """Towers that begin with weights of their rank, on torch's CPU as a device."""
    import torch

    import penstock.torch
    from penstock import train
    from penstock.train.device_slab import DeviceParameters

    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 2)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    parameters = DeviceParameters({name: tuple(w.shape) for name, w in weights.items()}, "cpu")
    parameters.update(weights)
    aliased, _ = penstock.torch.alias(model, parameters)
    made = train.Towers(
        step, aliased, train.Adam(0.1), feed, towers=towers, model=model, group=group
    )
    return made, parameters


def with_towers(rank: int, place: str) -> dict[str, Any]:
    """Two towers of this process, whose gradients are averaged with those of the other one."""
    import torch

    torch.distributed.init_process_group("gloo", f"file://{place}", rank=rank, world_size=2)
    towers, parameters = towers_of(rank, 2, share_of(rank), torch.distributed.group.WORLD)
    report = towers.run()
    torch.distributed.destroy_process_group()
    return {"weights": parameters["weight"].tolist(), "rounds": report.rounds}


def with_jax(rank: int, place: str) -> dict[str, Any]:
    """Feed global arrays over both processes; return the local share, and sums over all."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import penstock.jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(place, num_processes=2, process_id=rank)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))
    total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))
    seen, sums, shapes = [], [], []
    options = {"batch_size": 4, "shuffle": True, "seed": 7, "shard": "auto"}
    with penstock.jax.feed(Numbers(), sharding=sharding, **options) as feed:
        for x in feed:
            seen += [int(row[0]) for part in x.addressable_shards for row in np.asarray(part.data)]
            sums.append(float(total(x)))
            shapes.append(list(x.shape))
    found = {
        "loader": seen,
        "dataset": [int(i) for batch in penstock.jax.feed(rows()) for i in batch],
        "sums": sums,
        "shapes": shapes,
    }
    jax.distributed.shutdown()
    return found


def from_the_environment(rank: int, place: str) -> dict[str, Any]:
    return {
        "loader": [int(x[0]) for batch in penstock.Loader(Numbers(), batch_size=4, shard="auto")
                   for x in batch],
        "dataset": [int(i) for batch in rows() for i in batch],
    }  # fmt: skip


if __name__ == "__main__":
    way, rank, place = sys.argv[1:]
    ways = {
        "torch": with_torch,
        "towers": with_towers,
        "jax": with_jax,
        "environment": from_the_environment,
    }
    print(json.dumps(ways[way](int(rank), place)))

"""Items of 4 KiB that take 5 ms each, made on two nodes of Ray; one node is killed in mid-epoch.

`beyond` is the longest time without a batch after the kill, less the time until Ray says that the
node is dead; 0 if the batches came sooner. All batches must come, each once. Both nodes are on this
machine, at addresses of the loopback device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from harness import Case, Figure, Figures, Size, Target, exactly_once
from peers import ray_nodes

ADDRESSES = ("127.0.0.2", "127.0.0.3")
WORKERS_OF_NODE = 2
OURS = "penstock.ray.workers"

CASE = Case(
    "ray_node_kill",
    "items of 5 ms made on two nodes of Ray, of which one is killed in mid-epoch",
    {
        "beyond": Figure("s without a batch, beyond Ray's notice"),
        "gap": Figure("s without a batch", compared=False),
        "notice": Figure("s until Ray's notice", compared=False),
    },
    full={"count": 4_000, "kill_at": 500},
    quick={"count": 1_500, "kill_at": 300},
    targets=[Target("beyond", OURS, at_most=1.0, says="under 1 s beyond Ray's own notice")],
)


class Items:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        return np.full(1024, index, np.float32)


def notice(node: Any) -> float:
    """When Ray says that the node is dead."""
    import ray

    while any(each["NodeID"] == node.node_id and each["Alive"] for each in ray.nodes()):
        time.sleep(0.01)
    return time.monotonic()


def measured(size: Size, cluster: Any, items: Iterable[Any]) -> Figures:
    """Take all items; kill the second node after `size.kill_at` of them."""
    node = cluster.list_all_nodes()[1]
    noticed: list[float] = []

    def kill() -> None:
        cluster.remove_node(node, allow_graceful=False)

    watcher = threading.Thread(target=lambda: noticed.append(notice(node)))
    killer = threading.Thread(target=kill)
    seen, killed, last, gap = [], 0.0, 0.0, 0.0
    for item in items:
        now = time.monotonic()
        if killed:
            gap = max(gap, now - last)
        last = now
        seen.append(float(np.asarray(item).reshape(-1)[0]))
        if len(seen) == size.kill_at:
            killed = last = time.monotonic()
            killer.start()
            watcher.start()
    killer.join()
    watcher.join()
    exactly_once(seen, size.count)
    after = noticed[0] - killed
    return {"gap": gap, "notice": after, "beyond": max(gap - after, 0.0)}


def on_nodes(run: Callable[[Any], Figures]) -> Figures:
    with ray_nodes(ADDRESSES, WORKERS_OF_NODE, 200 << 20) as cluster:
        return run(cluster)


@CASE.entry(OURS, "ours")
def ours(size: Size) -> Figures:
    import penstock

    def run(cluster: Any) -> Figures:
        workers = penstock.ray.workers(2 * WORKERS_OF_NODE)
        with penstock.Loader(Items(size.count), workers=workers) as feed:
            return measured(size, cluster, feed)

    return on_nodes(run)


@CASE.entry("Ray Data, iter_batches", "peer", "in any order")
def ray_data(size: Size) -> Figures:
    def made(rows: Any) -> Any:
        time.sleep(0.005 * len(rows["id"]))
        return {"x": np.repeat(rows["id"][:, None], 1024, 1).astype(np.float32)}

    def run(cluster: Any) -> Figures:
        import ray.data

        source = ray.data.range(size.count, override_num_blocks=size.count // 10)
        batches = source.map_batches(made, batch_size=10).iter_batches(batch_size=1)
        return measured(size, cluster, (batch["x"] for batch in batches))

    return on_nodes(run)


CASES = (CASE,)

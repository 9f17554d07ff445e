"""A learner's newest weights in three processes that it did not start as its workers.

All weights of version v are v, so a reader detects a torn one. `publish` is the time of the
learner's call, `visible` the time from its beginning until a reader holds that version or a later
one, over all readers and versions. No way can be faster than one copy in memory.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import BEST_PEER, Case, Figure, Figures, Size, Target, expect, folder_in_memory
from peers import Program

from cases.publish_ways import READERS, WAYS

OURS, LIMIT = "penstock.train.publish", "limit: one copy"
PEERS = {
    "shared_memory under flock": "Locked",
    "torch.save to a file in RAM": "TorchFile",
    "ZeroMQ, PUB and SUB": "ZeroMq",
    "Redis, MSET and PUBLISH": "Redis",
    "Ray, ray.put": "Ray",
}


def figures_of(publish: list[float], visible: list[float]) -> Figures:
    return {
        "publish": float(np.median(publish)),
        "publish99": float(np.quantile(publish, 0.99)),
        "visible": float(np.median(visible)),
        "visible99": float(np.quantile(visible, 0.99)),
    }


def measure(size: Size, way: str) -> Figures:
    where = Path(tempfile.mkdtemp(dir=folder_in_memory()))
    readers: list[Program] = []
    learner: Any = None
    try:
        learner = WAYS[way](where, size.floats, True)
        arguments = (way, where, size.floats, size.versions)
        readers += [Program("cases.publish_ways", *arguments) for _ in range(READERS)]
        learner.weights[:] = 1
        learner.publish(1)
        for reader in readers:
            expect(reader.read_line() == "ready", "a reader has ended")
        began, publish = {}, []
        for version in range(2, size.versions + 1):
            learner.weights[:] = version
            began[version] = time.monotonic()
            learner.publish(version)
            publish.append(time.monotonic() - began[version])
            if size.rate:
                time.sleep(1 / size.rate)
        visible: list[float] = []
        for reader in readers:
            result = json.loads(reader.read_line())
            expect(result["torn"] == 0, f"{result['torn']} of {len(result['when'])} reads torn")
            seen = iter(result["when"])
            at, when = next(seen)
            for version, begin in began.items():
                while at < version:
                    at, when = next(seen)
                visible.append(when - begin)
        return figures_of(publish, visible)
    finally:
        for reader in readers:
            reader.end()
        if learner is not None:
            learner.close()
        shutil.rmtree(where)


def copies(size: Size) -> Figures:
    """Copies from the learner's array into a few others in turn, as publishing must do.

    With the learner's pauses, after which caches and core are equally cold.
    """
    weights = np.zeros(size.floats, np.float32)
    slots = [np.zeros(size.floats, np.float32) for _ in range(4)]
    took = []
    for version in range(2, size.versions + 1):
        weights[:] = version
        began = time.monotonic()
        slots[version % 4][:] = weights
        took.append(time.monotonic() - began)
        if size.rate:
            time.sleep(1 / size.rate)
    return figures_of(took, took)


def case(key: str, title: str, targets: list[Target], **sizes: Any) -> Case:
    made = Case(
        key,
        title,
        {
            "publish": Figure("ms to publish", 1e3),
            "publish99": Figure("ms to publish, p99", 1e3),
            "visible": Figure("ms until visible", 1e3),
            "visible99": Figure("ms until visible, p99", 1e3),
        },
        full=sizes,
        quick={**sizes, "versions": max(sizes["versions"] // 4, 20)},
        targets=targets,
    )
    made.entry(OURS, "ours", f"{READERS} readers")(partial(measure, way="Penstock"))
    for name, way in PEERS.items():
        made.entry(name, "peer")(partial(measure, way=way))
    made.entry(LIMIT, "limit", "numpy.copyto")(copies)
    return made


CASES = [
    case(
        "publish_large",
        "25,000,000 weights published to 3 processes, 8 times a second",
        [
            Target("publish", OURS, LIMIT, at_least=0.9, says="90 % of a copy's speed"),
            Target("visible", OURS, LIMIT, at_least=0.9, says="90 % of a copy's speed"),
            Target("visible", OURS, BEST_PEER, at_least=1.5),
        ],
        floats=25_000_000,
        rate=8,
        versions=60,
    ),
    case(
        "publish_small",
        "1,000,000 weights published to 3 processes, 50 times a second",
        [
            Target("publish", OURS, LIMIT, at_least=0.9, says="90 % of a copy's speed"),
            Target("visible", OURS, LIMIT, at_least=0.6, says="60 % of a copy's speed"),
            Target("visible", OURS, BEST_PEER, at_least=3),
        ],
        floats=1_000_000,
        rate=50,
        versions=200,
    ),
    case(
        "publish_flat_out",
        "1,000,000 weights published to 3 processes as fast as it goes",
        [
            Target("visible", OURS, LIMIT, at_least=0.6, says="60 % of a copy's speed"),
            Target("visible", OURS, BEST_PEER, at_least=3),
            Target("visible99", OURS, BEST_PEER, at_least=3),
        ],
        floats=1_000_000,
        rate=0,
        versions=5000,
    ),
]

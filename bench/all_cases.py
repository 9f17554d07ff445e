"""Every case by its key, in the order of execution and printing."""

from __future__ import annotations

from cases import (
    array_pipeline,
    augment,
    batcher,
    channel,
    counters,
    far,
    hdf5,
    hogwild,
    hogwild_sparse,
    images,
    in_memory,
    large_items,
    latency,
    loop,
    memory,
    network,
    order,
    parquet,
    publish,
    samples,
    server,
    server_kill,
    small_items,
    stages,
    tfrecord,
    updates,
)
from harness import Case

_MODULES = (
    large_items,
    small_items,
    samples,
    in_memory,
    order,
    tfrecord,
    hdf5,
    parquet,
    images,
    array_pipeline,
    augment,
    far,
    stages,
    latency,
    memory,
    updates,
    hogwild,
    hogwild_sparse,
    publish,
    server,
    server_kill,
    network,
    channel,
    batcher,
    loop,
    counters,
)

CASES: dict[str, Case] = {case.key: case for module in _MODULES for case in module.CASES}

"""Every case by its key, in the order in which they are run and printed."""

from __future__ import annotations

from cases import (
    array_pipeline,
    counters,
    far,
    in_memory,
    large_items,
    latency,
    memory,
    order,
    samples,
    small_items,
    stages,
    tfrecord,
)
from harness import Case

_MODULES = (
    large_items,
    small_items,
    samples,
    in_memory,
    order,
    tfrecord,
    array_pipeline,
    far,
    stages,
    latency,
    memory,
    counters,
)

CASES: dict[str, Case] = {case.key: case for module in _MODULES for case in module.CASES}

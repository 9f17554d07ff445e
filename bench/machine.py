"""Describes the machine of a run: its kind and the versions, without its name."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

PEERS = ("numpy", "torch", "keras", "grain", "spdl", "mlx-data", "tensorflow-cpu", "tensorflow")
PEERS += ("pyzmq", "redis", "hiredis", "ray")


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, devices, system, and the versions of all measured packages."""
    from penstock.device.place import cuda_devices

    cpu = Path("/proc/cpuinfo").read_text(errors="replace")
    found = re.search(r"^model name\s*:\s*(.+)$", cpu, re.M)
    numbers = [re.search(rf"^{key}\s*:\s*(\d+)$", cpu, re.M) for key in ("cpu family", "model")]
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.M)
    versions = {}
    for name in ("penstock", *PEERS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    processor = found[1].strip() if found else platform.machine()
    if all(numbers):
        processor += " (family {}, model {})".format(*(n[1] for n in numbers if n))
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "devices": [name for name, _ in cuda_devices()],
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "system": f"Linux {platform.release().split('-')[0]}, glibc {platform.libc_ver()[1]}",
        "python": platform.python_version(),
        "versions": versions,
    }


def name_of_machine(machine: dict[str, Any]) -> str:
    """A file name for this kind of machine: ``2-core-amd-epyc-family-25-model-17``."""
    parts = " ".join([machine["processor"], *machine["devices"]])
    words = re.sub(r"\([A-Z]+\)|@ [\d.]+ ?GHz|\bCPU\b", " ", parts)
    slug = "-".join(re.findall(r"[a-z0-9]+", words.lower()))
    return f"{machine['cores']}-core-{slug}"

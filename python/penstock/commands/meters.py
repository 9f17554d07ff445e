"""Resource usage of this process and its descendants, from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    return text[text.rindex(")") + 2 :].split()


def _family() -> list[int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parents[int(name)] = int(_stat(int(name))[1])
    found = [os.getpid()]
    for pid in found:  # the list grows during the loop
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds() -> float:
    """CPU time of all of these processes, including those that have ended."""
    ticks = 0
    for pid in _family():
        with contextlib.suppress(OSError):
            ticks += sum(int(part) for part in _stat(pid)[11:15])
    return ticks / _TICK


def resident_bytes() -> int:
    """Memory of all of these processes together; shared memory counts once."""
    total = 0
    for pid in _family():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total

"""A worker that the system kills because it exceeds its control group's memory limit."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from contract import SPAWN, Mode, each
from faults import Ticking, right, wait_until
from loader_datasets import Items

pytestmark = pytest.mark.timeout(90)

LIMIT = 256 << 20


def own_groups() -> list[Path]:
    """This process's control group, of version 2, and the one above it."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] == "cgroup2":
            break
    else:
        pytest.skip("no control groups of version 2 are mounted")
    mounted, root = Path(fields[4]), fields[3]
    (path,) = (
        line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"
    )
    own = mounted / os.path.relpath(path, root)
    return [own] if own == mounted else [own, own.parent]


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a limit of `LIMIT` bytes, below or beside that of this process."""
    why = ""
    for above in own_groups():
        made = above / f"penstock-test-{os.getpid()}"
        try:
            if "memory" not in (above / "cgroup.subtree_control").read_text().split():
                why = f"{above} does not limit the memory of groups in it"
                continue
            made.mkdir()
        except OSError as error:
            why = str(error)
            continue
        try:
            (made / "memory.max").write_text(str(LIMIT))
            with contextlib.suppress(OSError):  # there may be no swap
                (made / "memory.swap.max").write_text("0")
            # Moving into a group also needs write access to the common parent group.
            pid = os.fork()
            if pid == 0:
                try:
                    (made / "cgroup.procs").write_text(str(os.getpid()))
                finally:
                    os._exit(0 if str(made.name) in Path("/proc/self/cgroup").read_text() else 1)
            if os.waitpid(pid, 0)[1] == 0:
                yield made
                return
            why = f"no process may be moved to {made}"
        finally:
            end = time.monotonic() + 20
            while time.monotonic() < end:  # until its last process is reaped
                try:
                    made.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)
    pytest.skip(f"no control group of version 2 can be made whose memory is limited: {why}")


class TooMuch(Items):
    """Moves its worker to a group, and exceeds the group's memory limit, once."""

    def __init__(self, group: Path, folder: Path) -> None:
        super().__init__(12)
        self.group = str(group)
        self.ticking = Ticking(folder, 1)

    def __getitem__(self, index: int) -> Any:
        if index == 7 and self.ticking.due(index):
            Path(self.group, "cgroup.procs").write_text(str(os.getpid()))
            taken = [np.ones(16 << 20, np.uint8) for _ in range(4 * LIMIT >> 24)]
            raise AssertionError(f"{len(taken)} times 16 MiB are there")
        return super().__getitem__(index)


@each((Mode(2, "fork"),), (SPAWN,))
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_worker_killed_by_the_memory_limit_is_replaced(batch_size, mode, group, tmp_path):
    with penstock.Loader(TooMuch(group, tmp_path), batch_size=batch_size, **mode.options) as feed:
        assert right(list(feed), 12)
        wait_until(lambda: feed.stats()["restarts"] == 1)
        assert feed.stats()["losses"] == []
    events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
    assert int(events["oom_kill"]) == 1

"""Datasets that kill their workers, and scripts that are killed."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loader_datasets import Items

HERE = Path(__file__).parent
PATIENCE = 30.0  # seconds: a limit that no test should reach


def die(how: str) -> None:
    """End this process at once, without Python's cleanup."""
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "SIGSEGV":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # without pytest's report
        ctypes.string_at(0)
    elif how == "SIGABRT":
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    else:
        os._exit(int(how))


class Ticking:
    """Counts across processes how often a fault may happen."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder = str(folder)
        self.times = times

    def due(self, name: object) -> bool:
        """Whether the fault must happen again; True `times` times for every name."""
        for n in range(self.times):
            try:
                os.close(os.open(f"{self.folder}/{name}-{n}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False


class Grenade:
    """Kills the process that pickles it: after user code, and before the result is sent."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        die(self.how)


class Deadly(Items):
    """Kills its worker at some indices.

    Parameters
    ----------
    when : {"before", "after", "sending"}
        Before the item is made, after it was made, or while it is being sent.
    """

    def __init__(
        self,
        folder: Path,
        deadly: set[int],
        when: str = "before",
        how: str = "SIGKILL",
        times: int = 1,
        length: int = 20,
        width: int = 3000,
    ) -> None:
        super().__init__(length, width)
        self.ticking = Ticking(folder, times)
        self.deadly = deadly
        self.when = when
        self.how = how

    def __getitem__(self, index: int) -> Any:
        due = index in self.deadly and self.ticking.due(index)
        if due and self.when == "before":
            die(self.how)
        array, _ = super().__getitem__(index)
        if due and self.when == "after":
            die(self.how)
        what = Grenade(self.how) if due and self.when == "sending" else "harmless"
        return array, index, what


class DeadlyByEpoch(Deadly):
    """With hooks, no batch of an epoch is made before it begins, so deaths can be counted."""

    def on_epoch_end(self) -> None:
        pass


class Slow(Items):
    """Takes some time for every item, so that kills hit all states."""

    def __init__(self, length: int, width: int, seconds: float) -> None:
        super().__init__(length, width)
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            np.ones(100).sum()
        return item


def right(batches: list[Any], length: int) -> bool:
    """Whether these are the batches of Items: in order, each once, with the right contents."""
    indices = [np.atleast_1d(batch[1]) for batch in batches]
    return np.concatenate(indices).tolist() == list(range(length)) and all(
        (batch[0] == np.reshape(batch[1], (-1, 1))).all() for batch in batches
    )


def wait_until(condition: Callable[[], Any], what: str = "what was waited for") -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.002)
    return found


def worker_pids(feed: Any) -> list[int]:
    return [worker["pid"] for worker in feed.stats()["workers"] if worker["pid"]]


# ---- scripts -------------------------------------------------------------------------------------


def start(folder: Path, text: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a script in a process group of its own."""
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        start_new_session=True,
    )


def run(folder: Path, text: str, *arguments: object) -> tuple[int, str, str]:
    """Run a script to its end; return its exit code and output."""
    with start(folder, text, *arguments) as script:
        try:
            out, error = script.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
            raise
    return script.returncode, out, error


def wait_for_ends(pids: list[int], seconds: float) -> list[int]:
    """The processes, not children of this one, that have not ended after so many seconds."""
    left = {}
    for pid in pids:
        try:
            left[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    try:
        while left:
            remaining = deadline - time.monotonic()
            ended = poll.poll(max(0, remaining * 1000))
            if not ended:
                break
            for fd, _ in ended:
                poll.unregister(fd)
                os.close(fd)
                del left[fd]
        return list(left.values())
    finally:
        for fd in left:
            os.close(fd)


def lost(feed: Any) -> list[tuple[int, int]]:
    """The epoch and index of each skipped item."""
    return sorted((epoch, index) for epoch, index, _ in feed.stats()["losses"])

"""The child processes, memfds and threads of this process that were left behind."""

from __future__ import annotations

import os
import threading
from pathlib import Path

# multiprocessing's own helpers run as long as the interpreter, by design.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def child_processes() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:  # the thread has ended since
            continue
        for pid in children:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if not any(helper in command for helper in HELPERS):
                found.add(f"process {pid}: {command.strip()[:200] or 'a zombie'}")
    return found


def memfds() -> set[str]:
    """Open memfds, and mappings of memfds whether they are still open or not."""
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
            inode = os.stat(entry.path).st_ino
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith("/memfd:"):
            found.add(f"descriptor of {target} (inode {inode})")
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:" in line:
            fields = line.split(maxsplit=5)
            found.add(f"mapping of {fields[5]} (inode {fields[4]})")
    return found


def lasting_threads() -> set[str]:
    return {
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    }


def remains() -> set[str]:
    return child_processes() | memfds() | lasting_threads()

"""The check of conftest.py detects leftovers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from leftovers import child_processes, lasting_threads, memfds


def test_a_child_process_is_seen_and_its_end_too():
    before = child_processes()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert any(f"process {child.pid}" in found for found in child_processes() - before)
    child.communicate(b"\n")
    assert not child_processes() - before


def test_a_memfd_is_seen_open_or_only_mapped():
    import mmap

    before = memfds()
    fd = os.memfd_create("penstock-test")
    os.ftruncate(fd, 4096)
    mapping = mmap.mmap(fd, 4096)
    assert len(memfds() - before) >= 2
    os.close(fd)
    mapping_only = memfds() - before
    assert mapping_only
    mapping.close()
    assert not memfds() - before


def test_a_thread_that_keeps_the_interpreter_alive_is_seen():
    before = lasting_threads()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="lasting")
    thread.start()
    assert any("lasting" in found for found in lasting_threads() - before)
    go.set()
    thread.join()
    assert not lasting_threads() - before

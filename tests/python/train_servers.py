"""A parameter server for tests, its clients, and programs that use it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from penstock import train

BLOCKS = {"w": (300, 500), "v": (70_000,)}


def served(**options):
    return train.ParameterServer(train.Parameters(BLOCKS), train.SGD(1.0), shards=2, **options)


def ones(client):
    for block in client.gradients.values():
        block[:] = -1
    return client.gradients


def start(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def until(done, seconds=60):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as stat:
        return ") Z " in stat.read()

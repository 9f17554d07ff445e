"""A program whose main thread ends while a daemon thread waits exits normally."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import threading, time
import numpy as np
import penstock
from penstock import train

class Numbers:
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        return np.full(10, index)

name = "exit-{pid}"
parameters = train.Parameters({{"w": (4,)}})
{start}
threading.Thread(target=lambda: {wait}, daemon=True).start()
time.sleep(0.3)
print("over")
"""

WAITS = {
    "Loader, in line": (
        "loader = penstock.Loader(Numbers(), batch_size=32, workers=0)",
        "[None for batch in loader]",
    ),
    "Loader, threads": (
        "loader = penstock.Loader(Numbers(), batch_size=32, workers=2)",
        "[None for batch in loader]",
    ),
    "channel.get": ("channel = train.channel(name)", "channel.get(1)"),
    "model.wait": (
        "train.publish(name, parameters); model = train.attach(name)",
        "model.wait(100)",
    ),
    "attach": ("", "train.attach(name, timeout=100)"),
    "push": (
        "server = train.ParameterServer(parameters, train.SGD(1.0), staleness=0, workers=2);"
        "client = train.connect(server.addresses)",
        "client.push({'w': np.ones(4)})",
    ),
    "updates": (
        "updater = train.Updater(parameters, train.SGD(1.0))",
        "[updater.apply({'w': np.ones(4)}) for _ in iter(int, 1)]",
    ),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_daemon_thread_that_waits_does_not_abort_the_program(wait):
    start, call = WAITS[wait]
    program = PROGRAM.format(pid=os.getpid(), start=start, wait=call)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "over\n"), ended.stderr

"""A broker and a sensor, for `mqtt_lstm.py`. The sensor alone, for a broker that runs already:

python examples/train/sensor.py mqtt://localhost lorenz/x
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time

from penstock import train

RATE = 1000  # values a second
# The last two are for any client that acknowledges many messages at once: see docs/online.md.
SETTINGS = """listener {port} 127.0.0.1
allow_anonymous true
max_inflight_messages 1000
max_queued_messages 0
"""


@contextlib.contextmanager
def broker():
    """Run mosquitto on a free port of this host; yield its URL."""
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        raise SystemExit("mosquitto is not installed: apt-get install mosquitto")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [program, "-c", "/dev/stdin"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        with process.stdin as settings:
            settings.write(SETTINGS.format(port=port).encode())
        yield f"mqtt://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def sensor(url, topic):
    """Run this file as a process."""
    process = subprocess.Popen([sys.executable, __file__, url, topic])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def lorenz(step=0.005):
    """Yield x of the Lorenz system. It jumps between two sides of 0, hard to tell when."""
    x, y, z = 1.0, 1.0, 20.0
    while True:
        for _ in range(10):
            x, y, z = (
                x + step * 10 * (y - x),
                y + step * (x * (28 - z) - y),
                z + step * (x * y - z * 8 / 3),
            )
        yield x / 20


if __name__ == "__main__":
    with train.mqtt(sys.argv[1]) as client:
        begun = time.monotonic()
        for i, value in enumerate(lorenz()):
            client.publish(sys.argv[2], f"{value:.6f}")
            time.sleep(max(0.0, begun + i / RATE - time.monotonic()))

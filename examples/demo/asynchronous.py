"""Runs the training examples: each gives one line of the demo's last table."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "train"
MOSQUITTO_FOLDERS = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])


def said(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=300
    ).stdout


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"an example did not say what it should: {text[-200:]!r}")
    return match[0]


def hogwild() -> str:
    text = said("hogwild.py", "2")
    return found(r"\d+ updates by 2 workers.*", text) + "; " + found(r"[\d.]+% of the.*", text)


def towers() -> str:
    text = said("towers.py", "2")
    return found(r"\d+ updates from.*", text) + "; " + found(r"[\d.]+% of the.*", text)


def population() -> str:
    if importlib.util.find_spec("torch") is None:
        return "not run: it needs torch"
    return found(r"\d+ networks, .*", said("population.py", "30"))


def server() -> str:
    return "2 worker processes; " + found(r"versions .*", said("server.py"))


def actors() -> str:
    """Two actors attach to a learner by name; it learns from 60 batches of their experience."""
    name = f"demo-{uuid.uuid4().hex}"
    command = [sys.executable, str(EXAMPLES / "actors.py"), "actor", "--name", name]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    try:
        text = said("actors.py", "learner", "--name", name, "--count", "61")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    first, last = re.findall(r"version \d+: (\d+) of", text)[:: len(text.splitlines()) - 1]
    return f"a pole balanced for {first} steps, after 60 updates for {last} of 200"


def online() -> str:
    if importlib.util.find_spec("torch") is None:
        return "not run: it needs torch"
    if shutil.which("mosquitto", path=MOSQUITTO_FOLDERS) is None:
        return "not run: it needs mosquitto"
    return found(r"[\d,]+ values by MQTT.*", said("mqtt_lstm.py", "4"))


def loop() -> str:
    return found(r"N = 20: .*", said("loop.py", "1", "20"))


def predict() -> str:
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder) / "weights.safetensors")
        said("digits_numpy.py", weights)
        lines = said("predict_ids.py", weights).splitlines()
    return f"{lines[0]}, ...; {lines[-1]}"


ROWS: dict[str, Callable[[], str]] = {
    "hogwild": hogwild,
    "towers": towers,
    "population": population,
    "server": server,
    "actors": actors,
    "online": online,
    "loop": loop,
    "predict": predict,
}


def print_rows() -> None:
    """Print a line for each example, with its time in seconds."""
    print("\nTraining without waiting (examples/train):\n")
    for name, run in ROWS.items():
        began = time.perf_counter()
        line = run()
        print(f"{name:11}{time.perf_counter() - began:5.1f} s  {line}", flush=True)


if __name__ == "__main__":
    print_rows()

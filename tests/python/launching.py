"""Starts worker processes directly, and reads their answers: for test_launch*.py."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import subprocess
import sys

import pytest

from penstock.processes import launch

HERE = str(pathlib.Path(__file__).parent)
PATIENCE = 20.0  # seconds: a limit that no test should reach
PREAMBLE = (
    "import os, signal, sys\nfrom penstock import errors\nfrom penstock.processes import launch\n"
)
each_method = pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])


class Answers:
    """The reading end of a pipe for workers' answers."""

    def __init__(self):
        self.read_fd, self.write_fd = os.pipe()

    def get(self):
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.read_fd], [], [], PATIENCE)
            assert ready, "no answer"
            byte = os.read(self.read_fd, 1)
            assert byte, "the worker ended without an answer"
            line += byte
        return json.loads(line)

    def close(self):
        os.close(self.read_fd)
        os.close(self.write_fd)


@contextlib.contextmanager
def launcher(method, main):
    made = launch.Launcher(method, f"launch_mains:{main}")
    try:
        yield made
    finally:
        made.close()


def run(method, main, fds, settings=None, index=0):
    with launcher(method, main) as starts:
        worker = starts.start(index, fds, settings or {})
        try:
            return worker.wait(PATIENCE)
        finally:
            worker.kill()
            worker.close()


def said(capture):
    return os.pread(capture, 1 << 20, 0).decode()


def ended(pidfd, timeout=PATIENCE):
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def described(method, answers, extra=(), index=0, settings=None):
    fds = {"answer": answers.write_fd, **dict(extra)}
    with launcher(method, "describe") as starts:
        worker = starts.start(index, fds, settings or {})
        description = answers.get()
        assert worker.wait(PATIENCE) == 0
        worker.close()
    return description


def script_command(folder, text, method, *args):
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    body = "\n".join(line[indent:] for line in lines)
    path = folder / "script.py"
    path.write_text(f"{PREAMBLE}METHOD = {method!r}\n{body}\n")
    return [sys.executable, str(path), *map(str, args)]


def script_environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, *sys.path])}


def run_script(folder, text, method):
    return subprocess.run(
        script_command(folder, text, method),
        env=script_environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@contextlib.contextmanager
def start_script(folder, text, method, answer):
    with subprocess.Popen(
        script_command(folder, text, method, answer),
        env=script_environment(),
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[answer],
    ) as process:
        try:
            yield process
        finally:
            process.kill()

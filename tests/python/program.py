"""Runs the program ``penstock``, as a process or in this one."""

from __future__ import annotations

import os
import subprocess
import sys

from penstock import cli


def run_program(*arguments, cwd=None, timeout=50, before=None):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env=environment,
        preexec_fn=before,
    )


def run(capsys, *arguments):
    """Return the exit code, and what went to stdout and stderr."""
    code = cli.main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err

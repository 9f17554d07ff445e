"""Runs the program ``penstock`` as a process."""

from __future__ import annotations

import os
import subprocess
import sys


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

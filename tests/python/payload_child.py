"""Rebuilds a payload in a fresh interpreter, and prints the value of an expression over it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from typing import Any

_CODE = """
import sys
from penstock.processes import payload
sys.path[:] = eval(sys.argv[3])
obj = payload.unpack(int(sys.argv[1]))
print(repr(eval(sys.argv[2])))
"""


def ask(payload: Any, expression: str, path: list[str] | None = None) -> Any:
    """Evaluate `expression`, over ``obj``, in another process; the answer is a literal."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(payload.fd), expression, repr(path or sys.path)],
        pass_fds=[payload.fd],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return ast.literal_eval(done.stdout)

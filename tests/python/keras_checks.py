"""Checks that run in a process for each backend of Keras: KERAS_BACKEND counts once per process.

A child (such as keras_child.py) has functions without parameters, each a check, and ends with
`main(globals())`, which prints one line with the result of each check.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

BACKENDS = ("jax", "torch", "tensorflow")
MOST_S = 900  # on a busy machine the import of a backend takes a minute


def names_in(child: Path) -> list[str]:
    """All functions without parameters, from the source: an import would choose a backend."""
    tree = ast.parse(child.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if not f.args.args and not f.name.startswith("_")]


def missing(backend: str) -> str | None:
    modules = ("keras", backend)
    return next((name for name in modules if importlib.util.find_spec(name) is None), None)


def run(child: Path, backend: str, *arguments: str) -> dict[str, str]:
    environment = {**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [sys.executable, str(child), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
        )
        said, errors, end = done.stdout, done.stderr, f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode()
        errors = (late.stderr or b"").decode()
        end = f"not done after {MOST_S} s"
    found = {"": f"{end}; it said:\n{said}\n{errors[-4000:]}"}
    for line in said.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("PASSED", "FAILED"):
            name = rest.split()[0].rstrip(":")
            found[name] = word if word == "PASSED" else f"{rest}\n{errors[-4000:]}"
    return found


def main(namespace: dict[str, object]) -> None:
    """In the child: run the named checks, or all."""
    import keras

    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
    print("PASSED start", flush=True)
    found = {
        name: value
        for name, value in namespace.items()
        if inspect.isfunction(value)
        and value.__module__ == "__main__"
        and not inspect.signature(value).parameters
        and not name.startswith("_")
    }
    for name in sys.argv[1:] or found:
        began = time.monotonic()
        try:
            found[name]()
        except BaseException as error:
            traceback.print_exc()
            print(f"FAILED {name}: {type(error).__name__}: {error}".replace("\n", " "), flush=True)
        else:
            print(f"PASSED {name} {time.monotonic() - began:.1f}", flush=True)

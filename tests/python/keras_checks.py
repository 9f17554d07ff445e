"""Checks that run in one process for each backend of Keras: KERAS_BACKEND counts once per process.

A child (such as keras_child.py) is a module of functions without parameters, each a check.
`python keras_checks.py keras_child ...` runs the checks of these modules, and prints one line with
the result of each.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
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


def run(backend: str, *arguments: str, script: Path = Path(__file__)) -> dict[str, str]:
    """Run a script with these arguments; return the result of each check, and the end for ""."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
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


def main(child: str) -> None:
    """Run the checks of a module, which the same backend has to serve."""
    namespace = vars(importlib.import_module(child))
    import keras

    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
    print(f"PASSED {child}.start", flush=True)
    for name in names_in(Path(__file__).with_name(f"{child}.py")):
        began = time.monotonic()
        try:
            namespace[name]()
        except BaseException as error:
            traceback.print_exc()
            said = f"{type(error).__name__}: {error}".replace("\n", " ")
            print(f"FAILED {child}.{name}: {said}", flush=True)
        else:
            print(f"PASSED {child}.{name} {time.monotonic() - began:.1f}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main(name)

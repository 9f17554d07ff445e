"""penstock.keras, with every backend of Keras that is installed; the checks are in keras_child."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("keras_child.py")
BACKENDS = ("jax", "torch", "tensorflow")
MOST_S = 300

pytestmark = pytest.mark.timeout(MOST_S + 20)


def names_of_checks() -> list[str]:
    """All functions without parameters, read and not imported: that would choose a backend."""
    tree = ast.parse(CHILD.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if not f.args.args and f.name != "checks"]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, str]]:
    return {}


def run(backend: str) -> dict[str, str]:
    environment = {**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [sys.executable, str(CHILD)],
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("check", ["start", *names_of_checks()])
def test_feed(backend: str, check: str, outcomes: dict[str, dict[str, str]]) -> None:
    for module in ("keras", backend):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"could not import '{module}'")
    if backend not in outcomes:
        outcomes[backend] = run(backend)
    result = outcomes[backend].get(check, outcomes[backend][""])
    assert result == "PASSED", result

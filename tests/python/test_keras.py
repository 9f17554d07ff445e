"""penstock.keras, and Keras models in training, with every backend of Keras that is installed.

The checks are in keras_child, keras_loop_child and keras_recurrent_child: one process for each
backend runs all of them.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_checks import BACKENDS, MOST_S, missing, names_in, run

CHILDREN = ("keras_child", "keras_loop_child", "keras_recurrent_child")
CHECKS = [
    f"{child}.{check}"
    for child in CHILDREN
    for check in ["start", *names_in(Path(__file__).with_name(f"{child}.py"))]
]

pytestmark = pytest.mark.timeout(2 * MOST_S)


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Callable[[str], dict[str, str]]:
    """The results of a backend; of several processes of pytest, one runs the checks."""
    folder = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        folder = folder.parent

    def of(backend: str) -> dict[str, str]:
        kept = folder / f"keras-{backend}.json"
        with open(kept.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(run(backend, *CHILDREN)))
        found: dict[str, str] = json.loads(kept.read_text())
        return found

    return of


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_keras(backend: str, check: str, outcomes: Callable[[str], dict[str, str]]) -> None:
    if missing(backend) is not None:
        pytest.skip(f"could not import '{missing(backend)}'")
    found = outcomes(backend)
    result = found.get(check, found[""])
    assert result == "PASSED", result

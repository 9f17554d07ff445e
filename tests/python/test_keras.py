"""penstock.keras, and Keras models in training, with every backend of Keras that is installed.

The checks are in keras_child, keras_loop_child and keras_recurrent_child: one process for each
backend runs all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_checks import BACKENDS, MOST_S, missing, names_in, run

CHILDREN = ("keras_child", "keras_loop_child", "keras_recurrent_child")
CHECKS = [
    f"{child}.{check}"
    for child in CHILDREN
    for check in ["start", *names_in(Path(__file__).with_name(f"{child}.py"))]
]

pytestmark = pytest.mark.timeout(MOST_S + 20)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, str]]:
    return {}


# The backend is the outer one: a process of pytest that takes over some of the tests starts few.
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_keras(backend: str, check: str, outcomes: dict[str, dict[str, str]]) -> None:
    if missing(backend) is not None:
        pytest.skip(f"could not import '{missing(backend)}'")
    if backend not in outcomes:
        outcomes[backend] = run(backend, *CHILDREN)
    found = outcomes[backend]
    result = found.get(check, found[""])
    assert result == "PASSED", result

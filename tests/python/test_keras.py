"""penstock.keras, and Keras models in training, with every backend of Keras that is installed.

The checks are in keras_child, keras_loop_child and keras_recurrent_child.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_checks import BACKENDS, MOST_S, missing, names_in, run

CHILDREN = {
    name: Path(__file__).with_name(name)
    for name in ("keras_child.py", "keras_loop_child.py", "keras_recurrent_child.py")
}
CHECKS = [(name, check) for name, path in CHILDREN.items() for check in ["start", *names_in(path)]]

pytestmark = pytest.mark.timeout(MOST_S + 20)


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], dict[str, str]]:
    return {}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("child", "check"), CHECKS)
def test_keras(
    backend: str, child: str, check: str, outcomes: dict[tuple[str, str], dict[str, str]]
) -> None:
    if missing(backend) is not None:
        pytest.skip(f"could not import '{missing(backend)}'")
    if (child, backend) not in outcomes:
        outcomes[child, backend] = run(CHILDREN[child], backend)
    found = outcomes[child, backend]
    result = found.get(check, found[""])
    assert result == "PASSED", result

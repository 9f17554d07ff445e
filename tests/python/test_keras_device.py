"""penstock.keras.feed sends batches ahead where Keras trains with torch on an accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest

import fake_cuda
from keras_checks import MOST_S, missing, names_in, run

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(MOST_S + 20)
def test_feeds_through_a_device_do_all_that_feeds_of_memory_do(tmp_path: Path) -> None:
    if missing("torch") is not None:
        pytest.skip(f"could not import '{missing('torch')}'")
    library = fake_cuda.build(tmp_path)
    found = run("torch", str(library), script=HERE / "keras_device_child.py")
    checks = ["staged", *(f"keras_child.{name}" for name in names_in(HERE / "keras_child.py"))]
    failed = {name: found.get(name, found[""]) for name in checks if found.get(name) != "PASSED"}
    assert not failed

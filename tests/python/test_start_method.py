"""The default start method of worker processes: spawn, in every adapter."""

from __future__ import annotations

import inspect
import os
from typing import Any

import numpy as np
import pytest

import loader_datasets
import penstock
from faults import start
from penstock import Dataset

pytestmark = pytest.mark.timeout(60)

PROCESSES: dict[str, Any] = {"workers": 1, "use_multiprocessing": True}


def of_a_loader(**options: Any) -> Any:
    return penstock.Loader(loader_datasets.Parentage(3), **PROCESSES, **options)


def of_a_dataset() -> Any:
    return Dataset.range(3).map(loader_datasets.parentage).build(**PROCESSES)


def of_jax() -> Any:
    pytest.importorskip("jax")
    from penstock.jax import feed

    return feed(loader_datasets.Parentage(3), **PROCESSES)


def of_torch() -> Any:
    pytest.importorskip("torch")
    from penstock.torch import DataLoader

    return DataLoader(loader_datasets.Parentage(3), batch_size=None, num_workers=1)


@pytest.fixture
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_datasets, "only_here", True)


@pytest.mark.usefixtures("only_here")
@pytest.mark.parametrize("feed", [of_a_loader, of_a_dataset, of_jax, of_torch])
def test_the_default_is_spawn(feed: Any) -> None:
    with feed() as made:
        found = [np.asarray(batch).tolist() for batch in made]
    assert found == [[False, os.getpid()]] * 3  # not a fork


@pytest.mark.usefixtures("only_here")
@pytest.mark.parametrize(("method", "forked"), [("fork", True), ("forkserver", False)])
def test_what_tells_spawn_tells_the_others(method: str, forked: bool) -> None:
    with of_a_loader(start_method=method) as made:
        (inherited, parent), *_ = (batch.tolist() for batch in made)
    assert inherited == forked
    assert (parent == os.getpid()) == forked


def test_the_default_is_in_one_signature_only() -> None:
    assert inspect.signature(penstock.Loader).parameters["start_method"].default == "spawn"
    for passes_on in (Dataset.build, Dataset.feeds):
        assert "start_method" not in inspect.signature(passes_on).parameters


KERAS = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import numpy as np
import loader_datasets
import penstock
loader_datasets.only_here = True
with penstock.keras.feed(loader_datasets.Parentage(3), workers=1, use_multiprocessing=True) as feed:
    print([np.asarray(feed[k]).tolist() for k in range(3)] == [[0, os.getpid()]] * 3)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_default_is_spawn_for_keras(tmp_path: Any) -> None:
    pytest.importorskip("keras")
    pytest.importorskip("jax")
    with start(tmp_path, KERAS) as script:
        out, error = script.communicate(timeout=180)
    assert (script.returncode, out) == (0, "True\n"), error

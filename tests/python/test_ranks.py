"""shard="auto": each process of a job feeds its own share."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import penstock
import ranks_child
from penstock.base.ranks import rank_and_world

CHILD = Path(__file__).with_name("ranks_child.py")
NAMES = (
    "RANK",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def run_both(way: str, place: str, names: tuple[str, str] | None = None) -> list[dict[str, Any]]:
    """Run the job's two processes, and return what each printed."""
    children = []
    for rank in range(2):
        environment = dict(os.environ)
        if names is not None:
            environment |= {names[0]: str(rank), names[1]: "2"}
        children.append(
            subprocess.Popen(
                [sys.executable, str(CHILD), way, str(rank), place],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
    found = []
    with contextlib.ExitStack() as stack:
        for child in children:
            stack.enter_context(child)
            stack.callback(child.kill)
        for child in children:
            out, error = child.communicate(timeout=100)
            assert child.returncode == 0, error[-3000:]
            found.append(json.loads(out.splitlines()[-1]))
    return found


def check_shares(found: list[dict[str, Any]]) -> None:
    """Both feed all elements once, none of them twice."""
    for source in ("loader", "dataset"):
        first, second = (each[source] for each in found)
        assert len(first) == len(second) == 12
        assert Counter(first + second) == Counter(range(24))


def test_processes_of_torch_train_on_their_shares(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = run_both("torch", str(tmp_path / "rendezvous"))
    check_shares(found)
    assert found[0]["weights"] == found[1]["weights"]


def test_towers_of_several_processes_make_one_update(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = run_both("towers", str(tmp_path / "rendezvous"))
    assert found[0] == found[1]
    shares = [ranks_child.share_of(rank) for rank in range(2)]
    rounds = zip(*(zip(share[::2], share[1::2], strict=True) for share in shares), strict=True)
    everything = [batch for both in rounds for pair in both for batch in pair]
    towers, parameters = ranks_child.towers_of(0, 4, everything)
    assert towers.run().rounds == found[0]["rounds"] == 4
    np.testing.assert_allclose(found[0]["weights"], parameters["weight"], rtol=1e-5, atol=1e-6)


def test_processes_of_jax_feed_one_global_array(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    found = run_both("jax", place)
    check_shares(found)
    assert found[0]["shapes"] == [[8, 3]] * 3
    first, second = (each["loader"] for each in found)
    sums = [3.0 * sum(first[i : i + 4] + second[i : i + 4]) for i in (0, 4, 8)]
    assert found[0]["sums"] == found[1]["sums"] == sums


@pytest.mark.parametrize("names", [NAMES[i : i + 2] for i in range(0, 8, 2)])
def test_processes_of_a_launcher(names: tuple[str, str], tmp_path: Path) -> None:
    check_shares(run_both("environment", str(tmp_path), names))


def test_a_process_alone_feeds_everything() -> None:
    assert rank_and_world("test") == (0, 1)
    assert list(penstock.Dataset.range(5).shard("auto")) == list(range(5))


def test_a_worker_of_ray_train_has_the_rank_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_world_rank=lambda: 3, get_world_size=lambda: 5)
    train: Any = SimpleNamespace(get_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray.train", train)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_world("test") == (3, 5)
    for error in (RuntimeError("not a worker"), DeprecationWarning("a function of Ray Tune")):
        train.get_context = Mock(side_effect=error)
        assert rank_and_world("test") == (1, 2)


def test_a_batch_script_of_slurm_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert rank_and_world("test") == (0, 1)


def test_an_environment_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_world("test") == (0, 1), "a rank is missing"
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(penstock.InvalidArgument, match=r"RANK='first'.*give \(rank, world\)"):
        penstock.Dataset.range(5).shard("auto")
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(penstock.InvalidArgument, match="ranks count from 0"):
        penstock.Loader([1, 2], batch_size=1, shard="auto")


def test_a_dataset_is_sharded_by_itself() -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"shard\(rank, world\)"):
        penstock.Loader(penstock.Dataset.range(5), shard="auto")
    with pytest.raises(penstock.InvalidArgument, match=r'give \(rank, world\) or "auto"'):
        penstock.Loader([1, 2], batch_size=1, shard="none")
    with pytest.raises(penstock.InvalidArgument, match="rank is 'auto'"):
        penstock.Dataset.range(5).shard("auto", 2)

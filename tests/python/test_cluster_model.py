"""The simulator of hosts and links gives the rates that can be computed by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    before = set(sys.modules)
    sys.path.insert(0, str(BENCH))
    try:
        import cluster_model

        yield cluster_model
    finally:
        sys.path.remove(str(BENCH))
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "__file__", None) == str(BENCH / f"{name}.py"):
                del sys.modules[name]


@pytest.fixture
def costs(model: Any) -> Any:
    end = model.Costs(message=20e-6, byte=0.2e-9)
    return model.Constants(end, end, end, end, beat=10e-6, link=3e9)


def test_customers_wait_for_a_unit(model: Any) -> None:
    for units, rate in ((1, 1.0), (2, 2.0), (4, 3.0)):
        desk = model.Resource("desk", units)
        result = model.simulate([[((desk,), 1.0)]] * 3, 300.0)
        assert result.rate == pytest.approx(rate, rel=0.02)
        assert result.used == {"desk": pytest.approx(min(3 / units, 1.0), rel=0.02)}


def test_the_resource_that_is_used_most_ends_first(model: Any) -> None:
    a, b = model.Resource("a"), model.Resource("b")
    alone = model.simulate([[((a,), 1.0), ((b,), 3.0)]], 400.0)
    assert alone.rate == pytest.approx(1 / 4, rel=0.02)
    assert alone.used == {"a": pytest.approx(0.25, rel=0.05), "b": pytest.approx(0.75, rel=0.05)}
    a, b = model.Resource("a"), model.Resource("b")
    many = model.simulate([[((a,), 1.0), ((b,), 3.0)]] * 5, 400.0)
    assert (many.first, many.rate) == ("b", pytest.approx(1 / 3, rel=0.02))


def test_a_step_holds_its_resources_together(model: Any) -> None:
    shared = model.Resource("shared", 2)
    steps = [[((model.Resource("own"), shared), 1.0)]] * 4  # of one process, two in flight each
    assert model.simulate(steps, 300.0).rate == pytest.approx(1.0, rel=0.02)
    steps = [[((model.Resource("own"), shared), 1.0)] for _ in range(4)]
    result = model.simulate(steps, 300.0)
    assert (result.first, result.rate) == ("shared", pytest.approx(2.0, rel=0.02))


def test_the_link_of_one_training_host_ends_first(model: Any, costs: Any) -> None:
    cycle = model.remote_batches(
        costs, 40e6, 0.5, 0.0, workers=1000, trainers=8, hosts=127, in_flight=2
    )
    result = model.simulate(cycle, 10.0)
    assert result.first == "link of the training host"
    assert result.rate == pytest.approx(model.LINK / 40e6, rel=0.02)
    few = model.remote_batches(
        costs, 40e6, 0.5, 0.0, workers=16, trainers=8, hosts=127, in_flight=2
    )
    result = model.simulate(few, 30.0)
    assert (result.first, result.rate) == ("the workers", pytest.approx(16 / 0.5, rel=0.05))


def test_more_shards_move_the_limit_to_the_clients(model: Any, costs: Any) -> None:
    rates = {}
    for shards in (1, 4, 64):
        cycle = model.server_rounds(costs, 40e6, 1.0, workers=400, shards=shards, beats=0.1)
        rates[shards] = model.simulate(cycle, 30.0)
    assert rates[1].first == "the thread of a shard"
    assert rates[4].first == rates[64].first == "the workers"
    of_one = costs.shard.of(40e6) + 0.1 * costs.beat
    assert rates[1].rate == pytest.approx(1 / of_one, rel=0.02)
    assert rates[64].rate == pytest.approx(400 / 1.01, rel=0.05)


def test_weights_leave_the_learner_s_host_one_after_the_other(model: Any) -> None:
    result = model.simulate(model.relayed_weights(125e6, 0.0, 11), 10.0)
    assert result.first == "link of the learner's host"
    assert result.rate == pytest.approx(model.LINK / 125e6, rel=0.02)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_small_case_is_as_simulated() -> None:
    """Within the factor that the program states, unless other processes use the machine."""
    done = subprocess.run(
        [sys.executable, str(BENCH / "cluster_model.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" per second, ") == 5

"""penstock.ray.population on a cluster of two nodes, with actors and nodes that are killed.

Results are those of train.Population in this process, within rounding: torch rounds otherwise where
batches lie otherwise in memory.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import ray

import penstock
import ray_cluster
from penstock import train
from ray_population import (
    Counted,
    Shuffled,
    Small,
    batches,
    ends_the_process_of_member_1,
    raises,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray" / "population.py"
MEMBERS, STEPS = 5, 40
CLOSE: dict[str, float] = {"rtol": 1e-3, "atol": 1e-4}
OPTIONS: dict[str, Any] = {
    "members": MEMBERS,
    "optimizer": "momentum",
    "hyper": {"lr": [0.003 * (n + 1) for n in range(MEMBERS)], "momentum": 0.5},
    "seed": 3,
    "strategy": "concurrent",
    "threads": 1,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.cluster() as made:
        yield made


def made(**options: Any) -> penstock.ray.Population:
    return penstock.ray.population(
        Small, **{**OPTIONS, "workers": 2, "snapshot_seconds": 0.2, **options}
    )


def trained(networks: train.Population, data: Any, steps: Any = STEPS) -> dict[int, Any]:
    results = {r.member: r for r in networks.train(data, steps=steps).as_completed()}
    assert [r.error for r in results.values()] == [None] * MEMBERS
    return results


def assert_alike(
    networks: train.Population, results: dict[int, Any], data: Any, steps: Any = STEPS
) -> None:
    with train.Population(Small, **OPTIONS) as here:
        for member, wanted in trained(here, data, steps).items():
            found = results[member]
            assert (found.steps, found.hyper) == (wanted.steps, wanted.hyper)
            np.testing.assert_allclose(found.losses, wanted.losses, **CLOSE)
            assert_equal(networks.take(member), here.take(member))


def assert_equal(state: train.MemberState, other: train.MemberState) -> None:
    assert (state.step, state.hyper) == (other.step, other.hyper)
    np.testing.assert_allclose(state.floats, other.floats, **CLOSE)
    for name, buffer in other.buffers.items():
        np.testing.assert_allclose(state.buffers[name], buffer, **CLOSE)


def nodes_of(networks: penstock.ray.Population) -> list[str]:
    return [ray.get(worker._actor.node.remote()) for worker in networks._workers]


@pytest.mark.parametrize("data", [batches(), Shuffled()], ids=["shared", "own"])
def test_results_are_those_of_one_process(cluster: Any, data: Any) -> None:
    steps = [STEPS + n for n in range(MEMBERS)]
    with made() as networks:
        assert len(set(nodes_of(networks))) == 2
        assert_alike(networks, trained(networks, data, steps), data, steps)
        assert networks.step(2) == STEPS + 2
        bias = networks.module(2).out.bias.detach().numpy()
        assert np.isin(bias, networks.take(2).floats).all()
        # Another run continues.
        more = networks.train(data, steps=2, members=[1])
        assert [r.member for r in more.as_completed()] == [1]
        assert networks.step(1) == STEPS + 3
    assert networks.step(1) == STEPS + 3  # also when it is closed
    with pytest.raises(penstock.Closed):
        networks.train(data, steps=1)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(batches(), id="shared"),
        pytest.param(Shuffled(0.002), id="own", marks=pytest.mark.soak),
    ],
)
def test_actors_that_are_killed_change_no_result(cluster: Any, data: Any) -> None:
    dice = random.Random(5)
    stop = threading.Event()
    killed: list[Any] = []

    def kill() -> None:
        while len(killed) < 4 and not stop.wait(0.5):
            training = [worker for worker in networks._workers if worker.members]
            if training:
                killed.append(dice.choice(training))
                ray.kill(killed[-1]._actor, no_restart=False)
                stop.wait(2.0)

    steps = 2500 if isinstance(data, list) else 300
    with made(resident=2) as networks:
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            results = trained(networks, data, steps)
        finally:
            stop.set()
            killer.join()
        assert len(killed) > 1
        assert_alike(networks, results, data, steps)


def test_a_node_that_is_killed_costs_what_came_after_the_last_report(
    cluster: Any, tmp_path: Path
) -> None:
    extra = cluster.add_node(num_cpus=4, node_ip_address="127.0.0.4", include_dashboard=False)
    data = Counted(tmp_path, 0.02)
    networks = None
    for _ in range(10):  # Ray spreads at random
        networks = made(workers=3)
        if extra.node_id in nodes_of(networks):
            break
        networks.close()
    assert networks is not None
    (lost, *_) = [
        worker
        for worker, node in zip(networks._workers, nodes_of(networks), strict=True)
        if node == extra.node_id
    ]
    moved: list[int] = []

    def kill() -> None:
        while not (lost.members and min(networks.step(n) for n in lost.members) > 40):
            time.sleep(0.05)
        moved.extend(lost.members)
        cluster.remove_node(extra, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    steps = 150
    with networks:
        results = trained(networks, data, steps)
        killer.join()
        assert moved
        for member in range(MEMBERS):
            taken = [int(line) for line in (tmp_path / str(member)).read_text().split()]
            assert set(taken) == set(range(steps))
        folder = tmp_path / "here"
        folder.mkdir()
        assert_alike(networks, results, Counted(folder, 0.0), steps)


def test_a_member_that_ends_its_process_fails_alone(cluster: Any) -> None:
    with made() as networks:
        run = networks.train(ends_the_process_of_member_1, steps=20)
        results = {r.member: r for r in run.as_completed()}
    assert sorted(results) == list(range(MEMBERS))
    assert isinstance(results[1].error, penstock.WorkerLost)
    assert "ended 3 times" in str(results[1].error)
    assert [results[n].error for n in (0, 2, 3, 4)] == [None] * 4
    assert [results[n].steps for n in (0, 2, 3, 4)] == [20] * 4


def test_members_are_copied_and_perturbed_while_others_train(cluster: Any) -> None:
    with made(optimizer="adam", hyper={"lr": 0.01}) as networks:
        run = networks.train(Shuffled(0.005), steps=[10, 200, 10, 10, 10])
        finished = []
        for result in run.as_completed():
            finished.append(result.member)
            if result.member == 0 and finished.count(0) == 1:
                with pytest.raises(penstock.InvalidArgument, match="member 1 is in training"):
                    networks.copy(0, 1)
                with pytest.raises(penstock.InvalidArgument, match="member 1 is in training"):
                    networks.perturb(1, lr=2.0)
                with pytest.raises(penstock.InvalidArgument, match="in training already"):
                    run.add(1, 5)
                with pytest.raises(penstock.InvalidArgument, match="has not ended"):
                    networks.train(Shuffled(), steps=1)
                networks.copy(1, 0)  # its last report
                assert networks.step(0) == networks.step(1)
                assert networks.perturb(0, lr=0.5)["lr"] == 0.005
                before = networks.step(0)
                run.add(0, 5)
            elif result.member == 0:
                assert (result.steps, len(result.losses)) == (5, 5)
                assert networks.step(0) == before + 5
        assert finished.count(0) == 2
        assert sorted(set(finished)) == list(range(MEMBERS))
        assert networks.hyper(0) == {"lr": 0.005, "seed": 3}


def test_errors_of_data_and_members(cluster: Any) -> None:
    with made() as networks:
        with pytest.raises(ValueError, match="no data for member"):
            list(networks.train(raises, steps=3).as_completed())
        wrong = batches()
        wrong[5] = (wrong[5][0] * np.nan, wrong[5][1])
        for result in networks.train(wrong, steps=10).as_completed():
            assert (result.steps, len(result.losses)) == (5, 6)
            assert re.search("not finite|loss is nan", str(result.error))
            assert networks.step(result.member) == 5
        with pytest.raises(penstock.InvalidArgument, match="a population wants"):
            list(networks.train([1, 2], steps=3).as_completed())
        with pytest.raises(penstock.InvalidArgument, match="cannot be pickled"):
            networks.train(threading.Lock(), steps=3)
        trained(networks, batches())
    with pytest.raises(penstock.InvalidArgument, match="no node of Ray's cluster has 99 CPUs"):
        made(workers=None, num_cpus=99)
    with pytest.raises(penstock.InvalidArgument, match="snapshot_seconds"):
        made(snapshot_seconds=0)


def test_a_run_that_is_left_early_ends_and_another_begins(cluster: Any) -> None:
    with made() as networks:
        for result in networks.train(Shuffled(0.01), steps=[3, *[10_000] * 4]).as_completed():
            assert result.member == 0
            break
        states = [networks.take(n) for n in range(MEMBERS)]
        assert states[0].step == 3
        results = list(networks.train(Shuffled(), steps=4).as_completed())
        assert sorted(r.member for r in results) == list(range(MEMBERS))
        assert [networks.step(n) for n in range(MEMBERS)] == [s.step + 4 for s in states]


def test_the_example(cluster: Any) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "30"],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the best of 8: network " in done.stdout.splitlines()[-1]

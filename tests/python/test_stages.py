"""The time of each stage of a chain: in stats(), the report and the verdict, in every mode."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import INLINE, KINDS, PROCESSES, THREADS, Mode, each, options
from faults import wait_until
from penstock import Dataset


class Sleepy:
    """A data set of samples that takes 2 ms for each."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> np.ndarray:
        time.sleep(0.002)
        return np.full(3, index)


def stacked(samples: list[np.ndarray]) -> np.ndarray:
    time.sleep(0.005)
    return np.stack(samples)


def named(stages: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {stage["stage"]: stage for stage in stages}


@each(KINDS, ())
def test_a_slow_function_of_a_dataset_is_named(mode: Mode, tmp_path: Path) -> None:
    chain = Dataset.range(40).map(functions.added_one).map(functions.slow).batch(8)
    with chain.build(**options(mode)) as feed:
        assert len(list(feed)) == 5  # the first Python call in a process imports modules
        before = named(feed.stats()["stages"])
        for _ in range(3):
            assert len(list(feed)) == 5
        stages = named(feed.stats()["stages"])
        assert feed.stats()["stream_stages"] == []
        said = feed.analysis()
        feed.report(tmp_path / "run.html")
    assert {"range(0, 40)", "map(added_one)", "map(slow)", "batch(8)"} <= set(stages)
    assert all(160 <= stage["rows"] <= 6 * 40 for stage in stages.values())
    assert stages["map(slow)"]["ns"] >= 160 * functions.SLOW_S * 1e9
    grown = {name: stage["ns"] - before[name]["ns"] for name, stage in stages.items()}
    assert max(grown, key=lambda name: grown[name]) == "map(slow)"
    assert "the stage map(" in said["verdict"]
    assert "map(slow)" in (tmp_path / "run.html").read_text()


@each(KINDS, ())
def test_a_slow_predicate_is_the_streams(mode: Mode) -> None:
    chain = Dataset.range(40).filter(functions.slow_odd).map(functions.added_one).batch(4)
    with chain.build(**options(mode)) as feed:
        assert len(list(feed)) == 5
        workers, stream = (named(feed.stats()[key]) for key in ("stages", "stream_stages"))
        said = feed.analysis()
    assert set(workers) == {"map(added_one)", "batch(4)"}
    assert stream["filter(slow_odd)"]["ns"] >= 40 * functions.SLOW_S * 1e9
    assert stream["filter(slow_odd)"]["rows"] >= 20
    if mode == THREADS:  # their first Python call imports nothing
        assert said["bottleneck"] == "stream"
        assert "filter(slow_odd)" in said["verdict"]


def slowly_counted() -> Any:
    return map(functions.slow, range(160))


def in_front(number: Any) -> Dataset:
    return Dataset.range(40).map(functions.slow)


NUMBERS = Dataset.range(160)
SLOW_STREAMS = {
    "filter(slow_odd)": NUMBERS.filter(functions.slow_odd),
    "take_while(slow_true)": NUMBERS.take_while(functions.slow_true),
    "unique(slow)": NUMBERS.unique(key=functions.slow),
    "generator(slowly_counted)": Dataset.generator(slowly_counted).filter(functions.is_odd),
    "flat_map(in_front)": Dataset.range(4).flat_map(in_front),
}


@each((INLINE, THREADS), ())
@pytest.mark.parametrize("name", SLOW_STREAMS)
def test_the_time_of_a_streams_user_code_is_counted_whole_and_named(name: str, mode: Mode) -> None:
    begin = time.perf_counter()
    with SLOW_STREAMS[name].batch(8).build(**options(mode)) as feed:
        assert len(list(feed)) >= 10
        said = feed.analysis()
        feed.close()  # otherwise the next epoch continues
        took = time.perf_counter() - begin
        stage = named(feed.stats()["stream_stages"])[name]
    # A timed piece, which counts for others, may have been interrupted.
    assert 160 * functions.SLOW_S <= stage["ns"] / 1e9 <= 4 * took
    assert said["bottleneck"] == ("user code" if mode == INLINE else "stream")
    assert f"the stage {name}" in said["verdict"]
    advice = " ".join(said["recommendations"])
    assert name in advice
    assert ("Use workers" in advice) == (mode == INLINE)


def test_a_slow_training_step_is_the_bottleneck_though_workers_took_long_to_start() -> None:
    chain = Dataset.range(80).map(functions.added_one).batch(8)
    with chain.build(workers=2, use_multiprocessing=True) as feed:
        begin = time.perf_counter()
        next(iter(feed))
        end = 2 * time.perf_counter() - begin + 0.5  # more than the start took
        while time.perf_counter() < end:
            for _ in feed:
                time.sleep(0.02)
        said = feed.analysis()
    assert said["bottleneck"] == "training step"
    assert "stream" not in " ".join(said["recommendations"])


def test_a_number_of_workers_that_nobody_can_have_is_not_recommended() -> None:
    with Dataset.range(40).map(functions.slow).batch(40).build(workers=1) as feed:
        for _ in range(5):
            list(feed)
        said = feed.analysis()
    assert said["bottleneck"] == "user code"
    assert said["workers_enough"] <= 256
    assert "map(slow) cheaper" in " ".join(said["recommendations"])


@each(KINDS, ())
def test_a_loaders_stages_are_getitem_collate_and_rows(mode: Mode) -> None:
    with penstock.Loader(Sleepy(), batch_size=6, collate=stacked, **options(mode)) as feed:
        assert len(list(feed)) == 10
        stages = named(feed.stats()["stages"])
        assert "stage __getitem__" in feed.analysis()["verdict"]
    assert stages["__getitem__"]["rows"] >= 60
    assert stages["__getitem__"]["ns"] >= 120e6
    assert stages["collate"]["ns"] >= 50e6
    with penstock.Loader(Sleepy(), batch_size=6, **options(mode)) as feed:
        assert len(list(feed)) == 10
        stages = named(feed.stats()["stages"])
    assert "collate" not in stages
    assert stages["__getitem__"]["rows"] >= stages["rows"]["rows"] >= 60


def test_a_generators_stage_is_next() -> None:
    with penstock.Loader(functions.yields, batch_size=5, workers=1) as feed:
        list(feed)
        assert named(feed.stats()["stages"])["next()"]["rows"] >= 1


def test_the_counts_of_a_worker_that_was_killed_go_on(tmp_path: Path) -> None:
    kills = functions.KillsOnce(23, str(tmp_path / "killed"))
    chain = Dataset.range(60).map(kills).batch(4)
    with chain.build(workers=2, use_multiprocessing=True) as feed:
        assert len(list(feed)) == 15
        wait_until(lambda: feed.stats()["restarts"] == 1)
        stages = feed.stats()["stages"]
    # The rows of the batch in which it died were made again.
    assert stages[0]["rows"] >= 60


class Kept:
    """Batches that are views of a persistent array, so each must be copied."""

    def __init__(self) -> None:
        self.array = np.ones((4, 1 << 18), np.float32)

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> np.ndarray:
        return self.array[index % 4 :]


@each((PROCESSES,), ())
def test_copying_out_of_a_process_is_the_hand_over(mode: Mode, tmp_path: Path) -> None:
    with penstock.Loader(Kept(), **options(mode)) as feed:
        assert len(list(feed)) == 30
        feed.report(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    stages = json.loads(found.group(1))["analysis"]["worker_stages"]
    shares = {stage["name"]: stage["share"] for stage in stages}
    # A call of __getitem__ is cheap compared with a copy of megabytes.
    assert shares["hand-over"] > shares["user code"] >= 0

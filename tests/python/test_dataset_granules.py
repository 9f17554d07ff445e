"""Batches too large for one per worker: several workers make each batch together."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, Mode, assert_same, each, options
from penstock import Dataset

ROWS = 32
LENGTH = 5 * ROWS - 3
CROWDED = (THREADS, PROCESSES, Mode(3, "fork"))


def tight(mode: Mode, **more: Any) -> dict[str, Any]:
    """A budget of one batch, once the size of batches is known."""
    return {**options(mode), "max_bytes": 1, **more}


def by_whom(i: int) -> dict[str, Any]:
    time.sleep(0.002)
    return {
        "x": np.full(5, i, np.float32),
        "draw": penstock.rng().random(),
        "by": np.uint64(os.getpid() * 1_000_000 + threading.get_native_id() % 1_000_000),
    }


@each(CROWDED, (SPAWN,))
def test_workers_share_a_batch_and_nobody_can_tell(mode: Mode) -> None:
    dataset = Dataset.range(LENGTH).shuffle(seed=1).map(by_whom).batch(ROWS)
    expected = list(dataset.build(**options(INLINE)))
    shared = 0
    with dataset.build(**tight(mode)) as feed:
        for epoch in range(3):
            batches = list(feed)
            assert [len(batch["by"]) for batch in batches] == [ROWS] * 4 + [ROWS - 3]
            shared += sum(len(np.unique(batch["by"])) > 1 for batch in batches)
            if epoch == 0:
                for batch, alone in zip(batches, expected, strict=True):
                    assert_same(batch["x"], alone["x"])
                    assert_same(batch["draw"], alone["draw"])
        assert feed.stats()["delivered"] == 15
    assert shared >= 8, "of 15, the first few being made before their size is known"


def test_with_room_for_one_each_workers_have_batches_of_their_own() -> None:
    dataset = Dataset.range(10 * ROWS).map(by_whom).batch(ROWS)
    with dataset.build(**options(PROCESSES)) as feed:
        assert all(len(np.unique(batch["by"])) == 1 for batch in feed)


def text_from_the_third_batch_on(i: int) -> Any:
    time.sleep(0.0005)
    return {"x": i, "y": np.zeros(3) if i < 2 * ROWS else "é" * (i % 5)}


def longer_in_every_batch(i: int) -> Any:
    time.sleep(0.0005)
    return np.full(1 + i // ROWS, i)


@each(CROWDED, ())
@pytest.mark.parametrize("function", [text_from_the_third_batch_on, longer_in_every_batch])
def test_rows_without_a_place_of_their_own(mode: Mode, function: Callable[[int], Any]) -> None:
    dataset = Dataset.range(LENGTH).map(function).batch(ROWS)
    expected = list(dataset.build(**options(INLINE)))
    with dataset.build(**tight(mode)) as feed:
        for _ in range(2):
            for batch, alone in zip(feed, expected, strict=True):
                assert_same(batch, alone)


def of_two_shapes(i: int) -> Any:
    time.sleep(0.0005)
    return np.zeros(2 if i < 3 * ROWS + 20 else 3)


def raises_at_three_places(i: int) -> Any:
    time.sleep(0.0005)
    if i in (3 * ROWS + 5, 3 * ROWS + 20, 3 * ROWS + 31):
        raise KeyError(f"damaged {i}")
    return i


@each(CROWDED, ())
@pytest.mark.parametrize(
    ("function", "kind"), [(of_two_shapes, ValueError), (raises_at_three_places, KeyError)]
)
def test_errors_are_those_of_one_worker(
    mode: Mode, function: Callable[[int], Any], kind: type[Exception]
) -> None:
    dataset = Dataset.range(LENGTH).map(function).batch(ROWS)
    texts = []
    for opts in (options(INLINE), tight(mode)):
        with dataset.build(**opts) as feed:
            steps = iter(feed)
            for _ in range(3):
                next(steps)
            with pytest.raises(kind) as raised:
                next(steps)
            texts.append(str(raised.value))
            assert feed.state()["batches"] == 3
    assert texts[0] == texts[1]


def bad_here_and_there(i: int) -> Any:
    time.sleep(0.0005)
    if i % 6 == 5 or 3 * ROWS <= i < 3 * ROWS + 20 or 2 * ROWS <= i < 3 * ROWS:
        raise ValueError(f"bad {i}")
    return {"i": i, "x": np.full(3, i)}


@each(CROWDED, ())
def test_what_is_left_out_is_left_out_wherever_it_is(mode: Mode) -> None:
    dataset = Dataset.range(LENGTH).map(bad_here_and_there).batch(ROWS)
    losses, batches = [], []
    for opts in (options(INLINE), tight(mode)):
        with dataset.build(on_error="skip", **opts) as feed:
            batches.append(list(feed))
            at = len(batches[-1])
            list(feed)
            stats = feed.stats()
            assert stats["delivered"] == 2 * at
            losses.append([loss for loss in stats["losses"] if loss[0] < 2])
    assert_same(batches[1], batches[0])
    assert losses[1] == losses[0]
    assert len(batches[0]) == 4


class DiesOnce:
    """Kills the process that makes `index`, the first time."""

    def __init__(self, marks: pathlib.Path, index: int):
        self.marks, self.index = marks, index

    def __call__(self, i: int) -> Any:
        time.sleep(0.001)
        if i == self.index:
            mark = self.marks / str(i)
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return np.full(4, i)


@pytest.mark.parametrize("row", [0, 9, ROWS - 1])
def test_a_killed_worker_s_part_is_made_again(tmp_path: pathlib.Path, row: int) -> None:
    index = 3 * ROWS + row
    dataset = Dataset.range(LENGTH).map(DiesOnce(tmp_path, index)).batch(ROWS)
    with dataset.build(**tight(Mode(3, "fork"))) as feed:
        seen = np.concatenate(list(feed))
        assert feed.stats()["restarts"] == 1
    assert (seen == np.arange(LENGTH)[:, None]).all()


@each(CROWDED, ())
def test_any_place_between_batches_restores(mode: Mode) -> None:
    dataset = Dataset.range(LENGTH).filter(lambda i: i % 3 != 1).map(by_whom).batch(20)
    keys = ("x", "draw")
    expected = [{k: b[k] for k in keys} for b in dataset.build(**options(INLINE))]
    with dataset.build(**tight(mode)) as feed:
        states = [json.dumps(feed.state())]
        states += [json.dumps(feed.state()) for _ in feed][:-1]
        for at, state in enumerate(states):
            feed.restore(json.loads(state))
            rest = [{k: b[k] for k in keys} for b in feed]
            assert_same(rest, expected[at:])

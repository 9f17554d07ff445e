"""cache with a path, and Dataset.snapshot: elements in a file, in any order."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import KINDS, PROCESSES, SPAWN, each, options, passed, plain
from penstock import Dataset
from test_dataset_cache import Called, expected_of


@each(KINDS, (SPAWN,))
def test_it_is_made_once_by_all_workers_and_is_there_the_next_time(mode, tmp_path):
    called = Called(tmp_path / "calls")
    path = tmp_path / "kept"
    with Dataset.range(90).map(called).cache(path).build(**options(mode)) as feed:
        assert passed(feed) == expected_of(range(90))
        assert passed(feed) == expected_of(range(90))
        assert called.count() == 90
    assert sorted(os.listdir(tmp_path)) == ["calls", "kept"]
    with Dataset.range(90).map(called).cache(path).build(**options(mode)) as feed:
        assert passed(feed) == expected_of(range(90))
    with Dataset.snapshot(path).build(**options(mode)) as feed:
        assert passed(feed) == expected_of(range(90))
    assert called.count() == 90


@pytest.mark.parametrize("batch", [None, 2])
def test_it_is_there_when_the_first_pass_is_over_whoever_made_the_last_element(tmp_path, batch):
    for number in range(150):
        path = tmp_path / str(number)
        dataset = Dataset.range(3).cache(path)
        if batch is not None:
            dataset = dataset.batch(batch)
        with dataset.build(workers=4) as feed:  # some workers already make the next pass
            for _ in feed:
                pass
            assert path.exists(), number


@each(KINDS, ())
def test_a_snapshot_of_every_kind_of_leaf_is_shuffled_and_mapped(mode, tmp_path):
    path = tmp_path / "elements"
    with Dataset.range(50).map(functions.described).cache(path).build(**options(mode)) as feed:
        expected = passed(feed)
    snapshot = Dataset.snapshot(path)
    assert len(snapshot) == 50
    shuffled = snapshot.shuffle(seed=1).map(functions.as_it_is).batch(6)
    with shuffled.build(**options(mode)) as feed:
        batches = passed(feed)
    numbers = [number for batch in batches for number in batch["number"]]
    assert sorted(numbers) == [element["number"] for element in expected]
    assert numbers != sorted(numbers)
    draws = dict(zip(numbers, (d for batch in batches for d in batch["draw"]), strict=True))
    assert draws == {element["number"]: element["draw"] for element in expected}


@each(KINDS, ())
@pytest.mark.parametrize("streamed", [False, True])
def test_a_state_restores_through_it_at_every_element(mode, streamed, tmp_path):
    chain = Dataset.range(30).map(functions.described)
    if streamed:
        chain = Dataset.generator(functions.yields).map(functions.doubled)
    with chain.batch(4).build(workers=0) as feed:
        expected = passed(feed)
    filling = chain.cache(tmp_path / "a").batch(4)
    with filling.build(**options(mode)) as feed:
        iterator, states = iter(feed), []
        for place in range(len(expected)):
            state = json.loads(json.dumps(feed.state()))
            # Another plan object with another path, whose cache is empty; this file is used later.
            with chain.cache(tmp_path / f"b{place}").batch(4).build(workers=0) as fresh:
                fresh.restore(state)
                assert passed(fresh) == expected[place:]
            assert plain(next(iterator)) == expected[place]
            states.append(state)
        assert next(iterator, None) is None
    assert (tmp_path / "a").exists()
    # From the file the same states restore, at every element.
    with chain.cache(tmp_path / "a").batch(4).build(**options(mode)) as loaded:
        for place, state in enumerate(states):
            loaded.restore(state)
            assert passed(loaded) == expected[place:]


def test_a_worker_that_is_killed_while_it_fills_loses_nothing(tmp_path):
    called = Called(tmp_path / "calls")
    kills = functions.KillsOnce(57, str(tmp_path / "killed"))
    dataset = Dataset.range(90).map(kills).map(called).cache(tmp_path / "kept")
    with dataset.build(**options(PROCESSES)) as feed:
        assert passed(feed) == expected_of(range(90))
        assert (tmp_path / "killed").exists()
    assert sorted(os.listdir(tmp_path)) == ["calls", "kept", "killed"]
    assert passed(Dataset.snapshot(tmp_path / "kept")) == expected_of(range(90))


def test_a_writer_that_is_killed_leaves_one_file_that_the_next_run_removes(tmp_path):
    code = """
        import sys, penstock
        def slow():
            for number in range(10**9):
                if number == 1000:
                    print("amid", flush=True)
                    sys.stdin.readline()
                yield number
        for _ in penstock.Dataset.generator(slow).cache(sys.argv[1]).build(workers=0):
            pass
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "kept")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as filling:
        assert filling.stdout is not None
        assert filling.stdout.readline() == b"amid\n"
        # Another Dataset does not remove the file while this one exists.
        assert passed(Dataset.range(3).cache(tmp_path / "kept")) == [0, 1, 2]
        (hidden,) = set(os.listdir(tmp_path)) - {"kept"}
        filling.send_signal(signal.SIGKILL)
    assert hidden.startswith(".kept.")
    os.remove(tmp_path / "kept")
    assert passed(Dataset.range(4).cache(tmp_path / "kept")) == [0, 1, 2, 3]
    assert os.listdir(tmp_path) == ["kept"]


def test_what_is_refused_says_what_to_do(tmp_path):
    path = tmp_path / "kept"
    assert passed(Dataset.range(5).map(functions.as_it_is).cache(path)) == list(range(5))
    before = path.read_bytes()
    with pytest.raises(penstock.InvalidArgument, match=r"its stage 2 .*here.*; delete it"):
        len(Dataset.range(5).map(functions.drawn).cache(path))
    with pytest.raises(penstock.InvalidArgument, match=r"stage 1 is .range\(0, 5\)."):
        len(Dataset.range(6).map(functions.as_it_is).cache(path))
    for mode in KINDS:
        cached = Dataset.range(5).map(functions.as_it_is).cache(path)
        with (
            cached.build(seed=1, **options(mode)) as feed,
            pytest.raises(penstock.InvalidArgument, match=r"build\(seed=0\), and here with 1"),
        ):
            next(iter(feed))
    assert path.read_bytes() == before
    with pytest.raises(penstock.InvalidArgument, match="max_bytes is of a cache in memory"):
        Dataset.range(3).cache(path, max_bytes=1 << 20)
    with pytest.raises(penstock.NotFound, match="no such file"):
        len(Dataset.snapshot(tmp_path / "other"))
    with pytest.raises(penstock.NotFound, match="there is no folder for"):
        passed(Dataset.range(3).cache(tmp_path / "no" / "file"))
    with pytest.raises(penstock.DataLoss, match="the file is no snapshot"):
        len(Dataset.snapshot(pathlib.Path(__file__)))


def test_damage_is_an_error_at_its_place(tmp_path):
    path = tmp_path / "kept"
    assert len(passed(Dataset.range(20).cache(path))) == 20
    sound = path.read_bytes()
    # A number and what fills its block.
    record = sound.index(np.int64(5).tobytes() + bytes(56), 200)
    damaged = bytearray(sound)
    damaged[record] ^= 1
    path.write_bytes(damaged)
    for dataset in (Dataset.snapshot(path), Dataset.range(20).cache(path)):
        with dataset.build(workers=0) as feed:
            seen = []
            with pytest.raises(
                penstock.DataLoss,
                match=rf"kept, element 5, byte {record - 32}: its checksum is wrong; .* it again",
            ):
                for number in feed:
                    seen.append(int(number))
            assert seen == list(range(5))
        with dataset.build(workers=0, on_error="skip") as feed:
            assert passed(feed) == [n for n in range(20) if n != 5]
            assert len(feed.stats()["losses"]) == 1
    path.write_bytes(sound[:-1])
    with pytest.raises(penstock.DataLoss, match="the footer is damaged or missing"):
        len(Dataset.snapshot(path))


def test_a_full_disk_is_a_typed_error(tmp_path):
    code = f"""
        import resource, sys, numpy as np, penstock
        def large(number):
            return np.full(1 << 18, number)
        feed = penstock.Dataset.range(9).map(large).cache(sys.argv[1]).build(workers=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, {resource.RLIM_INFINITY}))
        seen = 0
        try:
            for _ in feed:
                seen += 1
        except penstock.System as error:
            assert "File too large" in str(error) and sys.argv[1] in str(error), error
            print(seen)
        feed.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "kept")]
    seen = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert int(seen) == 2
    assert os.listdir(tmp_path) == []

"""Files that change after a Dataset was built: workers of any kind use the files found then."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import KINDS, PROCESSES, SPAWN, Mode, each, options, passed
from faults import wait_until
from penstock import Dataset


def put_lines(path, count):
    path.write_text("".join(f"{i:05}\n" for i in range(count)))


def put_csv(path, count):
    path.write_text("number,text\n" + "".join(f"{i},{i:05}\n" for i in range(count)))


def put_tfrecord(path, count):
    new = path.with_suffix(".new")
    with penstock.TFRecordWriter(new) as writer:
        for i in range(count):
            writer.write(f"{i:05}".encode())
    path.write_bytes(new.read_bytes())  # in place: an open file stays the same file
    os.remove(new)


def put_fixed(path, count):
    path.write_bytes(np.arange(count, dtype="<i4").tobytes())


def put_idx(path, count):
    numbers = np.arange(count, dtype=">i4")
    path.write_bytes(struct.pack(">4BI", 0, 0, 0x0C, 1, count) + numbers.tobytes())


def put_tar(path, count):
    new = path.with_suffix(".new")
    with penstock.TarWriter(new) as writer:
        for i in range(count):
            writer.write({"__key__": f"{i:05}", "txt": str(i)})
    path.write_bytes(new.read_bytes())
    os.remove(new)


def put_npy(path, count):
    new = path.with_suffix(".npy")
    np.save(new, np.arange(count))
    path.write_bytes(new.read_bytes())
    os.remove(new)


FORMATS = {
    "lines": (put_lines, Dataset.lines),
    "csv": (put_csv, lambda path: Dataset.csv(path, {"number": np.int64, "text": str})),
    "tfrecord": (put_tfrecord, Dataset.tfrecord),
    "fixed_records": (put_fixed, lambda path: Dataset.fixed_records(path, 4)),
    "idx": (put_idx, Dataset.idx),
    "tar": (put_tar, Dataset.tar),
    "npy": (put_npy, Dataset.npy),
}
each_format = pytest.mark.parametrize(("put", "read"), FORMATS.values(), ids=FORMATS)


def shuffled(source):
    return source.shuffle(seed=1).map(functions.as_it_is).batch(10)


def lost(feed, *says):
    with pytest.raises(penstock.DataLoss) as raised:
        list(feed)
    for text in says:
        assert text in str(raised.value)


@each_format
@each(KINDS, (SPAWN,))
def test_a_file_that_grew_gives_what_it_had(tmp_path, mode, put, read):
    path = tmp_path / "a"
    put(path, 100)
    expected = passed(shuffled(read(path)).build(workers=0))
    with shuffled(read(path)).build(**options(mode)) as feed:
        put(path, 120)
        assert passed(feed) == expected


@each_format
@each(KINDS, (SPAWN,))
def test_a_file_that_shrank_is_said(tmp_path, mode, put, read):
    path = tmp_path / "a"
    put(path, 100)
    with shuffled(read(path)).build(**options(mode)) as feed:
        put(path, 60)
        lost(feed, str(path), "it has become shorter")


@each((*KINDS, SPAWN), ())
def test_a_new_file_of_a_pattern_is_not_in_it(tmp_path, mode):
    for name in ("b", "d"):
        put_lines(tmp_path / name, 50)
    expected = passed(shuffled(Dataset.lines(tmp_path / "*")).build(workers=0))
    with shuffled(Dataset.lines(tmp_path / "*")).build(**options(mode)) as feed:
        put_lines(tmp_path / "a", 7)
        put_lines(tmp_path / "c", 7)
        assert passed(feed) == expected


@each((PROCESSES,), (SPAWN,))
def test_a_file_that_vanished_is_said(tmp_path, mode):
    for name in ("a", "b"):
        put_lines(tmp_path / name, 50)
    with shuffled(Dataset.lines(tmp_path / "*")).build(**options(mode)) as feed:
        os.remove(tmp_path / "b")
        with pytest.raises(penstock.NotFound, match="/b"):
            list(feed)


@each((Mode(1, "fork"), PROCESSES), (SPAWN,))
def test_who_stands_in_for_a_killed_worker_reads_the_same(tmp_path, mode):
    folder = tmp_path / "files"
    folder.mkdir()
    put_lines(folder / "b", 100)
    kills = functions.KillsOnce("00017", str(tmp_path / "dead"))
    dataset = Dataset.lines(folder / "*").shuffle(seed=1).map(kills).batch(10)
    with dataset.build(**options(mode)) as feed:
        batches = iter(feed)
        got = next(batches).to_list()
        put_lines(folder / "a", 30)
        put_lines(folder / "b", 120)
        got += [line for batch in batches for line in batch.to_list()]
        assert sorted(got) == [f"{i:05}" for i in range(100)]
        wait_until(lambda: feed.stats()["restarts"] == 1)


@each(KINDS, ())
def test_index_arithmetic_is_that_of_the_files_as_they_were(tmp_path, mode):
    path = tmp_path / "a"
    for chain in (
        lambda lines: lines.repeat(2).skip(3),
        lambda lines: lines.shuffle(seed=1, block=8, window=2),
        lambda lines: lines.shard(1, 2),
        lambda lines: Dataset.interleave([lines, Dataset.lines(path).take(50)], cycle=2),
        lambda lines: Dataset.zip(lines, lines.map(functions.as_it_is)).map(functions.added),
    ):
        put_lines(path, 100)
        expected = passed(chain(Dataset.lines(path)).map(functions.as_it_is).build(workers=0))
        built = chain(Dataset.lines(path)).map(functions.as_it_is)
        with built.build(**options(mode)) as feed:
            put_lines(path, 120)
            assert passed(feed) == expected
        with chain(Dataset.lines(path)).map(functions.as_it_is).build(**options(mode)) as feed:
            put_lines(path, 60)
            lost(feed, str(path), "it has become shorter")


@each(KINDS, ())
def test_one_that_is_lost_can_be_passed_over(tmp_path, mode):
    path = tmp_path / "a"
    put_lines(path, 100)
    with shuffled(Dataset.lines(path)).build(on_error="skip", **options(mode)) as feed:
        put_lines(path, 60)
        lines = [line for batch in feed for line in batch.to_list()]
        assert sorted(lines) == [f"{i:05}" for i in range(60)]
        assert feed.stats()["skipped"] == 40


@each(KINDS, ())
def test_a_stream_is_read_as_it_is_by_then(tmp_path, mode):
    path = tmp_path / "a"
    put_lines(path, 100)
    dataset = Dataset.lines(path, stream=True).map(functions.as_it_is).batch(10)
    with dataset.build(**options(mode)) as feed:
        put_lines(path, 120)
        assert sum(len(batch) for batch in feed) == 120


@each((PROCESSES,), (SPAWN,))
def test_every_pass_reads_by_the_same_index(tmp_path, mode):
    path = tmp_path / "a"
    put_lines(path, 100)
    dataset = shuffled(Dataset.lines(path, index="beside"))
    with dataset.build(**options(mode)) as feed, dataset.build(**options(mode)) as other:
        for _ in range(3):
            with path.open("a") as file:
                file.write("more\n" * 20)
            assert sum(len(batch) for batch in feed) == 100
        assert sum(len(batch) for batch in other) == 100


@each(KINDS, (SPAWN,))
def test_a_snapshot_is_the_one_that_was_there(tmp_path, mode):
    path = tmp_path / "kept"

    def put(count):
        path.unlink(missing_ok=True)
        with Dataset.range(count).cache(path).build(workers=0) as feed:
            list(feed)

    put(100)
    expected = passed(shuffled(Dataset.snapshot(path)).build(workers=0))
    for change in (lambda: put(60), lambda: put(120), path.unlink):
        put(100)
        with shuffled(Dataset.snapshot(path)).build(**options(mode)) as feed:
            change()
            assert passed(feed) == expected


@each((Mode(2, "fork"), PROCESSES), (SPAWN,))
def test_who_stands_in_for_a_killed_worker_looks_at_no_file_that_a_cache_fills(tmp_path, mode):
    """The worker that finishes the file reports elements that another run stored."""
    path = tmp_path / "kept"
    kills = functions.KillsOnce(117, str(tmp_path / "dead"))
    dataset = Dataset.range(400).map(kills).map(functions.slow).cache(path).batch(4)
    with dataset.build(**options(mode)) as feed:
        steps = iter(feed)
        got = next(steps).tolist()
        path.write_text("of somebody else")
        with pytest.raises(penstock.DataLoss, match="too short"):
            for batch in steps:
                got += batch.tolist()
        assert feed.stats()["restarts"] == 1
    assert got == list(range(len(got)))
    assert len(got) > 380  # the worker that made the last element failed


@each_format
@each((*KINDS, PROCESSES), (SPAWN,))
def test_a_file_that_another_one_took_the_place_of_is_not_mixed_with_it(tmp_path, mode, put, read):
    path = tmp_path / "a"
    put(path, 100)
    expected = passed(shuffled(read(path)).build(workers=0))
    with shuffled(read(path)).build(**options(mode)) as feed:
        put(tmp_path / "b", 200)
        os.replace(tmp_path / "b", path)
        if mode.method:  # a worker process opens it by its name
            lost(feed, str(path), "another file has taken its place")
        else:  # it is open since the build
            assert passed(feed) == expected

"""Files whose names are not UTF-8, for every argument that is a path."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import INLINE, PROCESSES, THREADS, each, options
from penstock import Dataset, train


@pytest.fixture
def named(tmp_path):
    """A function that makes the path of a file whose name begins with an invalid UTF-8 byte."""
    try:
        (tmp_path / os.fsdecode(b"\xff")).touch()
    except OSError:
        pytest.skip("this file system has no such names")
    return lambda name: tmp_path / (os.fsdecode(b"\xff") + name)


def test_every_source_and_writer_takes_them(named):
    named("lines").write_text("a\nb\n")
    named("csv").write_text("id\n1\n2\n")
    named("fixed").write_bytes(bytes(6))
    with penstock.TFRecordWriter(named("tfrecord")) as writer:
        writer.write(b"abc")
    assert writer.path == str(named("tfrecord"))
    assert list(Dataset.lines(named("lines"))) == ["a", "b"]
    assert list(Dataset.lines([os.fsencode(named("lines"))])) == ["a", "b"]
    assert list(Dataset.lines(str(named("lines"))[:-5] + "l*")) == ["a", "b"]
    assert [row["id"] for row in Dataset.csv(named("csv"), {"id": "int64"})] == [1, 2]
    assert len(Dataset.fixed_records(named("fixed"), 3)) == 2
    for _ in range(2):
        assert list(Dataset.tfrecord(named("tfrecord"), index="beside")) == [b"abc"]
    assert os.path.exists(str(named("tfrecord")) + ".penstock-index")
    assert list(Dataset.range(3).cache(named("cache"))) == [0, 1, 2]
    assert list(Dataset.snapshot(named("cache"))) == [0, 1, 2]
    named("idx").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    assert list(Dataset.idx(named("idx"))) == [7, 8, 9]
    named("cifar").write_bytes(bytes(3073))
    assert len(Dataset.cifar10(named("cifar"))) == 1


def test_weights_are_kept_in_them(named):
    parameters = train.Parameters({"w": np.arange(3, dtype=np.float32)})
    parameters.save(named("safetensors"))
    assert train.Parameters.from_file(named("safetensors"))["w"].tolist() == [0, 1, 2]


@each((INLINE, THREADS, PROCESSES), ())
def test_what_is_said_of_them_is_text(named, mode):
    named("lines").write_bytes(b"a\n\xff\nc\n")
    dataset = Dataset.lines(named("lines")).map(functions.as_it_is)
    assert repr(dataset).startswith(r"lines(\xfflines)")
    with dataset.build(**options(mode), on_error="skip") as feed:
        assert list(feed.steps(1)) == ["a"]
        state = json.loads(json.dumps(feed.state()).encode())
        assert list(feed.steps(1)) == ["c"]
        [(_, _, reason), *_] = feed.stats()["losses"]
        assert r"\xfflines, record 1 at byte 2" in reason
        feed.restore(state)
        assert list(feed) == ["c"]
        feed.report(named("report.html"))
    with pytest.raises(penstock.NotFound, match=r"\\xffnone"):
        list(Dataset.lines(named("none")))


def test_commands_take_them(named):
    with penstock.TFRecordWriter(named("tfrecord")) as writer:
        writer.write(b"abc")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}

    def said(*arguments):
        command = [sys.executable, "-m", "penstock", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=50, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert os.fsencode(named("tfrecord")) in said("inspect", named("tfrecord"))
    [file] = json.loads(said("inspect", "--json", named("tfrecord")))["files"]
    assert file["path"] == str(named("tfrecord"))
    assert b"every checksum agrees" in said("verify", named("tfrecord"))
    assert os.fsencode(named("copy")) in said("convert", named("tfrecord"), named("copy"))
    assert list(Dataset.tfrecord(named("copy"))) == [b"abc"]

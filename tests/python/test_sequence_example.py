"""tf.SequenceExamples through a Dataset, from hand-written bytes."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, THREADS, each
from penstock import Dataset


def part(number, body):
    """A field of a message: its tag, its length, its bytes."""
    length, size = b"", len(body)
    while True:
        length += bytes([size % 128 + (128 if size > 127 else 0)])
        size //= 128
        if not size:
            return bytes([number << 3 | 2]) + length + body


def entry(name, body):
    return part(1, part(1, name.encode()) + part(2, body))


def floats(values):
    return part(2, part(1, struct.pack(f"<{len(values)}f", *values)))


def strings(values):
    return part(1, b"".join(part(1, value) for value in values))


def record(number):
    frames = b"".join(part(1, floats([number, i])) for i in range(number % 4))
    words = b"".join(part(1, strings([b"w" * i])) for i in range(number % 3))
    lists = entry("frames", frames) + entry("words", words)
    return part(1, entry("x", floats([number]))) + part(2, lists)


PARSE = penstock.parse_sequence_example(
    {"x": penstock.float32()},
    {"frames": penstock.float32(2), "words": penstock.bytes(), "none": penstock.int64(default=0)},
)


@pytest.fixture
def path(tmp_path):
    with penstock.TFRecordWriter(tmp_path / "file") as writer:
        for number in range(30):
            writer.write(record(number))
    return tmp_path / "file"


@each((INLINE, THREADS, PROCESSES), ())
def test_context_and_lists_come_out_as_one_dict(path, mode):
    with Dataset.tfrecord(path).map(PARSE).build(**mode.options) as feed:
        rows = list(feed)
    assert len(rows) == 30
    for number, row in enumerate(rows):
        assert list(row) == ["x", "frames", "words", "words/lengths", "none"]
        assert row["x"] == number
        expected = np.array([[number, i] for i in range(number % 4)], np.float32).reshape(-1, 2)
        assert np.array_equal(np.asarray(row["frames"]), expected)
        assert row["words"] == b"w" * sum(range(number % 3))
        assert np.asarray(row["words/lengths"]).tolist() == list(range(number % 3))
        assert np.asarray(row["none"]).shape == (0,)


def test_batches_of_lists_are_ragged(path):
    (batch,) = Dataset.tfrecord(path).map(PARSE).batch(30).build(workers=1)
    assert batch["x"].tolist() == list(range(30))
    for number in range(30):
        assert batch["frames"][number].shape == (number % 4, 2)
        assert batch["words"][number] == b"w" * sum(range(number % 3))


def test_what_is_wrong_with_a_record_is_said(tmp_path):
    with penstock.TFRecordWriter(tmp_path / "file") as writer:
        writer.write(record(1))
        writer.write(record(2)[:-1])
        writer.write(part(2, entry("frames", part(1, floats([1, 2, 3])))))
    dataset = Dataset.tfrecord(tmp_path / "file").map(PARSE)
    with dataset.build(workers=0) as feed, pytest.raises(penstock.DataLoss, match="byte"):
        list(feed)
    with dataset.build(workers=0, on_error="skip") as feed:
        assert [float(row["x"]) for row in feed] == [1]
        assert feed.stats()["skipped"] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: penstock.parse_sequence_example(),
        lambda: penstock.parse_sequence_example({}, {}),
        lambda: penstock.parse_sequence_example([1]),
        lambda: penstock.parse_sequence_example({"x": 1}),
        lambda: penstock.parse_sequence_example({}, {"x": penstock.bytes(many=True)}),
    ],
)
def test_what_cannot_be_is_refused_at_once(wrong):
    with pytest.raises(penstock.InvalidArgument):
        wrong()

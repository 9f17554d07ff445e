"""Compressed files, and plain files read as a stream: whole chains, and damage."""

from __future__ import annotations

import gzip
import os
import re
import zlib

import numpy as np
import pytest

import penstock
import tfrecord_functions as functions
from contract import (
    INLINE,
    PROCESSES,
    SPAWN,
    THREADS,
    check_checkpoints,
    each,
    options,
    passed,
)
from penstock import Dataset

FEATURES = {"image": penstock.bytes(), "label": penstock.int64()}
TOTAL = 90


def sample(number):
    return penstock.example({"image": bytes([number]) * (number + 1), "label": number})


def write(path, payloads):
    with penstock.TFRecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path):
    """The same kind of records in a file of each kind, compressed by Python's own modules."""
    for file, pack in enumerate((gzip.compress, zlib.compress, bytes)):
        path = tmp_path / f"part-{file}"
        path.write_bytes(pack(write(path, map(sample, range(file * 30, file * 30 + 30)))))
    return tmp_path


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
def test_compressed_files_just_work(folder, mode):
    dataset = Dataset.tfrecord(folder / "part-*").map(penstock.parse_example(FEATURES))
    dataset = dataset.map(functions.refuses_nothing).batch(8)
    for _ in range(2):
        labels = [label for batch in dataset for label in batch["label"].tolist()]
        assert labels == list(range(TOTAL))
    with dataset.build(**options(mode)) as feed:
        assert [n for batch in feed for n in batch["label"].tolist()] == list(range(TOTAL))
        with pytest.raises(TypeError):
            len(feed)


def test_a_stream_of_files_restores_at_every_batch(folder):
    dataset = Dataset.tfrecord(folder / "part-*")
    dataset = dataset.map(penstock.parse_example({"label": penstock.int64()}))
    dataset = dataset.shuffle(buffer=20, seed=3).batch(7)
    check_checkpoints(lambda **options: dataset.build(**options), restored=(INLINE, THREADS))


def test_whatever_takes_streams_takes_compressed_files(folder):
    def part(number):
        return Dataset.tfrecord(folder / f"part-{number}").map(penstock.parse_example(FEATURES))

    def labels(dataset):
        return [int(row["label"]) for row in dataset]

    mixed = Dataset.sample_from([part(0), part(1)], seed=1)
    assert sorted(labels(mixed)) == list(range(60))
    assert labels(part(0).shard(1, 3)) == list(range(1, 30, 3))
    assert labels(part(0).skip(3).take(4)) == [3, 4, 5, 6]
    assert labels(part(0).concatenate(part(2))) == [*range(30), *range(60, 90)]
    assert labels(part(1).filter(functions.is_even)) == list(range(30, 60, 2))
    shuffled = [labels(part(0).shuffle(buffer=10, seed=s)) for s in (1, 2)]
    assert shuffled[0] != shuffled[1]
    assert sorted(shuffled[0]) == list(range(30))
    with pytest.raises(penstock.InvalidArgument, match="give shuffle a buffer"):
        part(0).shuffle(seed=1).build()


def test_the_files_tell_unless_they_are_told(folder):
    plain = Dataset.tfrecord(folder / "part-2")
    assert len(plain) == 30
    assert list(Dataset.tfrecord(folder / "part-2", stream=True)) == list(plain)
    for compression in ("gzip", "zlib"):
        with pytest.raises(penstock.DataLoss, match="compressed bytes cannot be read"):
            list(Dataset.tfrecord(folder / "part-2", compression=compression))
    for number, compression in enumerate(("gzip", "zlib", "none")):
        named = Dataset.tfrecord(folder / f"part-{number}", compression=compression)
        assert len(list(named)) == 30
    with pytest.raises(penstock.InvalidArgument, match="brotli"):
        Dataset.tfrecord("x", compression="brotli")
    with pytest.raises(penstock.InvalidArgument, match="brotli"):
        penstock.TFRecordWriter(folder / "x", compression="brotli")


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_what_is_written_is_what_others_read(tmp_path, compression):
    payloads = [bytes([n % 251]) * (n * 37 % 3000) for n in range(800)]
    plain = write(tmp_path / "plain", payloads)
    path = tmp_path / "small"
    with penstock.TFRecordWriter(path, compression=compression) as writer:
        for payload in payloads:
            writer.write(payload)
        assert writer.bytes_written == len(plain)
    unpack = gzip.decompress if compression == "gzip" else zlib.decompress
    assert unpack(path.read_bytes()) == plain
    assert len(path.read_bytes()) < len(plain) / 2
    assert list(Dataset.tfrecord(path)) == payloads


def test_text_is_read_as_it_is_or_inflated(tmp_path):
    text = "one\r\nzwei \u00fc\n\nlast"
    expected = ["one", "zwei \u00fc", "", "last"]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.txt").write_text(text, newline="")
    assert list(Dataset.lines(tmp_path / "a.txt.gz")) == expected
    assert list(Dataset.lines(tmp_path / "b.txt", stream=True)) == expected
    assert list(Dataset.lines(str(tmp_path / "*"))) == expected * 2
    (tmp_path / "z").write_bytes(zlib.compress(text.encode()))
    assert list(Dataset.lines(tmp_path / "z", compression="zlib")) == expected


# ---- damage ----------------------------------------------------------------------------------


@each((INLINE, THREADS), ())
def test_damage_is_named_by_file_record_and_byte_and_skipped_with_counts(tmp_path, mode):
    data = bytearray(write(tmp_path / "x", map(sample, range(30))))
    offset = sum(16 + len(sample(n)) for n in range(7))
    data[offset + 14] ^= 1
    (tmp_path / "x").write_bytes(gzip.compress(data))
    cut = gzip.compress(write(tmp_path / "y", map(sample, range(30, 60))))[:-30]
    (tmp_path / "y").write_bytes(cut)
    write(tmp_path / "z", map(sample, range(60, 90)))
    dataset = Dataset.tfrecord([tmp_path / name for name in "xyz"])
    dataset = dataset.map(penstock.parse_example(FEATURES)).batch(5)
    with dataset.build(**options(mode)) as feed:
        says = re.escape(f"{tmp_path / 'x'}, record 7 at byte {offset} of what was inflated (")
        with pytest.raises(penstock.DataLoss, match=says):
            list(feed)
        assert feed.state()["batches"] == 1
    with dataset.build(on_error="skip", **options(mode)) as feed:
        batches = [batch["label"].tolist() for batch in feed]
        stats = feed.stats()
    got = [label for batch in batches for label in batch]
    last = max(label for label in got if label < 60)  # the last one before the cut
    assert got == [*range(7), *range(8, last + 1), *range(60, 90)]
    assert last > 40
    assert {len(batch) for batch in batches[:-1]} == {5}
    assert stats["skipped"] == 2
    first, second = (reason for _, _, reason in stats["losses"])
    assert f"{tmp_path / 'x'}, record 7 " in first
    assert f"{tmp_path / 'y'}, record {last - 29} " in second
    assert f"at byte {len(cut)} of {len(cut)}: the file ends too early" in second


def test_a_state_is_as_exact_behind_damage(tmp_path):
    data = bytearray(write(tmp_path / "x", map(sample, range(30))))
    for place in (200, 900, 901):
        data[place] ^= 1
    (tmp_path / "x").write_bytes(gzip.compress(data)[:-20])
    write(tmp_path / "y", map(sample, range(30)))
    dataset = Dataset.tfrecord([tmp_path / "x", tmp_path / "y"])
    check_checkpoints(
        lambda **options: dataset.build(on_error="skip", **options), restored=(THREADS,), count=1
    )


def test_files_that_vanish_or_shrink_cost_what_they_lack(tmp_path):
    for name in "abc":
        payloads = [os.urandom(1000) for _ in range(2000)]
        (tmp_path / name).write_bytes(gzip.compress(write(tmp_path / name, payloads)))
    dataset = Dataset.tfrecord(str(tmp_path / "*"), compression="gzip")
    with dataset.build(workers=0, on_error="skip") as feed:
        iterator = iter(feed)
        next(iterator)
        os.truncate(tmp_path / "a", 500_000)
        os.remove(tmp_path / "b")
        left = len(list(iterator))
        stats = feed.stats()
    assert 2000 < 1 + left < 4000
    assert stats["skipped"] == 2
    assert "shorter" in stats["losses"][0][2]
    assert f"no such file: {tmp_path / 'b'}" in stats["losses"][1][2]


def test_a_path_that_is_not_there_is_no_such_file(tmp_path):
    for name, says in (("x.gz", "no such file"), ("x*", "no file matches")):
        with pytest.raises(penstock.NotFound, match=f"{says}.*{re.escape(str(tmp_path / name))}"):
            Dataset.tfrecord(tmp_path / name, stream=True).build()


def test_closing_in_the_middle_ends(folder):
    (folder / "large").write_bytes(gzip.compress(b"\0" * (1 << 24)))  # damage without an end
    dataset = Dataset.tfrecord([folder / "part-0", folder / "large"]).batch(2)
    with dataset.build(workers=2, on_error="skip") as feed:
        assert next(iter(feed))[0] == sample(0)


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_records_of_one_length_are_the_same_compressed(compression, tmp_path):
    pack = gzip.compress if compression == "gzip" else zlib.compress
    records = np.arange(100 * 4, dtype=np.uint8).reshape(100, 4)
    plain_files, packed = tmp_path / "plain", tmp_path / "packed"
    for folder in (plain_files, packed):
        folder.mkdir()
    for file, rows in enumerate((records[:40], records[:0], records[40:])):
        data = b"head" + rows.tobytes() + b"end"
        (plain_files / f"{file}").write_bytes(data)
        (packed / f"{file}").write_bytes(pack(data))
    of = {"header_bytes": 4, "footer_bytes": 3}
    compression_of = {"compression": "zlib"} if compression == "zlib" else {}
    dataset = Dataset.fixed_records(str(packed / "*"), 4, **of, **compression_of)
    streamed = Dataset.fixed_records(str(plain_files / "*"), 4, **of, stream=True)
    for stream in (dataset, streamed):
        with pytest.raises(TypeError):
            len(stream)
        for workers in (0, 2):
            with stream.batch(7).build(workers=workers) as feed:
                assert [row for batch in passed(feed) for row in batch] == records.tolist()
        with stream.build(workers=0) as feed:
            iterator = iter(feed)
            for place in range(100):
                with stream.build(workers=1) as other:
                    if place % 13 == 0:
                        other.restore(feed.state())
                        assert passed(other) == records[place:].tolist()
                assert next(iterator).tolist() == records[place].tolist()


def test_what_is_left_over_of_records_of_one_length_is_lost_alone(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"head" + bytes(range(10)) + b"end"))
    (tmp_path / "b").write_bytes(gzip.compress(b"head" + bytes(range(4)) + b"end"))
    of = {"header_bytes": 4, "footer_bytes": 3}
    dataset = Dataset.fixed_records(str(tmp_path / "*"), 4, **of)
    where = r"/a, record 2 at byte 12 .*not a whole record"
    with dataset.build(workers=0) as feed, pytest.raises(penstock.DataLoss, match=where):
        passed(feed)
    with dataset.build(workers=0, on_error="skip") as feed:
        assert passed(feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
        assert feed.stats()["skipped"] == 1


@pytest.mark.parametrize("there", [b"he", b"head", b"headen"])
def test_a_file_that_has_no_room_for_header_and_footer_is_refused(tmp_path, there):
    (tmp_path / "a").write_bytes(gzip.compress(b"headend"))
    of = {"header_bytes": 4, "footer_bytes": 3}
    assert passed(Dataset.fixed_records(str(tmp_path / "*"), 4, **of)) == []
    (tmp_path / "b").write_bytes(gzip.compress(there))
    where = f"has {len(there)} bytes, fewer than its header and footer"
    with pytest.raises(penstock.DataLoss, match=where):
        Dataset.fixed_records(str(tmp_path / "*"), 4, **of).build(workers=0)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_that_has_less_than_its_header_now_is_a_loss(tmp_path, pack):
    for name in "ab":
        (tmp_path / name).write_bytes(pack(b"header" + bytes(range(8))))
    files = Dataset.fixed_records(str(tmp_path / "*"), 4, header_bytes=6, stream=True)
    with files.build(workers=0, on_error="skip") as feed:
        (tmp_path / "a").write_bytes(pack(b"he"))
        assert passed(feed) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert feed.stats()["skipped"] == 1

"""Indices saved beside their files, compared with the documented format."""

from __future__ import annotations

import os
import pickle
import re
import struct
import subprocess
import sys

import pytest

import penstock
import tfrecord_functions as functions
from contract import INLINE, PROCESSES, SPAWN, THREADS, each, options
from penstock import Dataset, cli

HEAD = struct.Struct("<8s8sQqQQQQ")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def kept(path):
    return path.with_name(path.name + ".penstock-index")


def places_of(path, kind=b"tfrecord"):
    """The content of the index beside a file: (bytes, damaged) of each place."""
    data = kept(path).read_bytes()
    magic, format_, size, time, begin, first, count, length = HEAD.unpack_from(data)
    assert (magic, format_.rstrip(b"\0"), begin) == (b"PSTKIDX1", kind, 0)
    found = path.stat()
    assert (size, time) == (found.st_size, found.st_mtime_ns)
    assert len(data) == HEAD.size + length + 4
    assert struct.unpack("<I", data[-4:])[0] == crc32c(data[:-4])
    places, word, shift = [], 0, 0
    for byte in data[HEAD.size : -4]:
        word |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            places.append((word >> 1, bool(word & 1)))
            word = shift = 0
    assert len(places) == count
    assert not count or first + sum(length for length, _ in places) == size
    return places


def plant(path, places):
    """An index that is valid except for its places."""
    words = bytearray()
    for length, damaged in places:
        word = length << 1 | damaged
        while word >= 128:
            words.append(word & 127 | 128)
            word >>= 7
        words.append(word)
    found = path.stat()
    head = (b"PSTKIDX1", b"tfrecord", found.st_size, found.st_mtime_ns, 0, 0)
    data = HEAD.pack(*head, len(places), len(words)) + words
    kept(path).write_bytes(data + struct.pack("<I", crc32c(data)))


def write(path, payloads):
    with penstock.TFRecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)


def payload(number):
    return bytes([number]) * (number % 7 + 1)


def read(path, **given):
    """The records' first bytes, and the losses."""
    with Dataset.tfrecord(path, index="beside").build(workers=0, on_error="skip", **given) as feed:
        return [record[0] for record in feed], feed.stats()["losses"]


def test_is_what_the_format_says(tmp_path):
    path = tmp_path / "file"
    write(path, map(payload, range(60)))
    data = bytearray(path.read_bytes())
    frames = [16 + len(payload(n)) for n in range(60)]
    data[sum(frames[:20])] ^= 1
    data[sum(frames[:40]) + 12] ^= 1  # a payload, which the index does not cover
    path.write_bytes(data[:-1])
    without = Dataset.tfrecord(path).build(workers=0, on_error="skip")
    with without as feed:
        expected = [record[0] for record in feed]
        losses = feed.stats()["losses"]
    assert len(losses) == 3
    assert read(path) == (expected, losses)
    frames[-1] -= 1
    assert places_of(path) == [(n, i in (20, 59)) for i, n in enumerate(frames)]
    made = kept(path).stat()
    assert read(path) == (expected, losses)
    assert kept(path).stat() == made
    assert sorted(os.listdir(tmp_path)) == ["file", "file.penstock-index"]


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
def test_is_what_everybody_reads_if_it_is_there(tmp_path, mode):
    """The index marks sound records as damaged, so only a new pass over the file finds them."""
    path = tmp_path / "file"
    write(path, map(payload, range(40)))
    frames = [16 + len(payload(n)) for n in range(40)]
    plant(path, [(n, i % 10 == 3) for i, n in enumerate(frames)])
    dataset = Dataset.tfrecord(path, index="beside").map(functions.bytes_of)
    with dataset.build(on_error="skip", **options(mode)) as feed:
        assert len(feed) == 40
        assert len(list(feed)) == 36
        assert feed.stats()["skipped"] == 4
    assert len(list(Dataset.tfrecord(path).build(workers=0))) == 40


def test_another_process_reads_it(tmp_path):
    path = tmp_path / "file"
    write(path, map(payload, range(40)))
    code = "import pickle, sys; print(len(pickle.loads(bytes.fromhex(sys.argv[1]))))"
    dataset = Dataset.tfrecord(path, index="beside")
    whole = [(16 + len(payload(n)), False) for n in range(40)]
    together = [(whole[0][0] + whole[1][0], False), *whole[2:]]
    for places in (None, together):
        if places:
            plant(path, places)
        command = [sys.executable, "-c", code, pickle.dumps(dataset).hex()]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert int(found.stdout) == (39 if places else 40)
        assert places_of(path) == (places or whole)


def test_is_made_again_for_another_file(tmp_path):
    path = tmp_path / "file"
    write(path, map(payload, range(40)))
    assert read(path)[0] == list(range(40))
    with open(path, "ab") as file:
        file.write(path.read_bytes())
    assert read(path)[0] == [*range(40), *range(40)]
    other = tmp_path / "other"
    write(other, map(payload, [*reversed(range(40)), *range(40)]))
    assert other.stat().st_size == path.stat().st_size
    os.utime(other, ns=(0, path.stat().st_mtime_ns + 1))
    os.replace(other, path)
    assert read(path) == ([*reversed(range(40)), *range(40)], [])
    assert len(places_of(path)) == 80


def test_that_is_damaged_is_made_again(tmp_path):
    path = tmp_path / "file"
    write(path, map(payload, range(5)))
    read(path)
    sound = kept(path).read_bytes()
    damaged = [sound[:cut] for cut in range(len(sound))]
    for at in range(len(sound)):
        flipped = bytearray(sound)
        flipped[at] ^= 0x10
        damaged.append(bytes(flipped))
    for data in damaged:
        kept(path).write_bytes(data)
        assert len(Dataset.tfrecord(path, index="beside")) == 5
        assert kept(path).read_bytes() == sound


def test_where_it_cannot_be_written_it_is_in_memory(tmp_path):
    path = tmp_path / "file"
    write(path, map(payload, range(40)))
    kept(path).mkdir()
    assert read(path)[0] == list(range(40))
    assert sorted(os.listdir(tmp_path)) == ["file", "file.penstock-index"]
    assert not os.listdir(kept(path))
    kept(path).rmdir()
    os.chmod(tmp_path, 0o555)
    try:
        assert read(path)[0] == list(range(40))
    finally:
        os.chmod(tmp_path, 0o755)


def test_no_pattern_means_it(tmp_path, capfd):
    for name in ("part-0", "part-1"):
        write(tmp_path / name, map(payload, range(20)))
    everything = Dataset.tfrecord(tmp_path / "*", index="beside")
    assert len(everything) == 40
    assert len(os.listdir(tmp_path)) == 4
    assert len(Dataset.tfrecord(tmp_path / "*", index="beside")) == 40
    # Patterns of a shell match index files.
    for command in ("verify", "inspect"):
        names = sorted(str(tmp_path / name) for name in os.listdir(tmp_path))
        assert cli.main([command, *names]) == 0
        assert re.search("2 files", capfd.readouterr().out)


def test_a_list_of_what_is_in_the_folder_means_the_files(tmp_path):
    for n in range(3):
        write(tmp_path / f"part-{n}", [payload(n)])
    states = []
    for _ in range(2):  # the second time the indices are in the list
        paths = sorted(str(path) for path in tmp_path.glob("part-*"))
        with Dataset.tfrecord(paths, index="beside").build(workers=0) as feed:
            assert [record[0] for record in feed] == [0, 1, 2]
            states.append(feed.state())
    assert states[0] == states[1]
    assert len(os.listdir(tmp_path)) == 6
    with pytest.raises(penstock.errors.InvalidArgument, match="list of files is empty"):
        Dataset.tfrecord(str(kept(tmp_path / "part-0")))


def test_of_lines_and_csv(tmp_path):
    path = tmp_path / "file"
    path.write_text('a,b\n1,"x\ny"\n2,z\n')
    for _ in range(2):
        assert list(Dataset.lines(path, index="beside")) == ["a,b", '1,"x', 'y"', "2,z"]
        assert places_of(path, b"lines") == [(4, False), (5, False), (3, False), (4, False)]
    for _ in range(2):
        table = Dataset.csv(path, {"b": str}, index="beside")
        assert [row["b"] for row in table] == ["x\ny", "z"]


@pytest.mark.parametrize("make", [Dataset.tfrecord, Dataset.lines])
def test_arguments_that_cannot_be(make):
    with pytest.raises(penstock.InvalidArgument, match="'besides'"):
        make("file", index="besides")
    with pytest.raises(penstock.InvalidArgument, match="stream"):
        make("file", index="beside", stream=True)

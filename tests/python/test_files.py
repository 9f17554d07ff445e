"""Writing TFRecord files and tf.Examples from Python."""

from __future__ import annotations

import os
import pickle
import struct
import threading

import numpy as np
import pytest

import penstock
from penstock import Dataset, TFRecordWriter, example

# A label of 300 and an `x` of two floats, with the bytes of docs/formats.md.
GOLDEN = bytes.fromhex(
    "0A24"
    "0A0F 0A05 6C6162656C 1206 1A04 0A02 AC02"
    "0A11 0A01 78 120C 120A 0A08 0000803F 00000040".replace(" ", "")
)


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def parsed(path, features):
    return list(Dataset.tfrecord(path).map(penstock.parse_example(features)).build(workers=0))


# ---- the writer ------------------------------------------------------------------------------


def test_the_bytes_are_those_of_the_format(tmp_path):
    payloads = [b"", b"x", GOLDEN, bytes(range(256)) * 3]
    with TFRecordWriter(tmp_path / "file") as writer:
        for payload in payloads:
            writer.write(payload)
        assert writer.records == 4
        assert writer.bytes_written == sum(16 + len(payload) for payload in payloads)
        assert os.listdir(tmp_path) != ["file"]
    assert (tmp_path / "file").read_bytes() == b"".join(map(frame, payloads))
    assert list(Dataset.tfrecord(tmp_path / "file")) == payloads


def test_anything_made_of_bytes_is_a_record(tmp_path):
    with TFRecordWriter(tmp_path / "file") as writer:
        for record in (b"ab", bytearray(b"cd"), memoryview(b"ef"), np.array([103, 104], np.uint8)):
            writer.write(record)
    assert list(Dataset.tfrecord(tmp_path / "file")) == [b"ab", b"cd", b"ef", b"gh"]


def test_after_an_exception_nothing_is_left_and_what_was_there_stays(tmp_path):
    for before in ([], ["file"]):
        with pytest.raises(ZeroDivisionError), TFRecordWriter(tmp_path / "file") as writer:
            writer.write(b"x" * 1_000_000)
            raise ZeroDivisionError
        assert os.listdir(tmp_path) == before
        (tmp_path / "file").write_bytes(b"as it was")
    assert (tmp_path / "file").read_bytes() == b"as it was"


def test_what_was_not_closed_leaves_nothing(tmp_path):
    writer = TFRecordWriter(tmp_path / "file")
    writer.write(b"x" * 1_000_000)
    del writer
    assert os.listdir(tmp_path) == []


def test_closing_twice_is_closing_once(tmp_path):
    writer = TFRecordWriter(tmp_path / "file")
    writer.write(b"one")
    writer.close()
    writer.close()
    writer.discard()
    assert writer.records == 1
    with pytest.raises(penstock.Closed):
        writer.write(b"two")
    assert (tmp_path / "file").read_bytes() == frame(b"one")
    with TFRecordWriter(tmp_path / "gone") as other:
        other.discard()
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("wrong", ["text", 3, None, [b"x"], np.zeros((4, 4))[:, 1]], ids=repr)
def test_a_record_that_is_no_bytes_is_refused_and_writing_goes_on(tmp_path, wrong):
    with TFRecordWriter(tmp_path / "file") as writer:
        writer.write(b"one")
        with pytest.raises(
            penstock.InvalidArgument, match=f"a record is a .*{type(wrong).__name__}"
        ):
            writer.write(wrong)
        writer.write(b"two")
    assert list(Dataset.tfrecord(tmp_path / "file")) == [b"one", b"two"]


def test_a_folder_that_is_not_there_is_an_error_at_once(tmp_path):
    with pytest.raises(penstock.NotFound, match="nowhere"):
        TFRecordWriter(tmp_path / "nowhere" / "file")


def test_a_place_where_no_file_can_be_is_an_error_at_once():
    with pytest.raises((penstock.System, penstock.NotFound)):
        TFRecordWriter("/proc/file")


def test_threads_may_share_a_writer(tmp_path):
    with TFRecordWriter(tmp_path / "file") as writer:

        def write(number):
            for k in range(500):
                writer.write(b"%d %d" % (number, k))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = [bytes(record).split() for record in Dataset.tfrecord(tmp_path / "file")]
    assert len(records) == 2000
    for number in range(4):
        assert [int(k) for n, k in records if int(n) == number] == list(range(500))


def test_a_writer_does_not_travel(tmp_path):
    with TFRecordWriter(tmp_path / "file") as writer, pytest.raises(TypeError):
        pickle.dumps(writer)


# ---- tf.Example ------------------------------------------------------------------------------


def test_an_examples_bytes_are_those_of_the_format():
    assert example({"x": [1.0, 2.0], "label": 300}) == GOLDEN
    assert example({"label": 300, "x": np.array([1, 2], np.float64)}) == GOLDEN
    assert example({}) == b""


def test_values_of_every_kind_come_back(tmp_path):
    given = {
        "png": b"\x89PNG\x00",
        "text": "gr\u00fc\u00df",
        "view": memoryview(b"view"),
        "int": -3,
        "bool": True,
        "numpy": np.int16(7),
        "float": 0.1,
        "half": np.float16(0.5),
        "image": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "turned": np.arange(12.0).reshape(3, 4).T,
        "ints": [1 << 62, -(1 << 63)],
        "words": ["a", "\u00e9", ""],
        "strings": (b"1", b"22"),
        "array": np.array(["x", "yz"]),
        "flags": np.array([True, False]),
        "none": np.zeros(0, np.int64),
    }
    with TFRecordWriter(tmp_path / "file") as writer:
        writer.write(example(given))
    (row,) = parsed(
        tmp_path / "file",
        {
            "png": penstock.bytes(),
            "text": penstock.bytes(),
            "view": penstock.bytes(),
            "int": penstock.int64(),
            "bool": penstock.int64(),
            "numpy": penstock.int64(),
            "float": penstock.float32(),
            "half": penstock.float32(),
            "image": penstock.int64((3, 4)),
            "turned": penstock.float32((4, 3)),
            "ints": penstock.int64(2),
            "words": penstock.bytes(many=True),
            "strings": penstock.bytes(many=True),
            "array": penstock.bytes(many=True),
            "flags": penstock.int64(2),
            "none": penstock.int64(ragged=True),
        },
    )
    assert row["png"] == given["png"]
    assert row["text"] == "gr\u00fc\u00df".encode()
    assert row["view"] == b"view"
    assert (row["int"], row["bool"], row["numpy"]) == (-3, 1, 7)
    assert (row["float"], row["half"]) == (np.float32(0.1), 0.5)
    assert row["image"].tolist() == given["image"].tolist()
    assert row["turned"].tolist() == given["turned"].tolist()
    assert row["ints"].tolist() == given["ints"]
    assert row["flags"].tolist() == [1, 0]
    assert len(row["none"]) == 0


def test_equal_dicts_give_equal_bytes():
    one = {"b": 1, "a": b"x", "\u00e4": 2.0}
    other = dict(reversed(one.items()))
    assert example(one) == example(other)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "'x' is None"),
        ({"y": 1}, "'x' is {'y': 1}"),
        (1j, "'x' is 1j"),
        (1 << 63, "no int64"),
        (1 << 64, "'x' is 18446744073709551616"),
        ([1, [2, 3]], "'x' is"),
        ([b"a", 3], "strings and 3"),
        ([1, b"a"], "'x' is"),
        ([], "is empty"),
        (np.array([None]), "array of object"),
        (np.array(["2020-01-01"], "datetime64[D]"), "array of datetime64"),
        (np.array([1 << 63], np.uint64), "no int64"),
    ],
    ids=repr,
)
def test_what_no_example_holds_is_refused_by_name(value, says):
    with pytest.raises(penstock.InvalidArgument, match=says):
        example({"x": value})


@pytest.mark.parametrize("wrong", [None, [("x", 1)], {1: 2}], ids=repr)
def test_what_are_no_features_is_refused(wrong):
    with pytest.raises(penstock.InvalidArgument):
        example(wrong)

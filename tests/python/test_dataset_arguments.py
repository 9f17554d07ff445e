"""Arguments of Datasets, operations and features that cannot be: which one, and what to give."""

from __future__ import annotations

import re

import numpy as np
import pytest

import penstock
from penstock import Dataset, cast, decode_raw, float32, int64, normalize, parse_example


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: normalize(None, 1), "mean is None; give finite numbers"),
        (lambda: normalize("a", 1), "mean is 'a'; give finite numbers"),
        (lambda: normalize(0, float("nan")), "std is nan; give finite numbers"),
        (lambda: normalize([0, 1e300], 1), "mean is .*; give finite numbers"),
        (lambda: normalize(10**400, 1), "mean is .*; give finite numbers"),
        (lambda: normalize([[1]], 1), r"mean has shape \(1, 1\)"),
        (lambda: normalize(0, 1, fields=3), "fields is 3; give a list of names"),
        (lambda: cast(None), "dtype is None; give a dtype"),
        (lambda: cast("number"), "dtype is 'number'; give a dtype"),
        (lambda: cast("f4", fields=3), "fields is 3; give a list of names"),
        (lambda: cast("f4", fields=[3]), "fields is 3; give the name of a leaf"),
        (lambda: decode_raw(None, "i4", 1), "field is None; give the name of a leaf"),
        (lambda: decode_raw("", None, 1), "dtype is None; give a dtype"),
        (lambda: decode_raw("", "i4", (2.7,)), "shape is 2.7; give an integer"),
        (lambda: decode_raw("", "i4", 2.7), "shape is 2.7; give a list of integers"),
        (lambda: decode_raw("", "i4", "3"), "shape is '3'; give a list of integers"),
        (lambda: decode_raw("", "i4", ("3",)), "shape is '3'; give an integer"),
        (lambda: decode_raw("", "i4", None), "shape is None; give a list of integers"),
        (lambda: decode_raw("", "i4", -1), "shape is -1; give 0 or more"),
        (lambda: parse_example({"a": int64()}, field=3), "field is 3; give the name of a leaf"),
        (
            lambda: penstock.parse_sequence_example({"a": int64()}, field=None),
            "field is None; give the name of a leaf",
        ),
    ],
)
def test_what_an_operation_cannot_be_given_is_named(wrong, said):
    with pytest.raises(penstock.InvalidArgument, match=said):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: int64(default=1.7), "default is 1.7; give numbers that int64 has"),
        (lambda: int64(default="a"), "default is 'a'; give numbers that int64 has"),
        (lambda: int64(default=1 << 63), "give numbers that int64 has"),
        (lambda: int64(default=1 << 64), "give numbers that int64 has"),
        (lambda: int64(dtype="int32", default=1 << 40), "give numbers that int32 has"),
        (lambda: int64(2, default=[[1], [2, 3]]), "give numbers that int64 has"),
        (lambda: int64((3,), default=[1, 2]), r"default has shape \(2,\), and the feature \(3,\)"),
        (lambda: int64(default=[1]), r"default has shape \(1,\), and the feature \(\)"),
        (lambda: int64(dtype="nope"), "dtype is 'nope'; give int64 or int32"),
        (lambda: int64(dtype=None), "dtype is None; give int64 or int32"),
        (lambda: int64((1 << 40, 1 << 40)), "shape is .*; give one that fits"),
        (lambda: int64(1 << 64), "a length is 18446744073709551616; give 9223372036854775807"),
        (lambda: float32(default="x"), "default is 'x'; give numbers that float32 has"),
        (lambda: float32(default=1e39), "default is 1e[+]39; give numbers that float32 has"),
        (lambda: float32(default=1j), "give numbers that float32 has"),
        (lambda: penstock.bytes(default=5), "default is 5; give bytes"),
        (lambda: penstock.bytes(default="ab"), "default is 'ab'; give bytes"),
        (lambda: penstock.bytes(1 << 64), "a length is 18446744073709551616"),
    ],
)
def test_what_a_feature_cannot_be_given_is_named(wrong, said):
    with pytest.raises(penstock.InvalidArgument, match=said):
        wrong()


@pytest.mark.parametrize(
    ("feature", "wanted"),
    [
        (int64(default=True), 1),
        (int64(2, default=np.uint8(3)), [3, 3]),
        (int64((1, 2), default=[4, 5]), [[4, 5]]),
        (int64(dtype="int32", default=-(1 << 31)), -(1 << 31)),
        (int64(dtype=">i4", default=5), 5),
        (int64(ragged=True, default=[]), []),
        (int64(ragged=True, default=[[1], [2]]), [1, 2]),
        (int64(0, default=[]), []),
        (float32(default=3), 3),
        (float32(2, default=[float("inf"), 0.5]), [float("inf"), 0.5]),
        (penstock.bytes(default=bytearray(b"ab")), b"ab"),
    ],
)
def test_a_default_stands_for_what_is_not_there(feature, wanted):
    empty = Dataset.items([penstock.example({})])
    [element] = empty.map(parse_example({"a": feature}))
    got = element["a"]
    assert (got.tolist() if isinstance(got, (np.ndarray, np.generic)) else got) == wanted


@pytest.mark.parametrize("start", [-(1 << 63), 0, (1 << 63) - 5])
def test_elements_are_counted_to_the_last_number_there_is(start):
    numbered = Dataset.range(5).enumerate(start)
    assert [int(number) for number, _ in numbered] == list(range(start, start + 5))


@pytest.mark.parametrize("stage", [lambda d: d, lambda d: d.batch(1), lambda d: d.unbatch()])
def test_more_elements_than_can_be_numbered_are_refused(stage):
    numbered = stage(Dataset.range(5).batch(1)).enumerate((1 << 63) - 4)
    with pytest.raises(penstock.InvalidArgument, match=r"counts 4 elements .*: give a lower start"):
        list(numbered)


@pytest.mark.parametrize(
    "endless", [Dataset.range(5).repeat(), Dataset.range(5).filter(lambda _: True)]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_element_that_cannot_be_numbered_fails_at_its_place(endless, workers):
    seen = []
    with (
        endless.enumerate((1 << 63) - 4).build(workers=workers) as feed,
        pytest.raises(penstock.InvalidArgument, match=r"counts 4 elements .*: give a lower start"),
    ):
        for number, _ in feed:
            seen.append(int(number))
    assert seen == list(range((1 << 63) - 4, 1 << 63))


@pytest.mark.parametrize("dtype", ["<i4", ">i4", "=i4", ">f8", ">u2", ">c8", ">i1", "<f2"])
@pytest.mark.parametrize("shape", [3, (3,), np.int64(3), np.array([3]), (1, 3)])
def test_raw_values_may_stand_in_either_byte_order(dtype, shape):
    raw = bytes(range(3 * np.dtype(dtype).itemsize))
    [got] = Dataset.items([raw]).map(decode_raw("", dtype, shape))
    assert got.dtype == np.dtype(dtype).newbyteorder("=")
    assert got.dtype.isnative
    assert got.tolist() == np.frombuffer(raw, dtype).reshape(shape).tolist()


def test_byte_orders_are_two_operations():
    kept, turned = (repr(decode_raw("x", order + "i4", 2)) for order in "<>")
    assert {kept, turned} == {
        "decode_raw(x, int32, (2,))",
        "decode_raw(x, int32, (2,), reversed)",
    }


def test_raw_bools_are_zero_or_one():
    [got] = Dataset.items([b"\0\1\2\xff"]).map(decode_raw("", "bool", 4))
    assert got.dtype == np.bool_
    assert got.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_a_field_is_told_from_text():
    said = re.escape("""give the name of a leaf, such as "image" or "0\"""")
    with pytest.raises(penstock.InvalidArgument, match=said):
        decode_raw(b"x", "i4", 1)

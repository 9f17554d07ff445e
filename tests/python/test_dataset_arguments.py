"""Invalid arguments of Datasets, operations and features: errors name argument and remedy."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import Dataset, cast, decode_raw, float32, int64, normalize, parse_example
from penstock.dataset.tf_data_names import REPLACEMENTS

TWO = [Dataset.range(3), Dataset.range(3)]
ENDLESS = Dataset.range(3).repeat()


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
        (lambda: int64(None), "None is no length; give whole numbers, or ragged=True for any"),
        (lambda: float32((3, None)), "None is no length; .* or ragged=True"),
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


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Dataset.interleave(ENDLESS, cycle=2),
        lambda: Dataset.interleave(5, cycle=2),
        lambda: Dataset.sample_from(ENDLESS),
        lambda: Dataset.choose_from(Dataset.range(2), ENDLESS),
        lambda: Dataset.choose_from(Dataset.range(2), 5),
    ],
)
def test_one_dataset_is_no_list_of_them_and_not_gone_through(wrong):
    with pytest.raises(penstock.InvalidArgument, match="give a list of Datasets"):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Dataset.sample_from(TWO, weights=5), "weights is 5; give a list of numbers"),
        (lambda: Dataset.sample_from(TWO, weights=["a", 1]), "weights is .*; give a number for"),
        (lambda: Dataset.items(5), "elements is 5; give a list"),
        (lambda: Dataset.items("text"), "elements is 'text'; give a list"),
        (lambda: Dataset.arrays([1, 2, 3]), "no rows: give arrays, such as .*Dataset.items"),
        (lambda: Dataset.tfrecord("x", compression=None), "compression is None; give 'gzip'"),
        (lambda: Dataset.tfrecord("x", index=True), "index is True; give 'beside', or None"),
        (lambda: Dataset.lines("x", index=b"beside"), "index is b'beside'; give 'beside'"),
        (lambda: Dataset.lines("x", compression=True), "compression is True; give 'gzip'"),
        (lambda: Dataset.idx("x", compression=3), "compression is 3; give 'gzip'"),
        (lambda: Dataset.cifar10("x", compression=3), "compression is 3; give 'gzip'"),
        (lambda: Dataset.fixed_records("x", 1, compression=3), "compression is 3; give 'gzip'"),
        (lambda: Dataset.csv("x", None), "columns is None; give a dict"),
        (lambda: Dataset.csv("x", {"a": None}), "'a' is None; give a dtype"),
        (lambda: Dataset.csv("x", ["a"]), "columns is .'a'.; give a dict"),
        (lambda: Dataset.csv(None, {"a": int}), "None is not a path"),
        (lambda: Dataset.csv("x", {"a": int}, header=5), "header is 5; give a list of the names"),
        (lambda: Dataset.csv("x", {"a": int}, header=[]), "header is .*; give True, or"),
        (lambda: Dataset.csv("x", {"a": int}, delimiter="\ud800"), "give one character"),
        (lambda: Dataset.csv("x", {"a": int}, compression=3), "compression is 3; give 'gzip'"),
        (lambda: TWO[0].bucket_by_length(3, [1]), "boundaries is 3; give a list of integers"),
        (lambda: TWO[0].bucket_by_length([3], 1), "batch_sizes is 1; give a list of integers"),
        (
            lambda: TWO[0].bucket_by_length([3], [1, 1], field=None),
            "field is None; give the name of a leaf",
        ),
        (lambda: TWO[0].shuffle(window=4), "window is 4, of blocks: give block too"),
        (lambda: TWO[0].shuffle(window=1, buffer=4), "window is 1, of blocks"),
        (lambda: TWO[0].shuffle(block=2, window=0), "window is 0; give 1 or more"),
        (lambda: iter(TWO[0]).reset(5), "dataset is 5; give a Dataset, or None"),
        (lambda: penstock.Feedable(a=TWO[0]).reset("a", 5), "dataset is 5; give a Dataset"),
    ],
)
def test_what_a_stage_cannot_be_given_is_named(wrong, said):
    with pytest.raises(penstock.InvalidArgument, match=said):
        wrong()


def test_a_writer_names_the_compression_that_it_cannot_do(tmp_path):
    with pytest.raises(penstock.InvalidArgument, match="compression is None; give 'gzip'"):
        penstock.TFRecordWriter(tmp_path / "x", compression=None)
    assert list(tmp_path.iterdir()) == []


def test_lists_may_be_anything_that_is_like_one():
    buckets = Dataset.items([np.arange(n) for n in (1, 3, 2)])
    assert len(list(buckets.bucket_by_length(range(2, 3), np.array([2, 2])))) == 2
    assert list(Dataset.items(iter([1, 2]))) == [1, 2]
    assert list(Dataset.interleave((d for d in TWO), cycle=2)) == [0, 0, 1, 1, 2, 2]
    assert len(list(Dataset.sample_from(TWO, weights=np.array([1, 2])))) == 6


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


@pytest.mark.parametrize(
    ("wrong", "operation"),
    [
        (lambda: Dataset.range("x"), "range"),
        (lambda: Dataset.range(3).take("x"), "take"),
        (lambda: Dataset.range(3).batch(0), "batch"),
        (lambda: Dataset.range(3).shard(0, 2, remainder="z"), "shard"),
        (lambda: Dataset.range(3).shard(3, 2), "shard"),
        (lambda: Dataset.range(3).on_error("z"), "on_error"),
        (lambda: Dataset.range(3).shuffle(seed=-1), "shuffle"),
        (
            lambda: Dataset.range(3).bucket_by_length([-1], [1, 1]),
            "bucket_by_length",
        ),
        (lambda: decode_raw("", "u1", (-3,)), "decode_raw"),
        (lambda: Dataset.range(3).build(workers=-1), "Loader"),
    ],
)
def test_the_error_says_which_operation_it_was(wrong, operation):
    with pytest.raises(penstock.InvalidArgument) as caught:
        wrong()
    assert caught.value.operation == operation


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Dataset.zip(tuple(TWO)), r"zip\(a, b\) for tuples, zip\(x=a, y=b\) for dicts"),
        (lambda: Dataset.zip({"x": TWO[0], "y": TWO[1]}), r"give the Datasets themselves"),
        (lambda: TWO[0].zip([TWO[1]]), r"\[range\(0, 3\)\] is not a Dataset"),
        (lambda: TWO[0].prefetch(-1), "batches is -1; leave it out"),
        (lambda: TWO[0].repeat(np.int64(-1)), "count is -1; leave it out to repeat for ever"),
        (lambda: TWO[0].repeat(-2), "count is -2; give 1 or more"),
    ],
)
def test_arguments_in_the_form_of_tf_data_are_refused_with_the_remedy(wrong, said):
    with pytest.raises(penstock.InvalidArgument, match=said):
        wrong()


def test_names_of_tf_data_lead_to_those_of_a_dataset():
    with pytest.raises(AttributeError, match=r"'from_tensor_slices' of tf\.data; use arrays"):
        Dataset.from_tensor_slices([1, 2])
    with pytest.raises(
        AttributeError, match=r"'bucket_by_sequence_length' of tf\.data; use bucket"
    ):
        TWO[0].bucket_by_sequence_length([3], [2, 2])
    page = (Path(__file__).parents[2] / "docs/migrate/from-tf-data.md").read_text()
    for name, instead in REPLACEMENTS.items():
        assert not hasattr(Dataset, name), name
        assert not hasattr(TWO[0], name), name
        assert f"`{name}" in page, name
        word = re.match(r"\w+", instead).group()
        known = hasattr(Dataset, word) or word in ("a", "function", "iter", "next")
        assert known, (name, instead)


def test_other_names_are_plain_attribute_errors():
    name, said = "nothing", "'Dataset' object has no attribute 'nothing'"
    with pytest.raises(AttributeError, match=f"^{said}$"):
        getattr(TWO[0], name)
    with pytest.raises(AttributeError, match=r"^type object 'Dataset' has no"):
        getattr(Dataset, name)
    assert list(copy.copy(TWO[0])) == list(pickle.loads(pickle.dumps(TWO[0]))) == [0, 1, 2]

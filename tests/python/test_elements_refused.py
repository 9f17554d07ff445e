"""Values that cannot be elements, and elements with different schemas."""

from __future__ import annotations

import types

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from nests import (
    Pair,
    batch_of,
)
from penstock import Dataset, _engine


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (None, "the value is None: leave it out"),
        ({"meta": {"id": None}}, "'meta/id' is None"),
        ({"x": [1, {2}]}, "'x/1' is of type set; an element is arrays, numbers"),
        ({1: 2}, "the value has a key of type int"),
        ({"x": {b"k": 2}}, "'x' has a key of type bytes"),
        (np.array(["text"]), "array of dtype <U4: give a str or bytes"),
        ({"x": np.array([None])}, "'x' is an array of dtype object"),
        (np.array("2020", "M8[D]"), r"use \.astype\('int64'\)"),
        (np.datetime64("2020"), "NumPy scalar of dtype datetime64"),
        (np.zeros(2, [("a", "i4")]), "give its fields as a dict"),
        (np.longdouble(1), "longdouble|float128"),
        (2**63, "larger than an int64"),
        ("\ud800", "no UTF-8"),
        ({"\ud800": 1}, "no UTF-8"),
        ([1] * 5000, r"'4096' is one of more than 4096 leaves: .*np\.asarray"),
        (np.ma.masked_array([1], [True]), r"masked array: use \.filled"),
        (np.ndarray, "is of type type"),
        (types.SimpleNamespace(x=1), "SimpleNamespace"),
        ({"a/b": 1, "a": {"b": 2}}, "two leaves would be called 'a/b'"),
        ({"a": b"", "a/offsets": 2}, "two leaves would be called 'a/offsets'"),
        (memoryview(b"x"), "of type memoryview"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_element_is_an_error_that_says_where_and_what_to_do(element, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        _engine.pack_elements([element])


def test_a_nest_in_itself_is_an_error():
    endless = []
    endless.append(endless)
    with pytest.raises(penstock.InvalidArgument, match="nested too deeply"):
        _engine.pack_elements([endless])


def test_an_exception_in_user_code_is_told():
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise OSError("no such file")

    class Interrupted:
        def __array__(self, dtype=None, copy=None):
            raise KeyboardInterrupt

    with pytest.raises(penstock.InvalidArgument, match=r"'x' .*Broken.*no such file"):
        _engine.pack_elements([{"x": Broken()}])

    class Unspeakable:
        def __array__(self, dtype=None, copy=None):
            raise functions.Unspeakable

    for interrupted in Interrupted(), Unspeakable():
        with pytest.raises(KeyboardInterrupt):
            _engine.pack_elements([{"x": interrupted}])
    with pytest.raises(ZeroDivisionError):
        _engine.pack_elements(1 // n for n in (1, 0))


def test_no_elements_have_no_spec():
    with pytest.raises(penstock.InvalidArgument, match="no elements"):
        _engine.pack_elements([])


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, r"this one is \{a: int64 \(\)\}, those before are \{a: .*b: "),
        ({"a": 1}, {"a": 1.5}, r"float64 \(\)\}, those before are \{a: int64 \(\)"),
        ({"a": [1, 2]}, {"a": [1]}, r"a list is a nest .* give np.asarray\(list\)"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, r"\{b: .* a: .*\{a: .* b: "),
        ((1, 2), [1, 2], r"\[int64 \(\), int64 \(\)\], .*\(int64"),
        ((1, 2), Pair(1, 2), r"\(first=int64"),
        ((b"x",), ("x",), r"\(text,\), .*\(bytes,\)"),
        (np.zeros((2, 3)), np.zeros(2), r"float64 \(2,\), .*float64 \(2, 3\)"),
        (penstock.ragged([1]), np.zeros(1, int), r"int64 \(1,\), .*ragged int64 \(\?,\)"),
    ],
)
def test_elements_that_are_not_alike_are_an_error_that_names_both(one, other, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        _engine.pack_elements([one, one, other])


@pytest.mark.parametrize(
    "join",
    [
        lambda pair: pair[0].concatenate(pair[1]),
        lambda pair: Dataset.interleave(pair, cycle=2),
        lambda pair: Dataset.sample_from(pair),
    ],
    ids=["concatenate", "interleave", "sample_from"],
)
def test_lists_of_different_lengths_of_several_inputs_are_better_arrays(join):
    joined = join([Dataset.items([[1, 2]]), Dataset.items([[1, 2, 3]])])
    with pytest.raises(penstock.InvalidArgument, match=r"alike.* give np\.asarray\(list\)"):
        joined.build(workers=0)


def test_lengths_that_differ_make_a_ragged_batch():
    elements = [np.full((n, 2), n, np.int16) for n in (2, 1, 3)] * 30
    batch = batch_of(elements)
    assert all(map(np.array_equal, batch, elements))
    large = [np.full((n, n, 3), n, np.uint8) for n in (40, 41)]
    assert all(map(np.array_equal, batch_of(large), large))
    # A chunk whose schema came from rows with fewer ragged axes.
    mixed = [penstock.ragged(np.ones((2, n))) for n in (2, 3, 2)]
    assert all(map(np.array_equal, batch_of(mixed), mixed))


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("axes", (np.zeros(2),), "along axes that are no integers"),
        ("axes", ("x",), "along axes that are no integers"),
        ("axes", (0, None), "along axes that are no integers"),
        ("axes", [0], "that is none"),
        ("offsets", ["x"], "whose offsets are none: ValueError"),
        ("dims", [object(), object()], "whose dims are none: TypeError"),
        ("values", [[1], [2, 3]], "whose values are none: ValueError"),
        ("kind", 3, "that is none"),
    ],
)
@pytest.mark.parametrize("dims", [None, [[1, 2], [2, 1]]])
def test_a_ragged_whose_parts_were_exchanged_is_refused(part, value, message, dims):
    element = penstock.Ragged(np.arange(4), [0, 2, 4], "array", dims)
    setattr(element, part, value)
    with pytest.raises(penstock.InvalidArgument, match=f"a penstock.Ragged {message}"):
        _engine.pack_elements([element])


@pytest.mark.parametrize("stack", ["batch", "padded_batch"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_element_of_too_many_leaves_for_a_batch_says_so(stack, workers):
    dataset = getattr(Dataset.range(4).map(functions.of_many_leaves), stack)(2)
    fixed = Dataset.arrays(functions.of_many_leaves(np.zeros(4))).batch(2)
    words = r"250 leaves, whose names and shapes take 17\d+ bytes; .* 16384 "
    for wide in (dataset, fixed):
        with (
            wide.build(workers=workers) as feed,
            pytest.raises(penstock.InvalidArgument, match=words),
        ):
            next(iter(feed))

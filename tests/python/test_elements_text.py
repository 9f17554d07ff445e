"""The text of a nest in a spec; foreign bytes do no harm."""

from __future__ import annotations

import collections
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from nests import (
    NESTS,
    QUICK,
    Pair,
    batch_of,
    collides,
    element_of,
    names_of,
    nest_of,
    row_of,
    spec_bytes,
)
from penstock import _engine


def test_the_text_of_a_nest_and_the_names_of_its_leaves():
    assert nest_of(5) == ""
    assert nest_of({"image": 1, "image/label": 2}) == ""
    assert nest_of({}) == ""
    assert nest_of((1, [2, 3])) == "(.[..])"
    assert nest_of({"meta": {"é": 1}, "x": ()}) == "{4:meta{2:é.}1:x()}"
    assert (
        nest_of(Pair(1, (2,)))
        == f"<{len(Pair.__module__)}:{Pair.__module__}4:Pair5:first.6:second(.)>"
    )
    assert names_of(5) == [""]
    assert nest_of({"": 5}) == "{0:.}"
    assert nest_of({"": 5, "x": 6}) == ""
    assert names_of({"meta": {"id": 1}, "x": [2, Pair(3, 4)]}) == [
        "meta/id",
        "x/0",
        "x/1/first",
        "x/1/second",
    ]


def test_a_spec_without_a_nest_is_a_dict_of_its_leaves():
    numbers = np.zeros(128, np.uint8)
    numbers[64] = 7
    assert _engine.unpack_block(spec_bytes(["a/b", "value"], b""), 1, numbers, 0) == {
        "a/b": 0,
        "value": 7,
    }
    assert _engine.unpack_block(spec_bytes(["value"], b"."), 1, numbers, 0) == 0
    assert _engine.unpack_block(spec_bytes([""], b""), 1, numbers, 0) == 0
    assert _engine.unpack_block(spec_bytes([""], b"{0:.}"), 1, numbers, 0) == {"": 0}


def test_a_named_tuple_whose_class_cannot_be_found_is_one_of_the_same_fields():
    local = collections.namedtuple("local", "x y")
    row = row_of([local(1, b"2")], 0)
    assert type(row).__name__ == "local"
    assert row._fields == ("x", "y")
    assert row == (1, b"2")
    assert batch_of([local(1, 2)] * 3).y.tolist() == [2, 2, 2]
    renamed = collections.namedtuple("renamed", "class _a", rename=True)
    assert row_of([renamed(1, 2)], 0)._fields == ("_0", "_1")


def test_a_class_is_found_by_its_module_and_name_and_nothing_is_imported():
    row = row_of([Pair(1, 2)], 0)
    assert type(row) is Pair
    spec = spec_bytes(["first", "second"], b"<13:tests.nowhere4:Pair5:first.6:second.>")
    found = _engine.unpack_block(spec, 1, bytes(128), 0)
    assert type(found) is not Pair
    assert found == (0, 0)
    # A class of that name with other fields, or an object that is not a class, is not used.
    for name in (b"4:Pair", b"5:QUICK", b"12:types.Simple"):
        nest = b"<%d:%s%s1:x.>" % (len(Pair.__module__), Pair.__module__.encode(), name)
        assert _engine.unpack_block(spec_bytes(["x"], nest), 1, bytes(64), 0)._fields == ("x",)


@pytest.mark.parametrize(
    "nest",
    [
        *(b"..", b"(", b")", b"(.", b".)", b"((.)", b"(.]", b"x", b"\0", b"(.)x", b"{.}", b"{1:a}"),
        *(b"{2:a.}", b"{01:a.}", b"{:.}", b"{-1:a.}", b"{99999999999999999999:a.}", b"{1:\xff.}"),
        *(b"<1:m1:n>", b"<1:m1:n1:a.1:a.>", b"<1:m3:a b1:a.>", b"<1:m1:n3:a b.>", b"<1:m.>", b"()"),
        *(b"(" * 66 + b"." + b")" * 66, b"(" * 100_000, b"{1:a.1:a.}", b"1:a.", b"{1:a.", b"{9"),
    ],
    ids=lambda nest: nest[:20].decode(errors="replace"),
)
def test_bytes_that_are_no_nest_are_data_loss(nest):
    for names in (["a"], ["a", "b"]):
        with pytest.raises(penstock.errors.DataLoss):
            _engine.unpack_block(spec_bytes(names, nest), 1, bytes(256))


@QUICK
@given(st.text(".()[]{}<>0123:ab", max_size=24), st.integers(0, 3))
def test_no_text_of_a_nest_does_harm(nest, leaves):
    spec = spec_bytes([f"leaf{i}" for i in range(leaves)], nest.encode())
    try:
        _engine.unpack_block(spec, 2, bytes(1024))
    except penstock.errors.DataLoss:
        return
    _engine.unpack_block(spec, 2, bytes(1024), 1)


@QUICK
@given(kind=NESTS.filter(lambda kind: not collides(kind)), seed=st.integers(0, 999), data=st.data())
def test_no_bytes_do_harm(kind, seed, data):
    rng = random.Random(seed)
    spec, block = _engine.pack_elements([element_of(kind, rng) for _ in range(3)])
    spec, block = bytearray(spec), bytearray(block)
    for damaged in (spec, block):
        for _ in range(data.draw(st.integers(0, 3))):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.choice(
                    [0, 1, 46, 127, 255, rng.getrandbits(8)]
                )
        if data.draw(st.booleans()):
            del damaged[rng.randrange(len(damaged) + 1) :]
    for row in (None, 0, 2):
        try:
            value = _engine.unpack_block(bytes(spec), 3, block, row)
            repr(value)
        except (penstock.errors.DataLoss, penstock.InvalidArgument):
            pass  # InvalidArgument: leaves whose names collide


def test_a_row_that_is_not_there_is_an_error():
    spec, block = _engine.pack_elements([1, 2])
    with pytest.raises(penstock.InvalidArgument, match="row 2 of 2"):
        _engine.unpack_block(spec, 2, block, 2)
    with pytest.raises(penstock.errors.DataLoss):
        _engine.unpack_block(spec, 2**60, block)
    assert _engine.unpack_block(spec, 0, b"").shape == (0,)

"""Nests of Python values: to leaves in a block and back."""

from __future__ import annotations

import collections
import contextlib
import gc
import random
import struct
import types
import weakref
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import _engine

QUICK = settings(max_examples=100, deadline=None, database=None)


class Pair(NamedTuple):
    first: object
    second: object


def batch_of(elements, rows=None):
    spec, block = _engine.pack_elements(elements)
    return _engine.unpack_block(spec, len(elements) if rows is None else rows, block)


def row_of(elements, row):
    spec, block = _engine.pack_elements(elements)
    return _engine.unpack_block(spec, len(elements), block, row)


def nest_of(element):
    """The nest's text: what follows the leaves in a spec."""
    spec, _ = _engine.pack_elements([element])
    (leaves,) = struct.unpack_from("=I", spec)
    at = 4
    for _ in range(leaves):
        _, _, axes, name = struct.unpack_from("=BBHI", spec, at)
        at += 8 + name + 8 * axes
    return spec[at:].decode()


def names_of(element):
    spec, _ = _engine.pack_elements([element])
    (leaves,) = struct.unpack_from("=I", spec)
    at, names = 4, []
    for _ in range(leaves):
        _, _, axes, name = struct.unpack_from("=BBHI", spec, at)
        names.append(spec[at + 8 : at + 8 + name].decode())
        at += 8 + name + 8 * axes
    return names


def spec_bytes(names, nest):
    """A spec of numbers with these names and this nest."""
    spec = struct.pack("=I", len(names))
    for name in names:
        spec += struct.pack("=BBHI", 0, 4, 0, len(name.encode())) + name.encode()
    return spec + nest


# ---- any nest there and back ---------------------------------------------------------------------

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
KEYS = st.text("abcé_. 1", max_size=5)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)

LEAVES = st.one_of(
    st.sampled_from(["int", "float", "bool", "complex", "bytes", "str"]).map(lambda k: (k,)),
    st.tuples(st.just("scalar"), st.sampled_from(DTYPES)),
    st.tuples(st.just("array"), st.sampled_from(DTYPES), SHAPES),
    st.tuples(st.just("large"), st.sampled_from(["u1", "f8"]), st.just((13, 50, 2))),
    st.tuples(st.just("swapped"), st.sampled_from([">i4", ">f8"]), SHAPES),
    st.tuples(st.just("strided"), st.sampled_from(["i2", "f8"]), st.just((30, 40))),
    st.tuples(st.just("ragged"), st.sampled_from(DTYPES), SHAPES.filter(len), st.just((0,))),
    st.tuples(st.just("ragged"), st.sampled_from(DTYPES), st.just((2, 3, 2)), st.just((0, 2))),
    st.tuples(st.just("ragged"), st.sampled_from(DTYPES), st.just((2, 3)), st.just((1,))),
)
NESTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=4).map(lambda d: ("dict", d)),
        st.lists(inner, max_size=4).map(lambda items: ("list", items)),
        st.lists(inner, max_size=4).map(lambda items: ("tuple", items)),
        st.tuples(inner, inner).map(lambda items: ("pair", items)),
    ),
    max_leaves=8,
)


def random_array(rng, dtype, shape):
    raw = np.frombuffer(rng.randbytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), np.uint8)
    if np.dtype(dtype).kind == "b":
        raw = raw & 1
    return raw.view(dtype).reshape(shape).copy()


def element_of(kind, rng):
    """An element of such a nest; what may differ from element to element does."""
    match kind:
        case ("dict", inner):
            return {key: element_of(item, rng) for key, item in inner.items()}
        case ("list", inner):
            return [element_of(item, rng) for item in inner]
        case ("tuple", inner):
            return tuple(element_of(item, rng) for item in inner)
        case ("pair", inner):
            return Pair(*(element_of(item, rng) for item in inner))
        case ("int",):
            return rng.randrange(-(2**63), 2**63)
        case ("float",):
            return rng.random()
        case ("bool",):
            return rng.random() < 0.5
        case ("complex",):
            return complex(rng.random(), rng.random())
        case ("bytes",):
            return rng.randbytes(rng.randrange(5))
        case ("str",):
            return "".join(rng.choices("aé\u20ac\0\U0001f600", k=rng.randrange(5)))
        case ("scalar", dtype):
            return random_array(rng, dtype, ())[()]
        case ("array" | "large" | "swapped", dtype, shape):
            return random_array(rng, dtype, shape)
        case ("strided", dtype, shape):
            return random_array(rng, dtype, shape).T[::2, ::-1]
        case ("ragged", dtype, shape, axes):
            own = [rng.randrange(4) if axis in axes else n for axis, n in enumerate(shape)]
            return penstock.ragged(random_array(rng, dtype, own), axes)
    raise AssertionError(kind)


def same_array(a, b):
    assert isinstance(a, np.ndarray)
    assert a.dtype == np.asarray(b).dtype.newbyteorder("=")
    assert a.shape == np.shape(b)
    return np.ascontiguousarray(a).tobytes() == np.asarray(b, a.dtype).tobytes()


def check_row(kind, row, element):
    match kind:
        case ("dict", inner):
            assert type(row) is dict
            assert list(row) == list(inner)
            for key, item in inner.items():
                check_row(item, row[key], element[key])
        case ("list" | "tuple" | "pair", inner):
            assert type(row) is {"list": list, "tuple": tuple, "pair": Pair}[kind[0]]
            assert len(row) == len(inner)
            for place, item in enumerate(inner):
                check_row(item, row[place], element[place])
        case ("bytes" | "str",):
            assert type(row) is type(element)
            assert row == element
        case ("array" | "large" | "swapped" | "strided", _, shape) if len(shape) > 0:
            assert type(row) is np.ndarray
            assert same_array(row, element)
        case ("ragged", _, _, axes):
            assert row.axes == axes
            assert same_array(row, element)
        case _:
            assert isinstance(row, np.generic)
            assert same_array(np.asarray(row), element)


def check_batch(kind, batch, elements):
    match kind:
        case ("dict", inner):
            assert list(batch) == list(inner)
            for key, item in inner.items():
                check_batch(item, batch[key], [element[key] for element in elements])
        case ("list" | "tuple" | "pair", inner):
            assert type(batch) is {"list": list, "tuple": tuple, "pair": Pair}[kind[0]]
            for place, item in enumerate(inner):
                check_batch(item, batch[place], [element[place] for element in elements])
        case ("bytes" | "str",):
            assert list(batch) == elements
        case ("ragged", *_):
            assert isinstance(batch, penstock.Ragged)
            assert len(batch) == len(elements)
            assert all(map(same_array, batch, elements))
        case _:
            assert same_array(batch, np.stack([np.asarray(element) for element in elements]))


def collides(kind):
    """Two leaves whose paths are the same: "a/b" in a dict, and "b" below "a"."""
    taken = collections.Counter()

    def walk(kind, path):
        match kind:
            case ("dict", inner):
                for key, item in inner.items():
                    walk(item, [*path, key])
            case ("list" | "tuple" | "pair", inner):
                names = Pair._fields if kind[0] == "pair" else range(len(inner))
                for name, item in zip(names, inner, strict=True):
                    walk(item, [*path, str(name)])
            case _:
                taken["/".join(path)] += 1

    walk(kind, [])
    return any(n > 1 for n in taken.values())


@QUICK
@given(kind=NESTS.filter(lambda kind: not collides(kind)), seed=st.integers(0, 999))
def test_any_nest_comes_back_as_batch_and_as_rows(kind, seed):
    rng = random.Random(seed)
    elements = [element_of(kind, rng) for _ in range(rng.choice([1, 2, 5, 64, 65, 130]))]
    spec, block = _engine.pack_elements(elements)
    assert _engine.pack_elements(elements) == (spec, block)
    check_batch(kind, _engine.unpack_block(spec, len(elements), block), elements)
    for place in {0, len(elements) // 2, len(elements) - 1}:
        row = _engine.unpack_block(spec, len(elements), block, place)
        check_row(kind, row, elements[place])
        # What came out goes in again as what it was.
        assert _engine.pack_elements([row]) == _engine.pack_elements([elements[place]])


def test_numbers_get_the_dtypes_that_numpy_gives_them():
    batch = batch_of([(1, 1.0, True, 1j, np.float32(1), np.uint8(1), np.bool_(True), np.array(5))])
    dtypes = [column.dtype for column in batch]
    assert dtypes == ["int64", "float64", "bool", "complex128", "float32", "uint8", "bool", "int64"]
    assert all(column.shape == (1,) for column in batch)


def test_subclasses_of_str_bytes_dict_list_and_tuple_are_what_they_derive_from():
    ordered = collections.OrderedDict(x=np.str_("text"), y=np.bytes_(b"bytes"))
    assert row_of([ordered], 0) == {"x": "text", "y": b"bytes"}
    assert list(batch_of([[1, 2]])[0]) == [1]
    sized = pytest.importorskip("torch").Size([1, 2])
    assert row_of([sized], 0) == (1, 2)


def test_tensors_of_the_cpu_become_arrays():
    torch = pytest.importorskip("torch")
    batch = batch_of(
        [{"x": torch.arange(6, dtype=torch.float32).reshape(2, 3).T, "y": torch.ones(())}]
    )
    np.testing.assert_array_equal(batch["x"][0], np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert batch["y"].shape == (1,)
    with pytest.raises(penstock.InvalidArgument, match=r"'x' is a tensor .* use \.detach"):
        batch_of([{"x": torch.ones(2, requires_grad=True)}])
    with pytest.raises(penstock.InvalidArgument, match="float8"):
        batch_of([torch.ones(2).to(torch.float8_e5m2)])


def test_bfloat16_is_a_dtype_where_ml_dtypes_is_there():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    batch = batch_of([(array, array[0]), (array, array[1])])
    assert batch[0].dtype == batch[1].dtype == ml_dtypes.bfloat16
    assert batch[0].tolist() == [[1.5, -2], [1.5, -2]]
    assert batch[1].tolist() == [1.5, -2]


def test_whatever_has_an_array_is_one():
    class Image:
        def __array__(self, dtype=None, copy=None):
            return np.eye(2)

    np.testing.assert_array_equal(batch_of([Image(), Image()]), [np.eye(2)] * 2)
    picture = pytest.importorskip("PIL.Image").fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    np.testing.assert_array_equal(batch_of([picture]), [np.asarray(picture)])


# ---- the nest's text -----------------------------------------------------------------------------


def test_the_text_of_a_nest_and_the_names_of_its_leaves():
    assert nest_of(5) == ""
    assert nest_of({"image": 1, "image/label": 2}) == ""
    assert nest_of({}) == ""
    assert nest_of((1, [2, 3])) == "(.[..])"
    assert nest_of({"meta": {"é": 1}, "x": ()}) == "{4:meta{2:é.}1:x()}"
    assert nest_of(Pair(1, (2,))) == f"<{len(__name__)}:{__name__}4:Pair5:first.6:second(.)>"
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
    # A class of that name with other fields is another one, and what is no class is none.
    for name in (b"4:Pair", b"5:QUICK", b"12:types.Simple"):
        nest = b"<%d:%s%s1:x.>" % (len(__name__), __name__.encode(), name)
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


# ---- what is refused -----------------------------------------------------------------------------


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
        ({"x": penstock.Ragged(np.arange(2), [0, 2])}, r"'x' is of type .*to_padded"),
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
    with pytest.raises(KeyboardInterrupt):
        _engine.pack_elements([{"x": Interrupted()}])
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


def test_lengths_that_differ_make_a_ragged_batch():
    elements = [np.full((n, 2), n, np.int16) for n in (2, 1, 3)] * 30
    batch = batch_of(elements)
    assert all(map(np.array_equal, batch, elements))
    large = [np.full((n, n, 3), n, np.uint8) for n in (40, 41)]
    assert all(map(np.array_equal, batch_of(large), large))
    # A chunk that was settled by rows that are ragged along less.
    mixed = [penstock.ragged(np.ones((2, n))) for n in (2, 3, 2)]
    assert all(map(np.array_equal, batch_of(mixed), mixed))


# ---- memory --------------------------------------------------------------------------------------


def test_an_array_that_is_used_again_is_copied():
    buffer = np.empty(5000, np.int64)
    reused = {"x": buffer}

    def fill(n):
        buffer[:] = n
        return reused

    np.testing.assert_array_equal(batch_of(map(fill, range(70)), 70)["x"][:, 0], np.arange(70))

    def parts(n):
        whole = np.arange(10_000) + n
        return (whole[:5000], whole[5000:])

    first, second = batch_of(map(parts, range(70)), 70)
    np.testing.assert_array_equal(first[:, 0], np.arange(70))
    np.testing.assert_array_equal(second[:, 0], np.arange(70) + 5000)


def test_an_array_that_nobody_else_has_lives_as_long_as_it_is_needed_and_no_longer():
    made = []
    kept = 0

    def make(n):
        nonlocal kept
        kept = sum(array() is not None for array in made)
        array = np.full(5000, n)
        made.append(weakref.ref(array))
        return {"x": array, "y": b"%d" % n * 50}

    batch = batch_of(map(make, range(130)), 130)
    np.testing.assert_array_equal(batch["x"][:, 17], np.arange(130))
    assert batch["y"][129] == b"129" * 50
    assert kept == 129  # as views: none was copied
    assert not any(array() is not None for array in made)


def test_arrays_keep_the_block_alive():
    batch = batch_of([{"x": np.full(1000, n), "y": "text", "z": n} for n in range(10)])
    x, y = batch["x"][3], batch["y"]
    del batch
    gc.collect()
    junk = [np.full((10, 1000), -1) for _ in range(10)]
    assert x.tolist() == [3] * 1000
    assert list(y) == ["text"] * 10
    del junk


def test_arrays_are_writable_and_aligned():
    batch = batch_of([{"x": np.zeros(3, np.uint8), "y": 1.5}] * 3)
    for column in batch.values():
        assert column.flags.writeable
        assert column.flags.aligned
        assert column.ctypes.data % 64 == 0
    batch["y"][1] = 7
    assert batch["y"].tolist() == [1.5, 7, 1.5]


def test_a_dict_that_user_code_changes_meanwhile_does_no_harm():
    class Meddler:
        def __init__(self, inside):
            self.inside = inside

        def __array__(self, dtype=None, copy=None):
            self.inside.clear()
            return np.zeros(3)

    def nest():
        made = {f"k{n}": 1 for n in range(5)}
        made["k2"] = Meddler(made)
        return made

    def listed():
        made = [1, 2, 3, 4]
        made[1] = Meddler(made)
        return made

    for make in (nest, listed):
        for _ in range(3):
            with contextlib.suppress(penstock.Error, RuntimeError):
                _engine.pack_elements(make() for _ in range(5))

"""The memory that carries batches to a Hogwild's processes: with and without a pickle."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

from penstock import _engine
from penstock.train.batch_slot import Slot

Point = namedtuple("Point", "x y")


@dataclass
class Sample:
    image: np.ndarray
    label: int


@contextlib.contextmanager
def slots():
    """The two ends, with mappings of their own."""
    writer = Slot()
    reader = Slot(os.dup(writer.fd))
    yield writer, reader
    writer.close()
    reader.close()


def through(batch, *, pickled=False):
    with slots() as (writer, reader):
        written = writer.write(batch)
        assert (written[0] > 0) == pickled
        return reader.read(*written)


def check_same(got, given):
    assert type(got) is type(given)
    if isinstance(given, np.ndarray):
        assert got.dtype == given.dtype
        assert got.shape == given.shape
        assert got.flags.f_contiguous == given.flags.f_contiguous or not given.flags.contiguous
        np.testing.assert_array_equal(got, given)
    elif isinstance(given, dict):
        assert list(map(repr, got)) == list(map(repr, given))
        for mine, theirs in zip(got.values(), given.values(), strict=True):
            check_same(mine, theirs)
    elif isinstance(given, (list, tuple)):
        assert len(got) == len(given)
        for mine, theirs in zip(got, given, strict=True):
            check_same(mine, theirs)
    elif type(given).__name__ == "Tensor":
        assert (got.dtype, got.shape) == (given.dtype, given.shape)
        assert given.numel() == 0 or got.stride() == given.stride()
        assert got.equal(given)
    else:
        assert repr(got) == repr(given)


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


PLAIN = {
    "none": lambda: None,
    "flags": lambda: (True, False, 1, 0),
    "numbers": lambda: [0, -1, 2**63 - 1, -(2**63), 1.5, -0.0, float("inf")],
    "text": lambda: ["", "abc", "\0 \N{SNOWMAN}", b"", b"\0\xff", "x" * 65536, b"y" * 65536],
    "containers": lambda: ([], (), {}, [()], {"a": [{}], 1: (2,), (1, "b"): None, b"c": 0.0}),
    "order": lambda: {name: i for i, name in enumerate("zaybxc")},
    "numpy": lambda: [np.arange(2, 7).astype(kind) for kind in "?bBhHiIlLqQefdgFDG"],
    "large": lambda: [np.arange(1000).astype(kind) for kind in "?bBhHiIlLqQefdgFDG"],
    "scalars": lambda: [np.float32(1.5), np.int64(-3), np.bool_(True), np.float16(0.5)],
    "zero-d": lambda: (np.array(3), np.array(1.5, np.float32)),
    "empty": lambda: (np.empty((0, 7)), np.empty((3, 0), np.int8)),
    "many axes": lambda: np.arange(2**10).reshape((2,) * 10),
    "C order": lambda: (np.ones((3, 4)), np.arange(600.0).reshape(30, 20)),
    "Fortran order": lambda: (np.arange(6).reshape(3, 2).T, np.arange(600.0).reshape(30, 20).T),
    "gaps": lambda: (
        np.arange(9)[::2],
        np.arange(900.0)[::-3],
        np.arange(60).reshape(3, 4, 5)[:, 1],
    ),
    "axes turned": lambda: np.arange(6000).reshape(10, 20, 30).transpose(0, 2, 1),
    "stretched": lambda: np.broadcast_to(np.arange(5.0), (40, 5)),
    "two views": lambda: (lambda whole: (whole[:50], whole[25:]))(np.arange(100.0)),
    "deep": lambda: nested(60),
    "a tuple twice": lambda: (lambda size: [size, size])((28, 28)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_batches_need_no_pickle(name):
    given = PLAIN[name]()
    check_same(through(given), given)


def of_metadata():
    return np.ones(3, np.dtype("f4", metadata={"a": 1}))


class Float(np.float64):
    def __reduce__(self):
        return Float, (float(self),)


PICKLED = {
    "namedtuple": lambda: Point(1, 2),
    "dataclass": lambda: Sample(np.arange(3), 1),
    "subclasses": lambda: [OrderedDict(b=1, a=2), type("Own", (list,), {})([1])],
    "scalars of a subclass": lambda: Float(1.5),
    "long numbers": lambda: (2**63, -(2**70)),
    "long text": lambda: "x" * 65537,
    "long bytes": lambda: b"y" * 65537,
    "surrogates": lambda: "\ud800",
    "objects": lambda: np.array([None, "a", 2], object),
    "dates": lambda: (np.array(["2020-01-02"], "M8[D]"), np.timedelta64(3, "s")),
    "records": lambda: np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    "arrays of text": lambda: (np.array(["ab", "c"]), np.array([b"ab", b"c"])),
    "other byte order": lambda: np.arange(5, dtype=np.dtype("i4").newbyteorder()),
    "a set": lambda: {1, 2},
    "a complex number": lambda: 1 + 2j,
    "very deep": lambda: nested(70),
    "beside arrays": lambda: {"x": np.ones((40, 40)), "y": [Point(np.arange(100), "a")]},
}


@pytest.mark.parametrize("name", PICKLED)
def test_other_batches_are_pickled(name):
    given = PICKLED[name]()
    got = through(given, pickled=True)
    if name == "dataclass":
        got, given = vars(got), vars(given)
    if name == "subclasses":
        assert got[1] == [1]
        got, given = got[0], given[0]
    check_same(got, given)


def test_metadata_of_a_dtype_is_kept():
    assert through(of_metadata(), pickled=True).dtype.metadata == {"a": 1}


def test_an_array_of_a_file_travels_by_its_name(tmp_path):
    np.arange(20_000).tofile(tmp_path / "numbers")
    array = np.asarray(np.memmap(tmp_path / "numbers", np.int64, "r"))
    assert type(array) is np.ndarray
    got = through([array], pickled=True)[0]
    assert isinstance(got.base, np.memmap)
    check_same(got, array)


@pytest.mark.parametrize("make", [list, dict, lambda: np.arange(3), lambda: np.arange(900)])
def test_an_object_that_occurs_twice_stays_one_object(make):
    one = make()
    first, second = through((one, {"again": [one]}), pickled=True)
    assert first is second["again"][0]
    through((make(), {"again": [make()]}))


def test_a_list_that_holds_itself():
    batch = [1]
    batch.append(batch)
    got = through(batch, pickled=True)
    assert got[1] is got


def test_batches_that_pickle_faster_are_pickled_and_checked_again_at_intervals():
    many = [{"name": "x", "value": 1.5} for _ in range(5000)]
    with slots() as (writer, _):
        assert writer.write(many)[0] > 0
        plain = [writer.write(np.zeros(100))[0] == 0 for _ in range(20)]
        assert plain == [False] * 15 + [True] * 5
        assert writer.write([np.zeros(2) for _ in range(20_000)])[0] == 0


def test_tuples_of_tuples_that_came_before_take_no_time():
    batch = ()
    for _ in range(60):
        batch = (batch, batch)
    with slots() as (writer, _):
        assert writer.write(batch)[0] > 0


@pytest.mark.parametrize("size", [3, 900])
def test_arrays_may_be_written_to_where_they_could_be(size):
    array = np.arange(size)
    fixed = np.arange(size)
    fixed.flags.writeable = False
    batch = array, fixed, fixed.reshape(-1, 3).T, fixed[::2]
    flags = [got.flags.writeable for got in through(batch)]
    pickled = through([*batch, Point(1, 2)], pickled=True)
    # Arrays that a pickle would copy are writeable here, too.
    assert flags == [got.flags.writeable for got in pickled[:-1]] == [True, False, False, True]


def test_arrays_are_views_of_the_slot():
    with slots() as (writer, reader):
        written = writer.write((np.zeros(1000), np.zeros((50, 50)).T))
        for mine, again in zip(reader.read(*written), reader.read(*written), strict=True):
            mine[3] = 7
            assert (again[3] == 7).all()
            assert again.ctypes.data % 64 == 0


def test_a_slot_grows_and_read_batches_stay_valid():
    with slots() as (writer, reader):
        for size in (10, 1000, 100_000, 300, 1_000_000, 0):
            given = {"x": np.full(size, size), "y": np.arange(size)[::-1], "size": size}
            written = writer.write(given)
            check_same(reader.read(*written), given)
        small = np.arange(100.0)
        kept = reader.read(*writer.write(small))
        large = writer.write([Point(np.ones(3_000_000), 1)])
        assert reader.read(*large)[0].x.sum() == 3_000_000
        assert len(kept) == 100
        kept[:] = 1  # the file's first pages, still there
        assert kept.sum() == 100


def test_views_outlive_their_slot():
    with slots() as (writer, reader):
        got = reader.read(*writer.write([np.arange(5000), "a"]))
    del reader, writer
    gc.collect()
    check_same(got, [np.arange(5000), "a"])


def test_nothing_of_a_batch_is_held_by_its_writer():
    array = np.arange(10_000)
    before = sys.getrefcount(array)
    with slots() as (writer, _):
        writer.write((array, array[::2]))
        assert sys.getrefcount(array) == before
        writer.write((array, Point(1, 2)))
        assert sys.getrefcount(array) == before


def test_overwritten_memory_is_an_error_or_another_batch():
    given = [
        np.arange(100.0),
        np.arange(600).reshape(20, 30).T,
        np.arange(6).reshape(3, 2).T,
        "abc",
    ]
    memory = bytearray(_engine.write_batch(given, bytearray()))
    end = _engine.write_batch(given, memory)
    assert end == len(memory)
    tree = int.from_bytes(memory[:4], "little")
    dice = random.Random(0)

    def read(bad):
        with contextlib.suppress(Exception):
            for part in _engine.read_batch(bad):
                if isinstance(part, np.ndarray) and part.dtype.kind != "O":
                    part.tobytes()

    for at in range(tree):
        for value in {0, 1, 127, 128, 255, *dice.sample(range(256), 20)}:
            bad = bytearray(memory)
            bad[at] = value
            read(bad)
    for length in range(0, end, 7):
        read(memory[:length])
    with pytest.raises(Exception, match="longer than"):
        _engine.read_batch(memory[: tree - 1])
    with pytest.raises(Exception, match="longer than"):
        _engine.read_batch(bytearray())
    with pytest.raises(BufferError):
        _engine.read_batch(bytes(memory))


def test_tensors_need_no_pickle():
    torch = pytest.importorskip("torch")
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
    images = torch.arange(2 * 3 * 8 * 8.0).reshape(2, 3, 8, 8)
    given = {
        "kinds": [torch.arange(n).to(kind) for kind in kinds for n in (0, 5, 500)],
        "zero-d": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "axes turned": images.transpose(1, 3),
        "one channel, last": images[:, :1].clone().to(memory_format=torch.channels_last),
        "channels last": images.clone().contiguous(memory_format=torch.channels_last),
        "small, turned": torch.arange(6).reshape(2, 3).T,
        "parts of one": list(torch.arange(1000).chunk(4)),
        "array": np.ones((40, 40)),
    }
    got = through(given)
    check_same(got, given)
    got["parts of one"][0][:] = 1
    got["small, turned"][:] = 1


def test_tensors_share_the_slots_memory():
    torch = pytest.importorskip("torch")
    with slots() as (writer, reader):
        written = writer.write([torch.zeros(100)])
        reader.read(*written)[0].fill_(3)
        assert reader.read(*written)[0].sum() == 300


def test_special_tensors_are_pickled():
    torch = pytest.importorskip("torch")
    named = torch.ones(3)
    named.tag = "weights"
    special = {
        "gradient": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "gaps": torch.arange(100.0)[::3],
        "stretched": torch.ones(1).expand(1000),
        "conjugate": torch.ones(3, dtype=torch.complex64).mul(1j).conj(),
        "negative": torch.ones(3, dtype=torch.complex64).mul(1j).conj().imag,
        "sparse": torch.eye(3).to_sparse(),
        "attribute": named,
    }
    for name, given in special.items():
        got = through([given], pickled=True)[0]
        assert type(got) is type(given), name
        assert got.requires_grad == given.requires_grad, name
        assert got.to_dense().equal(given.to_dense()), name
    assert through([named], pickled=True)[0].tag == "weights"
    assert through([special["stretched"]], pickled=True)[0].stride() == (0,)


def test_tensors_with_memory_in_common_still_have_it():
    torch = pytest.importorskip("torch")
    whole = torch.arange(100.0)
    first, second = through((whole[:60], whole[40:]), pickled=True)
    first[50] = -1
    assert second[10] == -1
    one, again = through((whole, whole), pickled=True)
    assert one is again
    one, beside = through((whole, whole.numpy()))
    one[0] = 5
    assert beside[0] == 0

"""npy and npz files: against NumPy, and headers and archives that lie."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

import dataset_functions as functions
import penstock
from contract import (
    INLINE,
    PROCESSES,
    SPAWN,
    THREADS,
    assert_same,
    each,
    options,
    passed,
)
from penstock import Dataset

KINDS = ["b", "<i2", ">i4", "<u8", ">f2", "<f4", ">f8", "<c8", "?"]


def npy(array, version=(1, 0)):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version, allow_pickle=False)
    return out.getvalue()


def header(text, version=1):
    """The front of an .npy file with this header."""
    data = text.encode()
    length = struct.pack("<H" if version == 1 else "<I", len(data))
    return b"\x93NUMPY" + bytes([version, 0]) + length + data


def rows(dataset):
    return list(dataset)


def check(dataset, array):
    found = rows(dataset)
    assert len(dataset) == len(found) == len(array)
    for row, wanted in zip(found, array, strict=True):
        native = np.asarray(wanted).astype(array.dtype.newbyteorder("="))
        assert_same(np.asarray(row), native)


# ---- npy


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(KINDS).flatmap(
        lambda kind: nps.arrays(
            kind, nps.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
        )
    ),
    st.booleans(),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_rows_are_what_numpy_reads(tmp_path_factory, array, fortran, version):
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    if fortran:
        array = np.asfortranarray(array)
    path.write_bytes(npy(array, version))
    check(Dataset.npy(path), np.load(path))


def test_a_dict_of_files_is_side_by_side(tmp_path):
    x, y = np.arange(40, dtype="f4").reshape(10, 4), np.arange(10)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    dataset = Dataset.npy({"x": tmp_path / "x.npy", "y": str(tmp_path / "y.npy")})
    assert len(dataset) == 10
    for i, element in enumerate(dataset):
        assert list(element) == ["x", "y"]
        assert_same(element["x"], x[i])
        assert element["y"] == i
    np.save(tmp_path / "y.npy", y[:9])
    with pytest.raises(penstock.InvalidArgument, match="'x' has 10, 'y' has 9"):
        Dataset.npy({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})
    with pytest.raises(penstock.InvalidArgument, match="empty"):
        Dataset.npy({})


def test_a_file_larger_than_the_memory_is_read_in_place(tmp_path):
    path = tmp_path / "x.npy"
    count = 1 << 36
    text = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({count}, 4), }}"
    with open(path, "wb") as file:
        front = header(text)
        file.write(front)
        file.truncate(len(front) + count * 16)  # a hole
        file.seek(-16, os.SEEK_END)
        file.write(np.arange(4, dtype="<i4").tobytes())
    dataset = Dataset.npy(path)
    assert len(dataset) == count
    assert_same(next(iter(dataset.skip(count - 1))), np.arange(4, dtype="i4"))


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
@pytest.mark.parametrize("order", ["C", "F"])
def test_all_ways_of_feeding_are_the_same(tmp_path, mode, order):
    x = np.asarray(np.arange(600).reshape(100, 2, 3), order=order)
    np.save(tmp_path / "x.npy", x)
    dataset = Dataset.npy(tmp_path / "x.npy").shuffle(seed=2).map(functions.as_it_is).batch(9)
    with dataset.build(workers=0) as feed:
        expected = passed(feed)
    assert sorted(row[0][0] for batch in expected for row in batch) == list(range(0, 600, 6))
    with dataset.build(**options(mode)) as feed:
        assert passed(feed) == expected


def test_a_pickled_dataset_is_small_and_reads_the_same(tmp_path):
    x = np.arange(100_000).reshape(1000, 100)
    np.save(tmp_path / "x.npy", x)
    data = pickle.dumps(Dataset.npy(tmp_path / "x.npy"))
    assert len(data) < 2000
    check(pickle.loads(data), x)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (3, 4)}", "by its header, int32"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (-1,)}", "its header is damaged"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (2.0,)}", "its header is damaged"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': [2]}", "its header is damaged"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (1 << 62,)}", "its header is damaged"),
        (
            "{'descr': '<i4', 'fortran_order': False, 'shape': (9999999999, 9999999999)}",
            "its header is damaged",
        ),
        ("{'descr': '<i4', 'fortran_order': 0, 'shape': (2,)}", "its header is damaged"),
        ("{'descr': 'wrong', 'fortran_order': False, 'shape': (2,)}", "its header is damaged"),
        ("{'descr': '<i4', 'shape': (2,)}", "its header is damaged"),
        ("__import__('os').abort()", "its header is damaged"),
        ("(" * 5000, "its header is damaged"),
        ("", "its header is damaged"),
    ],
)
def test_headers_that_lie(tmp_path, text, says):
    path = tmp_path / "x.npy"
    path.write_bytes(header(text) + bytes(8))
    with pytest.raises(penstock.DataLoss, match=r"x\.npy") as raised:
        Dataset.npy(path)
    assert says in str(raised.value)


def test_a_file_that_is_not_as_long_as_its_header_says(tmp_path):
    path = tmp_path / "x.npy"
    whole = npy(np.arange(10, dtype="<i4"))
    for end in (*range(0, len(whole), 7), len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(penstock.DataLoss, match=r"x\.npy"):
            Dataset.npy(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(penstock.DataLoss, match=r"has 169 bytes; by its header, int32 of shape"):
        Dataset.npy(path)
    for data in (b"\x93NUMPY\x04\0" + whole[8:], b"PK" + whole, b"\x93NUMPY\x02\0\xff\xff\xff\xff"):
        path.write_bytes(data)
        with pytest.raises(penstock.DataLoss):
            Dataset.npy(path)
    with pytest.raises(penstock.NotFound):
        Dataset.npy(tmp_path / "nothing.npy")
    with pytest.raises(penstock.InvalidArgument, match="single value"):
        path.write_bytes(npy(np.array(1)))
        Dataset.npy(path)


class Boom:
    def __reduce__(self):
        return os.abort, ()


def test_objects_are_never_unpickled(tmp_path):
    np.save(tmp_path / "x.npy", np.array([Boom()], object), allow_pickle=True)
    np.savez(tmp_path / "s.npz", x=np.array([Boom()], object))
    np.savez_compressed(tmp_path / "c.npz", x=np.array([Boom()], object))
    both = np.zeros(2, [("a", "i4"), ("b", object)])
    np.save(tmp_path / "y.npy", both, allow_pickle=True)
    for make, name in (
        (Dataset.npy, "x.npy"),
        (Dataset.npy, "y.npy"),
        (Dataset.npz, "s.npz"),
        (Dataset.npz, "c.npz"),
    ):
        with pytest.raises((penstock.InvalidArgument, penstock.DataLoss), match=r"objects|header"):
            make(tmp_path / name)


# ---- files that change


@each((INLINE, THREADS, PROCESSES), ())
def test_a_file_that_shrinks_loses_what_is_gone(tmp_path, mode):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(100, dtype="<i8"))
    dataset = Dataset.npy(path).map(functions.as_it_is)
    with dataset.build(on_error="skip", **options(mode)) as feed:
        os.truncate(path, 128 + 8 * 60)
        assert passed(feed) == list(range(60))
        assert feed.stats()["skipped"] == 40


def test_another_file_is_not_taken_for_it(tmp_path):
    path = tmp_path / "x.npy"
    for other in (np.arange(99), np.arange(100.0), np.arange(100).reshape(50, 2)):
        np.save(path, np.arange(100))
        dataset = Dataset.npy(path)
        np.save(tmp_path / "new.npy", other)
        os.replace(tmp_path / "new.npy", path)
        with pytest.raises(penstock.DataLoss, match="when this Dataset was made"):
            rows(dataset)
    np.save(path, np.arange(100))
    dataset = Dataset.npy(path)
    os.remove(path)
    with pytest.raises(penstock.NotFound):
        rows(dataset)


# ---- npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@each((INLINE, THREADS, PROCESSES), ())
def test_arrays_of_an_archive_are_side_by_side(tmp_path, save, mode):
    path = tmp_path / "a.npz"
    x = np.arange(600, dtype=">f4").reshape(100, 2, 3)
    arrays = {"x": x, "y": np.arange(100) % 10, "f": np.asfortranarray(x.reshape(100, 6))}
    save(path, **arrays)
    dataset = Dataset.npz(path)
    assert len(dataset) == 100
    with dataset.map(functions.as_it_is).batch(8).build(**options(mode)) as feed:
        for _ in range(2):
            batches = list(feed)
            for name, array in arrays.items():
                found = np.concatenate([batch[name] for batch in batches])
                assert_same(
                    found, np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
                )


def test_names_of_arrays_may_be_anything(tmp_path):
    path = tmp_path / "a.npz"
    arrays = {"cls": np.arange(3), "\u00e4 \u6f22": np.arange(3), "self": np.arange(3)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", npy(array))
        archive.writestr("README", "no array")
    assert [list(element) for element in Dataset.npz(path)] == [list(arrays)] * 3


def test_archives_that_cannot_be_fed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3), y=np.arange(4))
    with pytest.raises(penstock.InvalidArgument, match="'x' has 3, 'y' has 4"):
        Dataset.npz(path)
    np.savez(path)
    with pytest.raises(penstock.InvalidArgument, match="no arrays"):
        Dataset.npz(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", npy(np.arange(100)))
    with pytest.raises(penstock.InvalidArgument, match="compressed by method 14"):
        Dataset.npz(path)
    path.write_bytes(b"no archive")
    with pytest.raises(penstock.DataLoss, match=r"a\.npz"):
        Dataset.npz(path)
    with pytest.raises(penstock.NotFound):
        Dataset.npz(tmp_path / "nothing.npz")


def test_a_damaged_archive_is_said_or_read_right(tmp_path):
    """Every byte of a compressed one is in a checksum, a length or a name."""
    path = tmp_path / "a.npz"
    x = np.arange(50, dtype="<i4")
    np.savez_compressed(path, x=x)
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        try:
            found = [int(element["x"]) for element in Dataset.npz(path)]
        except (penstock.DataLoss, penstock.InvalidArgument):
            continue
        assert found == x.tolist(), at
    for end in range(0, len(whole), 5):
        path.write_bytes(whole[:end])
        with pytest.raises(penstock.DataLoss):
            Dataset.npz(path)


def lying(path, **sizes):
    """An archive of one deflated array whose directory says other sizes."""
    data = npy(np.zeros(1000, "<i4"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", data)
        member = archive.getinfo("x.npy")
        for name, size in sizes.items():
            setattr(member, name, size)


def test_sizes_that_lie_take_no_memory(tmp_path):
    path = tmp_path / "a.npz"
    lying(path)
    assert len(Dataset.npz(path)) == 1000
    lying(path, file_size=1 << 31)  # as nothing that deflate makes
    with pytest.raises(penstock.DataLoss, match="cannot be 2147483648 bytes"):
        Dataset.npz(path)
    lying(path, file_size=5000)  # its header says another size
    with pytest.raises(penstock.DataLoss, match="by its header"):
        Dataset.npz(path)
    lying(path, compress_size=1 << 31)
    with pytest.raises(penstock.DataLoss, match="do not fit"):
        Dataset.npz(path)


def test_an_array_beyond_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).integers(0, 255, 10_000, np.uint8))
    monkeypatch.setattr(penstock._engine, "memory_limit", lambda: 5000)
    with pytest.raises(penstock.OutOfMemory, match="read in place"):
        Dataset.npz(path)
    np.savez(path, x=np.arange(10_000))
    assert len(Dataset.npz(path)) == 10_000

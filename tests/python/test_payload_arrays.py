"""Arrays in a payload, in memory and memory-mapped: sent once, and never copied in a worker."""

from __future__ import annotations

import fcntl
import mmap
import os
import pathlib
import sys

import numpy as np
import pytest

from penstock.processes import memfile, payload

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from payload_child import ask

LARGE = 200_000  # more than what is page-aligned


def there_and_back(obj):
    with payload.pack(obj) as packed:
        return payload.unpack(packed.fd)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(LARGE),
        np.arange(LARGE, dtype=">i4").reshape(100, -1),
        np.asfortranarray(np.arange(LARGE, dtype=np.float32).reshape(100, -1)),
        np.arange(LARGE)[::3],
        np.arange(LARGE).reshape(100, -1)[:, ::-2],
        np.arange(LARGE).astype("datetime64[s]"),
        np.zeros(LARGE, dtype=[("a", "i2"), ("b", "f8", (2,))]),
        np.array(["text"] * LARGE),
        np.arange(40),
        np.zeros((0, 5)),
        np.array(3.5),
        np.array([None, "x", 3], dtype=object),
        np.ma.masked_array(np.arange(LARGE), np.arange(LARGE) % 2),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_of_every_kind_arrive_as_they_were(array):
    back = there_and_back({"x": array})["x"]
    assert type(back) is type(array)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)


def test_a_read_only_array_stays_read_only_and_others_writable():
    fixed, free = np.arange(LARGE), np.arange(LARGE)
    fixed.flags.writeable = False
    back_fixed, back_free = there_and_back((fixed, free))
    assert not back_fixed.flags.writeable
    back_free[0] = 7
    assert back_free[0] == 7


def test_buffers_are_aligned():
    arrays = [np.zeros(n, np.uint8) for n in (300, 70_000, 1000, 1 << 20, 257)]
    with payload.pack(arrays) as packed:
        _, buffers = memfile.read(packed.fd)
        assert [b.nbytes for b in buffers] == [a.nbytes for a in arrays]
        for buffer in buffers:
            address = np.frombuffer(buffer, np.uint8).ctypes.data
            assert address % (mmap.PAGESIZE if buffer.nbytes >= 1 << 16 else 64) == 0


def test_large_arrays_are_not_copied_by_the_reader():
    with payload.pack(np.ones(32 << 20, np.uint8)) as packed:
        # Anonymous pages are copies of the file's pages.
        copied = (
            "sum(int(l.split()[1]) for l in open('/proc/self/smaps') if l.startswith("
            "'Anonymous:')) if obj.sum() else None"
        )
        with_large = ask(packed, copied)
    with payload.pack(np.ones(1 << 20, np.uint8)) as small:
        with_small = ask(small, copied)
    assert with_large - with_small < 8 << 10  # kB


def test_what_a_worker_writes_into_its_array_stays_with_it():
    with payload.pack(np.zeros(LARGE)) as packed:
        mine = payload.unpack(packed.fd)
        mine[:] = 1
        assert ask(packed, "(obj.__setitem__(0, 5), float(obj[0]), float(obj.sum()))[1:]") == (
            5,
            5,
        )
        assert payload.unpack(packed.fd).sum() == 0


def test_nobody_can_change_a_payload():
    with payload.pack(np.zeros(LARGE)) as packed:
        with pytest.raises(PermissionError):
            os.pwrite(packed.fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(packed.fd, 10)
        assert not os.get_inheritable(packed.fd)
        assert fcntl.fcntl(packed.fd, fcntl.F_GET_SEALS)


def test_a_hundred_thousand_small_arrays_arrive():
    arrays = list(np.arange(100_000 * 100, dtype=np.int32).reshape(100_000, 100))
    back = there_and_back(arrays)
    assert len(back) == len(arrays)
    assert all((back[i] == arrays[i]).all() for i in (0, 1, 50_000, 99_999))


def test_bytes_give_a_copy_of_their_own():
    with payload.pack([np.arange(LARGE)]) as packed:
        data = bytearray(packed.tobytes())
    (array,) = payload.unpack(data)
    data[:] = bytes(len(data))
    assert array[-1] == LARGE - 1


# ---- arrays of files ----------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, np.arange(1_000_000, dtype=np.int32).reshape(1000, 1000))
    return path


VIEWS = {
    "whole": lambda a: a,
    "rows": lambda a: a[10:900],
    "columns": lambda a: a[:, 3:500],
    "backwards": lambda a: a[::-1, ::-3],
    "transposed": lambda a: a.T,
    "plain": lambda a: np.asarray(a[5:]),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_an_array_of_a_file_travels_as_its_name(file, mode, view):
    array = VIEWS[view](np.load(file, mmap_mode=mode))
    with payload.pack(array) as packed:
        assert packed.bytes < 10_000
        back = payload.unpack(packed.fd)
    assert type(back) is type(array)
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable == (mode != "r")


def test_what_a_worker_writes_into_an_array_of_a_file_stays_with_it(file):
    array = np.load(file, mmap_mode="r+")
    back = there_and_back(array)
    back[:] = -1
    assert array[0, 1] == 1
    assert np.load(file)[0, 1] == 1


def test_private_changes_to_an_array_of_a_file_travel(file):
    array = np.load(file, mmap_mode="c")
    array[3, 3] = -5
    assert there_and_back(array)[3, 3] == -5
    assert there_and_back(np.asarray(array))[3, 3] == -5


def test_an_array_of_a_deleted_file_travels_by_value(file):
    array = np.load(file, mmap_mode="r")
    file.unlink()
    np.testing.assert_array_equal(there_and_back(array), array)

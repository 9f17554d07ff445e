"""Nests of Python values: converted to leaves in a block and back."""

from __future__ import annotations

import collections
import contextlib
import gc
import random
import weakref

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
    row_of,
)
from penstock import _engine


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
        # The result can be packed again, with the same bytes.
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
    with pytest.raises(
        penstock.InvalidArgument, match=r"'x' is not a plain CPU tensor: use \.detach"
    ):
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


# ---- memory -------------------------------------------------------------------------------------


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

"""penstock.Ragged: a batch of rows of different lengths."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import _engine

QUICK = settings(max_examples=100, deadline=None, database=None)

TEXTS = ["", "abc", "é\u20ac", "d", ""]
ARRAYS = [np.arange(n * 2, dtype=np.int16).reshape(n, 2) + 100 * n for n in (2, 0, 3, 1)]
IMAGES = [np.full((h, w, 3), 10 * h + w, np.uint8) for h, w in ((2, 3), (1, 1), (0, 4), (3, 2))]


def batch_of(rows):
    spec, block = _engine.pack_elements(rows)
    return _engine.unpack_block(spec, len(rows), block)


@pytest.fixture(params=["str", "bytes", "array", "deep"])
def rows(request):
    return {
        "str": TEXTS,
        "bytes": [text.encode() for text in TEXTS],
        "array": [penstock.ragged(array) for array in ARRAYS],
        "deep": [penstock.ragged(image, (0, 1)) for image in IMAGES],
    }[request.param]


def same(a, b):
    return len(a) == len(b) and all(
        type(x) is type(y) and np.array_equal(x, y) for x, y in zip(a, b, strict=True)
    )


def test_rows_come_out_as_they_went_in(rows):
    batch = batch_of(rows)
    assert isinstance(batch, penstock.Ragged)
    assert len(batch) == len(rows)
    assert same(list(batch), rows)
    assert same([batch[place] for place in range(-len(rows), 0)], rows)
    assert same([batch[np.int64(1)]], rows[1:2])
    for place in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError, match=f"row {place} of {len(rows)}"):
            batch[place]
    with pytest.raises(TypeError):
        batch["x"]
    with pytest.raises(TypeError):
        batch[1, 2]


def test_values_and_offsets_are_what_other_libraries_take():
    batch = batch_of([b"ab", b"", b"c"])
    assert batch.values.tolist() == list(b"abc")
    assert batch.offsets.tolist() == [0, 2, 2, 3]
    assert (batch.dtype, batch.offsets.dtype) == (np.uint8, np.int64)
    assert batch.lengths.tolist() == [2, 0, 1]
    arrays = batch_of([penstock.ragged(array) for array in ARRAYS])
    np.testing.assert_array_equal(arrays.values, np.concatenate(ARRAYS))
    assert arrays.lengths.tolist() == [2, 0, 3, 1]
    images = batch_of([penstock.ragged(image, (0, 1)) for image in IMAGES])
    assert images.values.ndim == 1
    assert images.dims.tolist() == [list(image.shape) for image in IMAGES]
    assert images.lengths.tolist() == [2, 1, 0, 3]


def test_rows_and_slices_are_views(rows):
    batch = batch_of(rows)
    part = batch[1:]
    assert same(list(part), rows[1:])
    assert np.shares_memory(part.values, batch.values)
    assert np.shares_memory(batch[:2].offsets, batch.offsets)
    assert part[1:].offsets[0] == 0
    if batch.kind == "array":
        batch[0][:] = 7
        assert np.all(batch.values.reshape(-1)[: rows[0].size] == 7)
        assert np.shares_memory(batch[0], batch.values)


@QUICK
@given(
    st.lists(st.binary(max_size=6), min_size=1, max_size=9),
    st.slices(9),
    st.lists(st.integers(-1, 0), max_size=9),
    st.data(),
)
def test_any_slice_and_choice_of_rows(rows, part, places, data):
    batch = batch_of(rows)
    assert list(batch[part]) == rows[part]
    assert list(batch[part][part]) == rows[part][part]
    assert list(batch[places]) == [rows[place] for place in places]
    assert list(batch[np.array(places, np.int32)]) == [rows[place] for place in places]
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    assert list(batch[mask]) == [row for row, chosen in zip(rows, mask, strict=True) if chosen]


def test_rows_are_picked_in_any_order(rows):
    batch = batch_of(rows)
    assert same(list(batch[[2, 0, 0, -1]]), [rows[2], rows[0], rows[0], rows[-1]])
    assert same(list(batch[::-1]), rows[::-1])
    assert same(list(batch[::2][1:]), rows[::2][1:])
    for wrong in ([len(rows)], [0.5], [[0]], [True]):
        with pytest.raises(IndexError):
            batch[wrong]


def test_padded():
    np.testing.assert_array_equal(
        batch_of([b"ab", b"", b"c"]).to_padded(), [[97, 98], [0, 0], [99, 0]]
    )
    arrays = batch_of([penstock.ragged(array) for array in ARRAYS]).to_padded(-1)
    assert (arrays.shape, arrays.dtype) == ((4, 3, 2), np.int16)
    images = batch_of([penstock.ragged(image, (0, 1)) for image in IMAGES]).to_padded(9)
    assert images.shape == (4, 3, 4, 3)
    for padded, rows, value in ((arrays, ARRAYS, -1), (images, IMAGES, 9)):
        for row, array in zip(padded, rows, strict=True):
            np.testing.assert_array_equal(row[tuple(map(slice, array.shape))], array)
            assert np.count_nonzero(row == value) >= row.size - array.size
    assert batch_of([b"x"])[:0].to_padded().shape == (0, 0)
    assert batch_of([b"", b""]).to_padded().shape == (2, 0)
    assert batch_of([penstock.ragged(image, (0, 1)) for image in IMAGES])[:0].to_padded().size == 0


def test_to_list_is_plain_python():
    assert batch_of(TEXTS).to_list() == TEXTS
    assert batch_of([penstock.ragged([1.5]), penstock.ragged([2.0, 3])]).to_list() == [
        [1.5],
        [2, 3],
    ]
    images = batch_of([penstock.ragged(image, (0, 1)) for image in IMAGES])
    assert images.to_list() == [image.tolist() for image in IMAGES]


def test_equals(rows):
    batch = batch_of(rows)
    assert batch.equals(batch_of(rows))
    assert not batch.equals(batch_of(rows)[:-1])
    assert not batch.equals(rows)
    assert not batch.equals(penstock.Ragged(batch.values.astype("f4"), batch.offsets, "array"))
    assert not batch_of([b"a"]).equals(batch_of(["a"]))
    numbers = penstock.Ragged([1.0, np.nan], [0, 1, 2])
    assert not numbers.equals(numbers)
    assert numbers.equals(copy.deepcopy(numbers), equal_nan=True)
    assert not batch_of([b"ab", b"c"]).equals(batch_of([b"a", b"bc"]))


def test_pickles_hold_what_is_there_and_no_more(rows):
    batch = batch_of(rows)
    back = pickle.loads(pickle.dumps(batch))
    assert batch.equals(back)
    assert same(list(back), rows)
    large = batch_of([b"x" * 100_000, b"y"])
    assert len(pickle.dumps(large[1:])) < 1000


def test_repr():
    assert repr(batch_of(["ab", "c"])) == "Ragged(2 rows of str, 3 bytes)"
    assert repr(batch_of([b""])) == "Ragged(1 row of bytes, 0 bytes)"
    arrays = batch_of([penstock.ragged(array) for array in ARRAYS])
    assert repr(arrays) == "Ragged(4 rows of int16 (?, 2), 12 values)"
    images = batch_of([penstock.ragged(image, (0, 1)) for image in IMAGES])
    assert repr(images) == "Ragged(4 rows of uint8 (?, ?, 3), 39 values)"
    assert repr(batch_of([penstock.ragged([1])])) == "Ragged(1 row of int64 (?,), 1 values)"


def test_it_is_no_array_and_says_what_to_do():
    batch = batch_of([b"ab", b"c"])
    with pytest.raises(TypeError, match=r"use \.to_padded\(\), \.values and \.offsets"):
        np.asarray(batch)
    with pytest.raises(TypeError):
        np.ones(2) + batch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [0, 1]), "ascend"),
        (([1, 2], [1, 2]), "ascend"),
        (([1, 2], [0, 2, 1, 2]), "ascend"),
        (([1, 2], []), "offsets rows \\+ 1"),
        ((1, [0, 1]), "at least one axis"),
        (([1, 2], [0, 2], "str"), "must be uint8"),
        (([1, 2], [0, 2], "text"), "use .array"),
        (([1, 2], [0, 2], "array", [[1, 1]]), "do not agree"),
        (([1, 2], [0, 2], "array", [[-1, -2]]), "do not agree"),
        (([1, 2], [0, 2], "array", [2]), "have the shape"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        penstock.Ragged(*arguments)


# ---- the mark ------------------------------------------------------------------------------------


def test_ragged_marks_the_axes_along_which_elements_may_differ():
    array = np.zeros((2, 3, 4))
    assert penstock.ragged(array).axes == (0,)
    assert penstock.ragged(array, -1).axes == (2,)
    assert penstock.ragged(array, (1, 0, -3)).axes == (0, 1)
    assert penstock.ragged([1, 2]).dtype == np.int64
    assert np.shares_memory(penstock.ragged(array), array)
    for wrong in (3, -4, (), (0, 3)):
        with pytest.raises(ValueError, match="is ragged along"):
            penstock.ragged(array, wrong)
    with pytest.raises(ValueError, match="array of 0 axes"):
        penstock.ragged(5)
    with pytest.raises(TypeError):
        penstock.ragged(array, 0.5)


def test_the_mark_stays_on_arrays_of_as_many_axes():
    marked = penstock.ragged(np.arange(12.0).reshape(4, 3), (0, 1))
    for kept in (marked[1:], marked * 2, marked + np.ones((4, 3)), np.zeros_like(marked)):
        assert kept.axes == (0, 1)
    assert marked[0].axes == ()
    assert marked.mean(axis=0).axes == ()
    assert type(np.asarray(marked)) is np.ndarray
    back = pickle.loads(pickle.dumps(marked))
    assert back.axes == (0, 1)
    np.testing.assert_array_equal(back, marked)
    assert copy.deepcopy(marked).axes == (0, 1)
    # A row without the mark is dense.
    assert batch_of([marked[0], marked[1]]).shape == (2, 3)


def test_the_name_is_the_function_whatever_was_imported_first():
    import penstock.base.ragged

    assert penstock.ragged is penstock.base.ragged.ragged
    assert penstock.Ragged is penstock.base.ragged.Ragged
    assert {"Ragged", "ragged"} <= set(dir(penstock))

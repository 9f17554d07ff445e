"""Dataset: the values of elements and batches, and the effect of each stage."""

from __future__ import annotations

import collections
import os
from typing import Any

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import (
    INLINE,
    PROCESSES,
    THREADS,
    assert_same,
    each,
    options,
    passed,
)
from penstock import Dataset

Point = collections.namedtuple("Point", "x y")


def test_leaves_of_every_kind_come_out_as_they_went_in():
    batch = next(iter(Dataset.range(3, 9).map(functions.described).batch(4)))
    assert batch["number"].dtype == np.int64
    assert batch["number"].tolist() == [6, 8, 10, 12]
    assert batch["text"].to_list() == ["3", "4", "5", "6"]
    assert batch["bytes"].to_list() == [b"xxx", b"xxxx", b"", b"x"]
    assert batch["image"].shape == (4, 3, 4)
    assert (batch["image"] == np.arange(3, 7, dtype=np.float32)[:, None, None]).all()
    numbers, [halves] = batch["nested"]
    assert numbers.tolist() == [3, 4, 5, 6]
    assert halves.tolist() == [4.5, 5.5, 6.5, 7.5]


def test_arrays_of_any_nest_are_not_copied():
    x = np.arange(40.0).reshape(10, 4)
    y = Point(np.arange(10), np.arange(20)[::2])
    rows = list(Dataset.arrays({"x": x, "y": y}))
    assert len(rows) == 10
    for i, row in enumerate(rows):
        assert_same(row["x"], x[i].copy())
        assert row["y"] == (i, 2 * i)
        assert type(row["y"]) is Point
    batch = next(iter(Dataset.arrays(x[:, 1:3]).shuffle(seed=1).batch(10)))
    assert sorted(batch.tolist()) == x[:, 1:3].tolist()


def test_arrays_may_be_memory_mapped(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1000, dtype=np.int16).reshape(100, 10))
    mapped = np.load(path, mmap_mode="r")
    dataset = Dataset.arrays(mapped).map(functions.as_it_is).batch(30)
    with dataset.build(workers=1) as feed:
        assert np.concatenate(list(feed)).tolist() == mapped.tolist()


def test_arrays_come_in_the_machines_byte_order(tmp_path):
    numbers = np.arange(1, 25).reshape(6, 4)
    swapped = {
        name: numbers.astype(np.dtype(name).newbyteorder("S"))
        for name in ("i2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "i1")
    }
    swapped |= {
        "scalars": swapped["i4"][:, 1],
        "strided": swapped["f8"][:, ::2],
        "backwards": swapped["i2"][::-1],
        "backwards within": swapped["u8"][:, ::-1],
    }
    np.save(tmp_path / "x.npy", swapped["f4"])
    swapped["mapped"] = np.load(tmp_path / "x.npy", mmap_mode="r")
    wanted = {
        name: np.array(array, array.dtype.newbyteorder("=")) for name, array in swapped.items()
    }
    dataset = Dataset.arrays(swapped)
    for i, row in enumerate(dataset):
        assert_same(
            row, {name: np.asarray(array[i], order="C")[()] for name, array in wanted.items()}
        )
    for chain in (dataset, dataset.map(functions.as_it_is)):
        assert_same(next(iter(chain.batch(6))), wanted)
    order = Dataset.range(6).shuffle(seed=1)
    shuffled = Dataset.zip(order, dataset.shuffle(seed=1)).batch(6)
    places, batch = next(iter(shuffled))
    assert_same(batch, {name: array[places] for name, array in wanted.items()})
    with pytest.raises(penstock.InvalidArgument, match="masked"):
        Dataset.arrays(np.ma.masked_array([1, 2], [False, True]))


def test_items_are_as_if_a_function_had_made_them():
    def made_by(dataset):
        return dataset.build(**options(INLINE))

    arrays = [np.arange(3), np.arange(5)]
    items, made = Dataset.items(arrays), Dataset.range(3, 7, 2).map(functions.as_long_as)
    for dataset in (items, made):
        with (
            dataset.batch(2).build(workers=0) as feed,
            pytest.raises(penstock.InvalidArgument, match=r"element 0 .*element 1 .*ragged_batch"),
        ):
            list(feed)
        assert passed(made_by(dataset)) == [list(range(3)), list(range(5))]
        assert passed(made_by(dataset.ragged_batch(2))) == [[list(range(3)), list(range(5))]]
        assert passed(made_by(dataset.padded_batch(2))) == [[[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]]]
    for one, other in ((items, made), (made, items)):
        for both in (
            one.concatenate(other),
            Dataset.sample_from([one, other], seed=1),
            Dataset.choose_from(Dataset.items([0, 1, 0, 1]), [one, other]),
            Dataset.interleave([one, other], cycle=2),
        ):
            assert sorted(len(row) for row in made_by(both)) == [3, 3, 5, 5]
            assert sorted(map(len, passed(made_by(both.ragged_batch(4)))[0])) == [3, 3, 5, 5]
    ragged = Dataset.items([penstock.ragged(array) for array in arrays])
    assert passed(ragged.batch(2)) == [[list(range(3)), list(range(5))]]
    assert [row.axes for row in ragged] == [(0,), (0,)]


def test_a_tuple_becomes_the_functions_arguments():
    pairs = Dataset.zip(Dataset.range(4), Dataset.range(10, 14)).map(functions.added)
    assert passed(pairs.batch(4)) == [[10, 12, 14, 16]]


def test_samples_of_different_lengths_are_an_error_that_names_two():
    dataset = Dataset.range(1, 9).map(functions.as_long_as).batch(4)
    alike = pytest.raises(penstock.InvalidArgument, match=r"element 0 .* element 1")
    with dataset.build(workers=1) as feed, alike:
        list(feed)
    rows = list(Dataset.range(3).map(functions.as_long_as).build(workers=0))
    assert [row.tolist() for row in rows] == [[], [0], [0, 1]]


@each((INLINE, THREADS, PROCESSES), ())
def test_random_numbers_are_the_elements_own(mode):
    with Dataset.range(40).map(functions.drawn).batch(40).build(**options(mode)) as feed:
        first, second = passed(feed), passed(feed)
    assert first != second
    with Dataset.range(40).map(functions.drawn).batch(5).build(workers=0) as feed:
        assert [number for batch in feed for number in batch.tolist()] == first[0]
    twice = Dataset.range(40).map(functions.drawn).map(functions.drawn).batch(40)
    with twice.build(**options(mode)) as feed:
        assert passed(feed) != first


def test_global_generators_are_the_elements_own_in_processes():
    dataset = Dataset.range(30).map(functions.global_draw).batch(30)
    seen = []
    for workers in (1, 3):
        with dataset.build(workers=workers) as feed:
            seen.append(passed(feed))
    assert seen[0] == seen[1]
    assert len(set(seen[0][0])) == 30


def test_functions_below_other_stages_run_in_processes_too():
    there = Dataset.interleave([Dataset.range(4).map(functions.pid)], cycle=1).on_error("raise")
    assert str(os.getpid()) not in list(there)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (
            Dataset.range(5).map(functions.as_long_as).padded_batch(3, values={"": -1}),
            [[[-1, -1], [0, -1], [0, 1]], [[0, 1, 2, -1], [0, 1, 2, 3]]],
        ),
        (
            Dataset.range(3).map(functions.as_long_as).padded_batch(3, shapes={"": [3]}),
            [[[0, 0, 0], [0, 0, 0], [0, 1, 0]]],
        ),
        (
            Dataset.range(3).map(functions.as_long_as).ragged_batch(2, drop_last=True),
            [[[], [0]]],
        ),
        (Dataset.range(7).window(3, stride=2, drop_last=True), [[0, 2, 4]]),
        (
            Dataset.interleave([Dataset.range(3), Dataset.range(10, 12)], cycle=2).batch(9),
            [[0, 10, 1, 11, 2]],
        ),
        (Dataset.range(9).take_while(functions.is_small), [0, 1, 2, 3]),
        (Dataset.range(20).filter(functions.is_odd).skip(2).take(3), [5, 7, 9]),
        (Dataset.range(2).repeat(3).unique(), [0, 1]),
        (Dataset.range(9).unique(key=functions.remainder), [0, 1, 2, 3, 4]),
        (Dataset.range(9).unique(key=penstock.cast("bool")), [0, 1]),
        (Dataset.range(5).scan(lambda carry, n: (carry + n, carry), 0), [0, 0, 1, 3, 6]),
        (Dataset.range(4).flat_map(lambda n: Dataset.range(n)), [0, 0, 1, 0, 1, 2]),
        (
            # tf.data's own example of interleave.
            Dataset.range(1, 6).interleave(
                lambda n: Dataset.items([n]).repeat(6), cycle=2, block=4
            ),
            [*[1] * 4, *[2] * 4, *[1] * 2, *[2] * 2, *[3] * 4, *[4] * 4, *[3] * 2, *[4] * 2]
            + [5] * 6,
        ),
        (
            Dataset.zip(Dataset.range(2), Dataset.range(5, 7)).flat_map(
                lambda a, b: Dataset.items([(a, b), (b, a)])
            ),
            [[0, 5], [5, 0], [1, 6], [6, 1]],
        ),
        (Dataset.items(["a", "", "bc"]).skip(1), ["", "bc"]),
        (Dataset.items([]), []),
        (
            Dataset.range(5)
            .map(functions.as_long_as)
            .bucket_by_length(boundaries=[3], batch_sizes=[2, 2]),
            [[[0], [0]], [[0, 1, 2, 0], [0, 1, 2, 3]], [[0, 1]]],
        ),
        (Dataset.range(5).filter(functions.is_odd).repeat(2).batch(3), [[1, 3, 1], [3]]),
    ],
    ids=repr,
)
def test_what_each_stage_makes(dataset, expected):
    for workers in (0, 2):
        with dataset.build(workers=workers) as feed:
            assert passed(feed) == expected


def test_items_are_copied_and_keep_their_kinds():
    array = np.arange(6.0).reshape(2, 3)
    dataset = Dataset.items([{"a": array, "b": b"x", "n": 1}, {"a": array + 1, "b": b"", "n": 2}])
    array[:] = -1
    first, second = list(dataset)
    assert_same(first, {"a": np.arange(6.0).reshape(2, 3), "b": b"x", "n": np.int64(1)})
    assert second["b"] == b""
    batch = next(iter(dataset.batch(2)))
    assert batch["a"].shape == (2, 2, 3)
    assert batch["b"].to_list() == [b"x", b""]
    with pytest.raises(penstock.InvalidArgument, match="alike"):
        Dataset.items([1, 2.5])


def test_what_is_carried_is_the_functions_own():
    """Changes of its arrays stay in the worker, and the next pass starts from the original."""
    initial = np.zeros(2)

    def adds(carry: Any, number: Any) -> Any:
        carry += number
        return carry, carry

    dataset = Dataset.range(4).scan(adds, initial)
    for _ in range(2):
        assert passed(dataset) == [[0, 0], [1, 1], [3, 3], [6, 6]]
    assert initial.tolist() == [0, 0]


def test_text_files_give_their_lines_and_records(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\ntwo\nlast")
    (tmp_path / "b.txt").write_bytes("grün\n".encode())
    lines = Dataset.lines(str(tmp_path / "*.txt"))
    assert list(lines) == ["one", "", "two", "last", "grün"]
    (tmp_path / "c.bin").write_bytes(b"HEAD" + bytes(range(12)) + b"!")
    records = Dataset.fixed_records(tmp_path / "c.bin", 4, header_bytes=4, footer_bytes=1)
    assert passed(records.batch(3)) == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]]
    with pytest.raises(penstock.NotFound):
        len(Dataset.lines(tmp_path / "none*"))


def test_selected_fields_are_a_tuple_and_one_alone_is_itself():
    elements = {"a": np.arange(6), "b": np.arange(12.0).reshape(6, 2), "c": np.arange(6) % 2 == 0}
    dataset = Dataset.arrays(elements)
    for chain in (dataset, dataset.filter(lambda one: True)):
        first, second = next(iter(chain.map(penstock.select("b", "a")).batch(6)))
        np.testing.assert_array_equal(first, elements["b"])
        np.testing.assert_array_equal(second, elements["a"])
    (alone,) = dataset.map(penstock.select("c")).batch(6)
    np.testing.assert_array_equal(alone, elements["c"])
    spec = dataset.map(penstock.select("b", "a")).element_spec
    assert [part.shape for part in spec] == [(2,), ()]
    nested = Dataset.items([{"x": {"y": b"bytes", "z": 3}}]).map(penstock.select("x/z", "x/y"))
    assert list(nested) == [(3, b"bytes")]
    with pytest.raises(penstock.InvalidArgument, match=r"there is no field 'd' in \{a: int64"):
        dataset.map(penstock.select("a", "d")).build()
    with pytest.raises(penstock.InvalidArgument, match="no fields"):
        penstock.select()

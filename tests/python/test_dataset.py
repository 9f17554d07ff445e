"""Dataset: chains of native stages and Python functions, in every mode, from every place."""

from __future__ import annotations

import json
import math
import operator
import pickle
import sys

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import (
    KINDS,
    PROCESSES,
    SPAWN,
    THREADS,
    Mode,
    each,
    options,
    passed,
    plain,
)
from penstock import Dataset

CHAINS = {
    "batched": Dataset.range(50).map(functions.described).batch(7),
    "elements": Dataset.range(20).map(functions.described),
    "shuffled": Dataset.range(50).shuffle(seed=3).map(functions.drawn).batch(4).repeat(2),
    "native": Dataset.range(300).shuffle(seed=3).skip(7),
    "over the border": Dataset.source(functions.Squares(10)).repeat(3).batch(4),
    "of batches": Dataset.range(30).batch(4).map(functions.drawn).prefetch(3),
    "side by side": Dataset.zip(a=Dataset.range(20), b=Dataset.range(5, 30).map(functions.drawn))
    .enumerate(start=3)
    .batch(6, drop_last=True),
    "filtered": Dataset.range(60).shuffle(seed=2).filter(functions.is_odd).batch(4).repeat(2),
    "filtered by draws": Dataset.range(50)
    .filter(functions.holds_for_large_draws)
    .map(functions.described)
    .batch(3),
    "generated": Dataset.generator(functions.yields).map(functions.doubled).batch(5),
    "carried": Dataset.range(40).filter(functions.is_odd).scan(functions.sums, 7).batch(3),
    "carried nests": Dataset.range(30).scan(
        functions.keeps_all_and_lengthens,
        {"seen": np.zeros(3, int), "text": "", "list": np.arange(2)},
    ),
    "opened": Dataset.range(12).flat_map(functions.so_many).map(functions.drawn).batch(4),
    "in turns": Dataset.range(12)
    .shuffle(seed=4)
    .interleave(functions.drawn_and_odd, cycle=3, block=2)
    .unbatch(),
    "windows": Dataset.range(60)
    .shuffle(seed=4)
    .filter(functions.is_odd)
    .window(3, shift=2, stride=2)
    .repeat(2),
    "windows of drawn": Dataset.range(40)
    .map(functions.drawn)
    .shuffle(seed=4, buffer=6)
    .window(4, shift=1, drop_last=True)
    .batch(3),
    "streams in turns": Dataset.interleave(
        [
            Dataset.range(40).filter(functions.is_odd),
            Dataset.range(9),
            Dataset.range(50, 90).filter(functions.is_odd),
        ],
        cycle=2,
        block=3,
    ).batch(4),
    "once": Dataset.range(40).shuffle(seed=1).unique(key=functions.remainder).repeat(2),
    "items": Dataset.items([("a", 1), ("bcd", 2), ("", 3)]).repeat(5).shuffle(seed=2).batch(2),
    "generated elements": Dataset.generator(functions.yields).filter(functions.keeps_even),
}


@each((THREADS, PROCESSES, Mode(3, "fork")), (SPAWN, Mode(3, "forkserver")))
@pytest.mark.parametrize("chain", CHAINS)
def test_every_mode_gives_the_same_pass_after_pass(chain, mode):
    dataset = CHAINS[chain]
    with dataset.build(workers=0) as one, dataset.build(**options(mode)) as other:
        for _ in range(2):
            assert passed(one) == passed(other)


@each(KINDS, ())
@pytest.mark.parametrize("chain", CHAINS)
def test_a_state_restores_at_every_place(chain, mode):
    dataset = CHAINS[chain]
    with dataset.build(seed=5, workers=0) as feed:
        expected = [passed(feed), passed(feed)]
    with (
        dataset.build(seed=5, **options(mode)) as feed,
        dataset.build(seed=5, **options(mode)) as other,
    ):
        for number in range(2):
            iterator = iter(feed)
            for place in range(len(expected[number])):
                state = json.loads(json.dumps(feed.state()))
                if place % 5 == 0:
                    other.restore(state)
                    assert passed(other) == expected[number][place:], f"pass {number}, {place}"
                assert plain(next(iterator)) == expected[number][place]
            assert list(iterator) == []


def test_lengths_are_those_of_a_pass():
    dataset = Dataset.range(10).batch(4)
    assert len(dataset) == 3
    assert len(dataset.repeat(2)) == 6
    assert len(Dataset.range(10).repeat(3).batch(4)) == 8
    assert dataset.repeat().cardinality() == math.inf
    with pytest.raises(TypeError):
        len(dataset.repeat())
    with dataset.build(workers=0) as feed:
        assert len(feed) == 3


def test_a_length_that_len_cannot_say_is_a_cardinality():
    dataset = Dataset.range(1 << 62).repeat(2)
    assert dataset.cardinality() == 1 << 63 > sys.maxsize
    with pytest.raises(TypeError, match=r"9223372036854775808 .*: use cardinality\(\)"):
        len(dataset)
    assert operator.length_hint(dataset, 3) == 3
    with dataset.build(workers=0) as feed, pytest.raises(TypeError, match="cardinality"):
        len(feed)


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.range(0),
        Dataset.range(3).repeat(),
        Dataset.generator(functions.yields),
        Dataset.range(3).assert_cardinality(4),
        Dataset.lines("/no/such/file"),
    ],
)
def test_a_dataset_is_true_and_not_looked_into(dataset):
    assert bool(dataset) is True


LONG = {
    "concatenate": (lambda d: d.concatenate(Dataset.range(1)), 2001),
    "cast": (lambda d: d.map(penstock.cast("int64")), 1),
    "function": (lambda d: d.map(functions.as_it_is), 1),
    "repeat": (lambda d: d.repeat(1), 1),
}


def test_a_chain_too_long_for_a_threads_stack_is_refused():
    dataset = Dataset.range(2)
    for _ in range(5000):
        dataset = dataset.skip(0)
    with pytest.raises(penstock.InvalidArgument, match="more than 4096 stages"):
        list(dataset)


@pytest.mark.parametrize("stage", LONG)
def test_a_chain_may_have_more_stages_than_python_has_frames(stage):
    follow, length = LONG[stage]
    dataset = Dataset.range(1)
    for _ in range(2000):
        dataset = follow(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    assert repr(copy) == repr(dataset)
    assert repr(dataset).count(" > ") >= 2000
    assert len(dataset) == length
    for chain in (dataset, copy):
        with chain.build(workers=0) as feed:
            assert passed(feed) == [0] * length
            feed.restore(feed.state())


def test_inputs_that_are_one_stay_one_when_they_travel():
    source = Dataset.range(3).cache()
    both = Dataset.zip(source, source.map(functions.as_it_is), source)
    copy = pickle.loads(pickle.dumps(both))
    assert repr(copy) == repr(both)
    first, second, third = copy._inputs
    assert first is third is second._inputs[0]


def test_a_dataset_says_what_it_is_and_pickles():
    dataset = Dataset.range(5, 50, 5).shuffle(seed=2).map(functions.drawn).batch(2).repeat(3)
    text = "range(5, 50, 5) > shuffle(seed=2) > map(drawn) > batch(2) > repeat(3)"
    assert repr(dataset) == text
    copy = pickle.loads(pickle.dumps(dataset))
    assert repr(copy) == text
    with dataset.build(workers=0) as one, copy.build(workers=0) as other:
        assert passed(one) == passed(other)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Dataset(),
        lambda: Dataset.range(),
        lambda: Dataset.range(0, 5, 0),
        lambda: Dataset.range(5).batch(0),
        lambda: Dataset.range(5).batch("2"),
        lambda: Dataset.range(5).shuffle(1000),
        lambda: Dataset.range(5).map(3),
        lambda: Dataset.range(5).repeat(0),
        lambda: Dataset.range(5).prefetch(0),
        lambda: Dataset.range(5).shard(2, 2),
        lambda: Dataset.range(5).shard(0, 2, remainder="what"),
        lambda: Dataset.arrays([np.zeros(3), np.zeros(4)]),
        lambda: Dataset.arrays(np.array(3)),
        lambda: Dataset.arrays({"x": np.array(["a", None], object)}),
        lambda: Dataset.source(iter([1])),
        lambda: Dataset.items([1, "a"]),
        lambda: Dataset.items([object()]),
        lambda: Dataset.range(5).scan(3, 0),
        lambda: Dataset.range(5).scan(max, object()),
        lambda: Dataset.range(5).flat_map(Dataset.range(3)),
        lambda: Dataset.range(5).interleave(Dataset.range, cycle=0),
        lambda: Dataset.range(5).interleave([Dataset.range(3)], cycle=2),
        lambda: Dataset.interleave([[1, 2]], cycle=2),
        lambda: Dataset.interleave([], cycle=2),
        lambda: Dataset.sample_from([]),
        lambda: Dataset.choose_from(Dataset.range(3), []),
        lambda: Dataset.range(5).padded_batch(2, values={"": "x"}),
        lambda: Dataset.range(5).padded_batch(2, values={"": None}),
        lambda: Dataset.range(5).padded_batch(2, values={"": 1j}),
        lambda: Dataset.range(5).padded_batch(2, values={"": 1 << 64}),
        lambda: Dataset.range(5).padded_batch(2, values={3: 1}),
        lambda: Dataset.range(5).padded_batch(2, values=1),
        lambda: Dataset.range(5).padded_batch(2, shapes={"": 3}),
        lambda: Dataset.range(5).padded_batch(2, shapes={"": ["3"]}),
        lambda: Dataset.lines(3),
        lambda: Dataset.lines(["a", 3]),
        lambda: Dataset.lines("a\0b"),
        lambda: Dataset.lines("\ud800"),
        lambda: Dataset.snapshot(3),
        lambda: Dataset.range(5).cache(3),
        lambda: Dataset.csv("a", {"\ud800": str}),
        lambda: Dataset.csv("a", {"x": (str, "\ud800")}),
        lambda: penstock.parse_example({"\ud800": penstock.int64()}),
        lambda: penstock.example({"\ud800": 3}),
        lambda: penstock.example({"x": "\ud800"}),
        lambda: Dataset.range(5).unique(key=3),
        lambda: Dataset.zip(Dataset.range(3), [1, 2, 3]),
        lambda: Dataset.range(5).batch(2).build(batch_size=2),
        lambda: Dataset.range(5).batch(2).build(shuffle=True),
        lambda: Dataset.range(5).batch(2).build(drop_last=True),
        lambda: Dataset.range(5).batch(2).build(shard=(0, 2)),
        lambda: Dataset.range(5).batch(2).build(collate=list),
    ],
)
def test_what_cannot_be_is_refused_at_once(wrong):
    with pytest.raises((penstock.InvalidArgument, TypeError)):
        wrong()


@pytest.mark.parametrize("number", [1 << 16, 1 << 32, 1 << 40, 1 << 63, 1 << 64, 1 << 100])
@pytest.mark.parametrize(
    "call",
    [
        lambda ds, n: ds.prefetch(n),
        lambda ds, n: ds.take(n),
        lambda ds, n: ds.skip(n),
        lambda ds, n: ds.batch(n),
        lambda ds, n: ds.ragged_batch(n),
        lambda ds, n: ds.padded_batch(n),
        lambda ds, n: ds.padded_batch(2, shapes={"": [n]}),
        lambda ds, n: ds.repeat(n),
        lambda ds, n: ds.enumerate(n),
        lambda ds, n: ds.window(n),
        lambda ds, n: ds.window(2, shift=n, stride=n),
        lambda ds, n: ds.shuffle(seed=n),
        lambda ds, n: ds.shuffle(buffer=n),
        lambda ds, n: ds.shuffle(block=n, window=n),
        lambda ds, n: ds.shard(0, n),
        lambda ds, n: ds.split_batch(n),
        lambda ds, n: ds.cache(max_bytes=n),
        lambda ds, n: ds.rebatch(n),
        lambda ds, n: ds.bucket_by_length([n], [n, n]),
        lambda ds, n: ds.interleave(Dataset.range, cycle=n, block=n),
        lambda ds, n: ds.assert_cardinality(n),
        lambda ds, n: Dataset.range(n),
        lambda ds, n: Dataset.sample_from([ds], seed=n),
        lambda ds, n: Dataset.interleave([ds], cycle=n, block=n),
        lambda ds, n: Dataset.fixed_records("x", n, header_bytes=n, footer_bytes=n),
    ],
)
def test_a_number_that_is_too_large_is_refused_as_an_argument(call, number):
    try:
        call(Dataset.range(5), number)
    except penstock.InvalidArgument:
        return
    assert number < 1 << 63


def test_a_number_without_a_name_is_no_shuffle():
    with pytest.raises(penstock.InvalidArgument, match=r"shuffle\(buffer=1000\)"):
        Dataset.range(5).shuffle(1000)


def test_a_stream_has_no_length_and_says_what_it_cannot():
    dataset = Dataset.range(9).filter(functions.is_odd)
    assert dataset.cardinality() is None
    with pytest.raises(TypeError):
        len(dataset)
    with pytest.raises(penstock.InvalidArgument, match=r"shuffle.*cannot follow filter\(is_odd\)"):
        dataset.shuffle(seed=1).build()
    for wrong in (lambda: dataset.filter(3), lambda: Dataset.generator([1, 2])):
        with pytest.raises(penstock.InvalidArgument):
            wrong()


def test_a_zip_b_is_both():
    a, b, c = (Dataset.range(first, first + 3) for first in (0, 10, 20))
    assert list(a.zip(b)) == list(Dataset.zip(a, b)) == [(0, 10), (1, 11), (2, 12)]
    assert list(a.zip(b, c)) == [(0, 10, 20), (1, 11, 21), (2, 12, 22)]
    for wrong in (lambda: a.zip(), lambda: a.zip(x=b), lambda: Dataset.zip()):
        with pytest.raises(penstock.InvalidArgument):
            wrong()

"""Dataset: chains of native stages and Python functions, in every mode, from every place."""

from __future__ import annotations

import collections
import json
import math
import os
import pickle
from typing import Any

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import INLINE, KINDS, PROCESSES, SPAWN, THREADS, Mode, assert_same, each
from faults import wait_until
from penstock import Dataset

Point = collections.namedtuple("Point", "x y")


def options(mode: Mode) -> dict[str, Any]:
    return {"use_multiprocessing": False, **mode.options}


def plain(batch: Any) -> Any:
    """A batch as something that `==` compares."""
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return [plain(value) for value in batch]
    if isinstance(batch, penstock.Ragged):
        return [plain(value) for value in batch.to_list()]
    return batch.tolist() if isinstance(batch, (np.ndarray, np.generic)) else batch


def passed(feed: Any) -> list[Any]:
    return [plain(batch) for batch in feed]


CHAINS = {
    "batched": Dataset.range(50).map(functions.described).batch(7),
    "elements": Dataset.range(20).map(functions.described),
    "shuffled": Dataset.range(50).shuffle(seed=3).map(functions.drawn).batch(4).repeat(2),
    "native": Dataset.range(300).shuffle(seed=3).skip(7),
    "over the border": Dataset.source(functions.Squares(10)).repeat(3).batch(4),
    "of batches": Dataset.range(30).batch(4).map(functions.drawn).prefetch(3),
    "side by side": Dataset.zip(a=Dataset.range(20), b=Dataset.range(5, 30).map(functions.drawn))
    .enumerate(start=3)
    .batch(6, drop_remainder=True),
    "filtered": Dataset.range(60).shuffle(seed=2).filter(functions.is_odd).batch(4).repeat(2),
    "filtered by draws": Dataset.range(50)
    .filter(functions.holds_for_large_draws)
    .map(functions.described)
    .batch(3),
    "generated": Dataset.generator(functions.yields).map(functions.doubled).batch(5),
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


# ---- values ----------------------------------------------------------------------------------


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
            Dataset.range(3).map(functions.as_long_as).ragged_batch(2, drop_remainder=True),
            [[[], [0]]],
        ),
        (Dataset.range(7).window(3, shift=2), [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6]]),
        (Dataset.range(7).window(3, stride=2, drop_remainder=True), [[0, 2, 4]]),
        (
            Dataset.interleave([Dataset.range(3), Dataset.range(10, 12)], cycle=2).batch(9),
            [[0, 10, 1, 11, 2]],
        ),
        (Dataset.range(7).assert_cardinality(7).skip(5), [5, 6]),
        (Dataset.range(9).take_while(functions.is_small), [0, 1, 2, 3]),
        (Dataset.range(9).batch(4).unbatch().skip(7), [7, 8]),
        (Dataset.range(9).batch(4).rebatch(6), [[0, 1, 2, 3, 4, 5], [6, 7, 8]]),
        (Dataset.range(20).filter(functions.is_odd).skip(2).take(3), [5, 7, 9]),
        (Dataset.range(2).repeat(3).unique(), [0, 1]),
        (
            Dataset.choose_from(
                Dataset.range(2).repeat(2), [Dataset.range(3), Dataset.range(10, 13)]
            ),
            [0, 10, 1, 11],
        ),
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


def test_partial_shuffles_lose_nothing_and_are_shuffles():
    for dataset in (
        Dataset.range(500).shuffle(seed=1, block=10, window=3),
        Dataset.range(500).shuffle(seed=1, buffer=20),
        Dataset.range(1000).filter(functions.is_odd).shuffle(seed=1, buffer=20),
    ):
        with dataset.build(workers=1) as feed:
            first, second = passed(feed), passed(feed)
        assert sorted(first) == sorted(second)
        assert first != second != sorted(second)
        assert len(set(first)) == 500


def test_samples_are_drawn_as_often_as_their_weights_say():
    three = [Dataset.range(0, 1000), Dataset.range(1000, 2000), Dataset.range(2000, 3000)]
    dataset = Dataset.sample_from(three, weights=[0.7, 0.3, 0], seed=4)
    with dataset.build(workers=1) as feed:
        numbers = passed(feed)
    assert sorted(numbers) == list(range(2000))
    first = [number < 1000 for number in numbers[:1000]]
    assert 620 < sum(first) < 780
    assert [n for n in numbers if n < 1000] == list(range(1000))


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


@each((INLINE, THREADS, PROCESSES), ())
def test_another_element_may_take_the_place_of_one_that_fails(mode):
    dataset = Dataset.range(50).map(functions.refuses_seven).on_error("replace").batch(25)
    with dataset.build(**options(mode)) as feed:
        rows = [number for batch in feed for number in batch.tolist()]
        assert len(rows) == 50
        assert [n for i, n in enumerate(rows) if n != i] == [rows[7]]
        assert feed.stats()["replaced"] >= 1
        assert feed.stats()["skipped"] == 0
        assert feed.stats()["losses"][0][1] == 7


# ---- what it is ------------------------------------------------------------------------------


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
        lambda: Dataset.range(5).map(3),
        lambda: Dataset.range(5).repeat(0),
        lambda: Dataset.range(5).prefetch(0),
        lambda: Dataset.range(5).shard(2, 2),
        lambda: Dataset.range(5).shard(0, 2, remainder="what"),
        lambda: Dataset.arrays([np.zeros(3), np.zeros(4)]),
        lambda: Dataset.arrays(np.array(3)),
        lambda: Dataset.arrays({"x": np.array(["a", None], object)}),
        lambda: Dataset.source(iter([1])),
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


# ---- iterators -------------------------------------------------------------------------------


def test_passes_of_one_object_are_its_epochs():
    dataset = Dataset.range(20).shuffle(seed=1).batch(20)
    with dataset.build(workers=0) as feed:
        expected = [passed(feed), passed(feed), passed(feed)]
    assert [passed(dataset), passed(dataset)] == expected[:2]
    for _ in dataset:
        break
    assert len({str(order) for order in expected}) == 3


def test_two_iterators_at_once_do_not_disturb_each_other():
    dataset = Dataset.range(10).shuffle(seed=1).batch(2)
    with dataset.build(workers=0) as feed:
        first, second = passed(feed), passed(feed)
    one, other = iter(dataset), iter(dataset)
    pairs = list(zip(one, other, strict=True))
    assert [plain(a) for a, _ in pairs] == first
    assert [plain(b) for _, b in pairs] == second
    other.close()


def test_an_iterator_goes_back_to_its_place():
    iterator = iter(Dataset.range(10).batch(3).repeat(2))
    next(iterator)
    state = iterator.state()
    rest = passed(iterator)
    assert len(rest) == 7
    with pytest.raises(StopIteration):
        next(iterator)
    iterator.restore(state)
    assert passed(iterator) == rest
    assert iterator.stats()["delivered"] >= 15


def test_an_iterator_may_be_given_another_dataset():
    iterator = iter(Dataset.range(4).batch(2))
    next(iterator)
    iterator.reset()
    assert passed(iterator) == [[0, 1], [2, 3]]
    iterator.reset(Dataset.range(10, 13).batch(2))
    assert passed(iterator) == [[10, 11], [12]]
    iterator.close()
    with pytest.raises(penstock.Closed):
        iterator.reset()


def test_steps_go_across_the_ends_of_passes():
    with Dataset.range(5).batch(2).repeat(2).build(workers=0) as feed:
        assert [plain(batch) for batch in feed.steps(8)] == [[0, 1], [2, 3], [4]] * 2 + [
            [0, 1],
            [2, 3],
        ]
        assert passed(feed) == [[4], [0, 1], [2, 3], [4]]
    with Dataset.range(0).batch(2).repeat().build(workers=0) as feed:
        assert list(feed) == []
        with pytest.raises(penstock.InvalidArgument, match="empty"):
            list(feed.steps(1))


def test_a_state_of_another_chain_is_refused():
    with (
        Dataset.range(9).batch(2).build(workers=0) as feed,
        Dataset.range(9).shuffle(seed=1).batch(2).build(workers=0) as other,
    ):
        with pytest.raises(penstock.InvalidArgument, match=r"batch\(2\) .* shuffle\(seed=1\)"):
            other.restore(feed.state())
        for broken in ({}, {"version": 1}, {**feed.state(), "epoch": -1}):
            with pytest.raises(penstock.InvalidArgument):
                feed.restore(broken)


def test_a_billion_elements_are_nothing():
    dataset = Dataset.range(10**9).shuffle(seed=1)
    with dataset.build(workers=0) as feed:
        first = int(next(iter(feed)))
        state = {**feed.state(), "batches": 10**9 - 3}
        feed.restore(state)
        last = [int(number) for number in feed]
    assert len(last) == 3
    assert len({first, *last}) == 4
    with dataset.skip(10**9 - 3).build(workers=0) as feed:
        assert [int(number) for number in feed] == last


def test_a_feedable_keeps_everybodys_place():
    train = Dataset.range(10).shuffle(seed=1).batch(4)
    validation = Dataset.range(100, 105).map(functions.drawn).batch(2)
    with train.build(workers=0) as feed, validation.build(workers=0) as other:
        passes, validations = [passed(feed), passed(feed)], [passed(other), passed(other)]
    with penstock.Feedable(train=train, validation=validation) as feeds:
        assert plain(feeds.next("train")) == passes[0][0]
        assert passed(feeds.rest("validation")) == validations[0]
        assert plain(feeds.next("train")) == passes[0][1]
        feeds.reset("validation")
        assert plain(feeds.next("validation")) == validations[1][0]
        state = json.loads(json.dumps(feeds.state()))
        rest = [plain(feeds.next("train")), plain(feeds.next("validation"))]
        assert rest == [passes[0][2], validations[1][1]]
        with pytest.raises(StopIteration):
            feeds.next("train")
        feeds.restore(state)
        assert [plain(feeds.next("train")), plain(feeds.next("validation"))] == rest
        feeds.reset("train", validation)
        assert passed(feeds.rest("train")) == validations[0]
        with pytest.raises(penstock.NotFound, match="validation"):
            feeds.next("test")
        with pytest.raises(penstock.InvalidArgument, match="train"):
            feeds.restore({"train": state["train"]})
    for wrong in ({}, {"train": [1, 2]}):
        with pytest.raises(penstock.InvalidArgument):
            penstock.Feedable(**wrong)


# ---- errors ----------------------------------------------------------------------------------


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
def test_an_exception_comes_at_its_place_with_stage_and_traceback(mode):
    dataset = Dataset.range(20).map(functions.refuses_seven).batch(3)
    with dataset.build(**options(mode)) as feed:
        seen = []
        with pytest.raises(ValueError, match="not 7") as caught:
            for batch in feed:
                seen.append(plain(batch))
        assert seen == [[0, 1, 2], [3, 4, 5]]
        cause = caught.value.__cause__
        assert isinstance(cause, penstock.WorkerTraceback)
        assert "map(refuses_seven)" in cause.worker
        assert (cause.epoch, cause.index) == (0, 7)
        assert "in refuses_seven" in cause.traceback
        assert feed.state()["batches"] == 2


@each((INLINE, THREADS, PROCESSES), ())
def test_skip_leaves_elements_out_and_lists_them(mode):
    dataset = Dataset.range(208).map(functions.refuses_seven).batch(10)
    with dataset.build(on_error="skip", **options(mode)) as feed:
        seen = [number for batch in feed for number in batch.tolist()]
        assert seen == [n for n in range(208) if n % 100 != 7]
        assert feed.stats()["skipped"] == 3
        losses = sorted(feed.stats()["losses"])
        assert losses[0] == (0, 7, "map(refuses_seven): ValueError: not 7")
        assert [index for _, index, _ in losses] == [7, 107, 207]


@each((INLINE, THREADS, PROCESSES), ())
def test_retries_try_again(mode):
    dataset = Dataset.range(6).map(functions.FailsOnce()).batch(3)
    with dataset.build(retries=1, **options(mode)) as feed:
        assert passed(feed) == [[0, 1, 2], [3, 4, 5]]
        assert feed.stats()["retried"] >= 6  # and those of the next epoch, made ahead


@each((INLINE, THREADS, PROCESSES), ())
def test_a_stop_iteration_ends_nothing(mode):
    dataset = Dataset.range(6).map(functions.stop).batch(3)
    raises = pytest.raises(RuntimeError, match="StopIteration")
    with dataset.build(**options(mode)) as feed, raises:
        list(feed)


@each((INLINE, THREADS), ())
def test_ctrl_c_is_no_error_to_pass_over(mode):
    dataset = Dataset.range(6).map(functions.interrupted).batch(3)
    raises = pytest.raises(KeyboardInterrupt)
    with dataset.build(on_error="skip", retries=2, **options(mode)) as feed, raises:
        list(feed)


@each((INLINE, THREADS, PROCESSES), ())
def test_a_generator_that_raises_does_so_at_its_place(mode):
    dataset = Dataset.generator(functions.yields_and_fails)
    with dataset.build(**options(mode)) as feed:
        seen = []
        for _ in range(2):
            with pytest.raises(ValueError, match="no more") as caught:
                for element in feed.steps(10):
                    seen.append(int(element))
            assert "in yields_and_fails" in caught.value.__cause__.traceback
        assert seen == list(range(7))
    raises = pytest.raises(ValueError, match="no more")
    with dataset.map(functions.as_it_is).batch(4).build(**options(mode)) as feed, raises:
        for batch in feed:
            assert batch.tolist() == [0, 1, 2, 3]


@each((INLINE, THREADS, PROCESSES), ())
def test_what_was_lost_on_the_way_cuts_off_no_rows(mode):
    skipped = Dataset.range(20).map(functions.refuses_seven).on_error("skip").batch(5)
    with skipped.map(functions.as_it_is).build(**options(mode)) as feed:
        assert passed(feed)[1] == [5, 6, 8, 9]
        assert len(passed(feed)) == 4
        assert feed.stats()["skipped"] >= 2
    replaced = Dataset.range(20).map(functions.refuses_seven).on_error("replace")
    with replaced.map(functions.as_it_is).batch(5).build(**options(mode)) as feed:
        assert [len(batch) for batch in feed] == [5, 5, 5, 5]
    with replaced.filter(functions.always).batch(5).build(**options(mode)) as feed:
        assert [len(batch) for batch in feed] == [5, 5, 5, 5]
        assert feed.stats()["replaced"] >= 1


@each((INLINE, THREADS), ())
def test_rounds_that_give_nothing_come_to_an_end(mode):
    nothing = Dataset.range(10).filter(functions.never)
    with nothing.repeat().build(**options(mode)) as feed:
        assert list(feed) == []
        with pytest.raises(penstock.InvalidArgument, match="empty"):
            list(feed.steps(2))
    with nothing.build(**options(mode)) as feed:
        assert list(feed) == []
        with pytest.raises(penstock.InvalidArgument, match="empty"):
            list(feed.steps(2))


def test_a_refused_restore_changes_nothing():
    with Dataset.range(6).build(workers=0) as feed:
        iterator = iter(feed)
        assert next(iterator) == 0
        with pytest.raises(penstock.InvalidArgument):
            feed.restore({})
        assert passed(iterator) == [1, 2, 3, 4, 5]


def test_functions_below_other_stages_run_in_processes_too():
    there = Dataset.interleave([Dataset.range(4).map(functions.pid)], cycle=1).on_error("raise")
    assert str(os.getpid()) not in list(there)


def test_restored_iterators_go_on_with_the_passes_behind():
    dataset = Dataset.range(12).shuffle(seed=1).batch(4)
    with dataset.build(workers=0) as feed:
        expected = [passed(feed) for _ in range(4)]
    for _ in dataset:
        pass
    iterator = iter(dataset)
    next(iterator)
    state = iterator.state()
    again = Dataset.range(12).shuffle(seed=1).batch(4)
    iterator = iter(again)
    iterator.restore(state)
    assert passed(iterator) == expected[1][1:]
    assert [passed(again), passed(again)] == expected[2:]


def test_an_iterator_that_was_overtaken_disturbs_nobody():
    dataset = Dataset.range(6).batch(2)
    old = iter(dataset)
    assert len(list(old)) == 3
    new = iter(dataset)
    next(new)
    old.reset()
    assert len(list(old)) == 3
    assert len(list(new)) == 2
    old.close()
    assert len(list(dataset)) == 3


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


# ---- faults ----------------------------------------------------------------------------------


@each((Mode(1, "fork"), PROCESSES), (SPAWN,))
def test_a_killed_worker_loses_nothing(mode, tmp_path):
    dataset = Dataset.range(60).map(functions.KillsOnce(17, str(tmp_path / "dead"))).batch(4)
    with dataset.build(**options(mode)) as feed:
        assert [n for batch in feed for n in batch.tolist()] == list(range(60))
        wait_until(lambda: feed.stats()["restarts"] == 1)


@each((PROCESSES,), ())
def test_what_kills_its_worker_thrice_is_named(mode):
    dataset = Dataset.range(60).map(functions.Kills(17)).batch(4)
    raises = pytest.raises(penstock.WorkerLost, match=r"index 17")
    with dataset.build(**options(mode)) as feed, raises:
        list(feed)


@each((THREADS, PROCESSES), ())
def test_a_timeout_is_an_error_that_names_the_element(mode):
    dataset = Dataset.range(20).map(functions.Sleeps(9, 1.0)).batch(4)
    raises = pytest.raises(penstock.Timeout, match=r"index 9")
    with dataset.build(timeout=0.3, **options(mode)) as feed, raises:
        list(feed)


@each((THREADS, PROCESSES), ())
def test_closing_in_the_middle_keeps_batches_valid(mode):
    dataset = Dataset.range(10_000).map(functions.described).batch(10)
    feed = dataset.build(**options(mode))
    batch = next(iter(feed))
    feed.close()
    assert batch["number"].tolist() == list(range(0, 20, 2))
    with pytest.raises(penstock.Closed):
        next(iter(feed))

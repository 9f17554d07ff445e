"""Dataset: failures, their errors, and the elements around them."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest

import dataset_functions as functions
import penstock
from contract import (
    INLINE,
    PROCESSES,
    SPAWN,
    THREADS,
    Mode,
    each,
    options,
    passed,
    plain,
)
from faults import wait_until
from penstock import Dataset


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
@pytest.mark.parametrize(
    ("source", "stream", "before"),
    [
        (Dataset.range(20), None, [[0, 1, 2], [3, 4, 5]]),
        (Dataset.range(20), functions.is_odd, [[1, 3, 5]]),
        (Dataset.range(20).filter(functions.always), functions.is_odd, [[1, 3, 5]]),
    ],
    ids=["indexed", "before a filter", "between filters"],
)
def test_an_exception_comes_at_its_place_with_stage_and_traceback(mode, source, stream, before):
    made = source.map(functions.refuses_seven)
    dataset = (made.filter(stream) if stream else made).batch(3)
    with dataset.build(**options(mode)) as feed:
        seen = []
        with pytest.raises(ValueError, match="not 7") as caught:
            for batch in feed:
                seen.append(plain(batch))
        assert seen == before
        cause = caught.value.__cause__
        assert isinstance(cause, penstock.WorkerTraceback)
        assert "map(refuses_seven)" in cause.worker
        assert (cause.epoch, cause.index) == (0, 7)
        assert "in refuses_seven" in cause.traceback
        assert feed.state()["batches"] == len(before)


@each((INLINE, THREADS, PROCESSES), ())
@pytest.mark.parametrize(
    ("dataset", "stage", "before"),
    [
        (
            Dataset.range(20).scan(functions.carries_but_seven, 0),
            "scan(carries_but_seven)",
            [0, 0, 1, 3, 6, 10, 15],
        ),
        (
            Dataset.range(20).flat_map(functions.refuses_seven_datasets),
            "flat_map(refuses_seven_datasets)",
            [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7],
        ),
        (
            Dataset.range(6, 20).interleave(functions.refuses_seven_datasets, cycle=2),
            "interleave(refuses_seven_datasets, cycle=2, block=1)",
            [6],
        ),
        (
            Dataset.range(20).unique(key=functions.refuses_seven),
            "unique(refuses_seven)",
            [0, 1, 2, 3, 4, 5, 6],
        ),
    ],
    ids=repr,
)
def test_functions_of_streams_fail_at_their_place(mode, dataset, stage, before):
    with dataset.build(**options(mode)) as feed:
        seen = []
        with pytest.raises(ValueError, match="not 7") as caught:
            for batch in feed:
                seen.append(plain(batch))
        assert seen == before
        cause = caught.value.__cause__
        assert isinstance(cause, penstock.WorkerTraceback)
        assert (stage in cause.worker, cause.epoch) == (True, 0)
        assert "in refuses_seven" in cause.traceback
    with dataset.build(on_error="skip", **options(mode)) as feed:
        assert len(passed(feed)) > len(before)
        [loss, *_] = feed.stats()["losses"]
        assert loss[0] == 0
        assert loss[2] == f"{stage}: ValueError: not 7"


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Dataset.range(3).flat_map(functions.as_it_is), "must return a penstock.Dataset"),
        (Dataset.range(3).interleave(functions.pid, cycle=2), "must return a penstock.Dataset"),
        (Dataset.range(3).scan(max, 0), r"must return \(carry, element\)"),
        (Dataset.range(3).flat_map(functions.endless_shuffle), "cannot follow filter"),
    ],
)
def test_what_functions_of_streams_must_return_is_said(dataset, words):
    with pytest.raises(penstock.InvalidArgument, match=words):
        list(dataset.build(workers=0))


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
        assert feed.stats()["retried"] >= 6  # including the next epoch's, which are made ahead


@each((INLINE, THREADS, PROCESSES), ())
def test_a_stop_iteration_ends_nothing(mode):
    dataset = Dataset.range(6).map(functions.stop).batch(3)
    raises = pytest.raises(RuntimeError, match="StopIteration")
    with dataset.build(**options(mode)) as feed, raises:
        list(feed)


@each((INLINE, THREADS), ())
@pytest.mark.parametrize("function", [functions.interrupted, functions.unspeakable])
def test_ctrl_c_is_no_error_to_pass_over(mode, function):
    dataset = Dataset.range(6).map(function).batch(3)
    raises = pytest.raises(KeyboardInterrupt)
    with dataset.build(on_error="skip", retries=2, **options(mode)) as feed, raises:
        list(feed)


@each((INLINE, THREADS), ())
def test_ctrl_c_in_the_making_of_another_element_is_no_error_to_pass_over(mode):
    def fails(number):
        raise ValueError if number == 0 else KeyboardInterrupt

    dataset = Dataset.range(10).map(fails).on_error("replace").batch(1)
    raises = pytest.raises(KeyboardInterrupt)
    with dataset.build(**options(mode)) as feed, raises:
        next(iter(feed))


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
def test_another_element_may_take_the_place_of_one_that_fails(mode):
    dataset = Dataset.range(50).map(functions.refuses_seven).on_error("replace").batch(25)
    with dataset.build(**options(mode)) as feed:
        rows = [number for batch in feed for number in batch.tolist()]
        assert len(rows) == 50
        assert [n for i, n in enumerate(rows) if n != i] == [rows[7]]
        assert feed.stats()["replaced"] >= 1
        assert feed.stats()["skipped"] == 0
        assert feed.stats()["losses"][0][1] == 7


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


@each((Mode(1, "fork"), PROCESSES), (SPAWN,))
def test_a_killed_worker_loses_nothing(mode, tmp_path):
    dataset = Dataset.range(60).map(functions.KillsOnce(17, str(tmp_path / "dead"))).batch(4)
    with dataset.build(**options(mode)) as feed:
        assert [n for batch in feed for n in batch.tolist()] == list(range(60))
        wait_until(lambda: feed.stats()["restarts"] == 1)


@each((PROCESSES,), ())
def test_what_kills_its_worker_thrice_is_named(mode):
    dataset = Dataset.range(60).map(functions.Kills(17)).batch(4)
    raises = pytest.raises(
        penstock.WorkerLost, match=r"index 17.* run element 17 of range\(0, 60\) > "
    )
    with dataset.build(**options(mode)) as feed, raises:
        list(feed)


@each((THREADS, PROCESSES), ())
def test_a_timeout_is_an_error_that_names_the_element(mode):
    dataset = Dataset.range(20).map(functions.Sleeps(9, 1.0)).batch(4)
    raises = pytest.raises(penstock.Timeout, match=r"index 9")
    with dataset.build(timeout=0.3, **options(mode)) as feed, raises:
        list(feed)


# Functions that kill their worker, or time out, at number 9; their errors, and the modes.
ENDINGS = [
    (functions.Kills(9), penstock.WorkerLost, "lost its worker process three times", PROCESSES),
    (functions.Sleeps(9, 3.0), penstock.Timeout, "took longer than timeout allows", PROCESSES),
    (functions.Sleeps(9, 3.0), penstock.Timeout, "took longer than timeout allows", THREADS),
]


@pytest.mark.parametrize(("ends", "error", "words", "mode"), ENDINGS)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_ends_its_worker_is_passed_over_with_its_reason(ends, error, words, mode, streamed):
    dataset = Dataset.range(20).map(ends)
    dataset = dataset.filter(functions.always) if streamed else dataset.batch(4)
    with dataset.build(timeout=0.5, on_error="skip", **options(mode)) as feed:
        got = [n for batch in feed for n in np.atleast_1d(batch).tolist()]
        stats = feed.stats()
    assert got == [*range(9), *range(10, 20)]
    assert stats["skipped"] == 1
    [(epoch, index, reason)] = stats["losses"]
    assert (epoch, index) == (0, 9)
    assert words in reason


@pytest.mark.parametrize(("ends", "error", "words", "mode"), ENDINGS)
def test_on_error_raise_raises_what_the_option_would_pass_over(ends, error, words, mode):
    dataset = Dataset.range(20).map(ends).on_error("raise").batch(4)
    with (
        dataset.build(timeout=0.5, on_error="skip", **options(mode)) as feed,
        pytest.raises(error, match=f"epoch 0, index 9 .*worker \\d+ {words}"),
    ):
        list(feed)


@pytest.mark.parametrize(("ends", "error", "words", "mode"), ENDINGS)
@pytest.mark.parametrize("streamed", [False, True])
def test_on_error_passes_over_what_ended_its_worker_below(ends, error, words, mode, streamed):
    dataset = Dataset.range(20).map(functions.as_it_is).map(ends).on_error("skip")
    dataset = dataset.filter(functions.always) if streamed else dataset.batch(4)
    with dataset.map(functions.as_it_is).build(timeout=0.5, **options(mode)) as feed:
        assert [n for batch in feed for n in np.atleast_1d(batch).tolist()] == [
            *range(9),
            *range(10, 20),
        ]
        stats = feed.stats()
    assert stats["skipped"] == 1
    [(epoch, index, reason)] = stats["losses"]
    assert (epoch, index) == (0, 9)
    assert words in reason
    assert reason.startswith(f"map({type(ends).__name__})")


@pytest.mark.parametrize(("ends", "error", "words", "mode"), ENDINGS)
def test_on_error_replaces_what_ended_its_worker_below(ends, error, words, mode):
    dataset = Dataset.range(20).map(ends).on_error("replace").map(functions.as_it_is).batch(4)
    with dataset.build(seed=3, timeout=0.5, **options(mode)) as feed:
        got = [n for batch in feed for n in batch.tolist()]
        stats = feed.stats()
    assert got[:9] + got[10:] == [*range(9), *range(10, 20)]
    assert 0 <= got[9] < 20
    assert got[9] != 9
    assert (stats["replaced"], stats["skipped"]) == (1, 0)


@pytest.mark.parametrize(("ends", "error", "words", "mode"), ENDINGS)
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_on_error_does_not_decide_on_what_ends_its_worker_above(ends, error, words, mode, policy):
    dataset = Dataset.range(20).map(functions.as_it_is).on_error(policy).map(ends).batch(4)
    with dataset.build(timeout=0.5, **options(mode)) as feed:
        seen = []
        with pytest.raises(error, match=f"epoch 0, index 9 .*worker \\d+ {words}"):
            for batch in feed:
                seen += plain(batch)
        assert seen == list(range(8))
        assert feed.state()["batches"] == 2


@each((PROCESSES,), ())
def test_what_stands_in_for_what_killed_its_worker_may_kill_it_too(mode):
    low = Dataset.range(20).map(functions.KillsBelow(5)).on_error("replace").batch(4)
    with low.build(seed=1, **options(mode)) as feed:
        got = [n for batch in feed for n in batch.tolist()]
        stats = feed.stats()
    assert len(got) == 20
    assert got[5:] == list(range(5, 20))
    assert min(got) >= 5
    assert (stats["replaced"], stats["skipped"]) == (5, 0)


@each((PROCESSES,), ())
def test_elements_of_one_batch_that_kill_their_workers_are_told_apart(mode):
    below = Dataset.range(12).map(functions.KillsBelow(3)).on_error("skip").batch(4)
    with below.map(functions.summed).build(**options(mode)) as feed:
        assert [int(total) for total in feed] == [3, 22, 38]
        stats = feed.stats()
    assert stats["skipped"] == 3
    assert sorted(index for _, index, _ in stats["losses"]) == [0, 1, 2]


def test_workers_that_cannot_start_close_the_feed(monkeypatch):
    def refuses(thread):
        raise RuntimeError("can't start new thread")

    for dataset in (Dataset.range(9).map(functions.as_it_is), Dataset.range(9).filter(bool)):
        with dataset.build(workers=2, use_multiprocessing=False) as feed:
            with monkeypatch.context() as broken:
                broken.setattr("threading.Thread.start", refuses)
                with pytest.raises(RuntimeError, match="new thread"):
                    next(iter(feed))
            with pytest.raises(penstock.Closed):
                next(iter(feed))


@each((THREADS, PROCESSES), ())
def test_closing_in_the_middle_keeps_batches_valid(mode):
    dataset = Dataset.range(10_000).map(functions.described).batch(10)
    feed = dataset.build(**options(mode))
    batch = next(iter(feed))
    feed.close()
    assert batch["number"].tolist() == list(range(0, 20, 2))
    with pytest.raises(penstock.Closed):
        next(iter(feed))


def test_what_is_wrong_with_a_record_names_its_file_and_number(tmp_path):
    for file in range(3):
        with penstock.TFRecordWriter(tmp_path / f"{file}.tfrecord") as writer:
            for number in range(5):
                value = "text" if (file, number) == (1, 3) else number
                writer.write(penstock.example({"n": value}))
    parsed = (
        Dataset.tfrecord(str(tmp_path / "*.tfrecord"))
        .shuffle(seed=2)
        .map(penstock.parse_example({"n": penstock.int64()}))
    )
    where = r"feature 'n'.*, of .*/1\.tfrecord, record 3"
    for chain in (parsed, parsed.cache(), parsed.concatenate(parsed).batch(4)):
        with chain.build(workers=0) as feed, pytest.raises(penstock.DataLoss, match=where):
            for _ in feed:
                pass
        with chain.build(workers=2, on_error="skip") as feed:
            for _ in feed:
                pass
            losses = feed.stats()["losses"]
        assert losses
        assert all(re.search(where, reason) for *_, reason in losses)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_so_does_what_is_wrong_with_a_record_that_came_in_a_stream(tmp_path, pack, workers):
    for file in range(3):
        path = tmp_path / f"{file}.tfrecord"
        with penstock.TFRecordWriter(path) as writer:
            for number in range(50):
                bad = (file, number) in ((0, 0), (1, 13), (2, 49))
                writer.write(penstock.example({"n": "text" if bad else number}))
        path.write_bytes(pack(path.read_bytes()))
    read = Dataset.tfrecord(str(tmp_path / "*.tfrecord"), stream=True)
    parse = penstock.parse_example({"n": penstock.int64()})
    mixed = Dataset.interleave(
        [Dataset.tfrecord(tmp_path / f"{n}.tfrecord", stream=True) for n in range(3)], cycle=3
    )
    chains = {
        "read": read.map(parse),
        "batched": read.map(parse).batch(7),
        "filtered": read.filter(len).map(parse).batch(7),
        "shuffled": read.shuffle(seed=3, buffer=20).map(parse).batch(7),
        "in a tail": read.map(parse).filter(lambda x: x["n"] >= 0).batch(7),
        "in a parallel map": read.map(parse).map(dict).filter(len).batch(7),
        "interleaved": mixed.map(parse).batch(7),
    }
    for name, chain in chains.items():
        options = {"workers": workers, "use_multiprocessing": workers > 0}
        with chain.build(on_error="skip", **options) as feed:
            for _ in feed:
                pass
            reasons = [reason for *_, reason in feed.stats()["losses"]]
        places = [re.search(r"of .*/(\d)\.tfrecord, record (\d+)", reason) for reason in reasons]
        found = {place.groups() for place in places}
        assert found == {("0", "0"), ("1", "13"), ("2", "49")}, name


def test_what_was_lost_is_counted_once_though_its_ticket_is_made_again():
    elements = [{"a": b"xx", "b": b"yy", "n": n} for n in range(20)]
    elements[2]["a"] = elements[8]["a"] = elements[5]["b"] = b"three"
    chain = (
        Dataset.items(elements)
        .map(penstock.decode_raw("a", "uint8", (2,)))
        .on_error("skip")
        .map(penstock.decode_raw("b", "uint8", (2,)))
    )
    for workers in (0, 2):
        with chain.build(workers=workers) as feed:
            for again in range(3):
                seen = []
                with pytest.raises(penstock.InvalidArgument, match="'b' has 5 bytes"):
                    for element in feed:
                        seen.append(int(element["n"]))
                assert seen == ([0, 1, 3, 4] if again == 0 else [])
                assert [index for _, index, _ in feed.stats()["losses"]] == [2]
                feed.restore(feed.state())
            state = feed.state()
            feed.restore({**state, "batches": state["batches"] + 1})
            assert [int(element["n"]) for element in feed] == [6, 7, *range(9, 20)]
            assert [index for _, index, _ in feed.stats()["losses"]] == [2, 8]
            assert feed.stats()["skipped"] == 2


def test_interleave_takes_streams():
    inputs = [Dataset.generator(functions.yields), Dataset.generator(functions.yields)]
    one = [element["n"] for element in inputs[0]]
    turns = Dataset.interleave(inputs, cycle=2)
    assert [element["n"] for element in turns] == [n for n in one for _ in range(2)]
    opened = Dataset.range(2).interleave(lambda i: inputs[int(i)], cycle=2)
    assert [element["n"] for element in opened] == [n for n in one for _ in range(2)]

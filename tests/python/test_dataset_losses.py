"""Skipped elements: all others are delivered, and counts are exact, in every chain and mode."""

from __future__ import annotations

import gzip
import json
import pathlib
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, Mode, each, options, passed
from dataset_functions import always, as_it_is
from penstock import Dataset

MODES = (INLINE, THREADS, PROCESSES)


def bad(n: int) -> int:
    """Fails at 2 and 17."""
    if n in (2, 17):
        raise ValueError(f"bad {n}")
    return int(n)


def none_of_a_short_one(batch: Any) -> Any:
    return batch[: len(batch) // 4 * 4]


def opened(n: int) -> Dataset:
    return Dataset.range(n, n + 1).repeat(2)


NUMBERS = [n for n in range(30) if n not in (2, 17)]
FAILING = Dataset.range(30).map(bad)
STREAM = FAILING.filter(always)
SKIPPED = FAILING.on_error("skip")

# A chain, and its numbers in order. The lost ones are always 2 and 17.
CHAINS: dict[str, tuple[Dataset, list[int]]] = {
    "single": (FAILING, NUMBERS),
    "batched": (FAILING.batch(4), NUMBERS),
    "map over batches": (FAILING.batch(4).map(as_it_is), NUMBERS),
    "unbatched": (FAILING.batch(4).unbatch(), NUMBERS),
    "unbatched, some to nothing": (
        FAILING.batch(4).map(none_of_a_short_one).unbatch().batch(3),
        [n for n in NUMBERS if n not in (0, 1, 3, 16, 18, 19, 28, 29)],
    ),
    "rebatched": (FAILING.batch(4).rebatch(3), NUMBERS),
    "joined batches": (FAILING.batch(5).concatenate(Dataset.range(0).batch(5)), NUMBERS),
    "filtered batches": (FAILING.batch(4).filter(always), NUMBERS),
    "stream": (STREAM, NUMBERS),
    "stream of streams": (STREAM.map(as_it_is).filter(always), NUMBERS),
    "natively": (STREAM.map(penstock.cast("int32")).filter(always), NUMBERS),
    "stream, batched": (STREAM.batch(4), NUMBERS),
    "stream, map over batches": (STREAM.batch(4).map(as_it_is), NUMBERS),
    "stream, unbatched": (STREAM.batch(4).unbatch().batch(3), NUMBERS),
    "batches, filtered": (STREAM.batch(4).map(as_it_is).filter(always), NUMBERS),
    "in a tail": (Dataset.range(30).filter(always).map(bad).filter(always), NUMBERS),
    "opened": (STREAM.flat_map(opened), [n for n in NUMBERS for _ in range(2)]),
    "opened, filtered": (
        STREAM.filter(lambda n: n % 3 == 0).flat_map(opened),
        [n for n in NUMBERS if n % 3 == 0 for _ in range(2)],
    ),
    "once": (STREAM.unique(), NUMBERS),
    "taken": (STREAM.batch(3).take(40), NUMBERS),
    "windows": (STREAM.window(3), NUMBERS),
    "windows that overlap": (
        STREAM.window(4, shift=2, drop_last=True),
        [n for i in range(0, 26, 2) if i + 4 <= 28 for n in NUMBERS[i : i + 4]],
    ),
    "windows with gaps": (
        STREAM.window(2, shift=5),
        [n for i in range(0, 28, 5) for n in NUMBERS[i : i + 2]],
    ),
    "windows of those that were skipped": (
        SKIPPED.filter(always).window(3, shift=3, drop_last=True),
        NUMBERS[:27],
    ),
    "no windows": (STREAM.window(99, drop_last=True), []),
    "in turns": (Dataset.interleave([STREAM, Dataset.range(0)], cycle=2), NUMBERS),
    "skipped": (SKIPPED.filter(always), NUMBERS),
    "skipped behind a stream": (STREAM.on_error("skip").batch(4), NUMBERS),
    "skipped in a tail": (
        Dataset.range(30).filter(always).map(bad).on_error("skip").filter(always),
        NUMBERS,
    ),
}


def numbers_of(batches: list[Any]) -> list[int]:
    return [int(n) for batch in batches for n in np.ravel(batch)]


@each(MODES, (SPAWN,))
@pytest.mark.parametrize("chain", CHAINS)
def test_all_others_come_and_each_loss_is_counted_once(chain: str, mode: Mode) -> None:
    dataset, expected = CHAINS[chain]
    with dataset.build(on_error="skip", **options(mode)) as feed:
        for epoch in range(2):
            assert numbers_of(passed(feed)) == expected
            losses = [loss for loss in feed.stats()["losses"] if loss[0] == epoch]
            reasons = sorted(reason.split(": ")[-1] for _, _, reason in losses)
            assert reasons == ["bad 17", "bad 2"]


@pytest.mark.parametrize("chain", CHAINS)
def test_a_restored_feed_counts_what_was_not_counted_before(chain: str) -> None:
    dataset, expected = CHAINS[chain]
    with dataset.build(on_error="skip", **options(INLINE)) as feed:
        steps = iter(feed)
        before: list[Any] = []
        while True:
            state, counted = json.dumps(feed.state()), feed.stats()["skipped"]
            with dataset.build(on_error="skip", **options(INLINE)) as other:
                other.restore(json.loads(state))
                assert numbers_of([*before, *passed(other)]) == expected
                assert counted + other.stats()["skipped"] == 2, f"after {len(before)}"
            batch = next(steps, None)
            if batch is None or feed.state()["epoch"] > 0:
                break
            before.append(batch.tolist())


def test_without_a_policy_the_first_is_raised_at_its_place() -> None:
    for chain in ("stream of streams", "batches, filtered", "stream, unbatched", "opened"):
        dataset, expected = CHAINS[chain]
        seen: list[Any] = []
        with pytest.raises(ValueError, match="bad 2"), dataset.build(**options(INLINE)) as feed:
            for batch in feed:
                seen.append(batch.tolist())
        assert numbers_of(seen) == expected[: len(numbers_of(seen))]
        assert len(numbers_of(seen)) <= 4


def test_a_damaged_record_of_a_compressed_file_is_one_loss(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records.tfrecord"
    with penstock.TFRecordWriter(path) as writer:
        for i in range(200):
            writer.write(penstock.example({"n": i}))
    data = bytearray(path.read_bytes())
    size = len(data) // 200
    at = bytes(data).find(penstock.example({"n": 70}))
    assert at > 60 * size
    data[at + 3] ^= 1
    packed = tmp_path / "records.tfrecord.gz"
    packed.write_bytes(gzip.compress(bytes(data)))
    parse = penstock.parse_example({"n": penstock.int64()})
    records = Dataset.tfrecord(packed).map(parse)
    others = [n for n in range(200) if n != 70]
    for dataset in (
        records.batch(10),
        records.shuffle(buffer=5, seed=1).batch(10),
        records.filter(lambda e: True).batch(10),
        records.shuffle(buffer=1).batch(4),
    ):
        for mode in (INLINE, THREADS):
            with dataset.build(on_error="skip", **options(mode)) as feed:
                seen = [int(n) for batch in feed for n in batch["n"]]
                assert sorted(seen) == others
                assert feed.stats()["skipped"] == 1
    with records.repeat(2).batch(10).build(on_error="skip", workers=2) as feed:
        assert sum(len(batch["n"]) for batch in feed) == 2 * 199
        assert feed.stats()["skipped"] == 2


def loses_always(_: Any) -> Any:
    raise ValueError("never")


def test_endless_rounds_of_nothing_but_losses_end() -> None:
    rounds = Dataset.range(3).map(loses_always).on_error("skip").filter(always).repeat()
    for dataset in (rounds.take(5), rounds.batch(2), rounds.filter(always)):
        with dataset.build(**options(INLINE)) as feed:
            assert passed(feed) == []
            assert feed.stats()["skipped"] == 3


@each(MODES, ())
def test_a_policy_for_a_streams_elements(mode: Mode) -> None:
    # The decision of an earlier policy is final.
    strict = FAILING.filter(always).on_error("raise").batch(4)
    with (
        strict.build(on_error="skip", **options(mode)) as feed,
        pytest.raises(ValueError, match="bad 2"),
    ):
        passed(feed)
    with pytest.raises(penstock.InvalidArgument, match="replace needs elements"):
        STREAM.on_error("replace").build(**options(mode))


@each(MODES, ())
def test_a_streams_number_of_elements_is_made_known(mode: Mode) -> None:
    stream = Dataset.range(10).filter(lambda n: n % 2 == 0)
    with pytest.raises(TypeError):
        len(stream)
    assert len(stream.assert_cardinality(5)) == 5
    assert len(stream.assert_cardinality(5).batch(2)) == 3
    with stream.assert_cardinality(5).batch(2).build(**options(mode)) as feed:
        for _ in range(2):
            assert passed(feed) == [[0, 2], [4, 6], [8]]
        assert len(feed) == 3
    for count, text in ((4, "there are more elements than 4"), (6, "elements: 5, and not 6")):
        with stream.assert_cardinality(count).build(**options(mode)) as feed:
            seen = []
            with pytest.raises(penstock.DataLoss, match=text):
                for n in feed:
                    seen.append(int(n))
            assert seen == [0, 2, 4, 6, 8][:count]


def test_a_counted_stream_is_restored_at_every_element() -> None:
    dataset = Dataset.range(12).filter(lambda n: n % 3 != 0).assert_cardinality(8)
    with dataset.build(**options(INLINE)) as feed:
        states = [feed.state()]
        whole = []
        for n in feed:
            whole.append(int(n))
            states.append(feed.state())
    for at, state in enumerate(states[:-1]):
        with dataset.build(**options(INLINE)) as feed:
            feed.restore(json.loads(json.dumps(state)))
            assert passed(feed) == whole[at:]


def all_of_the_first_four(n: int) -> int:
    if n < 4:
        raise ValueError(f"bad {n}")
    return int(n)


@each(MODES, ())
def test_all_of_a_batch_is_as_many_losses_as_elements(mode: Mode) -> None:
    batches = Dataset.range(8).map(all_of_the_first_four).batch(4)
    stream = Dataset.range(8).map(all_of_the_first_four).filter(always).batch(4)
    for dataset in (
        batches,
        batches.map(as_it_is),
        batches.enumerate().map(lambda i, x: x),
        batches.concatenate(batches.skip(1)).take(2),
        Dataset.zip(batches, Dataset.range(2)).map(lambda x, i: x),
        batches.filter(always),
        stream.map(as_it_is),
    ):
        with dataset.build(on_error="skip", **options(mode)) as feed:
            assert numbers_of(passed(feed)) == [4, 5, 6, 7]
            losses = [reason for epoch, _, reason in feed.stats()["losses"] if epoch == 0]
            assert sorted(reason.split(": ")[-1] for reason in losses) == [
                f"bad {n}" for n in range(4)
            ]


@pytest.mark.parametrize("lost", [0, 1, 62, 63, 64, 127, 128, 129])
def test_a_loss_takes_no_place_wherever_it_is(lost: int) -> None:
    def fails_there(n: int) -> bool:
        if n == lost:
            raise ValueError("bad")
        return True

    stream = Dataset.range(130).map(as_it_is).filter(fails_there).on_error("skip")
    pairs = Dataset.zip(stream.map(as_it_is), Dataset.range(130))
    others = [n for n in range(130) if n != lost]
    for mode in MODES:
        with pairs.build(**options(mode)) as feed:
            assert passed(feed) == [[n, i] for i, n in enumerate(others)]

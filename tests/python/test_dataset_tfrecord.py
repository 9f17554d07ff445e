"""TFRecord files through whole chains: elements, and errors of damaged records."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest

import penstock
import tfrecord_functions as functions
from contract import INLINE, PROCESSES, SPAWN, THREADS, Mode, each, options
from penstock import Dataset

FILES, EACH = 4, 23
TOTAL = FILES * EACH
FEATURES = {"image": penstock.bytes(), "label": penstock.int64()}


def image(number):
    return bytes([number % 256]) * (number % 50 + 1)


def sample(number):
    return penstock.example({"image": image(number), "label": number})


def write(path, payloads):
    """A file, and the offset of each of its records."""
    with penstock.TFRecordWriter(path) as writer:
        places = [(writer.bytes_written, writer.write(payload))[0] for payload in payloads]
    return places


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for file in range(FILES):
        first = file * EACH
        write(folder / f"train-{file}.tfrecord", map(sample, range(first, first + EACH)))
    (folder / "notes.txt").write_text("no records")
    return folder


@pytest.fixture
def damaged(tmp_path):
    """40 samples: 7 has a wrong payload, 20 a wrong length, and the last one is truncated."""
    path = tmp_path / "damaged.tfrecord"
    places = write(path, map(sample, range(40)))
    data = bytearray(path.read_bytes())
    data[places[7] + 14] ^= 1
    data[places[20] + 1] ^= 1
    path.write_bytes(data[:-1])
    ends = [*places[1:], len(data) - 1]
    lost = [(n, places[n], ends[n] - places[n]) for n in (7, 20, 39)]
    return path, lost


def chain(folder, batch=8):
    return (
        Dataset.tfrecord(folder / "train-*.tfrecord")
        .shuffle(seed=7)
        .map(penstock.parse_example(FEATURES))
        .map(functions.decode_and_augment)
        .batch(batch, drop_last=True)
        .repeat(3)
        .prefetch(4)
    )


# ---- the chain -------------------------------------------------------------------------------


@each((INLINE, THREADS, PROCESSES), (SPAWN, Mode(3, "forkserver")))
def test_the_whole_chain_gives_every_sample_in_the_order_of_the_shuffle(folder, mode):
    """Against the order of plain numbers, and sums made here."""
    numbers = Dataset.range(TOTAL).shuffle(seed=7).batch(8, drop_last=True).repeat(3)
    with chain(folder).build(workers=0) as feed:
        expected = [batch["image"].tolist() for batch in feed]
    rounds = TOTAL // 8
    with chain(folder).build(**options(mode)) as feed, numbers.build(workers=0) as order:
        assert len(feed) == 3 * rounds
        seen = []
        for batch, wanted, images in zip(feed, order, expected, strict=True):
            assert batch["label"].tolist() == wanted.tolist()
            sums = [sum(image(number)) for number in wanted.tolist()]
            assert (np.abs(batch["image"] - sums - 0.5) <= 0.5).all()
            assert batch["image"].tolist() == images
            seen.append(batch["label"].tolist())
        assert feed.stats()["delivered"] == 3 * rounds
    for k in range(3):
        labels = [label for batch in seen[k * rounds : (k + 1) * rounds] for label in batch]
        assert len(set(labels)) == 8 * rounds
    assert seen[:rounds] != seen[rounds : 2 * rounds]


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
def test_the_chain_goes_on_from_any_batch(folder, mode):
    dataset = chain(folder, batch=16)
    with dataset.build(workers=0) as feed:
        expected = [(b["label"].tolist(), b["image"].tolist()) for b in feed]
    with dataset.build(**options(mode)) as feed, dataset.build(**options(mode)) as other:
        iterator = iter(feed)
        for place in range(len(expected)):
            if place % 4 == 1:
                other.restore(json.loads(json.dumps(feed.state())))
                rest = [(b["label"].tolist(), b["image"].tolist()) for b in other]
                assert rest == expected[place:]
            next(iterator)


@each((INLINE, THREADS, PROCESSES), ())
def test_records_come_as_bytes_file_after_file(folder, mode):
    names = ["train-2.tfrecord", "train-0.tfrecord"]
    with Dataset.tfrecord([folder / name for name in names]).build(**options(mode)) as feed:
        assert list(feed) == [sample(n) for n in (*range(46, 69), *range(23))]


def test_strings_of_a_batch_are_ragged(folder):
    dataset = Dataset.tfrecord(str(folder / "train-0*")).map(penstock.parse_example(FEATURES))
    (batch,) = dataset.batch(EACH).build(workers=1)
    assert batch["image"].to_list() == [image(n) for n in range(EACH)]
    assert batch["label"].tolist() == list(range(EACH))


def test_an_exception_of_the_function_names_its_sample(folder):
    dataset = Dataset.tfrecord(folder / "train-0.tfrecord").map(penstock.parse_example(FEATURES))
    dataset = dataset.map(functions.refuses_third).batch(4)
    with dataset.build(workers=2, start_method="fork") as feed:
        with pytest.raises(ValueError, match="no 3") as caught:
            list(feed)
        assert (caught.value.__cause__.epoch, caught.value.__cause__.index) == (0, 3)


# ---- damage ----------------------------------------------------------------------------------


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
def test_damage_is_an_error_at_its_place_that_names_file_record_and_byte(damaged, mode):
    path, [(record, byte, lost), *_] = damaged
    dataset = Dataset.tfrecord(path).map(penstock.parse_example(FEATURES))
    with dataset.map(functions.decode_and_augment).batch(5).build(**options(mode)) as feed:
        seen = []
        says = re.escape(f"{path}, record {record} at byte {byte} ({lost} bytes)")
        with pytest.raises(penstock.DataLoss, match=says):
            for batch in feed:
                seen.append(len(batch))
        assert len(seen) == 1
        assert feed.state()["batches"] == 1


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
@pytest.mark.parametrize("shuffled", [False, True])
def test_damage_is_skipped_with_exact_counts(damaged, mode, shuffled):
    path, lost = damaged
    dataset = Dataset.tfrecord(path)
    dataset = dataset.shuffle(seed=1) if shuffled else dataset
    dataset = dataset.map(penstock.parse_example(FEATURES)).map(functions.decode_and_augment)
    with dataset.batch(6).build(on_error="skip", **options(mode)) as feed:
        labels = [label for batch in feed for label in batch["label"].tolist()]
        stats = feed.stats()
    whole = [n for n in range(40) if n not in (7, 20, 39)]
    assert (sorted(labels) if shuffled else labels) == whole
    assert stats["skipped"] == 3
    assert stats["delivered"] == 7
    reasons = sorted(reason for _, _, reason in stats["losses"])
    assert len(reasons) == 3
    for record, byte, size in lost:
        assert any(f"{path}, record {record} at byte {byte} ({size} bytes)" in r for r in reasons)
    if not shuffled:
        assert [index for _, index, _ in stats["losses"]] == [7, 20, 39]


# ---- files that are not there ----------------------------------------------------------------


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
@pytest.mark.parametrize("name", ["train-*.tfrecord", "train.tfrecord"])
def test_no_file_is_an_error_that_names_what_was_asked_for(tmp_path, mode, name):
    dataset = Dataset.tfrecord(tmp_path / name).map(functions.bytes_of).batch(2)
    with pytest.raises(penstock.NotFound, match=re.escape(str(tmp_path / name))):
        dataset.build(**options(mode))
    with pytest.raises(penstock.NotFound):
        len(dataset)
    with pytest.raises(penstock.NotFound):
        iter(dataset)


def test_an_empty_list_of_files_is_refused_at_once():
    with pytest.raises(penstock.InvalidArgument, match="empty"):
        Dataset.tfrecord([])


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
def test_a_file_that_vanished_since_the_dataset_was_made_is_not_found(tmp_path, mode):
    path = tmp_path / "file"
    write(path, map(sample, range(5)))
    dataset = Dataset.tfrecord(path).map(functions.bytes_of).batch(2)
    os.remove(path)
    with pytest.raises(penstock.NotFound, match=re.escape(str(path))):
        dataset.build(**options(mode))


@each((INLINE, THREADS, PROCESSES), ())
def test_a_file_that_vanishes_while_it_is_read_is_read_on_or_not_found(tmp_path, mode):
    """Workers that have the file open keep it; for a worker that opens it later it is missing."""
    path = tmp_path / "file"
    write(path, map(sample, range(400)))
    with Dataset.tfrecord(path).map(functions.bytes_of).build(**options(mode)) as feed:
        seen, said = [], str(path)
        try:
            for size in feed:
                if not seen:
                    os.remove(path)
                seen.append(int(size))
        except penstock.NotFound as error:
            said = str(error)
    assert str(path) in said
    assert seen == [len(sample(n)) for n in range(len(seen) if said != str(path) else 400)]

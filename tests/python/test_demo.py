"""The demo's data set: real images with a fixed split, and an ordinary Keras Sequence."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock

WAYS = ("in line", "threads", "processes", "TFRecord", "native")
DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    pytest.importorskip("sklearn")
    sys.path.insert(0, str(DEMO))
    import digits

    folder = tmp_path_factory.mktemp("digits")
    digits.write_digits(folder)
    yield folder
    sys.path.remove(str(DEMO))


def test_every_image_is_written_once_and_in_one_part_only(images):
    import digits

    numbers = [file.stem for file in images.glob("*/*/*.png")]
    assert len(numbers) == len(set(numbers)) == 1797
    assert {path.parent.name for path in images.glob("*/*")} == {"train", "test"}
    for part, size in (("train", 1438), ("test", 359)):
        files, labels = digits.list_images(images / part)
        assert len(files) == len(labels) == size
        assert set(labels) == set(range(10))


def test_images_are_written_only_once(images):
    import digits

    stamp = (images / "done").stat().st_mtime_ns
    digits.write_digits(images)
    assert (images / "done").stat().st_mtime_ns == stamp


def test_batches_cover_the_epoch_and_augmentation_keeps_the_shape(images):
    import digits
    from sequence import DigitSequence

    files, labels = digits.list_images(images / "test")
    sequence = DigitSequence(files, labels, 100, augment=True)
    batches = [sequence[index] for index in range(len(sequence))]
    assert [len(x) for x, _ in batches] == [100, 100, 100, 59]
    assert sorted(np.concatenate([y for _, y in batches])) == sorted(labels)
    for x, _ in batches:
        assert x.dtype == np.float32
        assert x.shape[1:] == (64, 64, 1)
        assert x.min() >= 0
        assert x.max() <= 1


def test_augmentation_draws_afresh_each_time_and_plain_batches_do_not(images):
    import digits
    from sequence import DigitSequence

    files, labels = digits.list_images(images / "test")
    augmented = DigitSequence(files, labels, 8, augment=True)
    assert not np.array_equal(augmented[0][0], augmented[0][0])
    plain = DigitSequence(files, labels, 8)
    assert np.array_equal(plain[0][0], plain[0][0])


@pytest.fixture(scope="module")
def records(images):
    import digits
    from records import write_records

    path = images / "test.tfrecord"
    write_records(path, *digits.list_images(images / "test"))
    return path


def test_records_are_the_image_files_and_written_only_once(images, records):
    import digits
    from records import write_records

    files, labels = digits.list_images(images / "test")
    wanted = {"image": penstock.bytes(), "label": penstock.int64()}
    rows = penstock.Dataset.tfrecord(records).map(penstock.parse_example(wanted)).build(workers=0)
    for row, file, label in zip(rows, files, labels, strict=True):
        assert row["image"] == Path(file).read_bytes()
        assert row["label"] == label
    stamp = records.stat().st_mtime_ns
    write_records(records, files, labels)
    assert records.stat().st_mtime_ns == stamp


def test_the_pipeline_covers_the_epoch_with_batches_as_the_sequences(images, records):
    import digits
    from records import pipeline

    _, labels = digits.list_images(images / "test")
    orders = []
    with pipeline(records, 100, seed=7).build(workers=2, start_method="fork") as feed:
        for _ in range(2):
            batches = list(feed)
            assert [len(x) for x, _ in batches] == [100, 100, 100, 59]
            orders.append(np.concatenate([y for _, y in batches]).tolist())
            for x, _ in batches:
                assert x.dtype == np.float32
                assert x.shape[1:] == (64, 64, 1)
                assert x.min() >= 0
                assert x.max() <= 1
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(labels)


# Lines of the closing table. test_train_examples.py checks what hogwild, towers and server say.
LINES = {
    "population": r"30 networks, 30 steps each in [\d.]+ s \(\w+\); the best one: .* right",
    "actors": r"a pole balanced for \d+ steps, after 60 updates for \d+ of 200",
    "online": r"[\d,]+ values by MQTT; mean error \S+ at the beginning, \S+ at the end; .*",
    "loop": r"N = 20: \d+ us a step, loss .* of the unknown right",
    "predict": r"id \d+: a \d, taken for a \d, ...; \{.*'rows': 1797\}",
}


def check_line(row, line):
    assert re.fullmatch(LINES[row], line)
    if row == "online":
        first, last = map(float, re.findall(r"error ([\d.]+) at the beginning, ([\d.]+)", line)[0])
        assert last < 0.7 * first


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("row", LINES)
def test_an_example_makes_a_line_of_the_closing_table(images, row):
    """One example alone; in the slow tests, the whole demo runs all of them."""
    pytest.importorskip("torch" if row in ("population", "online") else "jax")
    import asynchronous

    check_line(row, asynchronous.ROWS[row]())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_demo_learns_and_ends_with_its_tables_and_a_report(tmp_path):
    for name in ("sklearn", "jax", "keras", "tqdm"):
        pytest.importorskip(name)
    report = tmp_path / "r.html"
    options = ["--workers", "2", "--data", tmp_path / "data", "--report", report]
    done = subprocess.run(
        [sys.executable, DEMO / "train.py", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "jax"},
    )
    said = done.stdout
    assert done.returncode == 0, done.stderr
    for name in WAYS:
        progress = rf"{name} +\d+/12 100% .* +\d+ images/s, waited +\d+%, accuracy +[\d.]+%"
        assert len(re.findall(progress, said)) == 12
        assert re.search(rf"^{name}: test accuracy [\d.]+%$", said, re.MULTILINE)
    table = said.partition("2 workers, batches of 32, epochs 2 to 12:\n\n")[2].splitlines()
    assert table[0].split() == ["fed", "ms", "per", "step", "waited", "speed-up", "accuracy"]
    for line, name in zip(table[1:6], WAYS, strict=True):
        assert re.fullmatch(rf"{name} +[\d.]+ +\d+% +\d+\.\d\d +[\d.]+%", line)
    assert float(table[1].split()[-2]) == 1  # in line is the reference
    assert f"what was the bottleneck: {report}" in said
    assert "penstock report</title>" in report.read_text(encoding="utf-8")
    rows = said.partition("Training without waiting (examples/train):\n\n")[2].splitlines()
    names = ["hogwild", "towers", "population", "server", "actors", "online", "loop", "predict"]
    assert [row.split()[0] for row in rows] == names
    lines = {row.split()[0]: re.fullmatch(r"\w+ +\d+\.\d s  (.+)", row)[1] for row in rows}
    if importlib.util.find_spec("torch") is None:
        assert lines.pop("population") == lines.pop("online") == "not run: it needs torch"
    for row in LINES.keys() & lines.keys():
        check_line(row, lines[row])


def test_the_engine_makes_batches_like_those_of_the_sequence(images):
    import digits
    from pictures import pictures

    dataset = pictures(images / "train", 32, digits.SIDE, seed=3)
    with dataset.build(workers=1) as feed:
        batches = list(feed)
    assert len(batches) == 45
    images_of, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    assert images_of.shape == (1438, digits.SIDE, digits.SIDE, 1)
    assert images_of.dtype == np.float32
    assert 0 <= images_of.min() < 0.1 < 0.9 < images_of.max() <= 1
    _, wanted = digits.list_images(images / "train")
    assert np.array_equal(np.bincount(labels), np.bincount(wanted))


def test_the_sequence_imports_neither_penstock_nor_a_framework():
    code = "import sys, sequence; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=DEMO, check=True, capture_output=True, text=True
    ).stdout
    assert "numpy" in loaded
    for name in ("penstock", "keras", "jax", "torch"):
        assert f"'{name}'" not in loaded

"""The tables of docs/dataset.md and docs/formats.md: rows do what is documented, and restore."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import penstock
from contract import INLINE, THREADS, check_checkpoints, options, passed
from image_files import encoded
from penstock import Dataset

ROOT = Path(__file__).resolve().parents[2]
WORDS = [b"one", b"three", b"seventeen", b""]
NUMBERS = list(range(12))
# Two grey pixels, 10 and 20.
PIXELS = encoded(np.uint8([[10, 20]]), "PNG")


def rows() -> list[tuple[str, str]]:
    """The first two columns of the tables: the names in Python and in C++."""
    text = (ROOT / "docs" / "dataset.md").read_text(encoding="utf-8")
    found = []
    for table in re.findall(r"^\| Python \| C\+\+ \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M):
        found += [line.split(" | ")[:2] for line in table.splitlines()]
    assert len(found) > 40, "the tables are not where they were"
    return [(python.removeprefix("| "), cpp) for python, cpp in found]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# ---- a small chain for each, and what it gives ---------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    with penstock.TFRecordWriter(folder / "words.tfrecord") as writer:
        for word in WORDS:
            writer.write(word)
    (folder / "words.txt").write_bytes(b"".join(word + b"\n" for word in WORDS))
    (folder / "table.csv").write_text("n,name\n1,one\n2,\n3,three\n")
    passed(TWELVE.map(half).cache(folder / "halves"))
    with penstock.TarWriter(folder / "samples.tar") as writer:
        for n in range(3):
            writer.write({"__key__": str(n), "txt": b"text", "cls": bytes([n])})
    np.save(folder / "x.npy", np.arange(6).reshape(3, 2))
    np.savez(folder / "xy.npz", x=[1, 2], y=[3, 4])
    with h5py.File(folder / "rows.h5", "w") as file:
        more = {"chunks": (2, 2), "compression": "gzip"}
        file.create_dataset("X", data=np.arange(10).reshape(5, 2), **more)
        file["Y"] = np.arange(5)
    table = pyarrow.table({"n": range(5), "text": list("abcde")})
    pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=2)
    (folder / "fixed.bin").write_bytes(bytes(range(8)))
    (folder / "images.idx").write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 3, 0, 0, 0, 2, *range(6)]))
    (folder / "labels.idx").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    (folder / "cifar10.bin").write_bytes(b"".join(bytes([n, *[n] * 3072]) for n in range(4)))
    (folder / "cifar100.bin").write_bytes(b"".join(bytes([n, 9, *[n] * 3072]) for n in range(4)))
    for name in ("cat", "dog"):
        (folder / "classes" / name).mkdir(parents=True)
        (folder / "classes" / name / "0.png").write_bytes(PIXELS)
    return folder


def without_path(element: Any) -> Any:
    return {name: value for name, value in element.items() if name != "path"}


def counted():
    yield from range(5)


def half(n: Any) -> Any:
    return n // 2


def is_odd(n: Any) -> bool:
    return bool(n % 2)


def is_low(n: Any) -> bool:
    return bool(n < 7)


def below(n: Any) -> Dataset:
    return Dataset.range(int(n))


def summed(carry: Any, n: Any) -> Any:
    return carry + n, carry + n


def as_long(n: Any) -> Any:
    return np.full(int(n) % 3 + 1, n)


def example(n: Any) -> bytes:
    return penstock.example({"n": int(n)})


def sequence(n: Any) -> bytes:
    # context: n; feature list "l": one step of [n]; by the wire format of tf.SequenceExample
    feature = bytes([0x1A, 3, 0x0A, 1, int(n)])
    entry = b"\x0a\x01n\x12" + bytes([len(feature)]) + feature
    context = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
    steps = b"\x0a" + bytes([len(feature)]) + feature
    named = b"\x0a\x01l\x12" + bytes([len(steps)]) + steps
    lists = b"\x12" + bytes([len(named) + 2]) + b"\x0a" + bytes([len(named)]) + named
    return context + lists


def raw(n: Any) -> dict[str, bytes]:
    return {"raw": bytes([int(n), 0])}


TWELVE = Dataset.range(12)
FIVE = Dataset.range(5)
TENS = Dataset.range(0, 50, 10)


# Properties of a Dataset, and the values of this one.
ASKED: dict[str, Any] = {
    "cardinality()": lambda: FIVE.cardinality() == 5,
    "build(**options)": lambda: isinstance(FIVE.build(workers=0), penstock.Loader),
    "feeds(n, **options)": lambda: len(FIVE.feeds(2, workers=0)) == 2,
}


def permuted(pass_: list[Any]) -> bool:
    return sorted(pass_) == NUMBERS and pass_ != NUMBERS


# By the Python cell's text: the chain (for files a function of their folder), and the elements of a
# pass (or a check of them).
CHAINS: dict[str, tuple[Any, Any]] = {
    "Dataset.range(begin, end, step)": (Dataset.range(3, 15, 4), [3, 7, 11]),
    "Dataset.arrays(nest)": (
        Dataset.arrays({"x": np.arange(3), "y": np.arange(6).reshape(3, 2)}),
        [{"x": 0, "y": [0, 1]}, {"x": 1, "y": [2, 3]}, {"x": 2, "y": [4, 5]}],
    ),
    "Dataset.source(object)": (Dataset.source([10, 20, 30]), [10, 20, 30]),
    "Dataset.items(list)": (Dataset.items([1.5, 2.5]), [1.5, 2.5]),
    "Dataset.tfrecord(files)": (lambda at: Dataset.tfrecord(at / "words.tfrecord"), WORDS),
    "Dataset.lines(files)": (
        lambda at: Dataset.lines(at / "words.txt"),
        [word.decode() for word in WORDS],
    ),
    "Dataset.csv(files, columns)": (
        lambda at: Dataset.csv(
            at / "table.csv",
            {"n": "int64", "name": (bytes, b"?")},
        ),
        [{"n": 1, "name": b"one"}, {"n": 2, "name": b"?"}, {"n": 3, "name": b"three"}],
    ),
    "Dataset.fixed_records(files, n)": (
        lambda at: Dataset.fixed_records(at / "fixed.bin", 4),
        [[0, 1, 2, 3], [4, 5, 6, 7]],
    ),
    "Dataset.idx(images, labels)": (
        lambda at: Dataset.idx(at / "images.idx", at / "labels.idx"),
        [
            {"image": [0, 1], "label": 7},
            {"image": [2, 3], "label": 8},
            {"image": [4, 5], "label": 9},
        ],
    ),
    "Dataset.cifar10(files)": (
        lambda at: Dataset.cifar10(at / "cifar10.bin"),
        [{"image": np.full((3, 32, 32), n).tolist(), "label": n} for n in range(4)],
    ),
    "cifar100(files)": (
        lambda at: Dataset.cifar100(at / "cifar100.bin"),
        [
            {"image": np.full((3, 32, 32), n).tolist(), "label": 9, "coarse_label": n}
            for n in range(4)
        ],
    ),
    "Dataset.tar(files, fields=None)": (
        lambda at: Dataset.tar(at / "samples.tar"),
        [{"__key__": str(n), "txt": b"text", "cls": bytes([n])} for n in range(3)],
    ),
    "Dataset.npy(path)": (lambda at: Dataset.npy(at / "x.npy"), [[0, 1], [2, 3], [4, 5]]),
    "npy({name: path})": (
        lambda at: Dataset.npy({"x": at / "x.npy"}),
        [{"x": [0, 1]}, {"x": [2, 3]}, {"x": [4, 5]}],
    ),
    "Dataset.npz(path)": (
        lambda at: Dataset.npz(at / "xy.npz"),
        [{"x": 1, "y": 3}, {"x": 2, "y": 4}],
    ),
    "Dataset.arrow(table)": (
        Dataset.arrow(pyarrow.table({"n": [1, 2], "text": ["one", "two"]})),
        [{"n": 1, "text": "one"}, {"n": 2, "text": "two"}],
    ),
    "Dataset.hdf5(file, names)": (
        lambda at: Dataset.hdf5(at / "rows.h5", {"x": "X", "y": "Y"}),
        [{"x": [2 * n, 2 * n + 1], "y": n} for n in range(5)],
    ),
    "Dataset.parquet(files, columns=None)": (
        lambda at: Dataset.parquet(at / "rows.parquet"),
        [{"n": n, "text": "abcde"[n]} for n in range(5)],
    ),
    "Dataset.files(paths, labels=)": (
        lambda at: Dataset.files([at / "fixed.bin"], labels=[3]).map(without_path),
        [{"bytes": bytes(range(8)), "label": 3}],
    ),
    "Dataset.image_folder(root)": (
        lambda at: Dataset.image_folder(at / "classes").map(without_path),
        [{"image": PIXELS, "label": n} for n in range(2)],
    ),
    "Dataset.snapshot(path)": (
        lambda at: Dataset.snapshot(at / "halves"),
        [n // 2 for n in NUMBERS],
    ),
    "Dataset.generator(function, streams=None)": (Dataset.generator(counted), list(range(5))),
    "Dataset.zip(a, b)": (Dataset.zip(FIVE, TENS), [[n, 10 * n] for n in range(5)]),
    "zip(x=a, y=b)": (Dataset.zip(x=FIVE, y=TENS), [{"x": n, "y": 10 * n} for n in range(5)]),
    "Dataset.sample_from(inputs, weights=)": (
        Dataset.sample_from([FIVE, TENS], weights=[1, 0]),
        list(range(5)),
    ),
    "Dataset.choose_from(choices, inputs)": (
        Dataset.choose_from(Dataset.items([1, 0, 1]), [FIVE, TENS]),
        [0, 0, 10],
    ),
    "Dataset.interleave(inputs, cycle=c, block=b)": (
        Dataset.interleave([FIVE, TENS], cycle=2, block=2),
        [0, 1, 0, 10, 2, 3, 20, 30, 4, 40],
    ),
    "map(function)": (TWELVE.map(half), [n // 2 for n in NUMBERS]),
    "map(penstock.parse_example(features))": (
        FIVE.map(example).map(penstock.parse_example({"n": penstock.int64()})),
        [{"n": n} for n in range(5)],
    ),
    "map(penstock.parse_sequence_example(context, sequences))": (
        FIVE.map(sequence).map(
            penstock.parse_sequence_example({"n": penstock.int64()}, {"l": penstock.int64()})
        ),
        lambda all_: [element["n"] for element in all_] == list(range(5)),
    ),
    'map(penstock.normalize(mean, std, fields="image"))': (
        Dataset.arrays(
            {"image": np.arange(6, dtype=np.uint8).reshape(3, 2), "label": np.uint8([7, 8, 9])}
        ).map(penstock.normalize(1, 2, fields="image")),
        [
            {"image": [-0.5, 0.0], "label": 7},
            {"image": [0.5, 1.0], "label": 8},
            {"image": [1.5, 2.0], "label": 9},
        ],
    ),
    'map(penstock.cast(dtype, fields="image"))': (
        Dataset.zip(image=FIVE, label=TENS).map(penstock.cast("bool", fields="image")),
        [{"image": n > 0, "label": 10 * n} for n in range(5)],
    ),
    "map(penstock.decode_raw(field, dtype, shape))": (
        FIVE.map(raw).map(penstock.decode_raw("raw", "<u2", ())),
        [{"raw": n} for n in range(5)],
    ),
    'map(penstock.select("image", "label"))': (
        Dataset.zip(label=TENS, image=FIVE).map(penstock.select("image", "label")),
        [[n, 10 * n] for n in range(5)],
    ),
    "map(penstock.image.decode())": (
        Dataset.items([{"image": PIXELS}]).map(penstock.image.decode()),
        [{"image": [[[10, 10, 10], [20, 20, 20]]]}],
    ),
    "map(penstock.image.resize(h, w))": (
        Dataset.arrays({"image": np.full((2, 3, 3), 7, np.uint8)}).map(penstock.image.resize(1, 2)),
        [{"image": [[7, 7]]}] * 2,
    ),
    "batch(n, drop_last=False)": (FIVE.batch(2), [[0, 1], [2, 3], [4]]),
    "padded_batch(n, shapes=, values=)": (
        FIVE.map(as_long).padded_batch(2, shapes={"": (3,)}, values={"": -1}),
        [[[0, -1, -1], [1, 1, -1]], [[2, 2, 2], [3, -1, -1]], [[4, 4, -1]]],
    ),
    "ragged_batch(n)": (
        FIVE.map(as_long).ragged_batch(2),
        [[[0], [1, 1]], [[2, 2, 2], [3]], [[4, 4]]],
    ),
    "window(size, shift=, stride=, drop_last=False)": (
        FIVE.window(2, shift=1, stride=2),
        [[0, 2], [1, 3], [2, 4], [3], [4]],
    ),
    "unbatch()": (FIVE.batch(2).unbatch(), list(range(5))),
    "rebatch(n)": (FIVE.batch(2).rebatch(3), [[0, 1, 2], [3, 4]]),
    "shuffle(seed=s, reshuffle=True)": (TWELVE.shuffle(seed=3), permuted),
    "shuffle(block=n, window=w)": (TWELVE.shuffle(seed=3, block=3, window=2), permuted),
    "shuffle(buffer=n)": (TWELVE.shuffle(seed=3, buffer=4), permuted),
    "filter(predicate)": (TWELVE.filter(is_odd), [1, 3, 5, 7, 9, 11]),
    "take_while(predicate)": (TWELVE.take_while(is_low), list(range(7))),
    "unique(key=function)": (TWELVE.unique(key=half), [0, 2, 4, 6, 8, 10]),
    'bucket_by_length(boundaries, sizes, field="tokens")': (
        Dataset.zip(tokens=FIVE.map(as_long)).bucket_by_length([2], [2, 2], field="tokens"),
        lambda all_: sorted(batch["tokens"][0][0] for batch in all_) == [0, 1, 4],
    ),
    "scan(function, initial)": (FIVE.scan(summed, 0), [0, 1, 3, 6, 10]),
    "flat_map(function)": (FIVE.flat_map(below), [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]),
    "interleave(function, cycle=c, block=b)": (
        Dataset.items([2, 3]).interleave(below, cycle=2, block=1),
        [0, 0, 1, 1, 2],
    ),
    "cache(path)": (lambda at: TWELVE.map(half).cache(at / "kept"), [n // 2 for n in NUMBERS]),
    "cache(max_bytes=)": (lambda _: TWELVE.map(half).cache(), [n // 2 for n in NUMBERS]),
    "split_batch(n)": (
        Dataset.range(6).batch(3).split_batch(2),
        [[[0, 1], [2]], [[3, 4], [5]]],
    ),
    "take(n)": (TWELVE.take(3), [0, 1, 2]),
    "skip(n)": (TWELVE.skip(9), [9, 10, 11]),
    'shard(rank, world, remainder="keep")': (TWELVE.shard(1, 5), [1, 6, 11]),
    "repeat(n)": (Dataset.range(2).repeat(2), [0, 1, 0, 1]),
    "repeat()": (FIVE.repeat().take(7), [0, 1, 2, 3, 4, 0, 1]),
    "concatenate(other)": (Dataset.range(2).concatenate(TENS), [0, 1, 0, 10, 20, 30, 40]),
    "enumerate(start=0)": (TENS.enumerate(start=3), [[3 + n, 10 * n] for n in range(5)]),
    "on_error(policy)": (FIVE.map(half).on_error("skip"), [0, 0, 1, 1, 2]),
    "assert_cardinality(n)": (FIVE.assert_cardinality(5), list(range(5))),
    "prefetch(n)": (FIVE.prefetch(2), list(range(5))),
}


def test_every_row_has_a_chain_here():
    assert {code for python, _ in rows() for code in codes(python)} == {*CHAINS, *ASKED}


@pytest.mark.parametrize("row", ASKED)
def test_a_dataset_gives_what_it_is_asked_for(row):
    assert ASKED[row]()


@pytest.mark.parametrize("row", rows(), ids=lambda row: re.sub(r"[`| ]", "", row[0]))
def test_a_row_names_what_there_is(row):
    python, cpp = row
    headers = "\n".join(path.read_text() for path in sorted((ROOT / "penstock").rglob("*.h")))
    for code in codes(python):
        *_, operation = ["", *re.findall(r"penstock\.(?:image\.)?(\w+)", code)]
        name = operation or code.removeprefix("Dataset.").split("(")[0]
        home = penstock.image if "penstock.image" in code else penstock
        assert hasattr(home if operation else Dataset, name), code
        if cpp.startswith("the same"):
            assert re.search(rf"\b{name}\(", headers), name
    for code in codes(cpp):
        for name in re.findall(r"\w+", re.sub(r"\(.*|\{.*", "", code)):
            assert re.search(rf"\b{name}\b", headers), f"{code}: no {name} in C++"


@pytest.mark.parametrize("row", CHAINS, ids=str)
def test_a_row_is_what_it_says_and_restores_at_every_element(row, files):
    chain, wanted = CHAINS[row]
    dataset = chain(files) if callable(chain) else chain
    with dataset.build(**options(THREADS)) as feed:
        pass_ = passed(feed)
    assert wanted(pass_) if callable(wanted) else pass_ == wanted

    def make(**settings: Any) -> penstock.Loader:
        return dataset.build(**{"use_multiprocessing": False, **settings})

    if row != "repeat(n)":  # its rounds are the feed's epochs: test_dataset.py
        check_checkpoints(make, INLINE, (INLINE, THREADS))


# ---- the table of docs/formats.md ----------------------------------------------------------------

# What makes elements of memory or of other Datasets, not of a format.
OTHER_SOURCES = {
    "arrays", "choose_from", "concatenate", "generator", "interleave", "items", "range",
    "sample_from", "source", "zip",
}  # fmt: skip


def formats() -> list[list[str]]:
    """The cells of the rows: what, Python, C++, tested against."""
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    table = text.split("| | Python | C++ | tested against |\n|---|---|---|---|\n")[1].split("\n\n")[
        0
    ]
    found = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return [cells for cells in found if not cells[0].startswith("**")]


def test_every_format_and_operation_is_in_the_table():
    named = {code.removeprefix("penstock.") for cells in formats() for code in codes(cells[1])}
    operations = {f"image.{name}" for name in penstock.image.__all__}
    sources = {
        f"Dataset.{name}"
        for name, made in inspect.getmembers(Dataset, inspect.ismethod)
        if not name.startswith("_") and name not in OTHER_SOURCES
    }
    others = {
        "Dataset.cache", "TFRecordWriter", "TarWriter", "keras.ImageDataGenerator", "remote_files",
        "write",
    }  # fmt: skip
    assert named == operations | sources | others


@pytest.mark.parametrize("cells", formats(), ids=lambda cells: cells[0])
def test_a_format_has_its_names_in_both_languages(cells):
    _, python, cpp, against = cells
    headers = "\n".join(path.read_text() for path in sorted((ROOT / "penstock").rglob("*.h")))
    names = [code.removeprefix("penstock.") for code in codes(python)]
    for name in names:
        if name == "keras.ImageDataGenerator":  # needs Keras
            assert "class ImageDataGenerator" in (
                ROOT / "python" / "penstock" / "keras" / "image_generator.py"
            ).read_text(encoding="utf-8")
            continue
        home: Any = penstock
        for part in name.split("."):
            home = getattr(home, part)
    if cpp.startswith(("Python only", "the same")):
        assert not codes(cpp)
    else:
        last = [re.findall(r"\w+", code)[-1] for code in codes(cpp)]
        assert all(re.search(rf"\b{name}\b", headers) for name in last)
        if "nodes::" not in cpp:
            assert len(last) == len(names)
            assert all(name.split(".")[-1] in its for name, its in zip(names, last, strict=True))
    assert against

"""penstock.write: what is read again is what was written, in every format, or there is no file."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest

import penstock
from image_files import encoded, picture
from penstock import Dataset, image

COUNT = 50


def rows() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "x": random.integers(0, 256, (COUNT, 4, 3), np.uint8),
        "n": np.arange(COUNT) - 7,
        "f": random.normal(size=COUNT).astype(np.float32),
    }


def twice(row):
    return {**row, "n": row["n"] * 2}


INLINE = {"workers": 0}


def test_worker_processes_make_the_elements(tmp_path):
    dataset = Dataset.arrays(rows()).map(twice)
    assert penstock.write(dataset, tmp_path / "r.npz", workers=2, use_multiprocessing=True) == COUNT
    with np.load(tmp_path / "r.npz") as loaded:
        assert np.array_equal(loaded["n"], rows()["n"] * 2)


def test_rows_come_back_from_every_format(tmp_path):
    data = rows()
    dataset = Dataset.arrays(data).map(twice)
    data["n"] = data["n"] * 2
    for name in ("r.tfrecord", "r.tfrecord.gz", "r.npz", "r.parquet"):
        assert penstock.write(dataset, tmp_path / name, **INLINE) == COUNT
    for name in ("r.tfrecord", "r.tfrecord.gz"):
        features = {"x": penstock.bytes(12), "n": penstock.int64(), "f": penstock.float32()}
        parsed = Dataset.tfrecord(tmp_path / name).map(penstock.parse_example(features))
        made = list(parsed)
        assert np.array_equal([row["x"] for row in made], data["x"].reshape(COUNT, 12))
        assert np.array_equal([row["n"] for row in made], data["n"])
        assert np.array_equal([row["f"] for row in made], data["f"])
    with np.load(tmp_path / "r.npz") as loaded:
        assert all(np.array_equal(loaded[key], data[key]) for key in data)
    read = list(Dataset.parquet(tmp_path / "r.parquet"))
    assert all(np.array_equal([row[key] for row in read], data[key]) for key in data)
    assert sorted(os.listdir(tmp_path)) == ["r.npz", "r.parquet", "r.tfrecord", "r.tfrecord.gz"]


def test_numbers_and_text_come_back_from_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    data = {**rows(), "deep": {"yes": np.arange(COUNT) % 3 == 0, "z": np.arange(COUNT) * 1j}}
    texts = [f"text {i} \u00e9" for i in range(COUNT)]
    dataset = Dataset.zip(a=Dataset.arrays(data), text=Dataset.items(texts))
    for name in ("r.h5", "r.HDF5"):
        assert penstock.write(dataset.take(COUNT - 1), tmp_path / name, **INLINE) == COUNT - 1
    with h5py.File(tmp_path / "r.h5") as file:
        assert file["a/x"].dtype == np.uint8
        assert file["a/x"].compression == "gzip"
        assert np.array_equal(file["a/x"], data["x"][:-1])
        assert [text.decode() for text in file["text"]] == texts[:-1]
    names = {"x": "a/x", "n": "a/n", "yes": "a/deep/yes", "z": "a/deep/z"}
    (batch,) = Dataset.hdf5(tmp_path / "r.HDF5", names).batch(COUNT).build(workers=0)
    assert np.array_equal(batch["x"], data["x"][:-1])
    assert np.array_equal(batch["n"], data["n"][:-1])
    assert np.array_equal(batch["yes"], data["deep"]["yes"][:-1])
    assert np.array_equal(batch["z"], data["deep"]["z"][:-1])


@pytest.mark.parametrize(("rows", "shape"), [(600, ()), (600, (3,)), (20, (300, 300))], ids=str)
def test_many_rows_of_hdf5_are_in_several_chunks(tmp_path, rows, shape):
    h5py = pytest.importorskip("h5py")
    values = np.arange(float(rows)).reshape(-1, *(1 for _ in shape))
    values = np.broadcast_to(values, (rows, *shape))
    penstock.write(Dataset.arrays({"x": values}), tmp_path / "r.h5", **INLINE)
    with h5py.File(tmp_path / "r.h5") as file:
        assert 1 <= file["x"].chunks[0] < min(rows, 257)
        assert file["x"].shape == values.shape
        assert np.array_equal(file["x"], values)


@pytest.mark.parametrize("values", [[b"x"], [np.zeros(0)], [np.zeros(1), np.zeros(2)]], ids=str)
def test_what_hdf5_does_not_hold_is_refused(tmp_path, values):
    pytest.importorskip("h5py")
    dataset = Dataset.items([{"x": value} for value in values])
    with pytest.raises(penstock.InvalidArgument, match="'x'"):
        penstock.write(dataset, tmp_path / "r.h5", **INLINE)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz", "R.ZIP", "r.jsonl"])
def test_a_name_of_another_format_is_refused(tmp_path, name):
    with pytest.raises(penstock.InvalidArgument, match=r"not named as a format .* \.parquet"):
        penstock.write(Dataset.arrays(rows()), tmp_path / name)
    assert not os.listdir(tmp_path)


def test_one_array_as_npy_and_idx(tmp_path):
    x = rows()["x"]
    assert penstock.write(Dataset.arrays(x), tmp_path / "x.npy") == COUNT
    assert np.array_equal(np.load(tmp_path / "x.npy"), x)
    wide = x.astype(np.int32) - 100_000
    penstock.write(Dataset.arrays({"a": wide}), tmp_path / "x-idx3-int.gz")
    data = gzip.decompress((tmp_path / "x-idx3-int.gz").read_bytes())
    assert data[:4] == b"\0\0\x0c\x03"
    shape = np.frombuffer(data, ">u4", 3, 4)
    assert np.array_equal(np.frombuffer(data, ">i4", offset=16).reshape(shape), wide)
    made = list(Dataset.idx(tmp_path / "x-idx3-int.gz"))
    assert np.array_equal(made, wide)


def test_records_that_are_bytes_stay_as_they_are(tmp_path):
    payloads = [os.urandom(i) for i in range(30)]
    with penstock.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for payload in payloads:
            writer.write(payload)
    data = Dataset.tfrecord(tmp_path / "a.tfrecord")
    assert penstock.write(data, tmp_path / "b.tfrecord") == 30
    assert (tmp_path / "b.tfrecord").read_bytes() == (tmp_path / "a.tfrecord").read_bytes()
    kept = data.filter(lambda record: len(record) % 2 == 0)
    assert penstock.write(kept, tmp_path / "b.tfrecord", **INLINE) == 15  # replaces the file
    assert [bytes(r) for r in Dataset.tfrecord(tmp_path / "b.tfrecord")] == payloads[::2]


def test_a_folder_of_images_becomes_a_small_archive(tmp_path):
    for number in range(6):
        (tmp_path / "images" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        place = tmp_path / "images" / f"{number % 2}" / f"{number}.jpg"
        place.write_bytes(encoded(picture(60, 40, seed=number)))
    folder = Dataset.image_folder(tmp_path / "images")
    small = folder.map(image.decode()).map(image.resize(16, 16)).map(image.encode("png"))
    named = small.map(lambda row: {"png": row["image"], "cls": row["label"]})
    assert penstock.write(named, tmp_path / "small.tar", **INLINE) == 6
    made = list(Dataset.tar(tmp_path / "small.tar"))
    assert [sample["__key__"] for sample in made] == [f"{i:09}" for i in range(6)]
    assert [int(bytes(sample["cls"])) for sample in made] == [0, 0, 0, 1, 1, 1]
    back = Dataset.tar(tmp_path / "small.tar").map(image.decode(fields="png"))
    plain = folder.map(image.decode()).map(image.resize(16, 16))
    for one, two in zip(back, plain, strict=True):
        assert np.array_equal(one["png"], two["image"])


def test_tuples_and_strings(tmp_path):
    pairs = Dataset.items([(f"text {i}", i) for i in range(9)])
    penstock.write(pairs, tmp_path / "p.parquet")
    assert [(r["0"], int(r["1"])) for r in Dataset.parquet(tmp_path / "p.parquet")] == [
        (f"text {i}", i) for i in range(9)
    ]
    penstock.write(Dataset.items(["a", "b"]), tmp_path / "s.parquet")
    assert [row["value"] for row in Dataset.parquet(tmp_path / "s.parquet")] == ["a", "b"]


def failing(row):
    if row["n"] == 20:
        raise ZeroDivisionError("20")
    return row


def test_after_an_error_there_is_what_was_there_before(tmp_path):
    dataset = Dataset.arrays(rows()).map(failing)
    for name in ("a.tfrecord", "a.npz", "a.parquet"):
        with pytest.raises(ZeroDivisionError):
            penstock.write(dataset, tmp_path / name, **INLINE)
        assert os.listdir(tmp_path) == []
    (tmp_path / "a.npz").write_bytes(b"before")
    with pytest.raises(ZeroDivisionError):
        penstock.write(dataset, tmp_path / "a.npz", **INLINE)
    assert (tmp_path / "a.npz").read_bytes() == b"before"
    assert penstock.write(dataset, tmp_path / "a.npz", on_error="skip", **INLINE) == COUNT - 1


def growing(i):
    return {"x": np.zeros(3 if i < 5 else 4)}


@pytest.mark.parametrize(
    ("make", "name", "why"),
    [
        (lambda: [1, 2], "a.npy", "a list; give a Dataset"),
        (lambda: Dataset.range(9).batch(3), "a.npy", r"batches; write what is in front of batch"),
        (lambda: Dataset.range(9).repeat(), "a.npy", "endless"),
        (lambda: Dataset.range(0).map(growing), "a.npy", "no element"),
        (lambda: Dataset.arrays(rows()), "a.npy", "has one array, and there are the columns"),
        (
            lambda: Dataset.items([{"x": np.zeros(2), "x.npy": b""}]),
            "a.tar",
            "two of the fields would be one file",
        ),
        (lambda: Dataset.arrays(rows()["n"]), "a.idx", "an IDX file has uint8"),
        (lambda: Dataset.items(["a"]), "a.npy", "an array has numbers"),
        (lambda: Dataset.range(9).map(growing), "a.npy", r"element 5: 'x' is float64 \(4,\)"),
        (lambda: Dataset.range(9).map(growing), "a.npz", "equally many numbers in each row"),
        (
            lambda: Dataset.range(9).map(growing),
            "a.parquet",
            r"a\.parquet, elements 0 to 8: .*expected 3",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(make, name, why, tmp_path):
    with pytest.raises(penstock.InvalidArgument, match=why):
        penstock.write(make(), tmp_path / name, **INLINE)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_absent_is_an_error(tmp_path):
    for name in ("a.tfrecord", "a.npy", "a.parquet", "a.tar"):
        data = Dataset.items([b"x"]) if name.startswith("a.t") else Dataset.range(3)
        with pytest.raises((penstock.NotFound, penstock.System)):
            penstock.write(data, tmp_path / "no" / name)

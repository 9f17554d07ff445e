"""``penstock inspect``, ``verify`` and ``convert``: arrays, HDF5, folders of images, snapshots."""

from __future__ import annotations

import io
import json
import os
import struct

import numpy as np
import pytest

import penstock
from image_files import encoded
from penstock import Dataset
from program import run


@pytest.fixture
def arrays(tmp_path):
    """A file of each format of arrays, and a folder of images; 6 rows each."""
    h5py = pytest.importorskip("h5py")
    x = np.arange(24, dtype=np.int32).reshape(6, 4)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "xy.npz", x=x, y=np.arange(6))
    header = bytes([0, 0, 12, 2]) + struct.pack(">2I", 6, 4)
    (tmp_path / "x.idx").write_bytes(header + x.astype(">i4").tobytes())
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("in/x", data=x, chunks=(2, 4), compression="gzip", fletcher32=True)
        file["y"] = np.arange(6.0)
        file["other"] = np.arange(2)
    for i in range(6):
        folder = tmp_path / "photos" / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((5, 4, 3), i, np.uint8)
        (folder / f"{i}.png").write_bytes(encoded(pixels, "PNG"))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("x.npy", {"-": "int32 (4,)"}),
        ("xy.npz", {"x": "int32 (4,)", "y": "int64"}),
        ("x.idx", {"-": "int32 (4,)"}),
        ("x.h5", {"in/x": "int32 (4,)", "y": "float64"}),
        ("photos", {"image": "uint8 (None, None, 3)", "label": "int64", "path": "str"}),
    ],
)
def test_arrays_and_images_are_inspected_and_verified(arrays, name, columns, capsys):
    path = arrays / name
    code, out, _ = run(capsys, "inspect", path)
    assert code == 0
    call = out.strip().splitlines()[-1]
    assert len(eval(call, {"penstock": penstock})) == 6  # the printed call reads it
    code, out, _ = run(capsys, "inspect", "--json", path)
    (found,) = json.loads(out)["files"]
    assert (found["records"], found["lost_places"], found["columns"]) == (6, 0, columns)
    code, out, _ = run(capsys, "verify", path)
    assert code == 0
    assert "1 file, 6 rows" in out
    assert "every row is read" in out


def test_damage_in_arrays_and_images_is_listed(arrays, capsys):
    image = arrays / "photos" / "class1" / "3.png"
    image.write_bytes(image.read_bytes()[:40])
    code, out, _ = run(capsys, "verify", arrays / "photos")
    assert code == 1
    assert "3.png" in out
    assert "record 4: " in out
    assert "1 damaged place in 1 of 1 file, 0 bytes lost; 5 rows sound" in out
    with open(arrays / "x.h5", "r+b") as file:
        data = file.read()
        file.seek(data.index(b"\x78\x5e"))  # the first compressed chunk
        file.write(bytes(4))
    code, out, _ = run(capsys, "verify", arrays / "x.h5")
    assert code == 1
    assert "2 damaged places" in out
    for name in ("x.npy", "xy.npz", "x.idx"):
        path = arrays / name
        path.write_bytes(path.read_bytes()[:-30])
        code, out, _ = run(capsys, "verify", path)
        assert code == 1
        assert "1 damaged place" in out
        assert "0 rows sound" in out
        assert run(capsys, "inspect", path)[0] == 0


def from_tar(path, name):
    """The arrays of a field of an archive, by the rules of WebDataset."""
    samples = list(Dataset.tar(path).build(workers=0))
    if name.endswith(".npy"):
        return [np.load(io.BytesIO(sample[name]), allow_pickle=False) for sample in samples]
    return [int(sample[name]) for sample in samples]


def test_arrays_become_samples_of_an_archive(tmp_path, capsys):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (10, 3, 4)).astype(np.uint8)
    weight = random.random(10).astype(np.float32)
    np.savez(tmp_path / "train.npz", image=images, label=np.arange(10), weight=weight)
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", *images.shape)
    (tmp_path / "image.idx").write_bytes(header + images.tobytes())
    np.save(tmp_path / "image.npy", images)
    for number, name in enumerate(["train.npz", "image.idx", "image.npy"]):
        out = tmp_path / f"{number}.tar"
        assert run(capsys, "convert", tmp_path / name, out)[0] == 0
        assert np.array_equal(from_tar(out, "image.npy"), images)
        assert from_tar(out, "image.npy")[0].dtype == np.uint8
    assert from_tar(tmp_path / "0.tar", "label") == list(range(10))
    read = from_tar(tmp_path / "0.tar", "weight.npy")
    assert [(one.shape, one.dtype) for one in read] == [((), np.float32)] * 10
    assert np.array_equal(read, weight)


@pytest.mark.parametrize("output", ["out.npz", "out.h5", "out.parquet", "out.tfrecord"])
def test_arrays_come_back_from_an_archive(tmp_path, output, capsys):
    random = np.random.default_rng(0)
    data = {
        "image": random.integers(0, 256, (10, 3, 4)).astype(np.uint8),
        "label": np.arange(10) - 3,
        "weight": random.random((10, 2)).astype(np.float32),
    }
    np.savez(tmp_path / "in.npz", **data)
    out = tmp_path / output
    assert run(capsys, "convert", tmp_path / "in.npz", tmp_path / "a.tar")[0] == 0
    code, said, error = run(capsys, "convert", tmp_path / "a.tar", out)
    assert code == 0, error
    if output == "out.npz":
        with np.load(out) as found:
            made = dict(found)
    elif output == "out.h5":
        with pytest.importorskip("h5py").File(out) as file:
            made = {name: file[name][:] for name in file}
    elif output == "out.parquet":
        table = list(Dataset.parquet(out))
        made = {name: np.array([row[name] for row in table]) for name in table[0]}
        assert made.pop("__key__").tolist() == [f"{i:09}" for i in range(10)]
        made["label"] = made["label"].astype(np.int64)  # text in an archive
    else:
        parse, raw = said[said.index("penstock.parse_example") :].split("then ")
        table = list(Dataset.tfrecord(out).map(eval(parse)).map(eval(raw)).build(workers=0))
        made = {name: np.array([row[name] for row in table]) for name in data}
        made["label"] = made["label"].astype(np.int64)
    assert ("left out: __key__" in said) == (output in ("out.npz", "out.h5"))
    assert made.keys() == data.keys()
    for name, values in data.items():
        assert made[name].dtype == values.dtype
        assert np.array_equal(made[name], values)


def test_arrays_of_unequal_samples(tmp_path, capsys):
    def npy(values):
        file = io.BytesIO()
        np.save(file, values, allow_pickle=True)
        return file.getvalue()

    objects = npy(np.array([{}], object))  # is never unpickled
    with penstock.TarWriter(tmp_path / "a.tar") as writer:
        for i in range(1, 4):
            sample = {"long.npy": npy(np.arange(i)), "mixed.npy": npy(np.zeros((i, i)))}
            kinds = npy(np.float32(1) if i == 2 else np.int64(1))
            sample |= {"kinds.npy": kinds, "bad.npy": objects if i == 3 else npy(np.zeros(1))}
            sample |= {"__key__": f"{i}"}
            writer.write({**sample, "npy": npy(np.full(2, i)), "x": b"1", "x.npy": npy(np.ones(1))})
    code, said, error = run(capsys, "convert", tmp_path / "a.tar", tmp_path / "a.parquet")
    assert code == 0, error
    bytes_left = [line.split()[0] for line in said.splitlines() if "stays bytes" in line]
    assert bytes_left == ["mixed.npy", "kinds.npy", "bad.npy"]
    rows = list(Dataset.parquet(tmp_path / "a.parquet"))
    assert [row["long"].tolist() for row in rows] == [[0], [0, 1], [0, 1, 2]]
    assert [row["npy"].tolist() for row in rows] == [[1, 1], [2, 2], [3, 3]]
    assert rows[2]["bad.npy"] == objects
    assert rows[0]["x"] == b"1"  # beside the column of this name, x.npy stays a field
    assert rows[0]["x.npy"] == npy(np.ones(1))


@pytest.mark.parametrize(("classes", "labels"), [(10, ["label"]), (100, ["coarse_label", "label"])])
def test_cifar_is_inspected_verified_and_converted(tmp_path, capsys, classes, labels):
    random = np.random.default_rng(0)
    found = random.integers(0, 10, (20, len(labels)), np.uint8)
    images = random.integers(0, 256, (20, 3072), np.uint8)
    path = tmp_path / "batch.bin"
    path.write_bytes(np.concatenate([found, images], 1).tobytes())
    code, said, _ = run(capsys, "inspect", path)
    assert code == 0
    assert f"penstock.Dataset.cifar{classes}(" in said
    assert run(capsys, "verify", path)[0] == 0
    assert run(capsys, "convert", path, tmp_path / "c.npz")[0] == 0
    with np.load(tmp_path / "c.npz") as made:
        assert np.array_equal(made["image"], images.reshape(20, 3, 32, 32))
        assert [made[name].tolist() for name in labels] == found.T.tolist()
    broken = bytearray(path.read_bytes())
    broken[3072 + len(labels)] = 200  # the first label of the second record
    path.write_bytes(broken)
    code, said, _ = run(capsys, "verify", path)
    assert code == 1
    assert "19 rows sound" in said


@pytest.mark.parametrize("output", ["out.tar", "out.npz", "out.tfrecord"])
def test_hdf5_files_become_any_format(arrays, output, capsys):
    out = arrays / output
    with pytest.importorskip("h5py").File(arrays / "more.h5", "w") as file:
        file["in/x"] = np.arange(24, 32, dtype=np.int32).reshape(2, 4)
        file["y"] = np.arange(6.0, 8.0)
    chosen = ["--columns", "y"] if output == "out.tar" else []
    code, said, error = run(capsys, "convert", arrays / "x.h5", arrays / "more.h5", out, *chosen)
    assert code == 0, error
    assert ("left out: other, which has 2 rows" in said) == (not chosen)
    if output == "out.tar":
        assert from_tar(out, "y.npy") == list(range(8))
    elif output == "out.npz":
        with np.load(out) as found:
            assert found["in/x"].tolist() == np.arange(32).reshape(8, 4).tolist()
            assert found["in/x"].dtype == np.int32
            assert found["y"].tolist() == list(range(8))
    else:
        declared = said[said.index("penstock.parse_example") :].split("left out")[0]
        dataset = Dataset.tfrecord(out).map(eval(declared)).batch(8)
        (batch,) = dataset.build(workers=0)
        assert batch["in/x"].tolist() == np.arange(32).reshape(8, 4).tolist()
        assert batch["y"].tolist() == list(range(8))


def test_hdf5_that_cannot_be_converted_says_why_and_leaves_nothing(arrays, capsys):
    before = sorted(os.listdir(arrays))
    (arrays / "bad.h5").write_text("no HDF5")
    for inputs, columns, says in (
        (["bad.h5"], [], "no HDF5 file, or it is damaged"),
        (["x.h5"], ["--columns", "z"], "'z'"),
        (["x.h5"], ["--columns", "y,other"], "other"),
        (["x.h5", "x.npy"], [], "give files of one kind; there are HDF5 and arrays"),
    ):
        files = [arrays / name for name in inputs]
        code, _, error = run(capsys, "convert", *files, arrays / "out.npz", *columns)
        assert code in (1, 2)
        assert says in error
    code, _, error = run(capsys, "convert", arrays / "x.h5", arrays / "out.tar")
    assert code == 2
    assert "'in/x' is one: leave it out (penstock.select, --columns), or write .tf" in error
    assert sorted(os.listdir(arrays)) == sorted([*before, "bad.h5"])


def test_snapshots_are_inspected_and_verified(tmp_path, capsys):
    path = tmp_path / "kept"
    with Dataset.arrays({"x": np.arange(40).reshape(20, 2)}).cache(path).build(workers=0) as feed:
        assert len(list(feed)) == 20
    code, out, _ = run(capsys, "verify", path)
    assert code == 0
    assert "1 file, 20 elements" in out
    assert "every checksum agrees" in out
    code, out, _ = run(capsys, "inspect", path)
    call = out.strip().splitlines()[-1]
    assert len(eval(call, {"penstock": penstock})) == 20
    assert "x" in out
    good = path.read_bytes()
    for at, says, sound in ((200, "element", 19), (len(good) - 10, "the footer is damaged", 0)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        code, out, _ = run(capsys, "verify", path)
        assert code == 1
        assert says in out
        assert f"1 damaged place in 1 of 1 file, {0 if sound else len(good):,} bytes lost" in out
        assert f"{sound} elements sound" in out
    path.write_bytes(good[:-1])
    assert run(capsys, "verify", path)[0] == 1

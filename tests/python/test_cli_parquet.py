"""``penstock inspect``, ``verify`` and ``convert`` with Parquet, npy, npz and IDX files."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct

import numpy as np
import pytest

import penstock
from penstock import Dataset
from program import run

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 60


def images():
    return np.random.default_rng(1).integers(0, 256, (ROWS, 4, 5)).astype(np.uint8)


def table():
    numbers = np.arange(ROWS)
    lists = [list(range(i % 3)) for i in numbers]
    return pa.table(
        {
            "n": numbers,
            "x": numbers.astype(np.float32) / 4,
            "s": [f"text {i}" for i in numbers],
            "raw": pa.array([bytes([i]) * (i % 7) for i in numbers], pa.binary()),
            "list": pa.array(lists, pa.list_(pa.int32())),
            "deep": pa.array([{"a": int(i), "b": str(i)} for i in numbers]),
        }
    )


@pytest.fixture
def parquet(tmp_path):
    pq.write_table(table(), tmp_path / "in.parquet", row_group_size=25, write_page_checksum=True)
    return tmp_path / "in.parquet"


def read_idx(path):
    """An independent reader of IDX files."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    zero, kind, axes = struct.unpack(">HBB", data[:4])
    assert zero == 0
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    dtype = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}[kind]
    array = np.frombuffer(data[4 + 4 * axes :], dtype)
    return array.reshape(shape)


# ---- inspect and verify --------------------------------------------------------------------------


def test_an_inspection_lists_columns_and_the_call(parquet, tmp_path, capsys):
    code, said, _ = run(capsys, "inspect", parquet)
    assert code == 0
    lines = said.splitlines()
    assert lines[1].split()[:2] == [str(parquet), "60"]
    assert "3 row groups of up to 25 rows" in said
    assert "list    list<element: int32>" in said
    assert lines[-1] == 'penstock.Dataset.parquet(...).shuffle(seed=0, block="auto", window=4)'
    pq.write_table(table().slice(0, 10), tmp_path / "more.parquet")
    _, said, _ = run(capsys, "inspect", tmp_path / "*.parquet")
    assert "4 row groups of up to 25 rows" in said
    assert "2 files" in said


def test_an_inspection_as_json(parquet, capsys):
    _, said, _ = run(capsys, "inspect", "--json", parquet)
    (found,) = json.loads(said)["files"]
    assert found["records"] == ROWS
    assert found["row_groups"] == 3
    assert found["group_rows"] == 25
    assert list(found["columns"]) == ["n", "x", "s", "raw", "list", "deep"]


def test_verify_names_each_damaged_row_group(parquet, tmp_path, capsys):
    code, said, _ = run(capsys, "verify", parquet)
    assert code == 0
    assert "1 file, 60 rows" in said
    assert "every row group decodes" in said
    place = pq.read_metadata(parquet).row_group(1).column(1)
    data = bytearray(parquet.read_bytes())
    at = place.dictionary_page_offset + place.total_compressed_size // 2
    data[at] ^= 1  # only the checksum of the page tells
    parquet.write_bytes(data)
    code, said, _ = run(capsys, "verify", parquet)
    assert code == 1
    assert said.startswith(f"{parquet}: record 25 at byte ")
    assert "row group 1, 25 rows: " in said
    assert "35 rows sound" in said
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no footer PAR1")
    code, said, _ = run(capsys, "verify", tmp_path / "bad.parquet")
    assert code == 1
    assert "is no Parquet file, or its footer is damaged" in said
    code, said, _ = run(capsys, "inspect", tmp_path / "bad.parquet")
    assert code == 0
    assert said.splitlines()[1].split()[-1] == "1"


# ---- convert -------------------------------------------------------------------------------------


def test_parquet_to_parquet_keeps_the_rows(parquet, tmp_path, capsys):
    code, said, _ = run(capsys, "convert", parquet, tmp_path / "out.parquet")
    assert code == 0
    assert said.startswith("60 rows, ")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == table().to_pylist()
    chosen = tmp_path / "chosen.parquet"
    assert run(capsys, "convert", "--columns", "s,deep/a", parquet, chosen)[0] == 0
    wanted = [{"s": r["s"], "deep": {"a": r["deep"]["a"]}} for r in table().to_pylist()]
    assert pq.read_table(chosen).to_pylist() == wanted
    assert run(capsys, "verify", chosen)[0] == 0


def test_shards_have_the_rows_in_turn(parquet, tmp_path, capsys):
    assert run(capsys, "convert", "--shards", "3", parquet, tmp_path / "out.parquet")[0] == 0
    names = [tmp_path / f"out-{i:05}-of-00003.parquet" for i in range(3)]
    assert [pq.read_table(name)["n"].to_pylist() for name in names] == [
        list(range(i, ROWS, 3)) for i in range(3)
    ]


def test_parquet_to_tfrecord_prints_how_to_read_it(parquet, tmp_path, capsys):
    code, said, _ = run(capsys, "convert", parquet, tmp_path / "out")
    assert code == 0
    declared = said[said.index("penstock.parse_example") :]
    rows = list(Dataset.tfrecord(tmp_path / "out").map(eval(declared)).build(workers=0))
    for row, wanted in zip(rows, table().to_pylist(), strict=True):
        assert (int(row["n"]), float(row["x"])) == (wanted["n"], wanted["x"])
        assert (row["s"].decode(), row["raw"]) == (wanted["s"], wanted["raw"])
        assert row["list"].tolist() == wanted["list"]
        assert (int(row["deep/a"]), row["deep/b"].decode()) == (
            wanted["deep"]["a"],
            str(wanted["n"]),
        )


def test_tfrecord_to_parquet_and_back(tmp_path, capsys):
    x = np.arange(3, dtype=np.float32)
    rows = [
        {"label": i, "x": x + i, "raw": bytes([i] * i), "r": [7] * (i % 3 + 1)} for i in range(20)
    ]
    with penstock.TFRecordWriter(tmp_path / "in.tfrecord") as writer:
        for row in rows:
            writer.write(penstock.example(row))
    out = tmp_path / "out.parquet"
    assert run(capsys, "convert", tmp_path / "in.tfrecord", out)[0] == 0
    for got, row in zip(pq.read_table(out).to_pylist(), rows, strict=True):
        assert got == {**row, "x": row["x"].tolist()}
    assert run(capsys, "convert", out, tmp_path / "again.tfrecord")[0] == 0
    again = list(Dataset.tfrecord(tmp_path / "again.tfrecord"))
    assert again == [penstock.example(row) for row in rows]


def test_tar_to_parquet_and_back(tmp_path, capsys):
    samples = [
        {"__key__": f"k{i}", "jpg": bytes([i] * i), "cls": str(i).encode()} for i in range(9)
    ]
    with penstock.TarWriter(tmp_path / "in.tar") as writer:
        for sample in samples:
            writer.write(sample)
    out = tmp_path / "out.parquet"
    assert run(capsys, "convert", tmp_path / "in.tar", out)[0] == 0
    assert pq.read_table(out).to_pylist() == samples
    assert run(capsys, "convert", out, tmp_path / "out.tar")[0] == 0
    assert (tmp_path / "out.tar").read_bytes() == (tmp_path / "in.tar").read_bytes()


def test_numbers_as_keys_and_labels_of_an_archive(parquet, tmp_path, capsys):
    out = tmp_path / "out.tar"
    assert run(capsys, "convert", "--columns", "raw,n", parquet, out)[0] == 0
    _, second, *_ = Dataset.tar(out)
    assert second == {"__key__": "000000001", "raw": b"\1", "n": b"1"}
    assert run(capsys, "convert", "--columns", "raw,x", parquet, tmp_path / "x.tar")[0] == 0
    _, second, *_ = Dataset.tar(tmp_path / "x.tar")
    wanted = pq.read_table(parquet).to_pylist()[1]["x"]
    assert np.load(io.BytesIO(second["x.npy"])).tolist() == wanted


def test_a_folder_of_images_becomes_parquet(tmp_path, capsys):
    for name in ("cat/1.png", "cat/more/2.JPG", "dog/1.jpeg"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    code, said, _ = run(capsys, "convert", tmp_path / "in", tmp_path / "out.parquet")
    assert code == 0
    assert "label 1: dog" in said
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [
        {"image": b"cat/1.png", "label": 0, "name": "cat/1.png"},
        {"image": b"cat/more/2.JPG", "label": 0, "name": "cat/more/2.JPG"},
        {"image": b"dog/1.jpeg", "label": 1, "name": "dog/1.jpeg"},
    ]


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "?", "c8", "S3", "U3"])
def test_arrays_to_npz_and_npy(tmp_path, capsys, dtype):
    array = np.arange(ROWS * 4).reshape(ROWS, 2, 2).astype(dtype)
    labels = np.arange(ROWS, dtype=">i4")
    np.savez(tmp_path / "in.npz", image=np.asfortranarray(array), label=labels)
    assert run(capsys, "convert", tmp_path / "in.npz", tmp_path / "out.npz")[0] == 0
    with np.load(tmp_path / "out.npz") as out:
        assert sorted(out) == ["image", "label"]
        assert out["image"].dtype == array.dtype
        assert np.array_equal(out["image"], array)
        assert np.array_equal(out["label"], labels)
    if array.dtype.kind not in "SU":
        assert len(Dataset.npz(tmp_path / "out.npz")) == ROWS
    source, out = tmp_path / "in.npz", tmp_path / "out.npy"
    assert run(capsys, "convert", "--columns", "image", source, out)[0] == 0
    assert np.array_equal(np.load(out), array)


def test_arrays_to_parquet_and_back(tmp_path, capsys):
    arrays = {
        "image": images(),
        "label": np.arange(ROWS, dtype=np.int16),
        "vector": np.arange(ROWS * 3, dtype=np.float64).reshape(ROWS, 3),
        "flag": np.arange(ROWS) % 2 == 0,
        "half": np.arange(ROWS, dtype=np.float16),
        "big": np.arange(ROWS, dtype=">f8"),
    }
    np.savez(tmp_path / "in.npz", **arrays)
    assert run(capsys, "convert", tmp_path / "in.npz", tmp_path / "out.parquet")[0] == 0
    got = pq.read_table(tmp_path / "out.parquet")
    assert got["vector"].to_pylist() == arrays["vector"].tolist()
    assert got["flag"].to_pylist() == arrays["flag"].tolist()
    assert run(capsys, "convert", tmp_path / "out.parquet", tmp_path / "again.npz")[0] == 0
    with np.load(tmp_path / "again.npz") as again:
        for name, array in arrays.items():
            assert again[name].dtype == array.dtype.newbyteorder("=")
            assert np.array_equal(again[name], array)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "out.idx", "images-idx3-ubyte.gz"])
def test_idx_files_are_written_and_read(tmp_path, capsys, dtype, name):
    array = images().astype(dtype)
    np.save(tmp_path / "in.npy", array)
    out = tmp_path / name
    assert run(capsys, "convert", tmp_path / "in.npy", out)[0] == 0
    assert np.array_equal(read_idx(out), array)
    assert np.array_equal(np.stack(list(Dataset.idx(out))), array)
    labels = tmp_path / "labels.idx"
    np.save(tmp_path / "labels.npy", np.arange(ROWS, dtype=np.uint8))
    assert run(capsys, "convert", tmp_path / "labels.npy", labels)[0] == 0
    assert run(capsys, "convert", out, labels, tmp_path / "both.npz")[0] == 0
    with np.load(tmp_path / "both.npz") as both:
        (first,) = set(both) - {"labels"}
        assert np.array_equal(both[first], array)
        assert both["labels"].tolist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("columns", "out", "says"),
    [
        ("s", "out.npy", "'s' is str of any length"),
        ("list", "out.npz", "'list' is int32 (any length,)"),
        ("n,x", "out.npy", "has one array, and there are the columns 'n', 'x'"),
        ("n", "out.idx", "'n' is int64"),
        ("x,y", "out.parquet", "has no column 'y'"),
        ("deep/b", "out.tar", "no fields in fields, and 'deep/b' is one"),
    ],
)
def test_what_does_not_fit_says_why_and_leaves_nothing(
    parquet, tmp_path, capsys, columns, out, says
):
    before = os.listdir(tmp_path)
    code, _, error = run(capsys, "convert", "--columns", columns, parquet, tmp_path / out)
    assert code in (1, 2)
    assert says in error
    assert os.listdir(tmp_path) == before


def test_complex_numbers_have_no_type_in_parquet(tmp_path, capsys):
    np.save(tmp_path / "in.npy", np.zeros(3, complex))
    code, _, error = run(capsys, "convert", tmp_path / "in.npy", tmp_path / "out.parquet")
    assert code == 2
    assert "'in', which is complex128" in error
    assert os.listdir(tmp_path) == ["in.npy"]


def test_damage_ends_it_or_is_left_out(parquet, tmp_path, capsys):
    place = pq.read_metadata(parquet).row_group(1).column(0)
    data = bytearray(parquet.read_bytes())
    for at in range(24):
        data[place.dictionary_page_offset + at] ^= 0xA5
    parquet.write_bytes(data)
    out = tmp_path / "out.parquet"
    code, _, error = run(capsys, "convert", parquet, out)
    assert code == 1
    assert f"{parquet}, row group 1" in error
    assert os.listdir(tmp_path) == ["in.parquet"]
    code, said, _ = run(capsys, "convert", "--skip-damage", parquet, out)
    assert code == 0
    assert "left out: 25 rows, the first: " in said
    assert pq.read_table(out)["n"].to_pylist() == [*range(25), *range(50, 60)]


def test_an_output_may_be_its_input(parquet, capsys):
    assert run(capsys, "convert", parquet, parquet)[0] == 2
    assert run(capsys, "convert", "--overwrite", parquet, parquet)[0] == 0
    assert pq.read_table(parquet).to_pylist() == table().to_pylist()


def test_row_groups_are_small_enough_for_a_window(tmp_path, capsys):
    count, size = 40, 2 << 20
    with penstock.TarWriter(tmp_path / "in.tar") as writer:
        for i in range(count):
            writer.write({"__key__": str(i), "bin": bytes([i]) * size})
    assert run(capsys, "convert", tmp_path / "in.tar", tmp_path / "out.parquet")[0] == 0
    about = pq.read_metadata(tmp_path / "out.parquet")
    assert [about.row_group(i).num_rows for i in range(about.num_row_groups)] == [16, 16, 8]


def test_labels_of_a_folder_are_those_of_image_folder(tmp_path, capsys):
    """Names that begin with a dot and linked folders are no classes; dead links are no damage."""
    folder = tmp_path / "photographs"
    grey = b"P5 1 1 255 0"
    for name in (".cache/a.pgm", "cat/b.pgm", "cat/.hidden.pgm", "dog/c.pgm"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(grey)
    (folder / "also").symlink_to(folder / "cat")
    (folder / "dog" / "gone.txt").symlink_to("nowhere")
    images = Dataset.image_folder(folder)
    wanted = [(int(one["label"]), one["path"].split("photographs/")[1]) for one in images]
    assert wanted == [(0, "cat/b.pgm"), (1, "dog/c.pgm")]
    assert run(capsys, "convert", folder, tmp_path / "x.parquet")[0] == 0
    rows = Dataset.parquet(tmp_path / "x.parquet")
    assert [(int(one["label"]), one["name"]) for one in rows] == wanted
    assert run(capsys, "verify", folder)[0] == 0

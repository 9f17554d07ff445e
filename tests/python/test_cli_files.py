"""``penstock inspect``, ``verify`` and ``convert``."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

import penstock
from penstock import Dataset, cli
from penstock.commands import files
from program import run

FRAME = 16


def write(path, payloads):
    with penstock.TFRecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)
    return path


def records(path):
    return list(Dataset.tfrecord(path).build(workers=0))


def samples(count, first=0):
    return [
        penstock.example(
            {
                "label": i,
                "x": np.full(4, i, np.float32),
                "raw": bytes([i % 256]) * 100,
                "words": np.array(["a"] * (i % 3), "S"),
            }
        )
        for i in range(first, first + count)
    ]


@pytest.fixture
def damaged(tmp_path):
    """Records of 100 bytes: one with a wrong payload, one with a wrong length, one truncated."""
    path = write(tmp_path / "damaged", [bytes([i]) * 100 for i in range(10)])
    data = bytearray(path.read_bytes())
    data[2 * 116 + 50] ^= 1
    data[5 * 116] ^= 1
    path.write_bytes(data[:-1])
    return path


DAMAGE = [(2, 232, 116), (5, 580, 116), (9, 1044, 115)]
WHOLE = [bytes([i]) * 100 for i in (0, 1, 3, 4, 6, 7, 8)]


# ---- verify ----------------------------------------------------------------------------------


def test_sound_files_are_said_to_be_sound(tmp_path, capsys):
    for number in range(3):
        write(tmp_path / f"{number}.tfrecord", samples(5 * number))
    code, said, _ = run(capsys, "verify", tmp_path / "*.tfrecord")
    assert code == 0
    assert said.startswith("3 files, 15 records, ")
    assert said.endswith("every checksum agrees.\n")


def test_each_damaged_place_is_named(damaged, tmp_path, capsys):
    other = write(tmp_path / "other", [b"x"])
    code, said, _ = run(capsys, "verify", damaged, other)
    assert code == 1
    lines = said.splitlines()
    for line, (record, byte, lost) in zip(lines, DAMAGE, strict=False):
        assert line.startswith(f"{damaged}: record {record} at byte {byte}: {lost} bytes lost: ")
    assert "checksum of the payload does not match" in lines[0]
    assert lines[-1] == "3 damaged places in 1 of 2 files, 347 bytes lost; 8 records sound."


def test_damage_is_found_wherever_a_byte_is_wrong(tmp_path):
    path = write(tmp_path / "file", [b"abc", b"", b"defgh"])
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        (found,) = files.surveys([str(path)])
        assert found.lost_places == 1, place
        assert found.records == 2
        (lost,) = found.damage
        assert lost.byte <= place < lost.byte + lost.bytes
        assert found.payload_bytes + FRAME * 2 + lost.bytes == len(whole)


def test_damage_as_json(damaged, capsys):
    code, said, _ = run(capsys, "verify", "--json", damaged)
    result = json.loads(said)
    assert code == 1
    assert result["ok"] is False
    (file,) = result["files"]
    assert [(d["record"], d["byte"], d["bytes"]) for d in file["damage"]] == DAMAGE
    assert (file["records"], file["lost_places"], file["lost_bytes"]) == (7, 3, 347)


def test_a_file_of_another_kind_is_said_to_be_one(tmp_path, capsys):
    (tmp_path / "zipped").write_bytes(gzip.compress(b"x" * 1000))
    (tmp_path / "text").write_text("no records\n" * 100)
    code, said, _ = run(capsys, "verify", tmp_path / "zipped", tmp_path / "text")
    assert code == 1
    assert f"{tmp_path / 'zipped'}: record 0 at byte 0: 1000 bytes lost" in said
    assert f"{tmp_path / 'text'}: it is not a TFRecord file" in said


def test_compressed_files_are_looked_at_like_any(damaged, tmp_path, capsys):
    (tmp_path / "small").write_bytes(gzip.compress(damaged.read_bytes()))
    assert run(capsys, "verify", tmp_path / "small")[0] == 1
    expected = run(capsys, "verify", "--json", damaged)[1]
    found = json.loads(run(capsys, "verify", "--json", tmp_path / "small")[1])
    (plain,), (small,) = json.loads(expected)["files"], found["files"]
    assert {**small, "path": "", "file_bytes": 0} == {**plain, "path": "", "file_bytes": 0}
    cut = (tmp_path / "small").read_bytes()[:-10]
    (tmp_path / "cut").write_bytes(cut)
    code, said, _ = run(capsys, "verify", tmp_path / "cut")
    assert code == 1
    assert "the file ends too early" in said


def test_convert_reads_and_writes_compressed_files(tmp_path, capsys):
    payloads = samples(50)
    plain = write(tmp_path / "plain", payloads)
    small = tmp_path / "small.tfrecord.gz"
    assert run(capsys, "convert", plain, small)[0] == 0
    assert gzip.decompress(small.read_bytes()) == plain.read_bytes()
    code, said, _ = run(capsys, "inspect", small)
    assert code == 0
    assert "50 of 50 records are tf.Examples" in said
    assert run(capsys, "convert", "--shards", "2", small, tmp_path / "two.tfrecord.gz")[0] == 0
    for number in range(2):
        shard = tmp_path / f"two-0000{number}-of-00002.tfrecord.gz"
        assert shard.read_bytes()[:2] == b"\x1f\x8b"
        assert records(shard) == payloads[number::2]


def test_an_empty_file_has_no_damage(tmp_path, capsys):
    (tmp_path / "empty").touch()
    assert run(capsys, "verify", tmp_path / "empty")[0] == 0
    code, said, _ = run(capsys, "inspect", tmp_path / "empty")
    assert code == 0
    assert " 0 " in said


@pytest.mark.parametrize("command", ["inspect", "verify", "convert"])
def test_files_that_are_not_there_are_a_usage_error(tmp_path, capsys, command):
    more = [tmp_path / "out"] if command == "convert" else []
    for name in ("nothing", "no*"):
        code, _, error = run(capsys, command, tmp_path / name, *more)
        assert code == 2
        assert str(tmp_path / name) in error
    assert os.listdir(tmp_path) == []


def test_a_folder_is_no_file(tmp_path, capsys):
    code, _, error = run(capsys, "verify", tmp_path)
    assert code != 0
    assert str(tmp_path) in error


# ---- inspect ---------------------------------------------------------------------------------


def test_records_and_sizes_are_counted(tmp_path, capsys):
    path = write(tmp_path / "file", [b"\xff" * n for n in (1, 5, 3)])
    code, said, _ = run(capsys, "inspect", path)
    assert code == 0
    header, line = said.splitlines()
    assert header.split() == ["file", "records", "size", "smallest", "mean", "largest", "damage"]
    assert line.split()[1:] == ["3", "57", "B", "1", "B", "3", "B", "5", "B", "0"]


def test_files_are_added_up(tmp_path, damaged, capsys):
    write(tmp_path / "other", [b"\xff" * 7])
    code, said, _ = run(capsys, "inspect", damaged, tmp_path / "other")
    assert code == 0
    total = said.splitlines()[-1].split()
    assert total[:3] == ["2", "files", "8"]
    assert total[5:] == ["7", "B", "88", "B", "100", "B", "3"]


def test_features_are_described_and_the_declaration_takes_them(tmp_path, capsys):
    rare = penstock.example({"label": 1, "x": 2, "rare": 0.5, "pair": [1.0, 2.0]})
    first = write(tmp_path / "0", samples(20))
    code, said, _ = run(capsys, "inspect", first)
    assert code == 0
    assert "20 of 20 records are tf.Examples" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["label", "int64", "20", "1"] in lines
    assert ["x", "float32", "20", "4"] in lines
    assert ["raw", "bytes", "20", "1,", "of", "100", "bytes"] in lines
    assert "words    bytes               20  0 to 2, of 0 to 2 bytes together" in said
    declared = eval(said[said.index("penstock.parse_example") :])
    (batch,) = Dataset.tfrecord(first).map(declared).batch(20).build(workers=0)
    assert batch["label"].tolist() == list(range(20))
    assert batch["x"].shape == (20, 4)
    assert batch["raw"].shape == (20, 100)

    second = write(tmp_path / "1", [rare, b"\xff no example"])
    _, said, _ = run(capsys, "inspect", first, second)
    assert "21 of 22 records are tf.Examples" in said
    assert "'rare': penstock.float32(),  # not in all records: give default=" in said
    assert "# 'x' has float32 or int64" in said
    assert "'pair': penstock.float32(2)," in said


def test_an_inspection_as_json(tmp_path, damaged, capsys):
    path = write(tmp_path / "file", samples(3))
    code, said, _ = run(capsys, "inspect", "--json", path, damaged)
    assert code == 0
    file, other = json.loads(said)["files"]
    assert (file["records"], file["examples"], file["others"]) == (3, 3, 0)
    assert file["features"]["words"] == {
        "records": 3,
        "types": {"bytes": 3},
        "values": [0, 2],
        "bytes": [0, 2],
    }
    assert file["mean"] == file["payload_bytes"] / 3
    assert other["lost_places"] == 3
    assert len(other["damage"]) == 3


def test_the_bar_is_for_terminals(tmp_path):
    pytest.importorskip("tqdm")
    path = write(tmp_path / "file", samples(3))
    command = [sys.executable, "-m", "penstock", "verify", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=50)
        drawn = os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout.startswith("1 file, 3 records")
    assert b"%" in drawn


def opened_by(pid):
    names = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it was closed in the meantime
            names.append(os.readlink(entry.path))
    return names


def test_ctrl_c_ends_a_pass_and_leaves_nothing(tmp_path):
    """While a file without a sound record is searched, which would take long."""
    path = tmp_path / "zeros"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    command = [sys.executable, "-m", "penstock", "convert", str(path), str(tmp_path / "out")]
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # also behind "&"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **heard) as process:
        deadline = time.monotonic() + 30
        while str(path) not in opened_by(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert "Traceback" not in error
    assert os.listdir(tmp_path) == ["zeros"]


# ---- convert: TFRecord -----------------------------------------------------------------------


def test_damage_ends_a_conversion_and_nothing_is_written(damaged, tmp_path, capsys):
    code, said, error = run(capsys, "convert", damaged, tmp_path / "out")
    assert code == 1
    assert "record 2 at byte 232" in said
    assert "--skip-damage leaves out 3 places of 347 bytes" in error
    assert os.listdir(tmp_path) == ["damaged"]


def test_damage_is_left_out_where_that_is_asked_for(damaged, tmp_path, capsys):
    out = tmp_path / "out"
    code, said, _ = run(capsys, "convert", "--skip-damage", damaged, out)
    assert code == 0
    assert "left out: 3 damaged places, 347 bytes" in said
    assert records(out) == WHOLE
    assert run(capsys, "verify", out)[0] == 0


def test_a_file_may_be_mended_in_its_place(damaged, capsys):
    assert run(capsys, "convert", "--skip-damage", damaged, damaged)[0] == 2
    code, _, _ = run(capsys, "convert", "--skip-damage", "--overwrite", damaged, damaged)
    assert code == 0
    assert records(damaged) == WHOLE


def test_several_files_become_shards_and_every_record_is_in_one(tmp_path, capsys):
    for number in range(3):
        write(tmp_path / f"in-{number}", samples(10, first=10 * number))
    code, said, _ = run(
        capsys, "convert", tmp_path / "in-*", tmp_path / "out.tfrecord", "--shards", "4"
    )
    assert code == 0
    assert "30 records" in said
    names = [f"out-{number:05}-of-00004.tfrecord" for number in range(4)]
    assert sorted(os.listdir(tmp_path))[3:] == names
    shards = [records(tmp_path / name) for name in names]
    assert [len(shard) for shard in shards] == [8, 8, 7, 7]
    everything = samples(30)
    assert all(shard == everything[number::4] for number, shard in enumerate(shards))


# ---- convert: images and arrays --------------------------------------------------------------


def test_a_folder_of_class_folders_becomes_examples(tmp_path, capsys):
    folder = tmp_path / "images"
    for name in ("cat/1.png", "cat/more/2.JPG", "dog/1.jpeg", "dog/notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "readme.png").touch()
    code, said, _ = run(capsys, "convert", folder, tmp_path / "out")
    assert code == 0
    assert said.splitlines()[1:] == [
        "label 0: cat",
        "label 1: dog",
        "left out: 1 file not named as images are",
    ]
    wanted = {"image": penstock.bytes(), "label": penstock.int64(), "name": penstock.bytes()}
    dataset = Dataset.tfrecord(tmp_path / "out").map(penstock.parse_example(wanted))
    rows = list(dataset.build(workers=0))
    assert [(row["name"], int(row["label"])) for row in rows] == [
        (b"cat/1.png", 0),
        (b"cat/more/2.JPG", 0),
        (b"dog/1.jpeg", 1),
    ]
    assert all(row["image"] == row["name"] for row in rows)


def test_arrays_become_examples_row_by_row(tmp_path, capsys):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (10, 3, 4)).astype(np.uint8)
    np.savez(tmp_path / "train.npz", image=images, label=np.arange(10, dtype=np.int8))
    np.save(tmp_path / "weight.npy", random.random((10, 2)))
    inputs = [tmp_path / "train.npz", tmp_path / "weight.npy"]
    code, said, _ = run(capsys, "convert", *inputs, tmp_path / "out")
    assert code == 0
    declared, then = said[said.index("penstock.parse_example") :].split("then ")
    dataset = Dataset.tfrecord(tmp_path / "out").map(eval(declared)).map(eval(then)).batch(10)
    (batch,) = dataset.build(workers=0)
    assert batch["image"].tolist() == images.tolist()
    assert batch["label"].tolist() == list(range(10))
    assert batch["weight"].tolist() == np.load(inputs[1]).astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: (folder / "in").mkdir(), "has no folders with images"),
        (
            lambda folder: np.savez(folder / "in.npz", x=np.zeros(3), y=np.zeros(4)),
            "x has 3, y has 4",
        ),
        (lambda folder: np.save(folder / "in.npy", np.array([None])), "Python objects"),
        (lambda folder: np.save(folder / "in.npy", np.array(3)), "no array of rows"),
        (lambda folder: np.save(folder / "in.npy", np.zeros(3, complex)), "complex"),
        (lambda folder: (folder / "in.npy").write_text("no array"), "in.npy"),
    ],
)
def test_what_cannot_be_converted_says_why_and_leaves_nothing(tmp_path, capsys, make, says):
    make(tmp_path)
    before = os.listdir(tmp_path)
    code, _, error = run(capsys, "convert", tmp_path / before[0], tmp_path / "out")
    assert code in (1, 2)
    assert says in error
    assert os.listdir(tmp_path) == before


def test_wrong_options_are_usage_errors(tmp_path, damaged, capsys):
    np.save(tmp_path / "x.npy", np.zeros(3))
    assert run(capsys, "convert", damaged, tmp_path / "x.npy", tmp_path / "out")[0] == 2
    assert run(capsys, "convert", tmp_path, damaged, tmp_path / "out")[0] == 2
    code, _, error = run(capsys, "convert", damaged, tmp_path / "x.npy")
    assert code == 2
    assert "--overwrite" in error
    with pytest.raises(SystemExit):
        cli.main(["convert", "a", "b", "--shards", "0"])
    code, _, error = run(capsys, "convert", damaged, tmp_path / "nowhere" / "out")
    assert code == 1
    assert "nowhere" in error

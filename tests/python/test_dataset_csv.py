"""CSV files: files written by Python's csv module are read back; errors are reported."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, THREADS, check_checkpoints, each
from penstock import Dataset

COLUMNS = {"id": "int64", "x": "float32", "name": str, "flag": (bool, False), "raw": bytes}


def row(number):
    rng = random.Random(number)
    name = "".join(rng.choice('ab\u00fc ,"\n') for _ in range(rng.randrange(8)))
    return [number, rng.random() * 10 ** rng.randrange(-6, 6), name, number % 3 == 0, "x" * number]


def write(path, numbers, *, header=True, delimiter=",", pack=bytes):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    if header:
        writer.writerow(COLUMNS)
    writer.writerows(map(row, numbers))
    path.write_bytes(pack(text.getvalue().encode()))


def check(rows, numbers):
    assert len(rows) == len(numbers)
    for got, number in zip(rows, numbers, strict=True):
        wanted = row(number)
        assert list(got) == list(COLUMNS)
        assert got["id"] == wanted[0]
        assert got["x"] == np.float32(repr(wanted[1]))
        assert (got["name"], bool(got["flag"])) == (wanted[2], wanted[3])
        assert got["raw"] == wanted[4].encode()


@pytest.fixture
def folder(tmp_path):
    for file in range(3):
        write(tmp_path / f"part-{file}.csv", range(file * 50, file * 50 + 50))
    return tmp_path


@each((INLINE, THREADS, PROCESSES), ())
@pytest.mark.parametrize("packed", [False, True])
def test_what_pythons_csv_wrote_comes_back(folder, mode, packed):
    if packed:
        for path in folder.iterdir():
            path.write_bytes(gzip.compress(path.read_bytes()))
    dataset = Dataset.csv(folder / "part-*.csv", COLUMNS)
    with dataset.build(**mode.options) as feed:
        check(list(feed), range(150))
    batch = next(iter(dataset.batch(150)))
    assert batch["id"].dtype == np.int64
    assert batch["x"].shape == (150,)
    assert batch["name"][7] == row(7)[2]
    check_checkpoints(
        lambda **options: dataset.map(lambda one: one["id"]).build(**options),
        restored=(THREADS,),
        count=1,
    )


def test_a_plain_file_is_shuffled_as_a_whole(folder):
    dataset = Dataset.csv(folder / "part-*.csv", {"id": "int32"}).shuffle(seed=1)
    assert len(dataset) == 150
    numbers = [int(one["id"]) for one in dataset]
    assert sorted(numbers) == list(range(150))
    assert numbers != sorted(numbers)


def test_columns_may_be_chosen_and_files_may_have_no_header(tmp_path):
    write(tmp_path / "tabs", range(20), header=False, delimiter="\t")
    dataset = Dataset.csv(tmp_path / "tabs", COLUMNS, header=list(COLUMNS), delimiter="\t")
    check(list(dataset), range(20))
    some = Dataset.csv(
        tmp_path / "tabs", {"raw": str, "id": "uint8"}, header=list(COLUMNS), delimiter="\t"
    )
    assert [(one["raw"], int(one["id"])) for one in some] == [("x" * n, n) for n in range(20)]


def test_defaults_stand_for_empty_fields(tmp_path):
    (tmp_path / "file").write_text('a,b,c\n1,,\n,"",x\n')
    columns = {"a": ("int64", -1), "b": (str, "none"), "c": (bytes, b"\xff")}
    rows = [(int(r["a"]), r["b"], r["c"]) for r in Dataset.csv(tmp_path / "file", columns)]
    assert rows == [(1, "none", b"\xff"), (-1, "", b"x")]


@each((INLINE, THREADS), ())
def test_what_is_wrong_is_named_and_may_be_skipped(tmp_path, mode):
    path = tmp_path / "file.csv"
    path.write_text('id,x,name\n1,1,"a\nb"\n2,two,c\n3\n4,4,d\n')
    dataset = Dataset.csv(path, {"id": "int64", "x": "float32", "name": str})
    where = f"csv: {path}, record 1 at byte 20 (8 bytes): line 4, column 2"
    says = f"{where}, 'x': 'two' is not float32"
    with dataset.build(**mode.options) as feed, pytest.raises(penstock.DataLoss) as caught:
        list(feed)
    assert says in str(caught.value)
    with dataset.build(on_error="skip", **mode.options) as feed:
        assert [int(one["id"]) for one in feed] == [1, 4]
        stats = feed.stats()
    assert stats["skipped"] == 2
    reasons = [reason for _, _, reason in stats["losses"]]
    assert says in reasons[0]
    assert "line 5, it has 1 column, expected 3" in reasons[1]


def test_a_missing_column_is_an_error_of_the_build(tmp_path):
    (tmp_path / "file").write_text("a,b\n1,2\n")
    says = re.escape(f"{tmp_path / 'file'} has no column 'c'; it has 'a', 'b'")
    for stream in (False, True):
        with pytest.raises(penstock.InvalidArgument, match=says):
            Dataset.csv(tmp_path / "file", {"c": str}, stream=stream).build()
    with pytest.raises(penstock.NotFound, match="no such file"):
        Dataset.csv(tmp_path / "none", {"c": str}).build()


def test_files_without_records(tmp_path):
    (tmp_path / "a").write_text("")
    (tmp_path / "b").write_text("id\n")
    assert list(Dataset.csv([tmp_path / "a", tmp_path / "b"], {"id": "int64"})) == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Dataset.csv("x", {}),
        lambda: Dataset.csv("x", {"a": "float16"}),
        lambda: Dataset.csv("x", {"a": "nothing"}),
        lambda: Dataset.csv("x", {"a": ("int8", 300)}),
        lambda: Dataset.csv("x", {"a": (str, 3)}),
        lambda: Dataset.csv("x", {"a": str}, header=False),
        lambda: Dataset.csv("x", {"a": str}, header="a"),
        lambda: Dataset.csv("x", {"a": str}, delimiter=""),
        lambda: Dataset.csv("x", {"a": str}, delimiter="\n"),
        lambda: Dataset.csv([], {"a": str}),
    ],
)
def test_what_cannot_be_is_refused_at_once(wrong):
    with pytest.raises(penstock.InvalidArgument):
        wrong()


def test_a_state_is_of_its_columns(folder):
    with Dataset.csv(folder / "part-0.csv", {"id": "int64"}).build(workers=0) as feed:
        state = json.loads(json.dumps(feed.state()))
    other = Dataset.csv(folder / "part-0.csv", {"id": "int32"}).build(workers=0)
    with other, pytest.raises(penstock.InvalidArgument, match="int64"):
        other.restore(state)


def long_number(rng):
    """A decimal of many digits, most of them 0, possibly with a compensating exponent."""
    digits = ["".join(rng.choice("0001") for _ in range(rng.randrange(4))) for _ in range(2)]
    digits[0] += "0" * rng.choice([0, 0, 5, 40, 330])
    digits[1] = "0" * rng.choice([0, 0, 5, 40, 330]) + digits[1]
    text = digits[0] + rng.choice([".", ""]) + digits[1] or "0"
    if not text.strip("."):
        text = "0"
    if rng.randrange(4):
        text += rng.choice("eE") + rng.choice(["", "+", "-"]) + str(rng.randrange(400))
    return rng.choice(["", "-"]) + text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_numbers_are_what_python_reads(tmp_path, dtype):
    rng = random.Random(5)
    numbers = [long_number(rng) for _ in range(3000)]
    huge = "9" * 40
    numbers += [f"1e-{huge}", f"-1e-{huge}", f"0e{huge}", f"0e-{huge}", f"0.0e+{huge}"]
    numbers += ["1" + "0" * 44 + "e-2", "0." + "0" * 60 + "1e10", "0." + "0" * 400 + "1e10"]
    with np.errstate(over="ignore"):
        wanted = [np.dtype(dtype).type(float(text)) for text in numbers]
    fits = [not np.isinf(value) for value in wanted]
    assert 100 < fits.count(False) < 2000
    path = tmp_path / "numbers.csv"
    path.write_text("a\n" + "\n".join(numbers) + "\n")
    dataset = Dataset.csv(str(path), {"a": dtype})
    with dataset.build(workers=0, on_error="skip") as feed:
        got = [row["a"] for row in feed]
    expected = [value for value, fit in zip(wanted, fits, strict=True) if fit]
    assert len(got) == len(expected)
    assert np.array(got).tobytes() == np.array(expected, dtype).tobytes()


@pytest.mark.parametrize("number", ["1" + "0" * 400 + "e-5", f"1e{'9' * 40}", "nan(abc)", "nan()"])
def test_what_does_not_fit_or_is_no_number_is_an_error(tmp_path, number):
    path = tmp_path / "numbers.csv"
    path.write_text(f"a\n{number}\n")
    for dtype in ("float32", "float64"):
        with pytest.raises(penstock.DataLoss, match=f"is not {dtype}"):
            list(Dataset.csv(str(path), {"a": dtype}))

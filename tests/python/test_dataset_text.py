"""Text that is not UTF-8: its row fails, from any source and at any stage."""

from __future__ import annotations

import faulthandler
import gzip
import random

import pytest

import penstock
from contract import INLINE, PROCESSES, THREADS, each, options
from penstock import Dataset, _engine

TEXTS = ["ok", "bad.", "end"]


def forged():
    """TEXTS, but "bad." has bytes in the engine that are not UTF-8."""
    spec, block = _engine.pack_elements(TEXTS)
    assert block.count(b"bad.") == 1
    return Dataset._make("items", (spec, len(TEXTS), block.replace(b"bad.", b"\xff\xfe.\xff")))


def length(text):
    return len(text)


def is_long(text):
    return len(text) > 1


def letters(text):
    return Dataset.items(list(text))


def counts(carry, text):
    return carry + len(text), carry


@pytest.fixture(autouse=True)
def no_hang_is_for_ever():
    # A hanging thread may hold the GIL, so pytest's own timeout could not end it.
    faulthandler.dump_traceback_later(50, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@each((INLINE, THREADS, PROCESSES), ())
@pytest.mark.parametrize(
    ("chain", "kept"),
    [
        (lambda d: d.map(length), [2, 3]),
        (lambda d: d.filter(is_long), ["ok", "end"]),
        (lambda d: d.unique(key=length), ["ok", "end"]),
        (lambda d: d.flat_map(letters), [*"ok", *"end"]),
        (lambda d: d.interleave(letters, cycle=2), [*"oeknd"]),
        (lambda d: d.take_while(is_long), ["ok", "end"]),
        (lambda d: d.scan(counts, 0), [0, 2]),
    ],
    ids=["map", "filter", "unique", "flat_map", "interleave", "take_while", "scan"],
)
def test_a_function_is_not_called_with_text_that_is_none(mode, chain, kept):
    dataset = chain(forged())
    with (
        dataset.build(**options(mode)) as feed,
        pytest.raises(penstock.DataLoss, match="not UTF-8"),
    ):
        list(feed)
    with dataset.build(**options(mode), on_error="skip") as feed:
        assert list(feed) == kept
        assert [index for _, index, _ in feed.stats()["losses"]] == [1]


def is_text(line):
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def damaged_lines(count):
    """Lines of characters of all lengths, with some changed bytes."""
    rng = random.Random(5)
    lines = []
    for _ in range(count):
        line = bytearray(
            b"".join(
                rng.choice(
                    ["a" * rng.randrange(30), "é", "\u20ac", "\U0001f600", "\ud7ff"]
                ).encode()
                for _ in range(rng.randrange(6))
            )
        )
        for _ in range(rng.randrange(3) if line else 0):
            line[rng.randrange(len(line))] = rng.choice([0x61, 0x80, 0xA0, 0xC2, 0xE0, 0xED, 0xF4])
        lines.append(bytes(line))
    return lines


@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_lost_that_python_cannot_decode(tmp_path, packed):
    lines = damaged_lines(5000)
    bad = [i for i, line in enumerate(lines) if not is_text(line)]
    assert 1000 < len(bad) < 4000
    text = b"\n".join(lines) + b"\n"
    (tmp_path / "lines").write_bytes(gzip.compress(text) if packed else text)
    with Dataset.lines(tmp_path / "lines").build(workers=0, on_error="skip") as feed:
        assert list(feed) == [line.decode() for line in lines if is_text(line)]
        assert feed.stats()["skipped"] == len(bad)
        losses = feed.stats()["losses"]
    assert [index for _, index, _ in losses] == bad[: len(losses)]
    assert "not UTF-8" in losses[0][2]


@each((INLINE, THREADS, PROCESSES), ())
def test_text_of_files_that_is_none_fails_at_its_place(tmp_path, mode):
    (tmp_path / "b.txt").write_bytes(b"ok\n\xff\nend\n")
    (tmp_path / "b.csv").write_bytes(b"id,name\n1,ok\n2,caf\xe9\n3,end\n")
    where = r"b\.txt, record 1 at byte 3 \(2 bytes\): the line is not UTF-8"
    lines = Dataset.lines(tmp_path / "b.txt")
    for dataset in (lines, lines.map(length), lines.filter(is_long), lines.batch(3)):
        with dataset.build(**options(mode)) as feed, pytest.raises(penstock.DataLoss, match=where):
            list(feed)
    where = r"b\.csv, record 1 .*line 3, column 2, 'name': 'caf\\xe9' is not UTF-8"
    records = Dataset.csv(tmp_path / "b.csv", {"name": str})
    with records.build(**options(mode)) as feed, pytest.raises(penstock.DataLoss, match=where):
        list(feed)
    with records.build(**options(mode), on_error="skip") as feed:
        assert [row["name"] for row in feed] == ["ok", "end"]
        [(_, index, reason)] = feed.stats()["losses"]
        assert index == 1
        assert r"'caf\xe9' is not UTF-8" in reason
    raw = Dataset.csv(tmp_path / "b.csv", {"name": bytes})
    assert [row["name"] for row in raw] == [b"ok", b"caf\xe9", b"end"]

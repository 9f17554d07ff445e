"""Text that is not UTF-8: a row that fails, wherever it comes from and whoever looks at it."""

from __future__ import annotations

import faulthandler

import pytest

import penstock
from contract import INLINE, PROCESSES, THREADS, each, options
from penstock import Dataset, _engine

TEXTS = ["ok", "bad.", "end"]


def forged():
    """TEXTS of which the engine is told other bytes than Python's: "bad." is no UTF-8."""
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
    # A thread that stays where it is holds Python's lock: pytest's own limit could not end it.
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
    with dataset.build(**options(mode)) as feed, pytest.raises(penstock.DataLoss, match="no UTF-8"):
        list(feed)
    with dataset.build(**options(mode), on_error="skip") as feed:
        assert list(feed) == kept
        assert [index for _, index, _ in feed.stats()["losses"]] == [1]

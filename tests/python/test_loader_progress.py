"""progress=True shows a bar; the logger "penstock" gets warnings of lost workers and samples."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal

import numpy as np
import pytest

import penstock


@pytest.fixture
def bars(monkeypatch):
    """The bars that were shown, each closed when its iteration has ended."""
    tqdm = pytest.importorskip("tqdm.auto")
    shown = []

    class Bar(tqdm.tqdm):
        monitor_interval = 0

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.closed = False
            shown.append(self)

        def close(self):
            super().close()
            self.closed = True

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    return shown


def counts(bar):
    return bar.desc, bar.initial, bar.n, bar.total, bar.closed


def test_each_epoch_has_a_bar(bars, capsys):
    feed = penstock.Loader(np.arange(10), batch_size=2, workers=0, progress=True)
    with feed:
        assert [len(list(feed)) for _ in range(2)] == [5, 5]
    assert [counts(bar) for bar in bars] == [("epoch 0", 0, 5, 5, True), ("epoch 1", 0, 5, 5, True)]
    assert "5/5" in capsys.readouterr().err


def test_a_bar_goes_on_where_a_state_was_taken(bars):
    with penstock.Loader(np.arange(10), batch_size=2, workers=0, progress=True) as feed:
        batches = iter(feed)
        next(batches), next(batches)
        state = feed.state()
        del batches
        assert bars[0].closed
        feed.restore(state)
        list(feed)
    assert counts(bars[1]) == ("epoch 0", 2, 5, 5, True)


def test_a_bar_of_a_dataset_counts_all_its_rounds(bars):
    dataset = penstock.Dataset.range(6).batch(2).repeat(3)
    with dataset.build(workers=0, progress=True) as feed:
        state = None
        for number, _ in enumerate(feed):
            if number == 4:
                state = feed.state()
        feed.restore(state)
        list(feed)
    assert [counts(bar)[1:] for bar in bars] == [(0, 9, 9, True), (5, 9, 9, True)]


def test_steps_have_a_bar_and_a_stream_has_one_of_no_length(bars):
    def numbers():
        yield from range(3)

    with penstock.Loader(numbers, workers=0, progress=True) as feed:
        assert len(list(feed.steps(7))) == 7
        list(feed)
    assert [bar.total for bar in bars] == [7, None]


def test_without_tqdm_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    with pytest.raises(penstock.InvalidArgument, match="pip install tqdm"):
        penstock.Loader([1], progress=True)


def test_consumers_have_no_common_bar():
    with pytest.raises(penstock.InvalidArgument, match="no common bar"):
        penstock.Dataset.range(4).feeds(2, progress=True)


class Odd:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index % 2:
            raise ValueError("odd")
        return index


def test_lost_samples_are_logged_once_an_epoch(caplog):
    with penstock.Loader(Odd(), batch_size=2, workers=0, on_error="skip") as feed:
        list(feed)
        assert [r.getMessage() for r in caplog.records] == [
            "Odd, epoch 0: 3 skipped; stats()['losses'] lists them"
        ]
        next(iter(feed))
    assert len(caplog.records) == 2
    assert all(r.levelno == logging.WARNING and r.name == "penstock" for r in caplog.records)


def test_nothing_is_logged_where_nothing_is_lost(caplog):
    with penstock.Loader(np.arange(10), batch_size=2, workers=1) as feed:
        list(feed)
    assert not caplog.records


class Killed:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2 and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_lost_worker_is_logged(caplog, tmp_path):
    source = Killed()
    source.mark = str(tmp_path / "mark")
    with penstock.Loader(source, batch_size=2, workers=1, use_multiprocessing=True) as feed:
        list(feed)
    (record,) = caplog.records
    assert record.getMessage().startswith("worker process 0 of Killed killed by SIGKILL")
    assert record.getMessage().endswith(": replaced")


class Large:
    """Its process has no memory for batches: it may not create files above 4 KiB."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        return np.full(1 << 20, index, np.uint8)


@pytest.mark.parametrize("how", ["for", "steps", "close"])
def test_growth_beyond_the_budget_is_logged(caplog, how):
    with penstock.Loader(Large(), workers=1, use_multiprocessing=True, start_method="fork") as feed:
        steps = {"steps": 7, "close": 2}
        batches = list(feed.steps(steps[how])) if how in steps else [*feed, *feed]
        if how != "close":
            assert len(caplog.records) == 2  # one for each epoch that has ended
    assert [batch[0] for batch in batches] == [0, 1, 2, 0, 1, 2, 0][: len(batches)]
    first = caplog.records[0]
    assert (first.name, first.levelno) == ("penstock", logging.WARNING)
    for epoch, record in enumerate(caplog.records):
        assert re.match(rf"Large, epoch {epoch}: \d arrays did not fit", record.getMessage())
    assert "raise max_bytes" in first.getMessage()

"""``penstock report``."""

from __future__ import annotations

import json
import re
import sys

import pytest

import penstock
from penstock import cli

DATASETS = """
import time
import numpy as np
import penstock.train

class Slow:
    def __len__(self):
        return 12
    def __getitem__(self, k):
        time.sleep(0.005)
        return np.full(5000, k, np.float32)

slow = Slow()

class Model:
    def predict(self, batch):
        return batch
    def train(self, batch):
        return 0.0

def endless():
    while True:
        time.sleep(0.001)
        yield b"1"

def live():
    return penstock.train.Online(endless(), np.array, Model())

class Broken(Slow):
    def __getitem__(self, k):
        raise OSError("no such image")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A module `report_datasets` in the current folder."""
    (tmp_path / "report_datasets.py").write_text(DATASETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("report_datasets", None)


@pytest.mark.parametrize("way", [["--threads"], [], ["--workers", "0"]])
def test_it_writes_a_page_and_says_what_to_change(here, capsys, way):
    arguments = ["--batch-size", "4", "--steps", "10", "--workers", "2", *way, "--trace", "t.json"]
    assert cli.main(["report", "report_datasets:slow", "-o", "r.html", *arguments]) == 0
    said = capsys.readouterr().out
    assert said.startswith("10 batches. The model waited")
    assert re.search(r"^- \w", said, re.MULTILINE)
    assert said.endswith("r.html shows what each worker did.\n")
    assert (here / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert any(
        event["ph"] == "X" for event in json.loads((here / "t.json").read_text())["traceEvents"]
    )


def test_it_ends_after_some_seconds_and_steps_may_take_time(here, capsys):
    arguments = ["--threads", "--workers", "2", "--seconds", "2", "--step-ms", "200"]
    assert cli.main(["report", "report_datasets:slow", *arguments]) == 0
    said = capsys.readouterr().out
    assert 1 <= int(said.split()[0]) <= 10
    assert "the training step is the bottleneck" in said
    assert (here / "report.html").exists()


def test_what_cannot_be_fed_or_written_says_so(here, capsys):
    assert cli.main(["report", "report_datasets:Broken", "--threads", "--steps", "2"]) == 1
    assert "no such image" in capsys.readouterr().err
    assert not (here / "report.html").exists()
    arguments = ["--workers", "0", "--steps", "2", "-o", "nowhere/r.html"]
    assert cli.main(["report", "report_datasets:slow", *arguments]) == 1
    error = capsys.readouterr().err
    assert "cannot write nowhere/r.html: No such file or directory" in error
    assert "fed" not in error
    assert cli.main(["report", "report_datasets:none"]) == 2
    for wrong in (["--workers", "-1"], ["--step-ms", "x"], ["--seconds", "0"]):
        with pytest.raises(SystemExit):
            cli.main(["report", "report_datasets:slow", *wrong])


@pytest.mark.parametrize("option", ["--output", "--trace"])
def test_a_full_disk_is_told_with_the_file_that_it_was(here, capsys, option):
    arguments = ["--workers", "0", "--steps", "2", option, "/dev/full"]
    assert cli.main(["report", "report_datasets:slow", *arguments]) == 1
    assert "cannot write /dev/full: No space left on device" in capsys.readouterr().err


def test_an_error_without_a_number_says_what_it_has_to_say(here, capsys, monkeypatch):
    def fails(feed, path):
        raise OSError("the server is gone")

    monkeypatch.setattr(penstock.Loader, "trace", fails)
    arguments = ["--workers", "0", "--steps", "2", "--trace", "t.json"]
    assert cli.main(["report", "report_datasets:slow", *arguments]) == 1
    assert "cannot write t.json: the server is gone" in capsys.readouterr().err


def test_an_online_runs_and_its_page_shows_what_happened(here, capsys):
    assert cli.main(["report", "report_datasets:live", "--steps", "20", "-o", "r.html"]) == 0
    said = capsys.readouterr().out
    assert re.match(r"\d+ messages. The model waited for messages [\d.]+ % of the time", said)
    assert "keeps up with the stream" in said
    assert said.endswith("r.html shows rates, ages and batch sizes.\n")
    assert "messages/s" in (here / "r.html").read_text()
    assert cli.main(["report", "report_datasets:live", "--seconds", "0.2"]) == 0
    assert re.match(r"\d+ messages\. ", capsys.readouterr().out)
    assert (here / "report.html").exists()
    assert cli.main(["report", "report_datasets:live", "--workers", "2"]) == 2
    assert "is a train.Online, for which there is no --workers" in capsys.readouterr().err
    assert cli.main(["report", "report_datasets:live", "--steps", "1", "-o", "no/r.html"]) == 1
    assert "cannot write no/r.html: No such file or directory" in capsys.readouterr().err

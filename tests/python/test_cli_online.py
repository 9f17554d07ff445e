"""``penstock online``, and the view of a running Online."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import cli
from penstock.base.screen import Screen
from penstock.train import online_view

LIVE = """
import time

import numpy as np

from penstock import train


class Model:
    def __init__(self):
        self.weight = 0.0

    def predict(self, batch):
        return batch[0] * self.weight

    def train(self, batch):
        x, y = batch
        error = x * self.weight - y
        self.weight -= 0.1 * float((error * x).mean())
        return float((error**2).mean())

    def state(self):
        return {"weight": self.weight}

    def restore(self, state):
        self.weight = float(state["weight"])


class Broken(Model):
    def train(self, batch):
        raise RuntimeError("out of luck")


def numbers(count, pause=0.0):
    for i in range(count):
        time.sleep(pause)
        yield b"%d" % i


def prepare(messages):
    x = np.sin([float(each.payload) for each in messages])
    return x, 2 * x


def short():
    return train.Online(numbers(500), prepare, Model(), max_batch=10, spool="spool")


def long():
    return train.Online(numbers(1 << 30, 0.001), prepare, Model(), spool="spool")


def silent():
    def nothing():
        print("waiting", flush=True)
        time.sleep(1000)
        yield b""

    return train.Online(nothing(), prepare, Model(), spool="spool")


def broken():
    return train.Online(numbers(5), prepare, Broken())


ready = train.Online(numbers(3), prepare, Model())
model = Model()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `live_models` in the current folder."""
    (tmp_path / "live_models.py").write_text(LIVE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("live_models", None)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("live_models", "is no module:object, like live:online"),
        ("no_such_module:x", "there is no module 'no_such_module'"),
        ("live_models:shirt", "has no 'shirt'; it has short"),
        ("live_models:model", "is of type Model, and not a train.Online"),
        ("live_models:numbers", "is of type function, and not a train.Online"),
        ("live_models:prepare", "or return one when called without arguments: TypeError"),
    ],
)
def test_a_target_that_is_no_online_is_a_usage_error(
    here: Path, capsys: pytest.CaptureFixture[str], target: str, says: str
) -> None:
    assert cli.main(["online", target]) == 2
    assert says in capsys.readouterr().err


def test_it_runs_until_the_source_ends_and_says_what_it_did(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    assert cli.main(["online", "live_models:short"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("500 messages trained on in ")
    assert "500 spooled, 0 dropped, 0 malformed, 0 queued; loss " in said
    assert len(said.splitlines()) == 1
    assert (here / "spool" / "snapshot").exists()
    assert cli.main(["online", "live_models:ready"]) == 0
    assert capsys.readouterr().out.startswith("3 messages trained on")
    assert signal.getsignal(signal.SIGTERM) is handler


def test_an_error_of_the_model_names_its_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["online", "live_models:broken"]) == 1
    error = capsys.readouterr().err
    line = LIVE.splitlines().index('        raise RuntimeError("out of luck")') + 1
    assert re.search(rf"RuntimeError: out of luck \(.*live_models.py, line {line}\)", error)


def test_without_a_terminal_the_view_is_a_line_each_second(here: Path) -> None:
    with Process(here, "online", "live_models:long", "--watch") as process:
        # A machine that is busy may take seconds for the first message.
        said = process.read_until(lambda said: said.count("\n") > 1 and "truth" in said)
        process.send(signal.SIGTERM)
        said += process.rest()
    *lines, last = said.splitlines()
    assert process.code == 0, said
    form = (
        r"(\d+) s: received [\d,]+/s, trained [\d,]+/s, age p50 (?:-|\S+ ms), p99 (?:-|\S+ ms), "
        r"batches [\d,]+/s, batch size [\d.]+, at most \d+, queued \d+, dropped 0, "
        r"spooled [\d,]+, loss \S+(?:, prediction \S+, truth \S+)?"
    )
    matches = [re.fullmatch(form, line) for line in lines]
    seconds = [int(match[1]) for match in matches if match is not None]
    assert len(seconds) == len(lines), lines
    assert seconds == sorted(seconds)
    assert "\x1b" not in said
    assert re.match(r"[\d,]+ messages trained on in", last)


def test_on_a_terminal_the_view_is_redrawn_in_place_until_ctrl_c(here: Path) -> None:
    with Process(here, "online", "live_models:long", "--watch", terminal=True) as process:
        begun = time.monotonic()
        said = process.read_until(lambda said: said.count("\x1b[J") > 4 and "truth" in said)
        assert 0.9 < time.monotonic() - begun < 30
        process.send(signal.SIGINT)
        said += process.rest()
    assert process.code == 0, said
    first, *views, last = said.split("\x1b[J")
    assert first == ""
    for view in views:
        lines = view.count("\n")
        assert lines in (6, 8)  # 8: with curves
        assert view.endswith(f"\x1b[{lines}F")  # up to the first of its lines
    shown = next(view for view in [*views, last] if "truth" in view)
    assert re.search(r"prediction [▁-█ ]+\r\n", shown)
    assert re.search(r"truth [▁-█ ]+\r\n", shown)
    assert re.search(r"\n[\d,]+ messages trained on in .*; loss \S+\r\n$", last)
    assert "Traceback" not in said
    assert (here / "spool" / "snapshot").exists()


def test_a_signal_ends_a_run_that_no_message_has_reached(here: Path) -> None:
    with Process(here, "online", "live_models:silent") as process:
        process.read_until(lambda said: said == "waiting\n")
        process.send(signal.SIGTERM)
        said = process.rest()
    assert process.code == 0, said
    assert "0 messages trained on in 0 batches" in said
    assert "loss nan" in said
    assert (here / "spool" / "snapshot").exists()


def test_a_screen_cuts_lines_to_the_terminal_and_replaces_them() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 4, 10, 0, 0))
    with os.fdopen(theirs, "w") as out:
        screen = Screen(out)
        assert screen.redraws
        screen.show(["a" * 20, "b"])
        screen.show(["c", "d", "e", "f"])
        screen.show([])
        said = ""
        while said.count("\x1b[J") < 3:
            said += os.read(ours, 1 << 16).decode()
        assert not Screen(out, redraw=False).redraws
    os.close(ours)
    assert said == "\x1b[J" + "a" * 9 + "\r\nb\r\n\x1b[2F\x1b[Jc\r\nd\r\ne\r\n\x1b[3F\x1b[J"


def test_the_view_takes_the_last_number_of_any_array() -> None:
    assert online_view.last_number(np.arange(3)) == 2
    assert online_view.last_number(np.ones((4, 1), np.float16)) == 1
    assert online_view.last_number([1, 5]) == 5
    assert online_view.last_number(7) == 7
    for none in (
        np.ones((4, 2)),
        np.ones((0, 1)),
        np.array([1j]),
        {"a": 1},
        (1, 2),
        "text",
        [],
        [None],
        [[1], [1, 2]],
    ):
        assert online_view.last_number(none) is None


def test_curves_have_blocks_that_the_terminal_can_show() -> None:
    bars = online_view.bars_for("utf-8")
    assert online_view.curve([0, 1, None, float("nan"), 0.5], 0, 1, bars) == "▁█  ▅"
    assert online_view.curve([3, 3], 3, 3, bars) == "▁▁"
    numbers = [(0.0, None), (4.0, 8.0)]
    assert online_view.curves_of(numbers, online_view.bars_for("latin-1")) == [
        " prediction _=",
        "      truth  #",
    ]
    assert online_view.curves_of([(None, None)], bars) == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({}, ""),
        ({"connected": True, "error": "an old one"}, ", connected"),
        ({"connected": False}, ", not connected"),
        ({"connected": False, "error": "refused"}, ", not connected: refused"),
    ],
)
def test_the_view_says_whether_the_source_is_connected(source: Any, text: str) -> None:
    counts = {"trained": 1234, "queued": 0, "dropped": 0, "spooled": 0, "loss": 0.5}
    rates = {"received": 1.0, "trained": 2.0}
    lines = online_view.lines_of(7.0, {**counts, "source": source}, rates, [], 0.25, [])
    assert lines[0] == "7.0 s, 1,234 messages trained on" + text
    assert len(lines) == 6
    assert "age p50 -" in lines[2]


class Process:
    """The program ``penstock`` with a pipe or a terminal as stdout."""

    def __init__(self, folder: Path, *arguments: str, terminal: bool = False) -> None:
        self._out, theirs = pty.openpty() if terminal else os.pipe()
        if terminal:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            cwd=folder,
            stdout=theirs,
            env={**os.environ, "PYTHONUTF8": "1"},
            # Also where the shell has begun the tests in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(theirs)
        self.code: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)

    def read_until(self, enough: Callable[[str], bool]) -> str:
        said = ""
        while not enough(said):
            part = self._part()
            assert part, f"it has ended: {said!r}"
            said += self._decoder.decode(part)
        return said

    def rest(self) -> str:
        said = ""
        while part := self._part():
            said += self._decoder.decode(part)
        self.code = self._process.wait(timeout=30)
        return said

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def _part(self) -> bytes:
        try:
            return os.read(self._out, 1 << 16)
        except OSError:  # the other end of the terminal is closed
            return b""

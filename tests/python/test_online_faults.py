"""train.Online when the process is killed, the disk is full, or files are damaged."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from online_child import MESSAGES, Model, prepare
from penstock import _engine, train
from penstock.errors import DataLoss, InvalidArgument, System
from penstock.train import online
from penstock.train.online_snapshot import read_snapshot, write_snapshot

CHILD = Path(__file__).with_name("online_child.py")
PLACES = (
    "receipt",
    "acknowledged",
    "predict",
    "train",
    "trained",
    "snapshot",
    "in a snapshot",
    "before a snapshot's name",
    "before the trim",
)
CASES = {
    f"{place.replace(' ', '-')}-{ack}": (place, ack)
    for place in PLACES
    for ack in ("spooled", "after_train")
}


def numbers(n: int) -> list[bytes]:
    return [b"%d" % i for i in range(n)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the spools of runs that were killed, each at another place."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder)],
        input=json.dumps([[name, *case] for name, case in CASES.items()]).encode(),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(CASES, -signal.SIGKILL), done.stderr
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_killed_run_goes_on_with_each_message_once(killed: Path, name: str) -> None:
    place, ack = CASES[name]
    spool = killed / name
    acknowledged = [int(token) - 1 for token in spool.with_suffix(".tokens").read_text().split()]
    assert len(set(acknowledged)) == len(acknowledged)
    if place in ("in a snapshot", "before a snapshot's name", "before the trim"):
        batches = read_snapshot(str(spool / "snapshot"))["counts"][3]
        assert batches == (4 if place == "before the trim" else 2), "the old snapshot is whole"

    model = Model()
    source = _engine.PushSource.make(lambda tokens: acknowledged.extend(t - 1 for t in tokens))
    with train.Online(source, prepare, model, spool=spool, ack=ack) as live:
        live._start()
        for number in sorted(set(range(MESSAGES)) - set(acknowledged)):  # as a broker does
            source.push("t", b"%d" % number, number + 1, number + 1, duplicate=True)
        source.end()
        live.run()
    assert sorted(model.seen) == list(range(MESSAGES))
    assert sorted(acknowledged) == list(range(MESSAGES))
    assert not list(spool.glob(".snapshot*")), "files of the killed process"


def test_a_torn_tail_is_cut_and_reported(tmp_path: Path) -> None:
    model = Model()
    with train.Online(numbers(20), prepare, model, spool=tmp_path) as live:
        live.run()
    (log,) = tmp_path.glob("*.log")
    (tmp_path / "snapshot").unlink()
    whole = log.read_bytes()
    for cut in range(1, 60, 7):
        log.write_bytes(whole[:-cut])
        model = Model()
        with train.Online([], prepare, model, spool=tmp_path, snapshot_seconds=None) as live:
            list(itertools.islice(live, 100))
            assert live.stats()["torn_bytes"] < 60
        assert model.seen == list(range(len(model.seen)))
        assert 15 <= len(model.seen) < 20


def test_a_damaged_snapshot_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "snapshot").write_bytes(b"no snapshot")
    with pytest.raises(DataLoss, match="snapshot"):
        train.Online([], prepare, Model(), spool=tmp_path)


def test_a_spool_belongs_to_one_run(tmp_path: Path) -> None:
    with (
        train.Online([], prepare, Model(), spool=tmp_path),
        pytest.raises(InvalidArgument, match=f"in use by process {os.getpid()}"),
    ):
        train.Online([], prepare, Model(), spool=tmp_path)


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("ack", ["spooled", "after_train"])
def test_a_full_disk_is_an_error_of_the_system_and_loses_nothing(tmp_path: Path, ack: str) -> None:
    acknowledged: list[int] = []
    model = Model()
    source = _engine.PushSource.make(acknowledged.extend)
    with train.Online(source, prepare, model, spool=tmp_path, ack=ack, fsync="always") as live:
        live._start()
        with full_disk(30_000):
            with contextlib.suppress(System):  # it may fail before the last
                for number in range(1000):
                    source.push("t" * 100, b"%d" % number, number + 1)
            with pytest.raises(System, match=r"0\.log.*Make space and start again"):
                while True:
                    source.push("t", b"late")
            with pytest.raises(System, match=r"0\.log.*Make space and start again") as raised:
                live.run()
            assert raised.value.errno == errno.EFBIG
            with pytest.raises(System):
                live.snapshot()
            before = len(acknowledged)
        with pytest.raises(System):  # also with space: make another
            live.run()
    assert len(acknowledged) == before
    assert not (tmp_path / "snapshot").exists()
    again = Model()
    with train.Online([b"5000"], prepare, again, spool=tmp_path) as live:
        live.run()
        assert live.stats()["torn_bytes"] == 0
    assert again.seen == [*range(len(again.seen) - 1), 5000]
    assert len(again.seen) > len(acknowledged)


def test_a_disk_too_full_for_a_snapshot_keeps_the_old_one(tmp_path: Path) -> None:
    class Large(Model):
        def state(self) -> Any:
            return {**super().state(), "large": np.zeros(100_000)}

    with train.Online(numbers(10), prepare, Model(), spool=tmp_path) as live:
        live.run()
    before = (tmp_path / "snapshot").read_bytes()
    with train.Online(numbers(20)[10:], prepare, Large(), spool=tmp_path) as live:
        with full_disk(200_000), pytest.raises(System, match=f"{tmp_path}/snapshot") as raised:
            live.run()
        assert raised.value.errno == errno.EFBIG
        assert (tmp_path / "snapshot").read_bytes() == before
    model = Model()
    with train.Online([], prepare, model, spool=tmp_path) as live:
        live.run()
    assert model.seen == list(range(20))
    assert sorted(each.suffix for each in tmp_path.iterdir()) == ["", "", ".log"]


def test_the_log_is_trimmed_behind_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "_FILE_BYTES", 500)
    model = Model()
    most = 0
    with train.Online(
        numbers(2000),
        prepare,
        model,
        spool=tmp_path,
        max_batch=20,
        min_batch=20,
        max_wait=60,
        max_queue=20,
        fsync="always",  # else whatever arrives within 10 ms is one write, into one file
        snapshot_steps=5,
    ) as live:
        for _ in live:
            most = max(most, len(list(tmp_path.glob("*.log"))))
        live.snapshot()
        assert live.stats()["spooled"] == 2000
    assert model.seen == list(range(2000))
    assert 1 < most < 30, "of 2000 messages of 25 bytes and more, in files of 500"
    assert len(list(tmp_path.glob("*.log"))) == 1
    again = Model()
    with train.Online([b"2000"], prepare, again, spool=tmp_path) as live:
        live.run()
        assert live.stats()["replayed"] == 0
    assert again.seen == list(range(2001))


def test_a_damaged_byte_of_the_log_is_an_error_with_its_place_and_the_remedy(
    tmp_path: Path,
) -> None:
    with train.Online(numbers(20), prepare, Model(), spool=tmp_path) as live:
        list(live)
    (log,) = tmp_path.glob("*.log")
    whole = bytearray(log.read_bytes())
    whole[len(whole) // 2] ^= 1
    log.write_bytes(whole)
    with pytest.raises(DataLoss, match=rf"{log}, byte (\d+): message \d+ is damaged") as raised:
        train.Online([], prepare, Model(), spool=tmp_path)
    os.truncate(log, int(str(raised.value).split("truncate -s ")[1].split(")")[0]))
    model = Model()
    with train.Online([], prepare, model, spool=tmp_path) as live:
        live.run()
    assert model.seen == list(range(len(model.seen)))
    assert 5 < len(model.seen) < 15


def test_a_snapshot_of_another_log_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "_FILE_BYTES", 1)
    with train.Online(
        numbers(50), prepare, Model(), spool=tmp_path, max_batch=5, max_queue=5
    ) as live:
        for _ in live:
            live.snapshot()
    (tmp_path / "snapshot").unlink()
    with pytest.raises(DataLoss, match=r"the snapshot is of message 0, but the spool .* begins at"):
        train.Online([], prepare, Model(), spool=tmp_path)


def test_a_snapshot_with_a_damaged_byte_is_an_error_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    write_snapshot(str(path), {"offset": 5, "model": {"w": np.arange(6.0)}, "key": b"\xff"})
    whole = path.read_bytes()
    errors = 0
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            again = read_snapshot(str(path))
        except DataLoss:
            errors += 1
            continue
        np.testing.assert_array_equal(again.pop("model")["w"], np.arange(6.0))
        assert again == {"offset": 5, "key": b"\xff"}
    assert errors > len(whole) / 6
    for size in range(0, len(whole), 5):
        path.write_bytes(whole[:size])
        with pytest.raises(DataLoss):
            read_snapshot(str(path))


FORKS = """
import os, sys, threading
from online_child import Model, prepare
from penstock import _engine, train
from penstock.errors import InvalidArgument

source = _engine.PushSource.make(lambda tokens: None)
live = train.Online(source, prepare, Model(), spool=sys.argv[1])
live._start()
end = threading.Event()

def push():
    while not end.is_set():
        source.push("t", b"1", 1)

thread = threading.Thread(target=push)
thread.start()
steps = iter(live)
next(steps)
for how in ("close", "exit", "refuse") * 3:
    child = os.fork()
    if child == 0:
        if how == "refuse":
            for work in (live.stats, live.snapshot, lambda: next(steps)):
                try:
                    work()
                except InvalidArgument as error:
                    assert "forked" in str(error), error
                else:
                    os._exit(4)
        if how == "close":
            live.close()
        del live, steps
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0, how
next(steps)
end.set()
live.stop()
live.close()  # ends a push that waits for space
thread.join()
print("done")
"""


def test_a_forked_child_ends_without_the_threads_of_online(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path)],
        cwd=CHILD.parent,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n", done.stderr

"""Starts, saves and closes of a parameter server, with bad folders, dead shards and Ctrl-C."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import socket
import threading
import time

import pytest

import penstock
from penstock import train
from penstock.train import shard_processes
from train_servers import gone, ones, served, start, until


def taken(address):
    """A socket that listens at an address, as soon as no other does."""
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_server(address)
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)


def in_the_way(folder):
    """Make the folder unwriteable."""
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("")


@pytest.mark.parametrize("processes", [False, True])
def test_a_last_snapshot_that_cannot_be_written_is_an_error_and_the_weights_are_back(
    tmp_path, processes
):
    folder = tmp_path / "snapshots"
    server = served(snapshots=folder, processes=processes)
    with train.connect(server.addresses) as client:
        client.push(ones(client))
    in_the_way(folder)
    with pytest.raises(penstock.errors.System, match=r"last snapshot.*snapshots"):
        server.close()
    assert (server.parameters["w"] == 1).all()
    server.close()


def test_a_shard_that_is_started_again_serves_on_without_its_folder(tmp_path):
    folder = tmp_path / "snapshots"
    with served(snapshots=folder, use_multiprocessing=True, snapshot_seconds=0.05) as server:
        with train.connect(server.addresses) as client:
            client.push(ones(client))
            other = server.pids[1]
            in_the_way(folder)
            os.kill(server.pids[0], signal.SIGKILL)
            client.push(ones(client))
            assert server.pids[1] == other
            until(lambda: all(str(folder) in each["saving_failed"] for each in server.stats()))
        folder.unlink()
        folder.mkdir()
    assert (server.parameters["w"] == 2).all()


@pytest.mark.parametrize("processes", [False, True])
def test_a_snapshot_that_cannot_be_written_is_a_warning_and_the_next_one_that_is_too(
    tmp_path, caplog, processes
):
    folder = tmp_path / "snapshots"
    elsewhere = folder.with_name("elsewhere")

    def texts():
        return [record.getMessage() for record in caplog.records if record.name == "penstock"]

    with (
        served(snapshots=folder, use_multiprocessing=processes, snapshot_seconds=0.05) as server,
        train.connect(server.addresses) as client,
    ):
        in_the_way(folder)
        client.push(ones(client))
        until(lambda: any("no snapshot could be written: " in text for text in texts()))
        assert str(folder) in texts()[-1]
        client.push(ones(client))
        until(lambda: all(shard["version"] == 2 for shard in server.stats()))
        assert len(texts()) == 1
        folder.unlink()
        elsewhere.rename(folder)
        until(lambda: "snapshots are written again" in texts())
        assert len(texts()) == 2


def ends_with_what_was_pushed(server, folder, seconds):
    """The next supervisor does so, too."""
    begin = time.monotonic()
    server.close()
    assert time.monotonic() - begin < seconds
    assert (server.parameters["w"] == 1).all()
    with served(snapshots=folder) as another:
        assert another.pull() == [1, 1]
        for block in another.parameters.values():
            assert (block == 1).all()


@pytest.mark.parametrize("stopped", [False, True])
def test_close_saves_the_unsaved_state_of_killed_shards(tmp_path, stopped):
    server = served(snapshots=tmp_path, use_multiprocessing=True)
    with train.connect(server.addresses) as client:
        client.push(ones(client))
    if stopped:
        os.kill(server.pids[1], signal.SIGSTOP)  # it does not detect that its supervisor has ended
    server._processes._process.kill()
    ends_with_what_was_pushed(server, tmp_path, 8)


@pytest.mark.slow
def test_shards_that_are_stopped_have_ten_seconds_together_and_close_saves_them(tmp_path):
    server = served(snapshots=tmp_path, use_multiprocessing=True)
    with train.connect(server.addresses) as client:
        client.push(ones(client))
    for pid in server.pids:
        os.kill(pid, signal.SIGSTOP)
    ends_with_what_was_pushed(server, tmp_path, 17)


def test_a_folder_is_where_it_was_when_its_server_began(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    server = served(snapshots="kept", use_multiprocessing=True)
    monkeypatch.chdir(elsewhere)
    with train.connect(server.addresses) as client:
        client.push(ones(client))
    server._processes._process.kill()
    ends_with_what_was_pushed(server, tmp_path / "kept", 8)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("name", [b"not \xff utf-8", b"a\rreturn", b"a\nline"])
@pytest.mark.parametrize("processes", [False, True])
def test_a_folder_may_have_any_name(tmp_path, name, processes):
    folder = os.fsencode(tmp_path) + b"/" + name
    server = served(snapshots=folder, processes=processes)
    with train.connect(server.addresses) as client:
        client.push(ones(client))
    ends_with_what_was_pushed(server, folder, 8)


def test_a_first_snapshot_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    def start_without_it(*arguments, real=shard_processes.start_child, **options):
        shutil.rmtree(first)
        return real(*arguments, **options)

    first = tmp_path / "a"
    folder = first / "\r\u00fc"
    monkeypatch.setattr(shard_processes, "start_child", start_without_it)
    begin = time.monotonic()
    with pytest.raises(penstock.errors.System, match=r"first snapshot.*a/\r\u00fc"):
        served(snapshots=folder, use_multiprocessing=True)
    assert time.monotonic() - begin < 30


def test_a_saved_version_is_that_of_the_file_also_when_a_shard_cannot_write_it_again(tmp_path):
    folder = tmp_path / "snapshots"
    server = served(snapshots=folder, use_multiprocessing=True, snapshot_seconds=0.05)
    with train.connect(server.addresses) as client:
        client.push(ones(client))
        until(lambda: [shard["saved_version"] for shard in server.stats()] == [1, 1])
        in_the_way(folder)
        os.kill(server.pids[0], signal.SIGKILL)
        client.push(ones(client))
        until(lambda: all(shard["saving_failed"] for shard in server.stats()))
        for shard in server.stats():
            assert (shard["version"], shard["saved_version"]) == (2, 1)
    with pytest.raises(penstock.errors.System, match=r"shard-0-of-2"):
        server.close()


def test_a_child_that_was_forked_while_it_started_keeps_nothing(monkeypatch):
    ends, lives = os.pipe()
    forked = []

    def start_and_fork(*arguments, **options):
        forked.append(os.fork())  # as another thread may do
        if forked[-1] == 0:
            signal.alarm(20)
            os.close(lives)
            os.read(ends, 1)
            os._exit(0)
        return start_it(*arguments, **options)

    start_it = shard_processes.start_child
    monkeypatch.setattr(shard_processes, "start_child", start_and_fork)
    server = served(use_multiprocessing=True)
    try:
        server._processes._process.kill()
        until(lambda: server.restarts == 2)
        begin = time.monotonic()
        server.close()
        assert time.monotonic() - begin < 5
    finally:
        os.close(lives)
        os.close(ends)
        for child in forked:
            os.waitpid(child, 0)


def test_processes_of_a_failed_start_are_waited_for(monkeypatch):
    started = []

    def start_it(*arguments, real=os.posix_spawn, **options):
        started.append(real(*arguments, **options))
        return started[-1]

    def full(_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "posix_spawn", start_it)
    monkeypatch.setattr(os, "pidfd_open", full)
    with pytest.raises(penstock.errors.System, match="Too many open files"):
        served(use_multiprocessing=True)
    (pid,) = started
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


def test_a_log_handler_may_use_the_server():
    class Asks(logging.Handler):
        def emit(self, record):
            thread = threading.Thread(target=lambda: heard.append((record.msg, server.pids)))
            thread.start()
            thread.join(10)

    heard, handler = [], Asks()
    logging.getLogger("penstock").addHandler(handler)
    try:
        with served(use_multiprocessing=True) as server:
            server._processes._on_message("1 0 there is no space")
            ((text, pids),) = heard
            assert "no space" in text
            assert pids == server.pids
    finally:
        logging.getLogger("penstock").removeHandler(handler)


@pytest.mark.slow
def test_a_shard_that_fails_whenever_it_starts_is_not_started_without_a_pause():
    parameters = train.Parameters({"w": (3,)})
    with train.ParameterServer(
        parameters, train.SGD(1.0), listen="tcp://127.0.0.1:0", use_multiprocessing=True
    ) as server:
        supervisor = server._processes._process.pid

        def shards():
            with open(f"/proc/{supervisor}/task/{supervisor}/children") as children:
                return [int(pid) for pid in children.read().split()]

        # A shard that served for a moment is started again at once. So none may serve: its port is
        # taken before the supervisor can see that the first one has ended.
        host, port = server.addresses[0].removeprefix("tcp://").split(":")
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(shards()[0], signal.SIGKILL)
        with taken((host, int(port))):
            os.kill(supervisor, signal.SIGCONT)
            seen, end = set(), time.monotonic() + 3
            while time.monotonic() < end:
                seen.update(shards())
        # Pauses of 10 ms, 20 ms and so on, to 1 s.
        assert 3 < len(seen) < 20
        with train.connect(server.addresses) as client:  # the port is free
            client.push(ones(client))


@pytest.mark.slow
def test_supervisors_killed_one_after_the_other_are_replaced():
    with served(use_multiprocessing=True) as server, train.connect(server.addresses) as client:
        client.push(ones(client))
        processes = server._processes
        for _ in range(5):
            killed = processes._process
            killed.kill()
            until(lambda killed=killed: processes._process is not killed)
        client.push(ones(client))
        server.pull()
        assert (server.parameters["w"] == 2).all()


INTERRUPTED = """
import os, signal, sys, threading
from penstock import train
server = None
timer = threading.Timer(float(sys.argv[1]), os.kill, (os.getpid(), signal.SIGINT))
timer.start()
try:
    try:
        parameters = train.Parameters({"w": (3,)})
        server = train.ParameterServer(parameters, train.SGD(1), use_multiprocessing=True)
    finally:
        timer.join()
except KeyboardInterrupt:
    pass
timer.join()  # it may have been what was interrupted
if server is not None:
    server.close()
print(threading.active_count(), open(f"/proc/self/task/{os.getpid()}/children").read())
"""


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.3])
def test_ctrl_c_while_it_starts_leaves_nothing(seconds):
    process = start(INTERRUPTED, str(seconds))
    said, _ = process.communicate(timeout=60)
    assert said.split() == ["1"]  # thread, and no child


def test_a_close_that_is_interrupted_has_the_weights_and_can_be_called_again():
    server = served(use_multiprocessing=True)
    with train.connect(server.addresses) as client:
        client.push(ones(client))
    frozen = server.pids[0]
    server.stats()  # a shard that answers isn't writing weights
    os.kill(frozen, signal.SIGSTOP)  # slow to end
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        server.close()
    assert (server.parameters["w"] == 1).all()
    os.kill(frozen, signal.SIGCONT)
    server.close()
    assert gone(frozen)


def test_a_connect_that_fails_leaves_no_worker_to_wait_for():
    with served(staleness=0, lease=30.0) as server:
        with pytest.raises(penstock.errors.InvalidArgument, match="missing"):
            train.connect(server.addresses[0])
        assert server.stats()[0]["workers"] == []
        with train.connect(server.addresses) as client:
            assert client.push(ones(client))


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_workers_that_pull_after_a_common_pause_lose_no_push(listen):
    with served(staleness=100, lease=1.0, listen=listen) as server:
        clients = [train.connect(server.addresses) for _ in range(3)]
        for client in clients:
            client.pull()
            assert client.push(ones(client))
        time.sleep(1.3)
        for client in clients:
            client.pull()
        assert [client.push(ones(client)) for client in clients] == [True] * 3
        for client in clients:
            client.close()

"""``penstock serve`` and ``penstock top``."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import penstock
from penstock import cli, train
from penstock.commands import Failed, secrets, shards, top
from program import run_program

PATIENCE = 60.0


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "begin.safetensors"
    train.Parameters({"a": np.zeros(1000, np.float32), "b": np.ones((3, 5), np.float32)}).save(path)
    return path


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("a secret of tests\n")
    path.chmod(0o600)
    return path


class Served:
    """``penstock serve`` as a process; its output is read line by line."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "serve", *map(str, arguments), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self.ready = self.line()

    def line(self):
        """The next object that it prints."""
        said = b""
        while not said.endswith(b"\n"):
            readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            assert readable, "nothing was said in time"
            part = os.read(self.process.stdout.fileno(), 1)
            if not part:
                raise AssertionError(self.process.stderr.read().decode())
            said += part
        return json.loads(said)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors.decode()


@contextlib.contextmanager
def served(*arguments):
    it = Served(*arguments)
    try:
        yield it
    finally:
        if it.process.poll() is None:
            it.process.kill()
        it.process.communicate()


def gone(pid):
    """Wait for the end of the process; return whether it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE)[0])
    finally:
        os.close(descriptor)


def ones(client):
    return {name: np.ones_like(values) for name, values in client.parameters.items()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_push_and_pull_until_it_is_told_to_stop(weights, tmp_path, number):
    end = tmp_path / "end.safetensors"
    with served(weights, "--lr", "0.5", "--shards", 2, "--save", end) as server:
        assert len(server.ready["addresses"]) == 2
        assert server.ready["floats"] >= 1015
        with train.connect(server.ready["addresses"]) as client:
            client.pull()
            assert client.parameters["b"].min() == 1
            for _ in range(3):
                assert client.push(ones(client))
            client.pull()
            assert (client.parameters["a"] == -1.5).all()
        assert server.end(number) == (0, "")
        assert gone(server.ready["pid"])
    saved = train.Parameters.from_file(end)
    assert (saved["a"] == -1.5).all()
    assert (saved["b"] == -0.5).all()


def test_over_tcp_only_who_has_the_secret_is_let_in(weights, secret):
    listen = ("--listen", "127.0.0.1:0", "--secret-file", secret)
    with served(weights, "--optimizer", "adam", "--lr", "1e-3", *listen) as server:
        addresses = server.ready["addresses"]
        assert addresses[0].startswith("tcp://127.0.0.1:")
        with pytest.raises(Exception, match="secret"):
            train.connect(addresses, timeout=1)
        with train.connect(addresses, secret="a secret of tests") as client:
            client.pull()
            assert client.push(ones(client))
        assert cli.main(["top", "--once", *addresses, "--secret-file", str(secret)]) == 0
        assert run_program("top", "--once", *addresses).returncode == 1
        assert server.end() == (0, "")


def test_what_is_served_encrypted_takes_workers_and_watchers_that_encrypt(weights, secret):
    line = ("--secret-file", str(secret), "--encrypt")
    with served(weights, "--lr", "1", "--listen", "127.0.0.1:0", *line) as server:
        addresses = server.ready["addresses"]
        known = {"secret": "a secret of tests"}
        with pytest.raises(penstock.InvalidArgument, match="set encrypt at both"):
            train.connect(addresses, **known, encrypt=False)
        with train.connect(addresses, **known, encrypt=True) as client:
            client.pull()
            assert client.push(ones(client))
            os.kill(server.ready["shards"][0], signal.SIGKILL)
            assert client.push(ones(client))
            assert client.pull() == [2]
            assert (np.asarray(client.parameters["a"]) == -2).all()
        assert cli.main(["top", "--once", *addresses, *line]) == 0
        open_watcher = run_program("top", "--once", *addresses, *line[:2], "--no-encrypt")
        assert open_watcher.returncode == 1
        assert "set encrypt at both" in open_watcher.stderr
        assert server.end() == (0, "")


def test_a_shard_that_was_killed_keeps_what_it_acknowledged(weights):
    with served(weights, "--lr", "1", "--shards", 2) as server:
        with train.connect(server.ready["addresses"]) as client:
            client.pull()
            for killed in (0, 1):
                for _ in range(5):
                    assert client.push(ones(client))
                os.kill(server.ready["shards"][killed], signal.SIGKILL)
            assert client.push(ones(client))
            assert client.pull() == [11, 11]
            assert (np.asarray(client.parameters["a"]) == -11).all()
        assert server.end() == (0, "")
        assert all(gone(pid) for pid in server.ready["shards"])


def test_one_that_was_killed_is_begun_again_and_no_push_counts_twice(weights, tmp_path):
    folder = tmp_path / "kept"
    keep = ("--snapshot", folder, "--listen", "127.0.0.1:0", "--snapshot-seconds", "0.05")
    with served(weights, "--lr", "1", "--shards", 2, *keep) as server:
        addresses = server.ready["addresses"]
        with train.connect(addresses) as client:
            client.pull()
            for _ in range(5):
                assert client.push(ones(client))
            os.kill(server.ready["pid"], signal.SIGKILL)
            again = server.line()
            assert again["addresses"] == addresses
            assert again["pid"] != server.ready["pid"]
            before = again["versions"]
            for _ in range(5):
                assert client.push(ones(client))
            versions = client.pull()
            # The weights have the snapshot, and each later push once.
            values = np.asarray(client.parameters["a"])
            assert versions == [version + 5 for version in before]
            assert set(np.unique(values)) <= {-float(version) for version in versions}
        code, errors = server.end()
        assert code == 0
        assert "SIGKILL" in errors


def test_without_snapshots_one_that_was_killed_is_the_end(weights):
    with served(weights) as server:
        os.kill(server.ready["pid"], signal.SIGKILL)
        _, errors = server.process.communicate(timeout=PATIENCE)
        assert server.process.returncode == 1
        assert b"the server process ended (killed by SIGKILL" in errors
        assert b"--snapshot" in errors


def test_who_serves_ends_with_who_started_it(weights):
    with served(weights) as server:
        server.process.kill()
        server.process.wait()
        assert gone(server.ready["pid"])


def test_a_server_goes_on_from_its_snapshots(weights, tmp_path):
    keep = ("--snapshot", tmp_path / "kept")
    for turn in range(2):
        with served(weights, "--lr", "1", *keep) as server:
            assert server.ready["versions"] == [turn]
            with train.connect(server.ready["addresses"]) as client:
                assert client.push(ones(client))
            assert server.end() == (0, "")


def test_a_snapshot_that_cannot_be_written_is_printed_once_and_the_server_serves_on(
    weights, tmp_path
):
    kept, elsewhere = tmp_path / "kept", tmp_path / "elsewhere"
    with served(weights, "--snapshot", kept, "--snapshot-seconds", "0.05") as server:
        kept.rename(elsewhere)
        kept.write_text("")
        with train.connect(server.ready["addresses"]) as client:
            assert client.push(ones(client))
            line = server.process.stderr.readline().decode()
            assert "no snapshot could be written" in line
            assert str(kept) in line
            assert client.push(ones(client))
        kept.unlink()
        elsewhere.rename(kept)
        assert server.process.stderr.readline() == b"snapshots are written again\n"
        assert server.end() == (0, "")


def test_a_last_snapshot_that_cannot_be_written_is_an_error_and_the_weights_are_saved(
    weights, tmp_path
):
    kept, end = tmp_path / "kept", tmp_path / "end.safetensors"
    with served(weights, "--lr", "1", "--snapshot", kept, "--save", end) as server:
        with train.connect(server.ready["addresses"]) as client:
            assert client.push(ones(client))
        kept.rename(tmp_path / "elsewhere")
        kept.write_text("")
        code, errors = server.end()
        assert code == 1
        assert "last snapshot" in errors
        assert str(kept) in errors
    assert (train.Parameters.from_file(end)["a"] == -1).all()


@pytest.fixture
def message(weights, tmp_path):
    server = {"processes": True, "snapshots": str(tmp_path / "kept")}
    save = str(tmp_path / "out" / "end.safetensors")
    (tmp_path / "out").mkdir()
    message = {"weights": str(weights), "optimizer": "sgd", "hyper": {"lr": 1.0}, "secret": ""}
    return {**message, "server": server, "save": save}


def test_what_never_served_saves_nothing(message, monkeypatch):
    with open(message["save"], "w") as older:
        older.write("older")

    def gone(_):
        raise penstock.Timeout("no answer")

    monkeypatch.setattr(train.ParameterServer, "stats", gone)
    with pytest.raises(penstock.Timeout):
        shards.serve(message, wait=lambda: None)
    with open(message["save"]) as older:
        assert older.read() == "older"


def test_all_that_could_not_be_written_is_said(message, tmp_path, capsys):
    def in_the_way():
        with train.connect(json.loads(capsys.readouterr().out)["addresses"]) as client:
            client.push(ones(client))
        for name in ("kept", "out"):
            (tmp_path / name).rename(tmp_path / f"elsewhere-{name}")
            (tmp_path / name).write_text("")

    with pytest.raises(penstock.System, match=r"last snapshot.*kept.*end\.safetensors"):
        shards.serve(message, wait=in_the_way)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--optimizer", "eve"], "adamw"),
        (["--set", "beta1"], "NAME=NUMBER"),
        (
            ["--set", "speed=1"],
            "no such hyper-parameter; it has weight_decay, clip_value, clip_norm, lr\n",
        ),
        (["--save", "/nonexistent/folder/x"], "no folder /nonexistent/folder; make it first"),
        (["--save", "/"], "that is a folder"),
        (["--save", "/proc/x"], "nothing can be written in /proc"),
        (["--lr", "-1"], "lr"),
        (["--secret-file", "/nonexistent"], "urandom"),
        (["--listen", "0.0.0.0:0"], "secret"),
        (["--listen", "0.0.0.0:0", "--encrypt"], "secret"),
        (["--listen", "nowhere"], "address"),
        (["--shards", "0"], "shards"),
        (["--snapshot-seconds", "5"], "needs --snapshot FOLDER"),
    ],
)
def test_what_cannot_be_served_is_refused(weights, capsys, arguments, says):
    assert cli.main(["serve", str(weights), *arguments]) in (1, 2)
    assert says in capsys.readouterr().err


def test_weights_that_are_not_there_are_refused(tmp_path, capsys):
    assert cli.main(["serve", str(tmp_path / "none")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_secret_that_others_may_read_is_refused(secret):
    assert secrets.read(None) == ""
    assert secrets.read(secret) == "a secret of tests"
    secret.chmod(0o640)
    with pytest.raises(Failed, match="chmod 600"):
        secrets.read(secret)
    secret.chmod(0o600)
    secret.write_bytes(b" \n")
    with pytest.raises(Failed, match="no secret"):
        secrets.read(secret)
    secret.write_bytes(b"\xff\xfe")
    with pytest.raises(Failed, match="text"):
        secrets.read(secret)


# ---- top ----------------------------------------------------------------------------------------


def two_shards():
    parameters = train.Parameters({"a": np.zeros(1000, np.float32)})
    return train.ParameterServer(parameters, train.SGD(1.0), shards=2)


def test_top_says_who_works_and_joins_nobody(capsys):
    with two_shards() as server:
        with train.connect(server.addresses, name="actor 7") as client:
            client.pull()
            assert client.push({"a": np.ones(1000, np.float32)})
            assert cli.main(["top", "--once", "--json", *server.addresses]) == 0
            found = json.loads(capsys.readouterr().out)["shards"]
            assert [shard["address"] for shard in found] == server.addresses
            for shard in found:
                assert shard["version"] == 1
                assert shard["pushes"] == 1
                assert [worker["name"] for worker in shard["workers"]] == ["actor 7"]
                assert shard["rates"]["pushes"] == pytest.approx(1 / shard["seconds"])
            assert cli.main(["top", "--once", *server.addresses]) == 0
            text = capsys.readouterr().out
            assert text.count("actor 7") == 1
            assert all(address in text for address in server.addresses)
        assert cli.main(["top", "--once", *server.addresses]) == 0
        assert "no workers" in capsys.readouterr().out


def test_top_goes_on_until_ctrl_c_and_sees_shards_come_and_go():
    server = two_shards()
    command = [sys.executable, "-m", "penstock", "top", "--json", "--interval", "0.02"]
    process = subprocess.Popen(
        [*command, *server.addresses], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    killer = threading.Timer(PATIENCE, process.kill)
    killer.start()
    try:
        looks = (json.loads(line)["shards"] for line in process.stdout)
        assert all("version" in shard for shard in next(looks))
        server.close()
        assert any(all("failure" in shard for shard in look) for look in looks)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert errors == b""
    finally:
        killer.cancel()
        process.kill()
        process.wait()
        server.close()


def test_top_of_nobody_says_so(capsys):
    assert cli.main(["top", "--once", "unix:@nobody-serves-here"]) == 1
    assert "no process listens" in capsys.readouterr().out
    assert cli.main(["top", "--once", "nowhere"]) == 1
    assert cli.main(["top", "--interval", "0", "unix:@x"]) == 2


def test_rates_are_between_two_looks_or_since_a_shard_began():
    first = {"seconds": 10, "pushes": 100, "pulls": 50, "bytes_in": 1000, "bytes_out": 0}
    later = {"seconds": 12, "pushes": 110, "pulls": 50, "bytes_in": 3000, "bytes_out": 8}
    assert top.rates(first, {})["pushes"] == 10
    assert top.rates(later, first) == {"pushes": 5, "pulls": 0, "bytes_in": 1000, "bytes_out": 4}
    assert top.rates({**first, "seconds": 1}, later)["pushes"] == 100
    assert top.rates({}, first) == {}


@pytest.mark.parametrize(
    ("counts", "text"),
    [([], "-"), ([0, 0], "-"), ([5], "0 / 0"), ([1, 1, 1, 0], "1 / 3"), ([9, 0, 0, 1], "0 / 7")],
)
def test_staleness_is_said_as_precisely_as_it_is_counted(counts, text):
    assert top.staleness(counts) == text

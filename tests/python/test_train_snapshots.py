"""Snapshots of a parameter server: generations, damage, the folder's lock, one moment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading

import pytest

import penstock
from penstock import train
from train_servers import ones, served, until


def pushed(server):
    with train.connect(server.addresses) as client:
        client.push(ones(client))


def generations(folder):
    """Epochs of writers and generations, ascending."""
    names = [path.name.split(".") for path in folder.glob("snapshot.*.json")]
    return sorted((int(epoch), int(generation)) for _, epoch, generation, _ in names)


def shard_file(folder, shard, snapshot):
    epoch, generation = snapshot
    return folder / f"shard-{shard}-of-2.{epoch}.{generation}.safetensors"


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(penstock.InvalidArgument, match=f"{file}' cannot be made a folder"):
        served(snapshots=file)


@pytest.mark.parametrize("processes", [False, True])
def test_a_damaged_snapshot_is_named_and_the_one_before_it_is_taken(tmp_path, caplog, processes):
    for _ in range(3):
        with served(snapshots=tmp_path, use_multiprocessing=processes) as server:
            pushed(server)
    kept = generations(tmp_path)
    assert len(kept) == 3
    damaged = shard_file(tmp_path, 1, kept[-1])
    flip_a_bit(damaged)
    caplog.clear()
    with served(snapshots=tmp_path, use_multiprocessing=processes) as server:
        # The snapshot before the last was written when the third server began.
        assert server.pull() == [2, 2]
        assert (server.parameters["w"] == 2).all()
        assert generations(tmp_path)[-1] == (kept[-1][0] + 1, kept[-1][1] + 1)
    assert [str(damaged) in record.getMessage() for record in caplog.records] == [True]


def test_without_a_good_snapshot_there_is_an_error_that_names_a_file(tmp_path):
    with served(snapshots=tmp_path) as server:
        pushed(server)
    files = [shard_file(tmp_path, 0, snapshot) for snapshot in generations(tmp_path)]
    for file in files:
        flip_a_bit(file)
    with pytest.raises(penstock.DataLoss, match=re.escape(files[-1].name)):
        served(snapshots=tmp_path)


SERVE = """
import os, socket, sys, time
from penstock import train
server = train.ParameterServer(train.Parameters({"w": (300, 500), "v": (70_000,)}), train.SGD(1.0),
                               shards=2, snapshots=sys.argv[1],
                               use_multiprocessing=sys.argv[2] == "True")
print(*server.addresses, flush=True)
if input() == "as if killed":  # the kernel closes its files first, its children are another's later
    type(server._processes._process).wait = lambda process: time.sleep(20)  # no more is started
    server._processes._ends[0].shutdown(socket.SHUT_RDWR)
    time.sleep(1)
    os._exit(1)
"""


@contextlib.contextmanager
def another_server(folder, processes=False):
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), str(processes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


@pytest.mark.parametrize("processes", [False, True])
def test_a_folder_has_one_server_at_a_time(tmp_path, processes):
    with (
        another_server(tmp_path) as (other, _),
        pytest.raises(penstock.InvalidArgument, match=f"in use by process {other.pid}"),
    ):
        served(snapshots=tmp_path, use_multiprocessing=processes)
    with (  # a kill unlocks the folder
        served(snapshots=tmp_path, use_multiprocessing=processes),
        pytest.raises(penstock.InvalidArgument, match=f"in use by process {os.getpid()}"),
    ):
        served(snapshots=tmp_path)
    served(snapshots=tmp_path).close()


@pytest.mark.parametrize("slowly", [False, True])
def test_a_killed_servers_processes_save_what_they_acknowledged(tmp_path, slowly):
    with another_server(tmp_path, processes=True) as (other, addresses):
        with train.connect(addresses) as client:
            for _ in range(3):
                client.push(ones(client))
            if slowly:
                print("as if killed", file=other.stdin, flush=True)
            else:
                other.kill()
        other.wait()

        def again():
            try:
                return served(snapshots=tmp_path)
            except penstock.InvalidArgument:  # until the last snapshot is written
                return None

        made = []
        until(lambda: made.append(again()) or made[-1])
        with made[-1] as server:
            assert server.pull() == [3, 3]


@pytest.mark.parametrize("processes", [False, True])
def test_a_snapshot_has_all_shards_at_one_moment(tmp_path, processes):
    with served(snapshots=tmp_path, use_multiprocessing=processes, snapshot_seconds=0.01) as server:
        seen = {}
        stop = threading.Event()

        def push():
            with train.connect(server.addresses) as client:
                while not stop.is_set():
                    client.push(ones(client))

        def look():
            for path in tmp_path.glob("snapshot.*.json"):
                try:
                    manifest = json.loads(path.read_text())
                except FileNotFoundError:
                    continue
                seen[manifest["generation"]] = [shard["version"] for shard in manifest["shards"]]
            return len(seen) > 15

        pushing = threading.Thread(target=push)
        pushing.start()
        try:
            until(look)
        finally:
            stop.set()
            pushing.join()
    # A push goes to both shards, and the next one begins when both have answered.
    assert all(abs(first - second) <= 1 for first, second in seen.values())
    assert max(seen.values())[0] > 0

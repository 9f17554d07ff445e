"""A parameter server whose shards and workers are killed, stopped and restarted."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

import penstock
from penstock import train
from train_servers import BLOCKS, gone, ones, served, start, until

BEFORE_APPLY, IN_APPLY, BEFORE_COMMIT, AFTER_COMMIT = 1, 2, 3, 4

# Pushes -1 repeatedly, and prints the number of pushes and of lapsed ones.
WORKER = """
import sys
from penstock import train
with train.connect(sys.argv[2:], name="frozen") as client:
    for block in client.gradients.values():
        block[:] = -1
    for push in range(int(sys.argv[1])):
        client.push(client.gradients)
        print(push + 1, client.lapses, flush=True)
"""

SERVER = """
import sys
from penstock import train
server = train.ParameterServer(train.Parameters({"w": (1000,)}), train.SGD(1.0), shards=2,
                               use_multiprocessing=True)
print(*server.pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("listen", "line"),
    [
        (None, {}),
        ("tcp://127.0.0.1:0", {}),
        ("tcp://127.0.0.1:0", {"secret": "a secret of tests", "encrypt": True}),
    ],
)
@pytest.mark.parametrize("place", [BEFORE_APPLY, IN_APPLY, BEFORE_COMMIT, AFTER_COMMIT])
def test_a_shard_killed_at_any_point_of_a_push_applies_it_once(place, listen, line):
    with (
        served(use_multiprocessing=True, listen=listen, **line) as server,
        train.connect(server.addresses, **line) as client,
    ):
        pushes, deaths = 0, 0
        for round in range(6):
            if round in (1, 3, 4):
                server._plan.crash_at(round % 2, place)
                deaths += 1
            assert client.push(ones(client))
            pushes += 1
            assert client.pull() == [pushes, pushes]
            for block in client.parameters.values():
                assert (block == pushes).all()
        until(lambda: server.restarts == deaths)  # the last restart is reported, too
    assert (server.parameters["v"] == pushes).all()


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
@pytest.mark.parametrize("place", [BEFORE_APPLY, IN_APPLY, BEFORE_COMMIT, AFTER_COMMIT])
def test_a_shard_killed_at_any_point_of_a_push_of_rows_applies_it_once(place, listen):
    rows = [(0, 150, 299), (299, 7), (8, 9, 150)]  # of both shards, or of the first only
    expected = {name: np.zeros(shape, np.float32) for name, shape in BLOCKS.items()}
    with (
        served(use_multiprocessing=True, listen=listen) as server,
        train.connect(server.addresses) as client,
    ):
        deaths = 0
        for round in range(9):
            if round in (0, 2, 3, 6):
                server._plan.crash_at(0, place)
                deaths += 1
            if round == 5:
                assert client.push(ones(client))
                for block in expected.values():
                    block += 1
            else:
                which = list(rows[round % 3])
                assert client.push({"w": train.Rows(which, np.full((len(which), 500), -1))})
                expected["w"][which] += 1
            assert client.pull() == [round + 1] * 2
            for name, block in client.parameters.items():
                assert (block == expected[name]).all()
        until(lambda: server.restarts == deaths)  # the last restart is reported, too


@pytest.mark.parametrize("sparse", [False, True])
def test_every_acknowledged_push_of_several_workers_survives_kills(sparse):
    with served(use_multiprocessing=True) as server:
        stop, acknowledged = threading.Event(), [0, 0]
        some = {"w": train.Rows(np.arange(0, 300, 2), np.full((150, 500), -1))}

        def work(which):
            with train.connect(server.addresses) as client:
                while not stop.is_set():
                    acknowledged[which] += client.push(some if sparse else ones(client))

        workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        [worker.start() for worker in workers]
        for kills in range(4):
            before = sum(acknowledged)
            until(lambda before=before: sum(acknowledged) > before + 3)
            os.kill(server.pids[kills % 2], signal.SIGKILL)
            until(lambda kills=kills: server.restarts > kills)
        before = sum(acknowledged)
        until(lambda: sum(acknowledged) > before + 3)
        stop.set()
        [worker.join() for worker in workers]
        assert server.pull() == [sum(acknowledged)] * 2
        assert (server.parameters["w"][::2] == sum(acknowledged)).all()
        whole = 0 if sparse else sum(acknowledged)
        assert (server.parameters["w"][1::2] == whole).all()
        assert (server.parameters["v"] == whole).all()


def test_optimizer_state_and_statistics_outlive_a_shard():
    optimizer = train.Adam(train.Schedule.cosine(0.1, 50).after_warmup(5), clip_norm=1.0)
    reference = train.Updater(train.Parameters(BLOCKS), optimizer)
    with train.ParameterServer(
        train.Parameters(BLOCKS), optimizer, shards=2, use_multiprocessing=True
    ) as server:
        client = train.connect(server.addresses)
        rng = np.random.default_rng(0)
        for round in range(5):
            for block in client.gradients.values():
                block[:] = rng.normal(size=block.shape)
            if round == 2:
                os.kill(server.pids[1], signal.SIGKILL)
            client.push(client.gradients)
            reference.apply(client.gradients)
        client.pull()
        for name, block in client.parameters.items():
            assert (block == reference.parameters[name]).all()
        assert [shard["version"] for shard in server.stats()] == [5, 5]
        client.close()


def test_a_killed_supervisor_is_replaced():
    with served(use_multiprocessing=True) as server, train.connect(server.addresses) as client:
        client.push(ones(client))
        before = server.pids
        server._processes._process.kill()
        until(lambda: all(gone(pid) for pid in before))
        assert client.push(ones(client))
        assert client.pull() == [2, 2]
        assert not set(before) & set(server.pids)


def test_shards_end_with_their_server_however_that_ends():
    server = start(SERVER)
    pids = [int(pid) for pid in server.stdout.readline().split()]
    assert len(pids) == 2
    server.kill()
    server.communicate()
    until(lambda: all(gone(pid) for pid in pids))
    # Also an orderly end.
    server = start(SERVER)
    pids = [int(pid) for pid in server.stdout.readline().split()]
    server.communicate()
    assert server.returncode == 0
    until(lambda: all(gone(pid) for pid in pids))


def test_a_shard_that_cannot_start_is_an_error():
    with served(listen="unix:@taken-by-another") as other:
        assert other.addresses
        with pytest.raises(penstock.System, match="taken"):
            served(use_multiprocessing=True, listen="unix:@taken-by-another")


def test_processes_go_on_from_snapshots(tmp_path):
    options = {"processes": True, "snapshots": tmp_path, "listen": f"unix:@snap-{os.getpid()}"}
    first = served(**options)
    client = train.connect(first.addresses)
    for _ in range(3):
        client.push(ones(client))
    first.close()
    assert (first.parameters["v"] == 3).all()
    with served(**options) as second:
        client.push(ones(client))  # the same worker
        assert client.pull() == [4, 4]
        assert (client.parameters["w"] == 4).all()
        client.close()
        assert second.restarts == 0


@pytest.mark.parametrize("processes", [False, True])
def test_others_wait_for_a_frozen_worker_no_longer_than_its_lease(processes):
    with served(staleness=1, lease=0.5, processes=processes) as server:
        worker = start(WORKER, "100000", *server.addresses)
        try:
            said = worker.stdout.readline()
            with train.connect(server.addresses, name="busy") as client:
                worker.send_signal(signal.SIGSTOP)
                until(lambda: gone_or_stopped(worker.pid))
                before = min(server.pull())
                for _ in range(8):
                    client.push(ones(client))  # returns: that is the test
                assert min(server.pull()) > before
                worker.send_signal(signal.SIGCONT)
                # It takes part again: pushes of others and its own alternate.
                lines = int(said.split()[0])
                while int(said.split()[0]) < lines + 5:
                    client.push(ones(client))
                    said = worker.stdout.readline()
        finally:
            worker.kill()
            worker.communicate()


def gone_or_stopped(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return ") T " in stat.read()


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_a_worker_killed_while_it_pushes_leaves_whole_pushes(listen):
    with served(listen=listen) as server, train.connect(server.addresses) as client:
        for _ in range(3):
            worker = start(WORKER, "100000", *server.addresses)
            for _ in range(5):
                assert worker.stdout.readline()
            worker.kill()
            worker.communicate()
            assert client.push(ones(client))
        pushed = client.pull()
        # Complete in each shard: the received part of an incomplete push is dropped.
        until(lambda: client.pull() == client.pull())
        blocks = np.concatenate([block.ravel() for block in client.parameters.values()])
        assert set(np.unique(blocks)) <= {float(version) for version in client.pull()}
        assert min(pushed) >= 18


# ---- stopped shards, and lines that stall --------------------------------------------------------


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_frozen_shards_are_given_up_like_those_that_are_gone(listen):
    with served(use_multiprocessing=True, listen=listen) as server:
        client = train.connect(server.addresses, timeout=1)
        for pid in server.pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: all(gone_or_stopped(pid) for pid in server.pids))
            begin = time.monotonic()
            with pytest.raises(penstock.errors.Timeout):
                train.connect(server.addresses, timeout=1)
            with pytest.raises(penstock.errors.Timeout):
                client.stats()
            assert time.monotonic() - begin < 20
        finally:
            for pid in server.pids:
                os.kill(pid, signal.SIGCONT)
        assert client.push(ones(client))
        client.close()


# Waits in the middle of a body until Ctrl-C.
STALLED = """
import signal, sys
from penstock import train
signal.signal(signal.SIGINT, signal.default_int_handler)
client = train.connect(sys.argv[1])
gradients = client.gradients
client.pull()
print("here", flush=True)
try:
    while True:
        client.pull() if sys.argv[2] == "pull" else client.push(gradients)
except KeyboardInterrupt:
    print("ended", flush=True)
"""


class Relay:
    """Forwards bytes in both directions until it is stopped, and hangs up at the end."""

    def __init__(self, address):
        host, port = address.removeprefix("tcp://").split(":")
        self.upstream = (host, int(port))
        self.stopped = threading.Event()
        self.sockets = [socket.create_server(("127.0.0.1", 0))]
        self.address = f"tcp://127.0.0.1:{self.sockets[0].getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.sockets[0].accept()[0]
                far = socket.create_connection(self.upstream)
                self.sockets += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self.hand_on, args=ends, daemon=True).start()

    def hand_on(self, source, to):
        with contextlib.suppress(OSError):
            while not self.stopped.is_set():
                piece = source.recv(65536)
                if not piece:
                    break
                to.sendall(piece)

    def close(self):
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.mark.parametrize("call", ["pull", "push"])
def test_ctrl_c_ends_a_transfer_that_stalls(call):
    with train.ParameterServer(
        train.Parameters({"w": (12_000_000,)}), train.SGD(1.0), listen="tcp://127.0.0.1:0"
    ) as server:
        relay = Relay(server.addresses[0])
        worker = start(STALLED, relay.address, call)
        try:
            assert worker.stdout.readline() == "here\n"
            time.sleep(0.3)
            relay.stopped.set()
            time.sleep(1)
            begin = time.monotonic()
            worker.send_signal(signal.SIGINT)
            assert worker.stdout.readline() == "ended\n"
            assert time.monotonic() - begin < 15
        finally:
            worker.kill()
            worker.communicate()
            relay.close()

"""Workers of a parameter server that are started again under the same ``worker_id``."""

from __future__ import annotations

import os

import pytest

import penstock
from penstock import train
from train_servers import ones, served, start

WORKER = """
import sys
from penstock import train
with train.connect(sys.argv[1:], worker_id=7) as client:
    for block in client.gradients.values():
        block[:] = -1
    while True:
        client.push(client.gradients)
        print(client.sequence, flush=True)
"""


def weights_are(server, value):
    server.pull()
    return all((block == value).all() for block in server.parameters.values())


@pytest.mark.parametrize(("listen", "processes"), [(None, False), ("tcp://127.0.0.1:0", True)])
def test_a_killed_worker_continues_with_the_push_that_is_due(listen, processes):
    with served(listen=listen, use_multiprocessing=processes) as server:
        due = 1
        for _ in range(2):
            worker = start(WORKER, *server.addresses)
            assert worker.stdout is not None
            assert int(worker.stdout.readline()) == due
            worker.stdout.readline()
            worker.kill()
            worker.communicate()
            # The last push may be in one shard only; who comes next completes it.
            with train.connect(server.addresses, worker_id=7) as client:
                client.push(ones(client))
                assert client.pull() == [client.sequence] * 2
                assert weights_are(server, client.sequence)
                due = client.sequence + 1
        with train.connect(server.addresses) as another:
            assert another.sequence == 0


def test_an_id_outlives_its_client_and_its_server(tmp_path):
    options = {"snapshots": tmp_path, "listen": f"unix:@ids-{os.getpid()}"}
    for turn in range(3):
        with served(**options) as server:
            with train.connect(server.addresses, worker_id=3) as client:
                assert client.sequence == 2 * turn
                assert client.push(ones(client))
            assert not server.stats()[0]["workers"]  # no worker waits for it
            with train.connect(server.addresses, worker_id=3) as client:
                assert client.push(ones(client))
                assert client.sequence == 2 * turn + 2
    assert (server.parameters["w"] == 6).all()


def test_a_client_whose_id_was_taken_over_gets_an_error():
    with (
        served() as server,
        train.connect(server.addresses, worker_id=3) as first,
        train.connect(server.addresses, worker_id=4) as another,
    ):
        assert first.push(ones(first))
        with train.connect(server.addresses, worker_id=3) as second:
            assert second.sequence == 1
            with pytest.raises(penstock.InvalidArgument, match="taken over worker_id 3"):
                first.push(ones(first))
            first.close()
            assert second.push(ones(second))
        assert another.push(ones(another))
        assert weights_are(server, 3)


@pytest.mark.parametrize("worker_id", [0, -1, 1 << 64, 1.5, "a"])
def test_an_id_is_a_number_above_0(worker_id):
    with pytest.raises(penstock.InvalidArgument, match="worker_id"):
        train.connect("127.0.0.1:1", worker_id=worker_id)

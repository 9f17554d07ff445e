"""Workers of a server on this host: large batches lie in memory that both processes share."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import penstock
from contract import assert_same
from faults import Deadly, Slow, right, wait_until
from loader_datasets import Items
from remote_servers import SECRET, ServerProcess, add_one

pytestmark = pytest.mark.timeout(60)
WIDTH = 30_000  # of an item: large enough to be shared


@pytest.fixture(scope="module")
def neighbour() -> Iterator[ServerProcess]:
    with ServerProcess(neighbour=True) as made:
        yield made


def network_connections(server: ServerProcess) -> int:
    """How many TCP connections the server's worker processes have."""
    return sum(
        connection.status == psutil.CONN_ESTABLISHED
        for pid in server.worker_pids()
        for connection in psutil.Process(pid).net_connections("tcp")
    )


def chain() -> Any:
    columns = {"x": np.arange(1_000_000.0).reshape(100, 10_000)}
    return penstock.Dataset.arrays(columns).shuffle(seed=3).map(add_one).batch(8)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        pytest.param(lambda: Items(30, WIDTH), {}, id="items"),
        pytest.param(lambda: Items(60, WIDTH), {"batch_size": 5, "shuffle": True}, id="batches"),
        pytest.param(lambda: Items(30, 10), {}, id="small"),
        pytest.param(chain, {"seed": 9}, id="chain"),
    ],
)
def test_batches_are_those_of_a_loader_in_line_and_pass_no_network(neighbour, source, options):
    with penstock.Loader(source(), workers=0, **options) as alone:
        wanted = [list(alone) for _ in range(2)]
    with penstock.Loader(source(), workers=neighbour.workers(), **options) as feed:
        for epoch in wanted:
            assert_same(list(feed), epoch)
        assert network_connections(neighbour) == 0
        stats = feed.stats()
    assert (stats["restarts"], stats["reissued"], stats["losses"]) == (0, 0, [])


def test_a_server_whose_folder_is_another_is_reached_over_the_network():
    with (
        ServerProcess() as server,
        penstock.Loader(Items(30, WIDTH), workers=server.workers()) as feed,
    ):
        assert right(list(feed), 30)
        assert network_connections(server) > 0


@pytest.mark.parametrize("batch_size", [None, 4])
def test_held_batches_outlive_the_loader_and_the_server(batch_size):
    with ServerProcess(neighbour=True) as server:
        workers = server.workers()
        with penstock.Loader(Items(40, WIDTH), batch_size=batch_size, workers=workers) as feed:
            held = list(feed)
        server.kill()
    assert right(held, 40)
    for array, _ in held:
        array[:] = 7  # each is the holder's own
    assert all((array == 7).all() for array, _ in held)


@pytest.mark.parametrize(
    ("batch_size", "when"),
    [
        (None, "sending"),
        (4, "before"),
        pytest.param(4, "after", marks=pytest.mark.slow),
        pytest.param(None, "before", marks=pytest.mark.slow),
    ],
)
def test_a_dead_worker_process_loses_no_batch(neighbour, batch_size, when, tmp_path):
    source = Deadly(tmp_path, {0, 7, 13, 19}, when, width=WIDTH)
    with penstock.Loader(source, batch_size=batch_size, workers=neighbour.workers()) as feed:
        assert right(list(feed), 20)
        wait_until(lambda: feed.stats()["restarts"] == 4)
        assert right(list(feed), 20)
        assert network_connections(neighbour) == 0
        assert feed.stats()["losses"] == []


def test_close_in_the_middle_ends_the_workers(neighbour):
    feed = penstock.Loader(Slow(10_000, WIDTH, 0.01), workers=neighbour.workers())
    batches = iter(feed)
    held = [next(batches) for _ in range(5)]
    feed.close()
    wait_until(lambda: not neighbour.worker_pids())
    assert right(held, 5)


@pytest.mark.slow
@pytest.mark.soak
def test_random_kills_of_processes_and_servers_lose_no_batch():
    rng = random.Random(5)
    with ServerProcess(neighbour=True) as first:
        servers = [first, ServerProcess(neighbour=True)]
        addresses = [server.address for server in servers]
        workers = penstock.remote.workers(addresses, 4, secret=SECRET)
        with penstock.Loader(Slow(200, WIDTH, 0.004), workers=[1, workers]) as feed:
            ended = threading.Event()

            def kill_some() -> None:
                while not ended.wait(rng.uniform(0.3, 1.5)):
                    if rng.random() < 0.2:
                        servers[1].kill()
                        with contextlib.suppress(AssertionError):  # its port is taken meanwhile
                            servers[1] = ServerProcess(addresses[1], neighbour=True)
                    elif pids := servers[0].worker_pids():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(rng.choice(pids), signal.SIGKILL)

            assert right(list(feed), 200)
            killing = threading.Thread(target=kill_some)
            killing.start()
            try:
                until = time.monotonic() + 15
                while time.monotonic() < until:
                    assert right(list(feed), 200)
            finally:
                ended.set()
                killing.join()
            assert feed.stats()["reissued"] > 0
        servers[1].kill()

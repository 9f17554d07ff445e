"""Data sets whose files only some hosts have: batches are made where their files are."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from faults import wait_until
from remote_servers import SECRET, ServerProcess

pytestmark = pytest.mark.timeout(60)


class Parts:
    """Batch i is read from a file of its own, by a path that is relative to its host's folder."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def path(self, index: int) -> str:
        return f"parts/{index}"

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.full(1000, int(Path(self.path(index)).read_text())), os.getppid()


@pytest.fixture
def hosts(tmp_path: Path) -> Any:
    """Two servers; the first has the even files, the second the odd ones."""
    servers = []
    for host in range(2):
        folder = tmp_path / f"host{host}" / "parts"
        folder.mkdir(parents=True)
        for index in range(host, 40, 2):
            (folder / str(index)).write_text(str(index))
        servers.append(ServerProcess(folder=folder.parent))
    yield servers
    for server in servers:
        server.__exit__()


def addresses(hosts: list[ServerProcess]) -> list[str]:
    return [host.address for host in hosts]


def feed_of(hosts: list[ServerProcess], data: Parts, files: Any, **options: Any) -> penstock.Loader:
    workers = penstock.remote.workers(addresses(hosts), 2, secret=SECRET, locality=files)
    return penstock.Loader(data, workers=workers, **options)


@pytest.mark.parametrize("kind", ["function", "list"])
def test_each_batch_is_made_where_its_file_is(hosts, kind):
    data = Parts(40)
    files = data.path if kind == "function" else [Path(data.path(i)) for i in range(40)]
    with feed_of(hosts, data, files, shuffle=True, seed=3) as feed:
        for _ in range(2):
            batches = list(feed)
            assert sorted(int(x[0]) for x, _ in batches) == list(range(40))
            made = {int(x[0]): int(host) for x, host in batches}
            assert all(made[i] == hosts[i % 2].pid for i in range(40))
        stats = feed.stats()
    assert (stats["restarts"], stats["reissued"], stats["losses"]) == (0, 0, [])


def test_a_file_that_nobody_has_is_an_error_at_its_place(hosts):
    data = Parts(42)
    seen = []
    with (
        feed_of(hosts, data, data.path) as feed,
        pytest.raises(penstock.NotFound, match=r"no host has the file parts/40.*tcp://") as raised,
    ):
        seen.extend(int(batch[0][0]) for batch in feed)
    assert seen == list(range(40))
    assert all(host.address in str(raised.value) for host in hosts)


def test_a_batch_whose_files_are_on_two_hosts_is_an_error_that_says_so(hosts):
    data = Parts(40)
    with (
        feed_of(hosts, data, data.path, batch_size=4) as feed,
        pytest.raises(penstock.NotFound, match="no host has all 4 files of one batch"),
    ):
        next(iter(feed))


def test_a_host_that_is_started_again_is_waited_for(hosts, tmp_path):
    data = Parts(40)
    with feed_of(hosts, data, data.path) as feed:
        batches = iter(feed)
        seen = [int(next(batches)[0][0]) for _ in range(4)]
        hosts[0].kill()
        hosts[0] = ServerProcess(hosts[0].address, folder=tmp_path / "host0")
        seen += [int(x[0]) for x, _ in batches]
        assert seen == list(range(40))
        assert feed.stats()["losses"] == []


def test_close_does_not_wait_for_a_host_that_is_gone(hosts):
    data = Parts(40)
    with feed_of(hosts, data, data.path) as feed:
        next(iter(feed))
        hosts[0].kill()
        wait_until(lambda: feed._pool.running.hosts._hosts[0].connection is None)
        began = time.monotonic()
    assert time.monotonic() - began < 5


def test_a_file_whose_host_stays_away_is_an_error_that_names_it(hosts, monkeypatch):
    monkeypatch.setattr("penstock.remote.routing.PATIENCE_S", 1.0)
    data = Parts(40)
    hosts[0].kill()
    with (
        feed_of(hosts, data, data.path) as feed,
        pytest.raises(penstock.WorkerLost, match="no remote worker that has parts/"),
    ):
        list(feed)


@pytest.mark.slow
def test_a_draining_host_hands_its_files_over_to_one_that_has_them_too(hosts, tmp_path):
    for index in range(0, 40, 2):
        (tmp_path / "host1" / "parts" / str(index)).write_text(str(index))
    data = Parts(40)
    with feed_of(hosts, data, data.path, max_queue_size=2) as feed:
        batches = iter(feed)
        seen = [int(next(batches)[0][0]) for _ in range(4)]
        hosts[0].drain()
        assert hosts[0].wait() == 0
        seen += [int(x[0]) for x, _ in batches]
        assert seen == list(range(40))
        stats = feed.stats()
    assert (stats["restarts"], stats["reissued"], stats["losses"]) == (0, 0, [])


@pytest.mark.slow
def test_random_kills_of_processes_lose_no_batch(hosts):
    data = Parts(40)
    rng = random.Random(5)
    with feed_of(hosts, data, data.path) as feed:
        for _ in range(6):
            seen = []
            for batch, host in feed:
                index = int(batch[0])
                assert int(host) == hosts[index % 2].pid
                seen.append(index)
                if rng.random() < 0.1 and (pids := hosts[rng.randrange(2)].worker_pids()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(pids), signal.SIGKILL)
            assert seen == list(range(40))
        assert feed.stats()["losses"] == []

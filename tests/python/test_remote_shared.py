"""Loaders that share the worker processes of a server on their host."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from contract import assert_same
from faults import DeadlyByEpoch, Slow, right, run, wait_for_ends, wait_until
from loader_datasets import Items, Keyed, Samples, Trouble, Troubled
from penstock import _engine
from penstock.remote import messages
from penstock.remote.hosts import Hosts, Worker
from penstock.remote.pool import Pool
from remote_servers import SECRET, ServerProcess

pytestmark = pytest.mark.timeout(60)
RANKS = 3


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess(neighbour=True) as made:
        yield made
        wait_until(lambda: not made.worker_pids(), "the end of the workers")


def shared(server: ServerProcess, count: int = 2) -> Any:
    workers = server.workers(count)
    workers.shared = True
    return workers


def together(feeds: list[penstock.Loader], take: Any = list) -> list[Any]:
    """What `take` returns for each Loader, all at the same time."""
    found: list[Any] = [None] * len(feeds)

    def work(i: int) -> None:
        try:
            found[i] = take(feeds[i])
        except Exception as error:
            found[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def add_draw(element: Any) -> Any:
    return {"x": element["x"] + 1, "draw": penstock.rng().integers(1 << 40)}


def chain(rank: int) -> penstock.Dataset:
    rows = penstock.Dataset.arrays({"x": np.arange(50)}).map(add_draw).shuffle(seed=3)
    return rows.shard(rank, RANKS, remainder="pad").batch(4)


SOURCES: dict[str, Any] = {
    "samples": (lambda rank: Samples(), {"batch_size": 4, "shuffle": True, "seed": 1}),
    "keyed": (lambda rank: Keyed(50), {"batch_size": 4, "seed": 2}),
    "columns": (lambda rank: {"x": np.arange(80.0).reshape(40, 2)}, {"batch_size": 4}),
    "chain": (chain, {"seed": 5}),
    "chain that skips": (chain, {"seed": 5, "on_error": "skip"}),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_ranks_share_workers_and_each_has_its_own_batches(server, kind):
    make, options = SOURCES[kind]
    shards = [{} if "chain" in kind else {"shard": (rank, RANKS)} for rank in range(RANKS)]
    wanted = []
    for rank in range(RANKS):
        with penstock.Loader(make(rank), workers=0, **options, **shards[rank]) as alone:
            wanted.append([list(alone) for _ in range(2)])
    workers = shared(server)
    feeds = [
        penstock.Loader(make(rank), workers=workers, **options, **shards[rank])
        for rank in range(RANKS)
    ]
    found = together(feeds, lambda feed: [list(feed) for _ in range(2)])
    assert len(server.worker_pids()) == 2
    for feed in feeds:
        assert feed.stats()["losses"] == []
        feed.close()
    for rank in range(RANKS):
        assert_same(found[rank], wanted[rank])


def test_loaders_with_other_options_share_workers(server):
    options = [
        {"batch_size": 4},
        {"batch_size": 7, "shuffle": True, "seed": 9, "drop_last": True},
        {"batch_size": 2, "on_error": "skip"},
    ]
    wanted = []
    for each in options:
        with penstock.Loader(Samples(), workers=0, **each) as alone:
            wanted.append(list(alone))
    feeds = [penstock.Loader(Samples(), workers=shared(server), **each) for each in options]
    found = together(feeds)
    assert len(server.worker_pids()) == 2
    for feed in feeds:
        feed.close()
    assert_same(found, wanted)


def test_local_processes_have_their_own_share(server):
    wanted = list(chain(1))
    with chain(1).build(workers=[1, shared(server)]) as feed:
        found = list(feed)
    assert [batch["x"].tolist() for batch in found] == [batch["x"].tolist() for batch in wanted]


def test_another_data_set_has_other_workers_and_a_warning_if_it_looks_alike(server, caplog):
    caplog.set_level(logging.WARNING, "penstock")
    with (
        penstock.Loader(Items(20, 300), workers=shared(server)) as one,
        penstock.Loader(Items(20, 100_000), workers=shared(server)) as longer,
    ):
        next(iter(one))
        next(iter(longer))
        assert len(server.worker_pids()) == 4
        assert not caplog.messages
        with penstock.Loader(Items(21, 300), workers=shared(server)) as alike:
            next(iter(alike))
            assert len(server.worker_pids()) == 6
            assert any("as many bytes and other values" in text for text in caplog.messages)


def test_a_loader_that_closes_in_the_middle_disturbs_no_other(server):
    feeds = [penstock.Loader(Slow(100, 300, 0.005), workers=shared(server)) for _ in range(2)]
    first, second = map(iter, feeds)
    next(first)
    seen = [next(second)]
    pids = server.worker_pids()
    feeds[0].close()
    seen += list(second)
    assert right(seen, 100)
    assert server.worker_pids() == pids
    stats = feeds[1].stats()
    assert (stats["restarts"], stats["reissued"]) == (0, 0)
    feeds[1].close()
    assert wait_for_ends(pids, 2) == []


def test_a_deadly_sample_costs_only_its_own_loader(server, tmp_path, monkeypatch):
    verdicts: dict[int, list[bool]] = {}
    verdict = Hosts._verdict

    def noted(self: Any, worker: Any, place: int) -> Any:
        found = verdict(self, worker, place)
        verdicts.setdefault(id(self), []).append(found[0])
        return found

    monkeypatch.setattr(Hosts, "_verdict", noted)
    data = DeadlyByEpoch(tmp_path, {6}, times=9)  # of 20 items; the other rank has the odd ones
    workers = shared(server, 1)
    feeds = [penstock.Loader(data, workers=workers, shard=(rank, 2)) for rank in range(2)]

    def take(feed: penstock.Loader) -> Any:
        if feed is feeds[0]:
            return list(feed)
        seen = [batch[1] for batch in feed]
        while not feeds[0].closed and feeds[0].stats()["reissued"] < 3:
            assert [batch[1] for batch in feed] == seen
        return seen

    lost, found = together(feeds, take)
    assert isinstance(lost, penstock.WorkerLost)
    assert "index 6" in str(lost)
    assert found == list(range(1, 20, 2))
    assert len(list(tmp_path.iterdir())) == 3
    charged = [verdicts.get(id(feed._pool.running.hosts), []) for feed in feeds]
    assert charged[0].count(True) == 3
    assert charged[1].count(True) == 0
    for feed in feeds:
        feed.close()


def test_an_exception_is_raised_in_the_loader_of_its_sample(server):
    feeds = [
        penstock.Loader(Troubled({7}), workers=shared(server), shard=(rank, 2)) for rank in range(2)
    ]
    found, raised = together(feeds)
    assert [batch[1] for batch in found] == list(range(0, 20, 2))
    assert isinstance(raised, Trouble)
    for feed in feeds:
        feed.close()


@pytest.mark.slow
def test_workers_that_are_killed_lose_no_batch(server):
    feeds = [penstock.Loader(Slow(200, 300, 0.004), workers=shared(server)) for _ in range(3)]
    for feed in feeds:
        next(iter(feed))  # before that, processes that are killed count as ones that cannot start
    ended = threading.Event()

    def kill_some() -> None:
        while not ended.wait(0.5):
            for pid in server.worker_pids()[:1]:
                os.kill(pid, signal.SIGKILL)

    killing = threading.Thread(target=kill_some)
    killing.start()
    try:
        found = together(feeds)
    finally:
        ended.set()
        killing.join()
    assert all(right(each, 200) for each in found), found
    for feed in feeds:
        assert feed.stats()["losses"] == []
        feed.close()


SCRIPT = """
import os, signal, sys
import penstock
from faults import Slow
from remote_servers import SECRET

if __name__ == "__main__":
    workers = penstock.remote.workers(sys.argv[1], 2, secret=SECRET)
    workers.shared = True
    feed = penstock.Loader(Slow(1000, 300, 0.005), workers=workers)
    next(iter(feed))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_is_killed_disturbs_no_other(server, tmp_path):
    with penstock.Loader(Slow(1000, 300, 0.005), workers=shared(server)) as feed:
        batches = iter(feed)
        next(batches)
        pids = server.worker_pids()
        assert run(tmp_path, SCRIPT, server.address)[0] == -signal.SIGKILL
        for _ in range(50):
            next(batches)
        assert server.worker_pids() == pids
        assert feed.stats()["restarts"] == 0


def test_a_server_that_is_started_again_gets_the_data_set_again():
    with ServerProcess(neighbour=True) as first:
        workers = shared(first)
        feeds = [penstock.Loader(Slow(150, 300, 0.005), workers=workers) for _ in range(2)]
        batches = [iter(feed) for feed in feeds]
        seen = [[next(each)] for each in batches]
        assert all(feed._pool.running.hosts._dataset is None for feed in feeds)
        first.kill()
        with ServerProcess(first.address, neighbour=True) as again:
            rest = together(batches)
            assert len(again.worker_pids()) == 2
            for some, others in zip(seen, rest, strict=True):
                assert right(some + others, 150)
            for feed in feeds:
                feed.close()


def test_a_server_that_drains_gives_no_more_tickets():
    with ServerProcess(neighbour=True) as one, ServerProcess(neighbour=True) as other:
        workers = penstock.remote.workers([one.address, other.address], 2, secret=SECRET)
        workers.shared = True
        feeds = [penstock.Loader(Slow(100, 300, 0.005), workers=workers) for _ in range(2)]
        batches = [iter(feed) for feed in feeds]
        seen = [[next(each) for _ in range(20)] for each in batches]
        one.drain()
        assert one.wait() == 0
        rest = together(batches)
        for some, others in zip(seen, rest, strict=True):
            assert right(some + others, 100)
        for feed in feeds:
            assert feed.stats()["reissued"] == 0
            feed.close()


class Unreadable(Items):
    def __setstate__(self, state: Any) -> None:
        raise Trouble(0, "no such thing here")


def test_a_data_set_that_cannot_be_unpacked_fails_every_loader(server):
    feeds = [penstock.Loader(Unreadable(), workers=shared(server)) for _ in range(2)]
    for found in together(feeds):
        assert isinstance(found, Trouble)
    for feed in feeds:
        feed.close()
    with penstock.Loader(Items(), workers=shared(server)) as feed:
        assert right(list(feed), 12)


def failing_connects(monkeypatch: Any, of: penstock.Loader, times: int) -> list[int]:
    """Let the next connections of a Loader to its workers fail; those that are left."""
    left = list(range(times))
    connect = Worker.connect

    def failing(self: Worker) -> Any:
        if self.host.owner is of._pool.running.hosts and left:
            left.pop()
            raise penstock.System("out of descriptors", "test")
        return connect(self)

    monkeypatch.setattr(Worker, "connect", failing)
    return left


def test_a_loader_that_cannot_connect_ends_no_process_of_the_others(server, monkeypatch):
    feeds = [penstock.Loader(Slow(60, 300, 0.01), workers=shared(server)) for _ in range(2)]
    other = iter(feeds[1])
    seen = [next(other)]
    pids = server.worker_pids()
    left = failing_connects(monkeypatch, feeds[0], 5)
    assert right(list(feeds[0]), 60)
    assert not left
    assert right([*seen, *other], 60)
    assert server.worker_pids() == pids
    for feed in feeds:
        stats = feed.stats()
        assert (stats["restarts"], stats["reissued"], stats["losses"]) == (0, 0, [])
        feed.close()


def test_workers_that_cannot_be_connected_to_are_an_error(server, monkeypatch):
    monkeypatch.setattr("penstock.remote.hosts.PATIENCE_S", 1.0)
    with penstock.Loader(Items(), workers=shared(server)) as feed:
        failing_connects(monkeypatch, feed, 1000)
        with pytest.raises(penstock.WorkerLost, match="out of descriptors"):
            next(iter(feed))


def test_a_cut_connection_costs_the_other_loaders_nothing(server, monkeypatch):
    monkeypatch.setattr("penstock.remote.hosts._VERDICT_S", 0.5)
    feeds = [penstock.Loader(Slow(60, 300, 0.01), workers=shared(server)) for _ in range(2)]
    pairs = list(map(iter, feeds))
    seen = [[next(each)] for each in pairs]
    pids = server.worker_pids()
    for place in range(2):
        feeds[0]._core.cut_remote(place)
    for got, each in zip(seen, pairs, strict=True):
        got += each
        assert right(got, 60)
    assert server.worker_pids() == pids
    assert feeds[1].stats()["reissued"] == 0
    for feed in feeds:
        feed.close()


class SlowToStart(Items):
    def __setstate__(self, state: Any) -> None:
        time.sleep(2.0)
        self.__dict__.update(state)


@pytest.fixture
def server_here() -> Iterator[penstock.remote.Server]:
    with penstock.remote.Server(secret=SECRET) as made:
        yield made


def shared_here(server: penstock.remote.Server) -> Any:
    workers = penstock.remote.workers(server.address, 1, secret=SECRET)
    workers.shared = True
    return workers


def test_no_socket_file_is_left(monkeypatch):
    with tempfile.TemporaryDirectory() as folder:  # a socket's path has at most 107 bytes
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        files = Path(folder)
        with penstock.remote.Server(secret=SECRET) as server:
            with penstock.Loader(Items(), workers=shared_here(server)) as feed:
                next(iter(feed))
                assert list(files.glob("penstock/net-*"))
            wait_until(lambda: not list(files.glob("penstock/net-*")))


def test_workers_that_are_slow_to_start_are_waited_for(server_here, monkeypatch):
    monkeypatch.setattr("penstock.remote.hosts.PATIENCE_S", 0.5)
    monkeypatch.setattr("penstock.remote.server._STARTING_S", 0.1)
    feeds = [penstock.Loader(SlowToStart(), workers=shared_here(server_here)) for _ in range(2)]
    for found in together(feeds):
        assert right(found, 12)
    for feed in feeds:
        feed.close()


def opened(address: str, key: str) -> Any:
    """A connection that asked for the pool of a key."""
    connection = _engine.remote_connect(address, SECRET, 5.0)
    head = {"version": penstock.__version__, "workers": 1, "first": 0, "settings": {}}
    head |= {"key": "", "share": key, "title": "x", "size": 7}
    messages.send(connection, do="open", **head)
    return connection


def test_a_loader_that_never_sends_its_data_set_leaves_that_to_the_next_one(
    server_here, monkeypatch
):
    monkeypatch.setattr("penstock.remote.server._OPEN_S", 1.0)
    stopped = opened(server_here.address, "a key")
    assert messages.receive(stopped, 5)[0] == {"do": "send"}
    second = opened(server_here.address, "a key")
    assert messages.receive(second, 5)[0] == {"do": "send"}
    for connection in (stopped, second):
        connection.close()


def test_a_loader_that_reads_nothing_stops_no_other(server_here):
    with penstock.Loader(Items(200, 300), workers=shared_here(server_here)) as feed:
        next(iter(feed))
        stopped = opened(server_here.address, feed._pool.running.hosts._share)
        (pool,) = server_here._shared.values()
        wait_until(lambda: len(pool._sessions) == 2)
        begin = time.monotonic()
        for _ in range(100):  # more than the socket takes
            for session in pool._sessions.values():
                session.send(bytes(1 << 20), do="another message")
        assert time.monotonic() - begin < 5
        assert right(list(feed), 200)
        stopped.close()


class Growing(Items):
    def on_epoch_end(self) -> None:
        self.width += 1


def test_a_changed_data_set_is_refused_with_the_remedy(server):
    with penstock.Loader(Growing(), workers=shared(server)) as feed:
        assert len(list(feed)) == 12
        for _ in range(2):
            with pytest.raises(penstock.InvalidArgument, match=r"share these.*ray\.workers"):
                list(feed)


def test_a_timeout_is_refused(server):
    with pytest.raises(penstock.InvalidArgument, match="a batch may wait for those of other ranks"):
        penstock.Loader(Items(), workers=shared(server), timeout=5)


def test_a_loader_that_ends_before_it_sent_its_data_set_leaves_that_to_the_next_one(server):
    first = opened(server.address, "a key")
    assert messages.receive(first, 5)[0] == {"do": "send"}
    second, third = (opened(server.address, "a key") for _ in range(2))
    with pytest.raises(penstock.Timeout):
        messages.receive(second, 0.3)
    first.close()
    asked = []
    for connection in (second, third):
        try:
            asked.append(messages.receive(connection, 1.0)[0])
        except penstock.Timeout:
            asked.append(None)
    assert sorted(asked, key=str) == [None, {"do": "send"}]
    second.close()
    third.close()


def test_a_server_that_could_not_start_the_processes_is_asked_again(monkeypatch):
    start = Pool._start
    failures = [0, 0]

    def failing(self: Any, place: int) -> None:
        if place == 1 and failures:
            failures.pop()
            raise OSError("no descriptors")
        start(self, place)

    monkeypatch.setattr(Pool, "_start", failing)
    server = penstock.remote.Server(secret=SECRET)
    workers = penstock.remote.workers(server.address, 2, secret=SECRET)
    workers.shared = True
    feeds = [penstock.Loader(Items(), workers=workers) for _ in range(2)]
    try:
        for found in together(feeds):
            assert right(found, 12)
        assert not failures
    finally:
        for feed in feeds:
            feed.close()
        server.close()


@pytest.mark.parametrize("ready", [False, True])
def test_a_process_that_cannot_be_replaced_now_is_replaced_later(server_here, monkeypatch, ready):
    monkeypatch.setattr("penstock.remote.pool._RESTART_S", 0.2)
    start = Pool._start
    failures = [0, 0, 0]

    def failing(self: Any, place: int) -> None:
        if self._next_number and failures:
            failures.pop()
            raise OSError("no descriptors")
        start(self, place)

    monkeypatch.setattr(Pool, "_start", failing)
    data = Slow(40, 300, 0.01) if ready else SlowToStart()
    with penstock.Loader(data, workers=shared_here(server_here)) as feed:
        batches = iter(feed)
        seen = [next(batches)] if ready else []
        threads = [] if ready else [threading.Thread(target=lambda: seen.extend(batches))]
        for thread in threads:
            thread.start()
        wait_until(lambda: any(pool._workers for pool in server_here._shared.values()))
        (pool,) = server_here._shared.values()
        for worker in list(pool._workers.values()):
            worker.started.kill()
        for thread in threads:
            thread.join()
        seen += batches
        assert not failures
        assert right(seen, 40 if ready else 12)


KEY = """
import penstock
from penstock.remote.hosts import _key_of

class Numbers:
    def __init__(self):
        self.names = {f"name {i}": i for i in range(100)}
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return helper(index)

def helper(index):
    return index if str(index) not in {"a", "b", "c", "d", "e", "f", "g"} else -1

if __name__ == "__main__":
    for source in (Numbers(), penstock.Dataset.range(9).map(helper).shard(RANK, 2).batch(2)):
        workers = penstock.remote.workers("tcp://a:1", 1, secret=b"0" * 16)
        feed = penstock.Loader(source, workers=workers)
        print(_key_of(feed._pool._for_hosts()))
"""


def test_equal_data_sets_of_scripts_have_equal_keys(tmp_path):
    found = []
    for rank in range(2):
        Path(tmp_path, "script.py").write_text(KEY.replace("RANK", str(rank)))
        done = subprocess.run(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        )
        found.append(done.stdout.split())
    assert len(set(found[0])) == 2
    assert found[0] == found[1]


def test_an_idle_server_ends_itself() -> None:
    server = penstock.remote.Server(secret=SECRET)
    assert not server.close_if_idle(30)
    workers = penstock.remote.workers(server.address, 1, secret=SECRET)
    with penstock.Loader(Items(), workers=workers) as feed:
        next(iter(feed))
        assert not server.close_if_idle(0)
    begin = time.monotonic()
    wait_until(lambda: server.close_if_idle(0.2))
    assert time.monotonic() - begin >= 0.2
    assert server.closed

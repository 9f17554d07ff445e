"""Workers of a server in another process, over loopback: the same batches, whatever happens."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from contract import assert_same
from faults import Deadly, DeadlyByEpoch, Slow, Ticking, right, run, wait_for_ends, wait_until
from loader_datasets import (
    BatchedSamples,
    Flaky,
    GloballyRandom,
    Items,
    Keyed,
    Ragged,
    Samples,
    Trouble,
    Troubled,
    ten_items,
)
from remote_servers import SECRET, ServerProcess, add_one

pytestmark = pytest.mark.timeout(60)
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as made:
        yield made


class Odd:
    """What `Samples` does not have: an object, Fortran order, a view, one array again and again."""

    def __init__(self) -> None:
        self.kept = np.arange(6000.0).reshape(60, 100)
        self.again = np.zeros(2000)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        self.again[:] = index
        fortran = np.asfortranarray(np.arange(3000).reshape(50, 60) + index)
        return fortran, self.kept[index::7], self.again, {"a": {1, index}, "b": [None, "x" * index]}


SOURCES: list[tuple[str, Any, dict[str, Any]]] = [
    ("items", lambda: Items(20, 30_000), {}),
    ("samples", Samples, {"batch_size": 5, "shuffle": True, "seed": 3}),
    ("together", BatchedSamples, {"batch_size": 5, "shard": (1, 2)}),
    ("keyed", Keyed, {"batch_size": 4, "seed": 5, "drop_last": True}),
    ("odd", Odd, {}),
    ("ragged", Ragged, {"batch_size": 2, "collate": list}),
    ("columns", lambda: {"x": np.arange(400.0).reshape(100, 4)}, {"batch_size": 7}),
    ("chain", lambda: penstock.Dataset.range(100).shuffle(seed=3).batch(8).repeat(2), {}),
    (
        "functions",
        lambda: penstock.Dataset.arrays({"x": np.arange(90)}).map(add_one).batch(8).cache(),
        {"seed": 9},
    ),
]


QUICK = ("remote samples", "remote columns", "remote functions", "mixed odd", "mixed chain")


def marked(name: str, *values: Any) -> Any:
    """A parameter set, for the slow tests unless its name is in QUICK."""
    return pytest.param(*values, id=name, marks=() if name in QUICK else SLOW)


@pytest.mark.parametrize(
    ("mixed", "source", "options"),
    [
        marked(f"{kind} {name}", kind == "mixed", *rest)
        for kind in ("remote", "mixed")
        for name, *rest in SOURCES
    ],
)
def test_batches_are_those_of_a_loader_in_line(server, source, options, mixed):
    with penstock.Loader(source(), workers=0, **options) as alone:
        wanted = [list(alone) for _ in range(2)]
    workers = 1 + server.workers() if mixed else server.workers()
    with penstock.Loader(source(), workers=workers, **options) as feed:
        for epoch in wanted:
            assert_same(list(feed), epoch)
        stats = feed.stats()
    assert stats["delivered"] == sum(map(len, wanted))
    assert (stats["restarts"], stats["reissued"], stats["losses"]) == (0, 0, [])


def test_global_generators_are_those_of_processes(server):
    options = {"batch_size": 3, "seed": 4}
    with penstock.Loader(
        GloballyRandom(), workers=1, use_multiprocessing=True, start_method="fork", **options
    ) as feed:
        wanted = list(feed)
    with penstock.Loader(GloballyRandom(), workers=server.workers(), **options) as feed:
        assert_same(list(feed), wanted)


def test_remote_workers_do_the_work(server):
    with penstock.Loader(Slow(30, 300, 0.01), workers=server.workers()) as feed:
        assert right(list(feed), 30)
        # A ticket is counted a moment after its batch is there.
        wait_until(lambda: sum(worker["tickets"] for worker in feed.stats()["workers"]) >= 30)
        did = [worker["tickets"] for worker in feed.stats()["workers"]]
    assert sum(each > 2 for each in did) >= 2


def test_local_and_remote_workers_share_the_work(server):
    with penstock.Loader(Slow(40, 300, 0.01), workers=[1, server.workers(1)]) as feed:

        def both() -> bool:
            assert right(list(feed), 40)
            local, *remote = (worker["tickets"] for worker in feed.stats()["workers"])
            return local > 0 and sum(remote) > 0

        wait_until(both, "tickets of both")


def test_a_loader_continues_where_a_state_was_taken(server):
    def loader(workers: Any) -> penstock.Loader:
        return penstock.Loader(Samples(), batch_size=4, shuffle=True, seed=2, workers=workers)

    with loader(0) as alone:
        wanted = list(alone)
    with loader(server.workers()) as first:
        taken = list(first.steps(3))
        state = first.state()
    with loader(server.workers(1)) as second:
        second.restore(state)
        assert_same(taken + list(second), wanted)


def test_held_batches_outlive_the_loader(server):
    with penstock.Loader(Items(12, 100_000), workers=server.workers()) as feed:
        held = list(feed)
    assert right(held, 12)


def test_an_epoch_hook_changes_the_dataset_there(server):
    class Growing:
        def __init__(self) -> None:
            self.scale = 1
            self.length = 6

        def __len__(self) -> int:
            return self.length

        def __getitem__(self, index: int) -> Any:
            return np.array([index * self.scale])

        def on_epoch_end(self) -> None:
            self.scale *= 10
            self.length += 2

    with penstock.Loader(Growing(), batch_size=2, workers=[1, server.workers()]) as feed:
        for scale, length in ((1, 6), (10, 8), (100, 10)):
            found = np.concatenate(list(feed)).ravel()
            assert found.tolist() == [i * scale for i in range(length)]


def test_an_exception_comes_at_its_place_with_the_remote_traceback(server):
    with penstock.Loader(Troubled({7}), workers=server.workers()) as feed:
        seen = []
        with pytest.raises(Trouble) as raised:
            for batch in feed:
                seen.append(batch[1])
        assert seen == list(range(7))
        assert raised.value.index == 7
        cause = raised.value.__cause__
        assert isinstance(cause, penstock.WorkerTraceback)
        assert "in __getitem__" in str(cause)
        assert "index 7" in str(cause)


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_policy_is_that_of_a_loader_in_line(server, policy):
    options = {"batch_size": 4, "on_error": policy, "shuffle": True, "seed": 1}
    with penstock.Loader(Troubled({3, 4, 11}), workers=0, **options) as alone:
        wanted, losses = list(alone), alone.stats()["losses"]
    with penstock.Loader(Troubled({3, 4, 11}), workers=server.workers(), **options) as feed:
        assert_same(list(feed), wanted)
        assert_same(feed.stats()["losses"], losses)


def test_exceptions_are_tried_again_there(server):
    with penstock.Loader(Flaky(2), retries=2, workers=server.workers(1)) as feed:
        assert [int(batch[0]) for batch in feed] == list(range(6))
        assert feed.stats()["retried"] == 12


# ---- deaths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_size", "when"),
    [
        pytest.param(size, when, marks=() if (size, when) == (4, "before") else SLOW)
        for size in (None, 4)
        for when in ("before", "after", "sending")
    ],
)
def test_a_dead_worker_process_loses_no_batch(server, batch_size, when, tmp_path):
    source = Deadly(tmp_path, {0, 7, 13, 19}, when)
    with penstock.Loader(source, batch_size=batch_size, workers=server.workers()) as feed:
        assert right(list(feed), 20)
        wait_until(lambda: feed.stats()["restarts"] == 4)
        assert right(list(feed), 20)
        assert feed.stats()["losses"] == []


def test_the_third_loss_of_a_ticket_is_an_error_that_names_the_sample(server, tmp_path):
    source = DeadlyByEpoch(tmp_path, {6}, times=9)
    feed = penstock.Loader(source, batch_size=4, workers=server.workers(1))
    with feed, pytest.raises(penstock.WorkerLost, match="index 6"):
        list(feed)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_deadly_sample_is_skipped(server, tmp_path):
    source = Deadly(tmp_path, {6}, times=9)
    options = {"batch_size": 4, "on_error": "skip", "workers": server.workers(1)}
    with penstock.Loader(source, **options) as feed:
        found = np.concatenate([batch[1] for batch in feed]).tolist()
        assert found == [i for i in range(20) if i != 6]
        assert [loss[:2] for loss in feed.stats()["losses"]] == [(0, 6)]


class Hanging(Items):
    def __init__(self, ticking: Ticking, hangs: int) -> None:
        super().__init__(16)
        self.ticking = ticking
        self.hangs = hangs

    def __getitem__(self, index: int) -> Any:
        if index == self.hangs and self.ticking.due(index):
            time.sleep(60)
        return super().__getitem__(index)


def test_a_worker_that_hangs_is_replaced(server, tmp_path):
    source = Hanging(Ticking(tmp_path, 1), 5)
    with penstock.Loader(source, timeout=0.5, workers=server.workers(1)) as feed:
        with pytest.raises(penstock.Timeout, match="index 5"):
            list(feed)
        assert right(list(feed), 16)
        assert feed.stats()["timeouts"] == 1


@SLOW
def test_a_server_that_is_killed_and_started_again_loses_no_batch():
    with ServerProcess() as first, ServerProcess() as other:
        workers = penstock.remote.workers([first.address, other.address], 2, secret=SECRET)
        with penstock.Loader(Slow(200, 300, 0.005), workers=workers) as feed:
            batches = iter(feed)
            seen = [next(batches) for _ in range(10)]
            first.kill()
            seen += [next(batches) for _ in range(60)]
            with ServerProcess(first.address) as again:
                wait_until(again.worker_pids)
                seen += list(batches)
            assert right(seen, 200)


@SLOW
def test_a_server_that_drains_finishes_its_tickets():
    with ServerProcess() as one, ServerProcess() as other:
        workers = penstock.remote.workers([one.address, other.address], 2, secret=SECRET)
        with penstock.Loader(Slow(100, 300, 0.01), workers=workers) as feed:
            batches = iter(feed)
            seen = [next(batches) for _ in range(20)]
            one.drain()
            assert one.wait() == 0
            seen += list(batches)
            assert right(seen, 100)
            assert feed.stats()["reissued"] == 0


@SLOW
def test_a_server_may_come_late():
    with ServerProcess() as probe:
        address = probe.address
    workers = penstock.remote.workers(address, 1, secret=SECRET)
    with penstock.Loader(Slow(60, 300, 0.01), workers=[1, workers]) as feed:
        batches = iter(feed)
        seen = [next(batches) for _ in range(5)]
        with ServerProcess(address) as late:
            wait_until(late.worker_pids)
            seen += list(batches)
            assert right(seen, 60)
            wait_until(
                lambda: list(feed) and sum(w["tickets"] for w in feed.stats()["workers"][1:])
            )


@SLOW
@pytest.mark.soak
@pytest.mark.parametrize("cut", [False, True], ids=["processes", "connections"])
def test_random_kills_lose_no_batch(server, cut):
    rng = random.Random(5)
    with penstock.Loader(Slow(300, 3000, 0.004), workers=[1, server.workers(3)]) as feed:
        ended = threading.Event()

        def kill_some() -> None:
            while not ended.wait(rng.uniform(0.3, 1.5)):
                if cut:
                    feed._core.cut_remote(rng.randrange(1, 7))
                elif pids := server.worker_pids():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(pids), signal.SIGKILL)

        assert right(list(feed), 300)
        killing = threading.Thread(target=kill_some)
        killing.start()
        try:
            until = time.monotonic() + 15
            while time.monotonic() < until:
                assert right(list(feed), 300)
        finally:
            ended.set()
            killing.join()
        assert feed.stats()["reissued"] > 0


# ---- the end -------------------------------------------------------------------------------------


def test_close_in_the_middle_ends_the_workers(server):
    feed = penstock.Loader(Slow(10_000, 300, 0.01), workers=server.workers())
    batches = iter(feed)
    next(batches)
    pids = server.worker_pids()
    assert len(pids) == 2
    begin = time.monotonic()
    feed.close()
    assert time.monotonic() - begin < 2
    with pytest.raises(penstock.Closed):
        next(batches)
    assert wait_for_ends(pids, 2) == []


SCRIPT = """
import os, signal, sys, time
import penstock
from faults import Slow
from remote_servers import SECRET

if __name__ == "__main__":
    remote = penstock.remote.workers(sys.argv[1], 2, secret=SECRET)
    feed = penstock.Loader(Slow(10_000, 300, 0.01), workers=remote)
    batches = iter(feed)
    next(batches)
    if sys.argv[2] == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        next(batches)
    elif sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [
        pytest.param("exit", 0, marks=SLOW),
        ("interrupt", -signal.SIGINT),
        pytest.param("die", -signal.SIGKILL, marks=SLOW),
    ],
)
def test_the_end_of_the_program_ends_the_workers(server, tmp_path, how, code):
    found, _, error = run(tmp_path, SCRIPT, server.address, how)
    assert found == code, error
    assert ("Traceback" in error) == (how == "interrupt"), error
    wait_until(lambda: not server.worker_pids(), "the end of the workers")


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        (ten_items, {}, "is a stream"),
        (penstock.Dataset.generator(ten_items).batch(2), {}, "is a stream"),
        (Items(), {"use_multiprocessing": False}, "remote workers are processes"),
    ],
)
def test_what_cannot_be_remote_is_refused(server, source, options, text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        penstock.Loader(source, workers=server.workers(), **options)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], 2, SECRET), "addresses are"),
        (("tcp://127.0.0.1:1", 0, SECRET), "count is 0"),
        (("tcp://127.0.0.1:1", 2, b"short"), "16 bytes"),
    ],
)
def test_invalid_arguments_are_named(arguments, text):
    addresses, count, secret = arguments
    with pytest.raises(penstock.InvalidArgument, match=text):
        penstock.remote.workers(addresses, count, secret=secret)


@pytest.mark.parametrize(
    ("source", "local", "options", "text"),
    [
        (penstock.Dataset.range(9), 0, {}, "must see all its files"),
        (Items(), 1, {}, "all workers are remote"),
        (Items(), 0, {"timeout": 1}, "timeout= cannot be given"),
    ],
)
def test_what_cannot_be_given_with_locality_is_refused(server, source, local, options, text):
    workers = penstock.remote.workers(server.address, 1, secret=SECRET, locality=str)
    with pytest.raises(penstock.InvalidArgument, match=text):
        penstock.Loader(source, workers=[local, workers] if local else workers, **options)


def test_a_list_has_one_number(server):
    with pytest.raises(penstock.InvalidArgument, match="at most one number"):
        penstock.Loader(Items(), workers=[1, 2, server.workers()])


class Unwelcome(Items):
    def __setstate__(self, state: Any) -> None:
        raise Trouble(3, f"not in process {os.getpid()}")


def test_a_dataset_that_cannot_be_unpacked_there_says_so(server):
    with penstock.Loader(Unwelcome(), workers=server.workers(1)) as feed:
        with pytest.raises(Trouble, match="not in process") as raised:
            next(iter(feed))
        assert "remote worker 0" in str(raised.value.__cause__)


def die_early(_: int) -> None:
    print("no licence found", flush=True)
    os._exit(3)


def test_workers_that_die_at_the_start_end_the_loader(server):
    feed = penstock.Loader(Items(), workers=server.workers(1), worker_init=die_early)
    with feed, pytest.raises(penstock.WorkerLost, match="exited with 3"):
        next(iter(feed))


class Counted(Items):
    def __init__(self) -> None:
        super().__init__()
        self.count = multiprocessing.Value("i", 0)


def test_what_processes_of_one_host_share_is_refused(server):
    feed = penstock.Loader(Counted(), workers=server.workers(1))
    with feed, pytest.raises(penstock.InvalidArgument, match="Counted has memory, locks"):
        next(iter(feed))


def test_another_version_is_refused_and_named(server, monkeypatch):
    monkeypatch.setattr(penstock, "__version__", "0.0.0", raising=False)
    feed = penstock.Loader(Items(), workers=server.workers(1))
    with feed, pytest.raises(penstock.InvalidArgument, match=r"and the Loader 0\.0\.0: install"):
        next(iter(feed))


def test_another_secret_is_refused_and_named(server, monkeypatch):
    monkeypatch.setattr("penstock.remote.hosts.PATIENCE_S", 0.5)
    workers = penstock.remote.workers(server.address, 1, secret=b"another secret of ours")
    feed = penstock.Loader(Items(), workers=workers)
    with feed, pytest.raises(penstock.WorkerLost, match=r"(?s)could be reached.*secret"):
        next(iter(feed))

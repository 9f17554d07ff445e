"""Workers that die: no batch is lost or comes twice, and no wait is endless."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time

import pytest

import penstock
from contract import SPAWN, Mode, each
from faults import Deadly, DeadlyByEpoch, Slow, right, wait_until, worker_pids

pytestmark = pytest.mark.timeout(90)

ONE, TWO = Mode(1, "fork"), Mode(2, "fork")
OTHERS = (SPAWN, Mode(2, "forkserver"))
ENDS = ("SIGKILL", "SIGSEGV", "SIGABRT", "0", "3")  # signals and exit codes
SOAK = (pytest.mark.slow, pytest.mark.soak)


def marks_of(mode, how, when):
    """A signal and an exit code at every place, each of the others at one."""
    if how in ("SIGKILL", "0"):
        return () if mode is TWO else pytest.mark.slow
    return () if mode is TWO and when == "before" else SOAK


@pytest.mark.parametrize(
    ("when", "mode", "how"),
    [
        pytest.param(when, mode, how, marks=marks_of(mode, how, when))
        for when in ("before", "after", "sending")
        for mode in (TWO, *OTHERS)
        for how in ENDS
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_dead_worker_loses_no_batch(batch_size, when, how, mode, tmp_path):
    source = Deadly(tmp_path, {0, 7, 13, 19}, when, how)
    with penstock.Loader(source, batch_size=batch_size, **mode.options) as feed:
        assert right(list(feed), 20)
        deaths = len(list(tmp_path.iterdir()))
        assert deaths == 4
        wait_until(lambda: feed.stats()["restarts"] == deaths)
        stats = feed.stats()
        assert stats["losses"] == []
        assert deaths == sum(worker["deaths"] for worker in stats["workers"])
        assert deaths == stats["reissued"]
        assert right(list(feed), 20)
        assert feed.stats()["restarts"] == deaths


@each((ONE, TWO, Mode(4, "fork")), OTHERS)
def test_a_ticket_may_lose_its_worker_twice(mode, tmp_path):
    with penstock.Loader(Deadly(tmp_path, {3, 11}, times=2), **mode.options) as feed:
        assert right(list(feed), 20)
        wait_until(lambda: feed.stats()["restarts"] == 4)


@each((ONE, TWO), OTHERS)
@pytest.mark.parametrize(("batch_size", "before"), [(None, 11), (4, 2)])
def test_the_third_death_of_a_ticket_is_an_error_that_names_it(batch_size, before, mode, tmp_path):
    with penstock.Loader(
        DeadlyByEpoch(tmp_path, {11}, times=1000), batch_size=batch_size, **mode.options
    ) as feed:
        seen = []
        with pytest.raises(penstock.WorkerLost, match=r"epoch 0, index 11 .* three times"):
            for batch in feed:
                seen.append(batch)
        assert len(seen) == before
        assert feed.state()["batches"] == before
        assert len(list(tmp_path.iterdir())) == 3
        # The feed continues.
        seen = []
        with pytest.raises(penstock.WorkerLost, match=r"epoch 1, index 11 "):
            for batch in feed:
                seen.append(batch)
        assert len(seen) == before
        wait_until(lambda: feed.stats()["restarts"] == 6)


@each((TWO,), (SPAWN,))
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_what_always_kills_is_passed_over_under_a_policy(policy, mode, tmp_path):
    with penstock.Loader(
        Deadly(tmp_path, {5}, times=1000), batch_size=4, on_error=policy, **mode.options
    ) as feed:
        batches = list(feed)
        taken = [int(i) for batch in batches for i in batch[1]]
        assert len(taken) == (19 if policy == "skip" else 20)
        assert [i for i in range(20) if i not in taken] == [5]
        stats = feed.stats()
        assert [loss[:2] for loss in stats["losses"]] == [(0, 5)]
        assert (stats["skipped"], stats["replaced"]) == ((1, 0) if policy == "skip" else (0, 1))


class DeadlyTogether(Deadly):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@each((TWO,), (SPAWN,))
@pytest.mark.parametrize("collate", [None, list])
def test_what_always_kills_in_getitems_is_passed_over(collate, mode, tmp_path):
    with penstock.Loader(
        DeadlyTogether(tmp_path, {5}, times=1000),
        batch_size=4,
        on_error="skip",
        collate=collate,
        **mode.options,
    ) as feed:
        assert len(list(feed)) == 5
        assert [loss[:2] for loss in feed.stats()["losses"]] == [(0, 5)]


@each((TWO,), ())
def test_what_stands_in_for_a_deadly_sample_may_be_deadly_too(mode, tmp_path):
    with penstock.Loader(
        Deadly(tmp_path, set(range(6)), times=1000),
        batch_size=4,
        on_error="replace",
        **mode.options,
    ) as feed:
        taken = [int(i) for batch in feed for i in batch[1]]
        assert taken[6:] == list(range(6, 20))
        assert min(taken) >= 6
        assert feed.stats()["replaced"] == 6


def indices_of(samples):
    return [index for _, index, _ in samples]


@each((TWO,), ())
def test_a_deadly_sample_of_a_large_batch_takes_no_other_along(mode, tmp_path):
    """One worker makes a collated batch, for any number of rows."""
    with penstock.Loader(
        Deadly(tmp_path, {5, 130}, times=1000, length=200, width=3),
        batch_size=200,
        on_error="skip",
        collate=indices_of,
        **mode.options,
    ) as feed:
        assert list(feed) == [[index for index in range(200) if index not in (5, 130)]]
        assert sorted(loss[:2] for loss in feed.stats()["losses"]) == [(0, 5), (0, 130)]


def deadly_items(folder, times):
    from faults import Ticking, die

    ticking = Ticking(folder, times)
    for i in range(12):
        if i == 6 and ticking.due(i):
            die("SIGKILL")
        yield i


@each((TWO,), OTHERS)
def test_a_generator_is_replayed_to_its_place(mode, tmp_path):
    import functools

    with penstock.Loader(functools.partial(deadly_items, tmp_path, 2), **mode.options) as feed:
        assert list(feed) == list(range(12))
        wait_until(lambda: feed.stats()["restarts"] == 2)
    (tmp_path / "more").mkdir()
    source = functools.partial(deadly_items, tmp_path / "more", 1000)
    with penstock.Loader(source, **mode.options) as feed:
        seen = []
        with pytest.raises(penstock.WorkerLost, match="index 6 "):
            for item in feed:
                seen.append(item)
        assert seen == [0, 1, 2, 3, 4, 5]
    with penstock.Loader(source, on_error="skip", **mode.options) as feed:
        assert list(feed) == [0, 1, 2, 3, 4, 5]  # a stream that failed has ended
        assert [loss[:2] for loss in feed.stats()["losses"]] == [(0, 6)]


@each((TWO, Mode(4, "fork")), OTHERS)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_all_workers_at_once_again_and_again(batch_size, mode):
    with penstock.Loader(
        Slow(30, 3000, 0.002), batch_size=batch_size, max_queue_size=2, **mode.options
    ) as feed:
        for _ in range(4):
            iterator = iter(feed)
            batches = [next(iterator)]
            for pid in worker_pids(feed):
                with contextlib.suppress(ProcessLookupError):  # dead, and not replaced yet
                    os.kill(pid, signal.SIGKILL)
            batches += iterator
            assert right(batches, 30)
        # On a busy machine a round may find dead workers that are not replaced yet.
        wait_until(lambda: feed.stats()["restarts"] >= mode.workers * 2)


@each((ONE,), (Mode(1, "spawn"), Mode(1, "forkserver")))
def test_idle_workers_that_die_are_replaced(mode):
    with penstock.Loader(Slow(40, 3000, 0), max_queue_size=3, **mode.options) as feed:
        iterator = iter(feed)
        batches = [next(iterator)]
        for _ in range(5):
            # All requested batches are ready, so workers sleep.
            wait_until(lambda: len(set(feed.stats()["queue"])) == 1)
            before = feed.stats()["restarts"]
            os.kill(worker_pids(feed)[0], signal.SIGKILL)
            wait_until(lambda n=before: feed.stats()["restarts"] > n)
            batches += [next(iterator) for _ in range(6)]
        batches += iterator
        assert right(batches, 40)


class Killer(threading.Thread):
    """Kills workers of a feed at random times.

    After one or two quick kills, it waits until all tickets in flight were delivered and all
    workers have done a ticket. So no ticket is lost a third time, and no worker dies a third time
    before its first ticket; both would be correct errors.
    """

    def __init__(self, feed, seed, in_flight):
        super().__init__()
        self.feed = feed
        self.draw = random.Random(seed)
        self.in_flight = in_flight
        self.stop = threading.Event()
        self.kills = 0

    def run(self):
        while not self.stop.is_set():
            for _ in range(self.draw.choice([1, 2])):
                time.sleep(self.draw.random() * 0.02)
                pids = worker_pids(self.feed)
                for pid in pids if self.draw.random() < 0.2 else [self.draw.choice(pids)]:
                    self.kill(pid)
            before = self.feed.stats()
            while not self.stop.is_set() and not self.recovered(before, self.feed.stats()):
                time.sleep(0.001)

    def recovered(self, before, now):
        return now["delivered"] >= before["delivered"] + self.in_flight and all(
            new["tickets"] > old["tickets"]
            for old, new in zip(before["workers"], now["workers"], strict=True)
        )

    def kill(self, pid):
        try:
            os.kill(pid, self.draw.choice([signal.SIGKILL, signal.SIGTERM]))
            self.kills += 1
        except ProcessLookupError:
            pass


def stress(mode, seed, seconds, **options):
    queue = 4
    with penstock.Loader(
        Slow(40, 2000, 0.001), max_queue_size=queue, **options, **mode.options
    ) as feed:
        next(iter(feed))
        killer = Killer(feed, seed, queue + mode.workers + 1)
        killer.start()
        held = []
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                batches = list(feed)
                assert right(batches, 40)
                held.append(batches[0])
        finally:
            killer.stop.set()
            killer.join()
        assert right(list(feed), 40)
        assert all((array[..., 0] == index).all() for array, index in held)
        assert killer.kills > 3
        assert feed.stats()["restarts"] > 3
        assert feed.stats()["losses"] == []


@each((TWO,), ())
@pytest.mark.parametrize("batch_size", [None, 4])
def test_workers_killed_at_random_lose_nothing(batch_size, mode):
    stress(mode, 1, 1.5, batch_size=batch_size)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))]
)
@pytest.mark.parametrize("batch_size", [None, 4])
@each((ONE, Mode(4, "fork"), Mode(3, "forkserver")), ())
def test_workers_killed_at_random_lose_nothing_for_long(mode, batch_size, seed):
    stress(mode, seed, 8, batch_size=batch_size)


@each((TWO,), OTHERS)
def test_a_worker_stopped_in_its_tracks_times_out(mode):
    with penstock.Loader(Slow(12, 3000, 0.01), timeout=0.5, **mode.options) as feed:
        iterator = iter(feed)
        next(iterator)
        os.kill(worker_pids(feed)[0], signal.SIGSTOP)
        seen = 1
        try:
            for _ in iterator:
                seen += 1
        except penstock.Timeout as error:
            assert "worker 0" in str(error)  # noqa: PT017
        else:
            assert seen == 12  # it had no ticket when it was stopped
    # Closing kills it anyway; conftest checks that.

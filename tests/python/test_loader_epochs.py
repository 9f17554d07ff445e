"""Epoch hooks, unordered feeds, and the limits on prefetching."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, SPAWN, THREADS, Mode, assert_same, each
from faults import wait_until
from loader_datasets import Items

pytestmark = pytest.mark.timeout(60)

MOST = (INLINE, THREADS, PROCESSES, SPAWN)


class Hooked:
    """Its hooks change its items; workers keep their caches."""

    def __init__(self) -> None:
        self.scale = 1
        self.length = 6
        self.calls: list[tuple[str, int, int]] = []
        self.cache: dict[int, int] = {}
        self.open_file = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        # A cache and an open file, filled in the worker.
        self.cache[index] = self.cache.get(index, 0) + 1
        if self.open_file is None:
            self.open_file = open(os.devnull)  # noqa: SIM115
        return index * self.scale, self.cache[index], os.getpid(), id(self.open_file)

    def on_epoch_begin(self) -> None:
        self.calls.append(("begin", os.getpid(), threading.get_ident()))

    def on_epoch_end(self) -> None:
        self.calls.append(("end", os.getpid(), threading.get_ident()))
        self.scale += 1
        self.length += 1


@each(MOST, ())
def test_hooks_run_once_here_and_their_effects_are_seen_by_all_workers(mode):
    source = Hooked()
    with penstock.Loader(source, **mode.options) as feed:
        for epoch in range(4):
            assert [item[0] for item in feed] == [i * (epoch + 1) for i in range(6 + epoch)]
            assert len(feed) in (6 + epoch, 7 + epoch)  # before the hook, or after
        here = (os.getpid(), threading.get_ident())
        assert source.calls == [("begin", *here), ("end", *here)] * 4


@each((Mode(1, "fork"),), (Mode(1, "spawn"),))
def test_workers_keep_their_caches_and_open_files_across_epochs(mode):
    with penstock.Loader(Hooked(), **mode.options) as feed:
        first, second, third = (list(feed) for _ in range(3))
        assert [item[1] for item in first] == [1] * 6
        assert [item[1] for item in second] == [2] * 6 + [1]
        assert [item[1] for item in third] == [3] * 6 + [2, 1]
        assert len({item[2:] for item in first + second + third}) == 1


@each(KINDS, ())
def test_the_end_hook_runs_when_an_epoch_is_broken_off(mode):
    source = Hooked()
    with penstock.Loader(source, **mode.options) as feed:
        for _ in feed:
            break
        assert [call[0] for call in source.calls] == ["begin"]
        assert [item[0] for item in feed] == [i * 2 for i in range(7)]
        assert [call[0] for call in source.calls] == ["begin", "end", "begin", "end"]


@each(KINDS, ())
def test_steps_run_hooks_where_epochs_end(mode):
    source = Hooked()
    with penstock.Loader(source, **mode.options) as feed:
        wanted = [*range(6), *(i * 2 for i in range(7)), *(i * 3 for i in range(8))]
        taken = []
        for _ in range(7):
            taken += [item[0] for item in feed.steps(3)]
        assert taken == wanted
        assert [call[0] for call in source.calls] == ["begin", "end"] * 2 + ["begin"]


@each((PROCESSES,), (SPAWN, Mode(2, "forkserver")))
def test_a_worker_that_is_replaced_starts_with_what_hooks_changed(mode):
    source = Hooked()
    with penstock.Loader(source, **mode.options) as feed:
        pids = {item[2] for item in feed}
        for pid in pids:
            os.kill(pid, 9)
        second = list(feed)
        assert [item[0] for item in second] == [i * 2 for i in range(7)]
        wait_until(
            lambda: feed.stats()["restarts"] >= len(pids), "a worker for each that was killed"
        )
        for worker in feed.stats()["workers"]:
            os.kill(worker["pid"], 9)
        assert [item[0] for item in feed] == [i * 3 for i in range(8)]


class Levels(Items):
    """Items have the number of ended epochs, and `other`, which changes once, at the first end."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.level = 0
        self.other = 0

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        return self.level, self.other, os.getpid()

    def on_epoch_end(self) -> None:
        self.level += 1
        self.other = 7


@each((PROCESSES,), (SPAWN, Mode(2, "forkserver")))
def test_a_worker_that_is_replaced_in_an_epoch_has_the_dataset_as_the_epoch_began(mode):
    source = Levels(40)
    with penstock.Loader(source, max_queue_size=2, **mode.options) as feed:
        assert {item[:2] for item in feed} == {(0, 0)}
        for level in (1, 2):
            iterator = iter(feed)
            taken = [next(iterator)]
            source.level = 99  # takes effect in the next epoch, if at all
            for worker in feed.stats()["workers"]:
                os.kill(worker["pid"], 9)
            taken += iterator
            assert [item[:2] for item in taken] == [(level, 7)] * 40
            source.level = level + 1
        assert feed.stats()["restarts"] >= 2


class Halfway(Items):
    """`halfway` is 1 while its hook runs. Items have it and the number of ended epochs."""

    meanwhile = staticmethod(lambda: None)

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.level = 0
        self.halfway = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.level, self.halfway

    def on_epoch_end(self) -> None:
        self.halfway = 1
        self.meanwhile()
        self.level += 1
        self.halfway = 0


@each((PROCESSES,), (SPAWN, Mode(2, "forkserver")))
def test_a_worker_that_is_replaced_while_a_hook_runs_has_nothing_of_its_middle(mode, monkeypatch):
    def replace_all():
        stats = feed.stats()
        for worker in stats["workers"]:
            os.kill(worker["pid"], 9)
        enough = stats["restarts"] + len(stats["workers"])
        wait_until(lambda: feed.stats()["restarts"] >= enough, "a worker for each killed one")

    monkeypatch.setattr(Halfway, "meanwhile", staticmethod(replace_all))
    with penstock.Loader(Halfway(8), **mode.options) as feed:
        for level in range(3):
            assert list(feed) == [(level, 0)] * 8
        assert feed.stats()["restarts"] >= 4


class GrowingRows:
    """Samples whose number and width change with the epoch."""

    def __init__(self) -> None:
        self.rows = 5

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        return np.full(self.rows, index)

    def on_epoch_end(self) -> None:
        self.rows *= 2


@each(KINDS, ())
def test_batches_follow_when_a_hook_changes_length_and_shape(mode):
    with penstock.Loader(GrowingRows(), batch_size=4, shuffle=True, **mode.options) as feed:
        for epoch in range(4):
            rows = 5 << epoch
            batches = list(feed)
            assert sum(len(batch) for batch in batches) == rows
            assert {batch.shape[1] for batch in batches} == {rows}
            assert sorted(int(row[0]) for batch in batches for row in batch) == list(range(rows))


class FailingHook(Items):
    def on_epoch_end(self) -> None:
        raise ValueError("from the hook")


@each(KINDS, ())
def test_what_a_hook_raises_is_raised(mode):
    with penstock.Loader(FailingHook(3), **mode.options) as feed:
        iterator = iter(feed)
        assert [next(iterator)[1] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="from the hook"):
            next(iterator)


class SlowFirst(Items):
    """The first item is ready only when its file exists: after others were delivered."""

    def __init__(self, length: int, gate: str) -> None:
        super().__init__(length)
        self.gate = gate

    def __getitem__(self, index: int) -> Any:
        deadline = time.monotonic() + 20
        while index == 0 and not os.path.exists(self.gate) and time.monotonic() < deadline:
            time.sleep(0.005)
        return super().__getitem__(index)


def make_unordered(gate, **options):
    return penstock.Loader(SlowFirst(12, str(gate)), ordered=False, **options)


@each((THREADS, PROCESSES), ())
def test_unordered_batches_come_as_they_get_ready_each_once(mode, tmp_path):
    gate = tmp_path / "gate"
    with make_unordered(gate, **mode.options) as feed:
        order = []
        for _, index in feed:
            order.append(index)
            if len(order) == 8:
                gate.touch()
        assert 0 not in order[:8]
        assert sorted(order) == list(range(12))
        assert sorted(index for _, index in feed) == list(range(12))


@each((THREADS, PROCESSES), ())
def test_the_state_of_an_unordered_feed_restores_at_every_element(mode, tmp_path):
    gate = tmp_path / "gate"
    with make_unordered(gate, **mode.options) as feed:
        states, order = [json.dumps(feed.state())], []
        for _, index in feed:
            order.append(index)
            states.append(json.dumps(feed.state()))
            if len(order) == 8:
                gate.touch()
    assert json.loads(states[4])["ahead"] == sorted(order[:4])
    for other in (INLINE, THREADS, PROCESSES):
        for ordered in (False, True):
            with penstock.Loader(
                SlowFirst(12, str(gate)), ordered=ordered, **other.options
            ) as feed:
                for taken in range(12):
                    feed.restore(json.loads(states[taken]))
                    rest = [index for _, index in feed]
                    assert sorted(rest) == sorted(set(range(12)) - set(order[:taken]))


class Counted(Items):
    """Appends a byte to a file for every item made, to count them."""

    def __init__(self, length: int, width: int, path: str) -> None:
        super().__init__(length, width)
        self.path = path

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "ab") as file:
            file.write(b".")
        return super().__getitem__(index)


def settled(path) -> int:
    """The number of items made, once no more are made."""
    size, since = -1, time.monotonic()
    deadline = since + 20
    while time.monotonic() < min(since + 0.3, deadline):
        now = os.path.getsize(path)
        if now != size:
            size, since = now, time.monotonic()
        time.sleep(0.01)
    return size


@each((THREADS, PROCESSES), ())
def test_the_queue_bounds_what_is_made_ahead(mode, tmp_path):
    path = tmp_path / "made"
    path.touch()
    with penstock.Loader(Counted(100, 10, str(path)), max_queue_size=3, **mode.options) as feed:
        iterator = iter(feed)
        next(iterator)
        assert settled(path) <= 1 + 3 + mode.workers
        for _ in range(10):
            next(iterator)
        made = settled(path)
        assert 11 + 3 <= made <= 11 + 3 + mode.workers


@each((THREADS, PROCESSES), ())
@pytest.mark.parametrize("batch_size", [None, 2])
def test_bytes_bound_what_is_made_ahead(batch_size, mode, tmp_path):
    path = tmp_path / "made"
    path.touch()
    width = 1 << 18  # 1 MiB an item
    items = batch_size or 1
    with penstock.Loader(
        Counted(60, width, str(path)),
        batch_size=batch_size,
        max_queue_size=50,
        max_bytes=(5 << 20) * items,
        **mode.options,
    ) as feed:
        iterator = iter(feed)
        for taken in range(1, 8):
            next(iterator)
            if taken in (1, 7):
                assert settled(path) <= (taken + 5) * items
        assert len(list(iterator)) == 60 // items - 7


def test_the_bound_on_bytes_is_a_quarter_of_the_memory(tmp_path, monkeypatch):
    limit = penstock._engine.memory_limit()
    with penstock.Loader(Items(3)) as feed:
        assert feed._settings["max_bytes"] == limit // 4
    monkeypatch.setattr(penstock._engine, "memory_limit", lambda: 20 << 20)
    path = tmp_path / "made"
    path.touch()
    counted = Counted(60, 1 << 18, str(path))
    with penstock.Loader(counted, max_queue_size=50, **THREADS.options) as feed:
        next(iter(feed))
        wait_until(lambda: os.path.getsize(path) >= 1 + 5)
        assert settled(path) == 1 + 5


@each(KINDS, ())
def test_a_budget_below_one_batch_is_no_deadlock(mode):
    with penstock.Loader(Items(8, 1 << 16), max_bytes=1, **mode.options) as feed:
        assert [index for _, index in feed] == list(range(8))
    with penstock.Loader(Items(8, 1 << 16), batch_size=3, max_bytes=1, **mode.options) as feed:
        assert [len(y) for _, y in feed] == [3, 3, 2]


@each((THREADS, PROCESSES), ())
def test_the_next_epoch_is_made_while_this_one_is_used(mode, tmp_path):
    path = tmp_path / "made"
    path.touch()
    with penstock.Loader(Counted(6, 10, str(path)), max_queue_size=4, **mode.options) as feed:
        first = list(feed)
        assert len(first) == 6
        assert settled(path) >= 6 + 4
        assert_same(list(feed), first)


@each((THREADS, PROCESSES), ())
def test_prefetching_is_no_progress(mode):
    with penstock.Loader(Items(30), max_queue_size=8, **mode.options) as feed:
        iterator = iter(feed)
        for taken in range(1, 6):
            next(iterator)
            assert feed.state()["batches"] == taken


@each((THREADS, PROCESSES), ())
def test_workers_stay_for_the_next_epoch(mode):
    class Who(Items):
        def __getitem__(self, index: int) -> Any:
            return os.getpid(), threading.get_ident()

    with penstock.Loader(Who(20), **mode.options) as feed:
        assert len({who for _ in range(5) for who in feed}) <= mode.workers
        assert feed.stats()["restarts"] == 0


class OneBatch(Hooked):
    """Changes after every batch; one worker makes all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 1

    def __getitem__(self, index: int) -> Any:
        return self.scale

    def on_epoch_end(self) -> None:
        self.scale += 1


@each((Mode(3, "fork"),), ())
def test_workers_that_have_nothing_to_do_hold_up_no_epoch(mode):
    # A link holds fewer than 300 unread changes.
    with penstock.Loader(OneBatch(), **mode.options) as feed:
        for epoch in range(350):
            assert list(feed) == [epoch + 1]
            time.sleep(0.002)  # now the worker sleeps, and is woken first


class Refused:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class SetToWhatIsRefused(OneBatch):
    def on_epoch_end(self) -> None:
        self.scale = Refused()


@each((Mode(2, "fork"),), ())
def test_a_worker_that_cannot_follow_a_hook_gives_nothing_stale(mode):
    with penstock.Loader(SetToWhatIsRefused(), **mode.options) as feed:
        assert list(feed) == [1]
        for _ in range(6):
            with pytest.raises(ValueError, match="no number"):
                list(feed)

"""What passes over errors: skip, replace, retries and timeouts."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, SPAWN, THREADS, Mode, assert_same, each
from dataset_functions import Unspeakable
from datasets import BatchedSamples, Flaky, Items, Trouble, Troubled, TroubledTogether, ten_items

pytestmark = pytest.mark.timeout(60)

MOST = (INLINE, THREADS, PROCESSES)
OTHERS = (SPAWN, Mode(2, "forkserver"))


# ---- skip and replace ----------------------------------------------------------------------------


def lost(feed) -> list[tuple[int, int]]:
    return sorted((epoch, index) for epoch, index, _ in feed.stats()["losses"])


@each(MOST, OTHERS)
def test_skip_lets_items_vanish_and_lists_them(mode):
    with penstock.Loader(Troubled({0, 7, 8, 19}), on_error="skip", **mode.options) as feed:
        wanted = [i for i in range(20) if i not in (0, 7, 8, 19)]
        for epoch in range(2):
            assert [index for _, index in feed] == wanted
            stats = feed.stats()
            assert (stats["skipped"], stats["replaced"]) == (4 * epoch + 4, 0)
        assert lost(feed) == [(e, i) for e in range(2) for i in (0, 7, 8, 19)]
        assert stats["delivered"] == 32
        assert "Trouble" in stats["losses"][0][2]


@each((INLINE, THREADS), ())
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_ctrl_c_while_an_error_is_noted_is_not_passed_over(policy, mode):
    class Unspeakables(Items):
        def __getitem__(self, index):
            raise Unspeakable

    raises = pytest.raises(KeyboardInterrupt)
    with penstock.Loader(Unspeakables(20, 10), on_error=policy, **mode.options) as feed, raises:
        list(feed)


@each((INLINE, THREADS), ())
@pytest.mark.parametrize("collate", [None, list])
def test_ctrl_c_while_all_samples_are_got_is_not_passed_over(collate, mode):
    class Interrupted(Items):
        def __getitems__(self, indices):
            raise KeyboardInterrupt

    feed = penstock.Loader(Interrupted(20, 10), batch_size=4, collate=collate, **mode.options)
    with feed, pytest.raises(KeyboardInterrupt):
        list(feed)


@each(KINDS, ())
@pytest.mark.parametrize("source", [Troubled, TroubledTogether])
@pytest.mark.parametrize("collate", [None, list])
def test_skip_shortens_batches_of_samples(collate, source, mode):
    bad = {1, 2, 9, 12, 13, 14, 15}
    with penstock.Loader(
        source(bad), batch_size=4, on_error="skip", collate=collate, **mode.options
    ) as feed:
        batches = list(feed)
        if collate is None:
            rows = [y.tolist() for _, y in batches]
            for x, y in batches:
                assert (x == y[:, None]).all()
        else:
            rows = [[y for _, y in batch] for batch in batches]
        # Batch 3 lost all its samples and vanished.
        assert rows == [[0, 3], [4, 5, 6, 7], [8, 10, 11], [16, 17, 18, 19]]
        assert feed.stats()["skipped"] == 7
        assert lost(feed) == [(0, i) for i in sorted(bad)]
        # The position counts tickets, not what came of them.
        assert feed.epoch == 1
        assert [len(batch[0]) for batch in feed.steps(2)] == [2, 4] or collate


@each(KINDS, ())
def test_losing_everything_is_an_empty_epoch(mode):
    for batch_size in (None, 3):
        with penstock.Loader(
            Troubled(set(range(6)), 6), batch_size=batch_size, on_error="skip", **mode.options
        ) as feed:
            assert list(feed) == []
            assert feed.stats()["skipped"] == 6
            assert list(feed) == []
            assert feed.stats()["skipped"] == 12


@each(MOST, OTHERS)
@pytest.mark.parametrize("collate", [None, list])
def test_replace_keeps_batches_full_and_is_the_same_everywhere(collate, mode):
    bad = {1, 2, 9, 12, 13, 14, 15}

    def run(mode):
        with penstock.Loader(
            Troubled(bad),
            batch_size=4,
            shuffle=True,
            on_error="replace",
            collate=collate,
            **mode.options,
        ) as feed:
            batches = [list(feed) for _ in range(2)]
            stats = feed.stats()
            assert (stats["skipped"], stats["replaced"]) == (0, 14)
            assert lost(feed) == [(e, i) for e in range(2) for i in sorted(bad)]
            return batches

    batches = run(mode)
    assert_same(batches, run(INLINE))
    for epoch in batches:
        assert len(epoch) == 5
        labels = [
            y for batch in epoch for y in ([y for _, y in batch] if collate else batch[1].tolist())
        ]
        assert len(labels) == 20
        assert not bad & set(labels)
        assert set(range(20)) - bad <= set(labels)


@each(KINDS, ())
def test_replace_of_whole_items(mode):
    def run(mode):
        with penstock.Loader(Troubled({4, 5}), on_error="replace", **mode.options) as feed:
            taken = list(feed)
            assert feed.stats()["replaced"] == 2
            assert lost(feed) == [(0, 4), (0, 5)]
            return taken

    taken = run(mode)
    assert_same(taken, run(INLINE))
    assert len(taken) == 20
    assert [index for _, index in taken][:4] == [0, 1, 2, 3]
    assert not {4, 5} & {index for _, index in taken}


@each(KINDS, ())
def test_when_nothing_can_replace_it_is_an_error_after_all(mode):
    with (
        penstock.Loader(
            Troubled(set(range(6)), 6), batch_size=3, on_error="replace", **mode.options
        ) as feed,
        pytest.raises(Trouble),
    ):
        list(feed)


@pytest.mark.parametrize(("size", "tries"), [(None, 16), (1, 1), (3, 3), (40, 40)])
def test_as_many_others_are_tried_as_the_batch_has_samples(size, tries):
    class AllBad(Items):
        def __getitem__(self, index: int) -> Any:
            asked.append(index)
            raise Trouble(index)

    asked: list[int] = []
    with (
        penstock.Loader(AllBad(100), batch_size=size, on_error="replace", workers=0) as feed,
        pytest.raises(Trouble, match="0"),
    ):
        list(feed)
    assert len(asked) == len(set(asked)) == 1 + tries
    assert asked[0] == 0


@each(KINDS, ())
def test_a_sample_is_replaced_by_another_and_never_by_itself(mode):
    for seed in range(12 if mode is INLINE else 2):
        with penstock.Loader(
            Troubled({1}, 3), batch_size=1, on_error="replace", seed=seed, **mode.options
        ) as feed:
            assert len(list(feed)) == 3
            assert lost(feed) == [(0, 1)]


@each(KINDS, ())
@pytest.mark.parametrize("size", [None, 1, 2])
def test_what_nothing_replaced_is_raised_as_it_was(size, mode):
    with (
        penstock.Loader(
            Troubled(set(range(6)), 6), batch_size=size, on_error="replace", **mode.options
        ) as feed,
        pytest.raises(Trouble, match="0") as caught,
    ):
        list(feed)
    assert "1" not in str(caught.value).splitlines()[0]


# ---- retries -------------------------------------------------------------------------------------


@each((INLINE, Mode(1), Mode(1, "fork")), ())
def test_retries_make_up_for_passing_trouble(mode):
    with penstock.Loader(Flaky(0), **INLINE.options) as feed:
        wanted = list(feed)
    with penstock.Loader(Flaky(2), retries=2, **mode.options) as feed:
        assert_same(list(feed), wanted)  # the draws too: a retry draws what the first try drew
        stats = feed.stats()
        assert stats["retried"] == 12
        assert stats["losses"] == []
    with penstock.Loader(Flaky(3), retries=2, **mode.options) as feed:
        with pytest.raises(Trouble) as caught:
            list(feed)
        assert caught.value.index == 0
    with penstock.Loader(
        Flaky(3), batch_size=2, retries=2, on_error="skip", **mode.options
    ) as feed:
        assert list(feed) == []
        assert [len(batch[0]) for batch in feed] == [2, 2, 2]


# ---- timeout -------------------------------------------------------------------------------------


class Stuck(Items):
    """Hangs at one index: for good, or until it was tried often enough."""

    def __init__(self, stuck: int, length: int = 8, seconds: float = 600) -> None:
        super().__init__(length)
        self.stuck = stuck
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        if index == self.stuck:
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                time.sleep(0.01)
        return super().__getitem__(index)


@each((PROCESSES,), OTHERS)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_stuck_process_is_killed_and_replaced_and_the_error_names_the_index(batch_size, mode):
    with penstock.Loader(
        Stuck(5), batch_size=batch_size, timeout=0.5, shuffle=True, **mode.options
    ) as feed:
        iterator = iter(feed)
        first = next(iterator) if batch_size is None else None
        with pytest.raises(penstock.Timeout, match=r"epoch 0, index 5 .*worker \d"):
            list(iterator)
        assert feed.stats()["timeouts"] >= 1
        del first
        # Another one is there for the next epoch.
        with pytest.raises(penstock.Timeout, match=r"epoch [01], index 5 "):
            list(feed)
        assert feed.stats()["restarts"] >= 1


@each((PROCESSES,), ())
@pytest.mark.parametrize("batch_size", [None, 4])
def test_skip_passes_over_what_hangs(batch_size, mode):
    with penstock.Loader(
        Stuck(5), batch_size=batch_size, timeout=0.3, on_error="skip", **mode.options
    ) as feed:
        taken = [y for _, ys in feed for y in np.ravel(ys).tolist()]
        assert taken == [0, 1, 2, 3, 4, 6, 7]
        assert lost(feed) == [(0, 5)]
        assert feed.stats()["skipped"] == 1


class StuckTogether(Stuck):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


@each((PROCESSES,), ())
def test_skip_passes_over_what_hangs_in_getitems(mode):
    with penstock.Loader(
        StuckTogether(5), batch_size=4, timeout=0.3, on_error="skip", **mode.options
    ) as feed:
        taken = [y for _, ys in feed for y in ys.tolist()]
        assert taken == [0, 1, 2, 3, 4, 6, 7]
        assert lost(feed) == [(0, 5)]
        assert feed.stats()["skipped"] == 1


@each((THREADS,), ())
def test_a_stuck_thread_is_abandoned_and_the_error_names_the_index(mode):
    source = Stuck(5, seconds=3)  # it must end some time: nobody can kill a thread
    with penstock.Loader(source, timeout=0.3, **mode.options) as feed:
        begin = time.monotonic()
        seen = []
        with pytest.raises(penstock.Timeout, match=r"epoch 0, index 5 "):
            for _, index in feed:
                seen.append(index)
        assert seen == [0, 1, 2, 3, 4]
        assert time.monotonic() - begin < 2.5
    source.seconds = 0


@each((THREADS,), ())
def test_skip_passes_over_a_stuck_thread(mode):
    source = Stuck(5, seconds=3)
    with penstock.Loader(
        source, batch_size=4, timeout=0.3, on_error="skip", **mode.options
    ) as feed:
        batches = list(feed)
        assert [y for _, ys in batches for y in ys.tolist()] == [0, 1, 2, 3, 4, 6, 7]
        for x, y in batches:
            assert (x == y[:, None]).all()
        assert lost(feed) == [(0, 5)]
    source.seconds = 0


class SlowOdd(Items):
    """Every second item takes longer than it may, and comes all the same."""

    def __getitem__(self, index: int) -> Any:
        if index % 2:
            time.sleep(0.3)
        return super().__getitem__(index)


@each((Mode(1),), ())
def test_threads_that_come_back_stand_in_for_others(mode):
    with penstock.Loader(SlowOdd(32), timeout=0.05, on_error="skip", **mode.options) as feed:
        assert [index for _, index in feed] == [*range(0, 32, 2)]
        assert feed.stats()["skipped"] == 16


class StuckFour(Items):
    def __getitem__(self, index: int) -> Any:
        if 4 <= index < 8:
            time.sleep(20)
        return super().__getitem__(index)


@each((PROCESSES,), ())
def test_skip_passes_over_a_whole_batch_that_hangs(mode):
    with penstock.Loader(
        StuckFour(12), batch_size=4, timeout=0.1, on_error="skip", **mode.options
    ) as feed:
        assert [y for _, ys in feed for y in ys.tolist()] == [0, 1, 2, 3, 8, 9, 10, 11]
        assert lost(feed) == [(0, index) for index in range(4, 8)]


class StuckForGood(Items):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.over = threading.Event()

    def __getitem__(self, index: int) -> Any:
        self.over.wait(20)
        return super().__getitem__(index)


@each((Mode(1),), ())
def test_when_every_thread_is_stuck_nobody_waits(mode):
    source = StuckForGood(32)
    with (
        penstock.Loader(source, timeout=0.02, on_error="skip", **mode.options) as feed,
        pytest.raises(penstock.Timeout, match="all threads, 10 by now, are stuck"),
    ):
        try:
            list(feed)
        finally:
            source.over.set()


def slow_generator():
    for i in range(6):
        if i == 3:
            signal.pause()
        yield i


class StuckOnce:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self):
        for i in range(6):
            if i == 3 and self.times == 0:
                self.times += 1
                time.sleep(1)
            yield np.array([i])


@each((Mode(1),), ())
@pytest.mark.parametrize("wait", [0, 1.2], ids=["while it is stuck", "when it came back"])
def test_a_generator_goes_on_after_its_thread_was_abandoned(wait, mode):
    with penstock.Loader(StuckOnce(), timeout=0.2, **mode.options) as feed:
        with pytest.raises(penstock.Timeout, match=r"epoch 0, index 3 "):
            list(feed)
        time.sleep(wait)
        for _ in range(2):
            assert [int(batch[0]) for batch in feed] == list(range(6))


@each((PROCESSES,), ())
def test_a_generator_that_hangs_times_out(mode):
    with penstock.Loader(slow_generator, timeout=0.4, **mode.options) as feed:
        seen = []
        with pytest.raises(penstock.Timeout, match="index 3"):
            for item in feed:
                seen.append(item)
        assert seen == [0, 1, 2]
    with penstock.Loader(slow_generator, timeout=0.4, on_error="skip", **mode.options) as feed:
        assert list(feed) == [0, 1, 2]
        assert lost(feed) == [(0, 3)]


def steady_generator():
    for i in range(12):
        time.sleep(0.1)
        yield i, os.getpid()


@each((PROCESSES,), ())
def test_replaying_a_generator_is_not_held_against_its_timeout(mode):
    with penstock.Loader(steady_generator, timeout=0.5, max_queue_size=1, **mode.options) as feed:
        iterator = iter(feed)
        seen = []
        for i, pid in iterator:
            seen.append(i)
            if i == 8:
                os.kill(pid, signal.SIGKILL)
        assert seen == list(range(12))
        assert feed.stats()["timeouts"] == 0


# ---- __getitems__ --------------------------------------------------------------------------------


@each(KINDS, ())
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_getitems_of_a_wrong_length_is_told(policy, mode):
    class Short(BatchedSamples):
        def __getitems__(self, indices: list[int]) -> Any:
            return super().__getitems__(indices)[:-1]

    told = pytest.raises(penstock.InvalidArgument, match="asked for 4 samples and returned 3")
    with (
        penstock.Loader(Short(10), batch_size=4, on_error=policy, **mode.options) as feed,
        told as caught,
    ):
        list(feed)
    assert "a batch of indices 0 ... 3" in str(caught.value.__cause__)


class FailsTogether(Troubled):
    """What `__getitems__` raises is not what `__getitem__` does."""

    def __getitems__(self, indices: list[int]) -> Any:
        if self.bad & set(indices):
            raise LookupError("all together")
        return [super(FailsTogether, self).__getitem__(index) for index in indices]


class OnlyTogether(FailsTogether):
    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


@each(KINDS, ())
@pytest.mark.parametrize("collate", [None, list])
def test_what_getitems_raised_is_told(collate, mode):
    options = {"batch_size": 4, "collate": collate, **mode.options}
    with penstock.Loader(FailsTogether({6}, 8), **options) as feed:
        with pytest.raises(Trouble) as caught:
            list(feed)
        assert "LookupError: all together" in caught.value.__cause__.traceback
    told = pytest.raises(LookupError, match="all together")
    with penstock.Loader(OnlyTogether({6}, 8), **options) as feed, told:
        list(feed)
    with penstock.Loader(OnlyTogether({6}, 8), on_error="skip", **options) as feed:
        assert len(list(feed)) == 1
        assert lost(feed) == [(0, i) for i in range(4, 8)]
        assert "LookupError" in feed.stats()["losses"][0][2]


class FlakyTogether(Items):
    """The first calls of `__getitems__` raise."""

    def __init__(self, times: int) -> None:
        super().__init__(8)
        self.left = times

    def __getitems__(self, indices: list[int]) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise Trouble(indices[0])
        return [self[index] for index in indices]


@each((INLINE, Mode(1), Mode(1, "fork")), ())
def test_getitems_is_tried_again_and_its_errors_are_counted(mode):
    for times, retries in ((2, 2), (1, 0)):
        with penstock.Loader(
            FlakyTogether(times), batch_size=4, retries=retries, **mode.options
        ) as feed:
            assert [y.tolist() for _, y in feed] == [[0, 1, 2, 3], [4, 5, 6, 7]]
            stats = feed.stats()
            assert (stats["retried"], stats["errors"]) == (retries, times - retries)
            assert sum(worker["errors"] for worker in stats["workers"]) == times
            assert stats["losses"] == []


class KilledTogether(Items):
    def __getitems__(self, indices: list[int]) -> Any:
        if 5 in indices:
            os.kill(os.getpid(), signal.SIGKILL)
        return [self[index] for index in indices]


@each((PROCESSES,), ())
def test_a_death_in_getitems_may_be_any_indexs_fault(mode):
    message = r"a batch of indices 4 \.\.\. 7 .* run dataset.__getitems__"
    with (
        penstock.Loader(KilledTogether(12), batch_size=4, **mode.options) as feed,
        pytest.raises(penstock.WorkerLost, match=message),
    ):
        list(feed)
    message = r"epoch 0, index 5 .* run dataset.__getitems__"
    with (
        penstock.Loader(KilledTogether(12), batch_size=1, **mode.options) as feed,
        pytest.raises(penstock.WorkerLost, match=message),
    ):
        list(feed)


# ---- collate -------------------------------------------------------------------------------------


def never(samples: list[Any]) -> Any:
    raise Trouble(len(samples))


class NotAtOnce:
    """The first calls raise."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, samples: list[Any]) -> Any:
        self.left -= 1
        return never(samples) if self.left >= 0 else len(samples)


@each(KINDS, ())
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
@pytest.mark.parametrize("source", [Items(10), ten_items])
def test_what_collate_raises_is_raised_whatever_the_policy(source, policy, mode):
    options = {"batch_size": 4, "collate": never, "on_error": policy, **mode.options}
    with penstock.Loader(source, **options) as feed:
        with pytest.raises(Trouble) as caught:
            list(feed)
        cause = caught.value.__cause__
        assert (cause.epoch, cause.index, cause.last) == (0, 0, 3)
        assert "epoch 0, a batch of indices 0 ... 3:" in str(cause)


def kill_at_five(samples: list[Any]) -> Any:
    if any(index == 5 for _, index in samples):
        os.kill(os.getpid(), signal.SIGKILL)
    return len(samples)


def hang_at_five(samples: list[Any]) -> Any:
    if any(index == 5 for _, index in samples):
        time.sleep(3)
    return len(samples)


@each((Mode(1, "fork"),), ())
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
@pytest.mark.parametrize("source", [Items(10), ten_items])
@pytest.mark.parametrize(
    ("size", "where"), [(4, r"a batch of indices 4 \.\.\. 7 "), (1, r"index 5 \(step 5\)")]
)
def test_a_death_in_collate_is_raised_whatever_the_policy(size, where, source, policy, mode):
    options = {"batch_size": size, "collate": kill_at_five, "on_error": policy, **mode.options}
    with penstock.Loader(source, **options) as feed:
        with pytest.raises(penstock.WorkerLost, match=f"epoch 0, {where}.*: collate lost its"):
            list(feed)
        assert feed.stats()["losses"] == []


def kill_at_nine(samples: list[Any]) -> Any:
    if any(index == 9 for _, index in samples):
        os.kill(os.getpid(), signal.SIGKILL)
    return len(samples)


@each((Mode(1, "fork"),), ())
@pytest.mark.parametrize("source", [Items(10), ten_items])
def test_a_death_in_collate_of_a_short_batch_names_what_is_in_it(source, mode):
    options = {"batch_size": 4, "collate": kill_at_nine, **mode.options}
    with penstock.Loader(source, **options) as feed:
        with pytest.raises(penstock.WorkerLost, match=r"a batch of indices 8 \.\.\. 9 "):
            list(feed)


@each((Mode(1), Mode(1, "fork")), ())
@pytest.mark.parametrize("policy", ["raise", "replace"])
@pytest.mark.parametrize(
    ("size", "where"), [(4, r"a batch of indices 4 \.\.\. 7 "), (1, r"index 5 \(step 5\)")]
)
def test_a_collate_that_hangs_is_raised_whatever_the_policy(size, where, policy, mode):
    options = {"batch_size": size, "collate": hang_at_five, "on_error": policy, "timeout": 1.0}
    with penstock.Loader(Items(10), **options, **mode.options) as feed:
        with pytest.raises(penstock.Timeout, match=f"epoch 0, {where}.*: collate took longer"):
            list(feed)
        assert feed.stats()["losses"] == []


@each((INLINE, Mode(1), Mode(1, "fork")), ())
def test_collate_is_tried_again(mode):
    options = {"batch_size": 4, "collate": NotAtOnce(2), "retries": 2, **mode.options}
    with penstock.Loader(Items(10), **options) as feed:
        assert list(feed) == [4, 4, 2]
        assert feed.stats()["retried"] == 2


# ---- unlike samples ------------------------------------------------------------------------------


class OddOnes(Items):
    """Some samples are longer than the others."""

    def __init__(self, odd: set[int], slow: set[int]) -> None:
        super().__init__(32)
        self.odd = odd
        self.slow = slow

    def __getitem__(self, index: int) -> Any:
        if index in self.slow:
            time.sleep(0.05)
        return np.full(3 if index in self.odd else 2, index)


@each((INLINE, Mode(2), Mode(4), Mode(4, "fork")), ())
def test_the_first_sample_of_a_batch_decides_what_the_others_are_like(mode):
    options = {"batch_size": 16, **mode.options}
    source = OddOnes({0, 5, 17}, slow={0})
    with penstock.Loader(source, on_error="skip", **options) as feed:
        assert [batch[:, 0].tolist() for batch in feed] == [[0, 5], [16, *range(18, 32)]]
        assert lost(feed) == [(0, i) for i in range(1, 18) if i not in (5, 16)]
    source = OddOnes({17}, slow={0})
    with penstock.Loader(source, on_error="replace", **options) as feed:
        rows = [batch[:, 0].tolist() for batch in feed]
        assert [len(row) for row in rows] == [16, 16]
        assert 17 not in rows[1]
        assert feed.stats()["replaced"] == 1

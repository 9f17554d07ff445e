"""Exceptions of user code: where they come out, and the policies that pass over them."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, SPAWN, THREADS, Mode, assert_same, each
from datasets import BatchedSamples, Flaky, Items, Trouble, Troubled

pytestmark = pytest.mark.timeout(60)

MOST = (INLINE, THREADS, PROCESSES, SPAWN)


@each(MOST, ())
@pytest.mark.parametrize("batch_size", [None, 1])
def test_an_exception_comes_at_its_place_with_its_traceback(batch_size, mode):
    with penstock.Loader(Troubled({7}), batch_size=batch_size, **mode.options) as feed:
        seen = []
        iterator = iter(feed)
        with pytest.raises(Trouble) as caught:
            for batch in iterator:
                seen.append(int(np.ravel(batch[1])[0]))
        assert seen == list(range(7))
        assert caught.value.index == 7
        assert caught.value.args == (7, "trouble")
        cause = caught.value.__cause__
        assert isinstance(cause, penstock.WorkerTraceback)
        assert (cause.epoch, cause.index) == (0, 7)
        assert "raise Trouble(index)" in cause.traceback
        assert "epoch 0, index 7" in str(cause)
        printed = "".join(traceback.format_exception(caught.value))
        assert "raise Trouble(index)" in printed
        # The iterator is over and the position is the failed ticket.
        assert list(iterator) == []
        assert (feed.epoch, feed.state()["batches"]) == (0, 7)
        assert feed.stats()["errors"] == 1


@each(KINDS, ())
def test_a_state_after_an_exception_goes_on_with_the_failed_ticket(mode):
    with penstock.Loader(Troubled({3}), **mode.options) as feed:
        with pytest.raises(Trouble):
            list(feed)
        state = json.loads(json.dumps(feed.state()))
        feed.restore(state)
        with pytest.raises(Trouble):
            next(iter(feed))
        with pytest.raises(Trouble):
            next(feed.steps(1))
    with penstock.Loader(Troubled(set()), **mode.options) as feed:
        feed.restore(state)
        assert [index for _, index in feed] == list(range(3, 20))


@each(KINDS, ())
def test_the_epoch_after_an_exception_is_whole(mode):
    class Once(Items):
        failed = False

        def on_epoch_end(self) -> None:
            self.failed = True

        def __getitem__(self, index: int) -> Any:
            if index == 5 and not self.failed:
                raise Trouble(index)
            return super().__getitem__(index)

    with penstock.Loader(Once(9), **mode.options) as feed:
        with pytest.raises(Trouble):
            list(feed)
        assert [index for _, index in feed] == list(range(9))


@each(KINDS, ())
def test_the_index_of_a_shuffled_sample_is_the_one_that_failed(mode):
    for method in (Troubled, TroubledTogether):
        with penstock.Loader(
            method({11}), batch_size=6, shuffle=True, seed=2, **mode.options
        ) as feed:
            with pytest.raises(Trouble) as caught:
                list(feed)
            assert caught.value.__cause__.index == caught.value.index == 11


class TroubledTogether(Troubled):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class Odd(Items):
    """Raises what is hard to carry from one process to another."""

    def __init__(self, what: str) -> None:
        super().__init__(4)
        self.what = what

    def __getitem__(self, index: int) -> Any:
        if self.what == "local":

            class Local(Exception):
                pass

            raise Local("defined in a function")
        if self.what == "unpicklable":
            error = ValueError("carries a file")
            error.file = open(os.devnull)  # type: ignore[attr-defined]  # noqa: SIM115
            raise error
        if self.what == "two arguments":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte")
        if self.what == "stop":
            raise StopIteration("in __getitem__")
        if self.what == "exit":
            raise SystemExit(3)
        if self.what == "interrupt":
            raise KeyboardInterrupt
        if self.what == "index":
            raise IndexError("past the end")
        if self.what == "chained":
            try:
                raise KeyError("the first")
            except KeyError as error:
                raise RuntimeError("the second") from error
        raise AssertionError


ODD = {
    "local": (Exception, "defined in a function"),
    "unpicklable": (ValueError, "carries a file"),
    "two arguments": (UnicodeDecodeError, "bad byte"),
    "exit": (SystemExit, "3"),
    "index": (IndexError, "past the end"),
    "chained": (RuntimeError, "the second"),
}


@each(KINDS, ())
@pytest.mark.parametrize("what", ODD)
def test_odd_exceptions_come_out_as_themselves(what, mode):
    kind, text = ODD[what]
    with penstock.Loader(Odd(what), **mode.options) as feed:
        with pytest.raises(kind, match=text) as caught:
            list(feed)
        if what == "chained":
            # Where the first one went is said by the traceback in one way or another.
            assert "the first" in "".join(traceback.format_exception(caught.value))
        if what == "local":
            assert "Local" in type(caught.value).__name__


@each(KINDS, ())
@pytest.mark.parametrize("what", ["stop", "interrupt"])
def test_no_exception_ends_an_epoch_quietly(what, mode):
    with penstock.Loader(Odd(what), **mode.options) as feed:
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            list(feed)
        assert not isinstance(caught.value, AssertionError)


@each(KINDS, ())
def test_what_cannot_be_sent_is_an_error_at_its_place(mode):
    class Unsendable(Items):
        def __getitem__(self, index: int) -> Any:
            return (lock if index == 3 else index), np.zeros(500)

    import threading

    lock = threading.Lock()
    source = Unsendable(6)
    with penstock.Loader(source, **mode.options) as feed:
        if not mode.method:
            assert len(list(feed)) == 6
            return
        with pytest.raises((TypeError, penstock.InvalidArgument), match="lock"):
            list(feed)


# ---- skip and replace ----------------------------------------------------------------------------


def lost(feed) -> list[tuple[int, int]]:
    return sorted((epoch, index) for epoch, index, _ in feed.stats()["losses"])


@each(MOST, ())
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


@each(MOST, ())
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


@each((PROCESSES, SPAWN), ())
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
        assert set(taken) == {0, 1, 2, 3, 4, 6, 7} or set(taken) == {0, 1, 2, 3, 6, 7}
        assert (0, 5) in lost(feed)
        assert feed.stats()["skipped"] == 8 - len(taken)


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


def slow_generator():
    for i in range(6):
        if i == 3:
            signal.pause()
        yield i


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


@each(KINDS, ())
def test_getitems_of_a_wrong_length_does_not_lose_samples(mode):
    class Short(BatchedSamples):
        def __getitems__(self, indices: list[int]) -> Any:
            return super().__getitems__(indices)[:-1]

    with penstock.Loader(Short(10), batch_size=4, **mode.options) as feed:
        assert [y for batch in feed for y in batch["y"]] == list(range(10))

"""Generators, functions that make them and other iterables as sources."""

from __future__ import annotations

import functools
import itertools
import random
import threading

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, SPAWN, THREADS, Mode, check_checkpoints, each
from loader_datasets import Trouble, count_to, for_ever, raises_at_four, safe_items, ten_items
from penstock.loader.source import SourceInfo

pytestmark = pytest.mark.timeout(60)

SOME = (INLINE, THREADS, PROCESSES)
OTHERS = (Mode(2, "forkserver"), SPAWN)


@each((INLINE, THREADS, Mode(4), PROCESSES), OTHERS)
@pytest.mark.parametrize(
    "source",
    [ten_items, safe_items, functools.partial(count_to, 10), lambda: count_to(10)],
    ids=["function", "threadsafe", "partial", "lambda"],
)
def test_a_generator_function_is_called_anew_each_epoch_and_kept_in_order(source, mode):
    with penstock.Loader(source, **mode.options) as feed:
        for epoch in range(3):
            assert feed.epoch == epoch
            batches = list(feed)
            assert [index for _, index in batches] == list(range(10))
            assert all((array == index).all() for array, index in batches)
        with pytest.raises(TypeError, match="length of a stream"):
            len(feed)


@each(SOME, ())
@pytest.mark.parametrize("collate", [None, list])
def test_samples_of_a_generator_make_batches(collate, mode):
    for drop_last, sizes in ((False, [4, 4, 2]), (True, [4, 4])):
        with penstock.Loader(
            ten_items, batch_size=4, drop_last=drop_last, collate=collate, **mode.options
        ) as feed:
            for _ in range(2):
                batches = list(feed)
                if collate is None:
                    assert [len(y) for _, y in batches] == sizes
                    seen = np.concatenate([y for _, y in batches]).tolist()
                else:
                    assert [len(batch) for batch in batches] == sizes
                    seen = [y for batch in batches for _, y in batch]
                assert seen == list(range(sum(sizes)))


@each(SOME, ())
def test_a_function_that_returns_no_iterator_is_told_so(mode):
    def answer():
        return 42

    message = r"answer\(\) returned int; .* must return an iterator"
    with (
        penstock.Loader(answer, **mode.options) as feed,
        pytest.raises(penstock.InvalidArgument, match=message),
    ):
        list(feed)


@each(SOME, ())
def test_a_generator_with_no_item_ends_at_once(mode):
    with penstock.Loader(functools.partial(count_to, 0), **mode.options) as feed:
        assert list(feed) == []
        assert list(feed) == []
        assert feed.epoch == 2
        with pytest.raises(penstock.InvalidArgument, match="empty"):
            list(feed.steps(3))


@each(SOME, ())
def test_an_infinite_generator_goes_with_steps(mode):
    with penstock.Loader(for_ever, **mode.options) as feed:
        first = list(feed.steps(7))
        assert [i for i, _ in first] == list(range(7))
        assert [i for i, _ in feed.steps(3)] == [7, 8, 9]
        assert feed.epoch == 0
        for i, _ in feed:
            if i == 12:
                break
        assert next(iter(feed))[0] == 0
        assert feed.epoch == 1


@each(SOME, ())
def test_steps_begin_a_finite_generator_again_when_it_ends(mode):
    with penstock.Loader(ten_items, **mode.options) as feed:
        assert [i for _, i in feed.steps(24)] == [*range(10), *range(10), 0, 1, 2, 3]
        assert feed.epoch == 2
        assert [i for _, i in feed] == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("taken", [INLINE, THREADS, PROCESSES], ids=str)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_generator_restores_at_every_element_in_every_mode(batch_size, taken):
    def make(**options):
        return penstock.Loader(ten_items, batch_size=batch_size, **options)

    check_checkpoints(make, taken)


def drawing():
    for i in range(6):
        yield i, penstock.rng().random(), np.random.rand(), random.random()


def test_random_numbers_of_a_generator_are_keyed_by_its_items():
    def run(mode, skip=0):
        with penstock.Loader(drawing, seed=3, **mode.options) as feed:
            if not skip:
                return [*feed, *feed]
            list(itertools.islice(feed, skip))
            state = feed.state()
            list(feed)
            feed.restore(state)
            return list(feed)

    wanted = run(PROCESSES)
    assert [item[:2] for item in run(INLINE)] == [item[:2] for item in wanted]
    assert [item[:2] for item in run(THREADS)] == [item[:2] for item in wanted]
    assert run(Mode(1, "forkserver")) == wanted
    assert [len({item[k] for item in wanted}) for k in (1, 2, 3)] == [12, 12, 12]
    assert run(PROCESSES, skip=2) == wanted[2:6]


@each(SOME, ())
def test_what_a_generator_raises_comes_at_its_place(mode):
    with penstock.Loader(raises_at_four, **mode.options) as feed:
        seen = []
        with pytest.raises(Trouble) as caught:
            for _, index in feed:
                seen.append(index)
        assert seen == [0, 1, 2, 3]
        cause = caught.value.__cause__
        assert isinstance(cause, penstock.WorkerTraceback)
        assert (cause.epoch, cause.index) == (0, 4)
        assert "raises_at_four" in cause.traceback


@each(SOME, ())
def test_a_generator_that_raises_under_skip_ends_there_and_is_counted(mode):
    with penstock.Loader(raises_at_four, on_error="skip", **mode.options) as feed:
        for epoch in range(2):
            assert [index for _, index in feed] == [0, 1, 2, 3]
            stats = feed.stats()
            assert stats["skipped"] == epoch + 1
            assert [loss[:2] for loss in stats["losses"]] == [(e, 4) for e in range(epoch + 1)]
            assert "Trouble" in stats["losses"][0][2]


def odd_at_five():
    for i in range(20):
        yield np.full(3 if i == 5 else 2, i)


@each(SOME, ())
@pytest.mark.parametrize("collate", [None, list])
def test_a_batch_that_a_loss_made_shorter_does_not_end_the_epoch(collate, mode):
    options = {"batch_size": 4, "drop_last": True, "on_error": "skip", "collate": collate}
    with penstock.Loader(odd_at_five, **options, **mode.options) as feed:
        for epoch in range(2):
            rows = [[int(row[0]) for row in batch] for batch in feed]
            bad = [] if collate else [5]
            assert rows == [
                [i for i in range(at, at + 4) if i not in bad] for at in range(0, 20, 4)
            ]
            assert [loss[:2] for loss in feed.stats()["losses"]] == [
                (e, i) for e in range(epoch + 1) for i in bad
            ]


@each(SOME, ())
def test_restoring_behind_what_a_generator_raised_gives_nothing_more(mode):
    options = {"on_error": "skip", **mode.options}
    with penstock.Loader(raises_at_four, batch_size=3, **options) as feed:
        batches = iter(feed)
        assert [y.tolist() for _, y in (next(batches), next(batches))] == [[0, 1, 2], [3]]
        state = feed.state()
    with penstock.Loader(raises_at_four, batch_size=3, **options) as feed:
        feed.restore(state)
        assert list(feed) == []
        assert [y.tolist() for _, y in feed] == [[0, 1, 2], [3]]


@each((INLINE, THREADS), ())
def test_a_running_generator_is_consumed_once(mode):
    with penstock.Loader(count_to(5), **mode.options) as feed:
        state = feed.state()
        assert [index for _, index in feed.steps(2)] == [0, 1]
        assert [index for _, index in feed] == [2, 3, 4]
        with pytest.raises(penstock.InvalidArgument, match="once"):
            list(feed)
        with pytest.raises(penstock.InvalidArgument, match="cannot be restarted"):
            feed.restore(state)


def test_a_running_generator_cannot_go_to_a_process():
    with pytest.raises(penstock.InvalidArgument, match="generator is a stream that runs already"):
        penstock.Loader(count_to(5), workers=1, use_multiprocessing=True)


class Countdown:
    """An iterable with hooks."""

    def __init__(self):
        self.begin = 3
        self.ended = 0

    def __iter__(self):
        return iter(range(self.begin))

    def on_epoch_end(self):
        self.begin += 1
        self.ended += 1


@each(SOME, ())
def test_an_iterable_is_begun_anew_each_epoch_after_its_hook(mode):
    source = Countdown()
    with penstock.Loader(source, **mode.options) as feed:
        assert [list(feed) for _ in range(3)] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert source.ended == 3


def test_threadsafe_gives_each_item_to_one_thread():
    stream = safe_items()
    seen: list[int] = []

    def pull():
        for _, index in stream:
            seen.append(index)

    threads = [threading.Thread(target=pull) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(10))
    assert safe_items.__name__ == "safe_items"


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shard": (0, 2)}], ids=str)
def test_a_stream_is_neither_shuffled_nor_sharded(options):
    with pytest.raises(penstock.InvalidArgument, match="stream"):
        penstock.Loader(ten_items, **options)


@each(KINDS, ())
def test_a_stream_is_made_by_one_worker_only(mode):
    with penstock.Loader(ten_items, **mode.options) as feed:
        list(feed)
        busy = [worker for worker in feed.stats()["workers"] if worker["tickets"]]
        assert len(busy) == 1


class TwoStreams:
    """The first stream waits after its second item for `gate`; the other does not overtake it."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.stopped = threading.Event()

    def __call__(self, stream: int, epoch: int):
        for i in range(8):
            if stream == 0 and i == 2:
                self.stopped.set()
                self.gate.wait(20)
            if stream == 1 and i == 2:
                self.stopped.wait(20)
            yield np.array([stream * 8 + i])


def test_a_restored_unordered_stream_gives_nothing_twice():
    gate = threading.Event()

    def make():
        plan = SourceInfo("stream", TwoStreams(gate), "two", streams=2)
        return penstock.Loader(plan, workers=2, ordered=False)

    with make() as feed:
        taken = [
            int(batch[0]) for batch in feed.steps(7)
        ]  # both items of the first stream, and then some of the other
        state = feed.state()
        assert state["batches"] == 4
        assert state["ahead"] == [5, 7, 9]
        gate.set()
    with make() as feed:
        feed.restore(state)
        assert sorted([*taken, *(int(batch[0]) for batch in feed)]) == list(range(16))

"""Exceptions of user code: where they are raised, and the policies that skip them."""

from __future__ import annotations

import json
import os
import threading
import traceback
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, SPAWN, THREADS, each
from loader_datasets import Items, Trouble, Troubled, TroubledTogether

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
        # The iterator has ended, and the position is the failed ticket.
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
@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_the_for_after_an_exception_is_the_next_epoch(batch_size, bad, mode):
    with penstock.Loader(Troubled({bad}, 6), batch_size=batch_size, **mode.options) as feed:
        for epoch in range(3):
            with pytest.raises(Trouble) as caught:
                list(feed)
            assert (feed.epoch, caught.value.__cause__.epoch) == (epoch, epoch)
        with pytest.raises(Trouble) as caught:
            next(feed.steps(1))  # tries again
        assert caught.value.__cause__.epoch == 2
        with pytest.raises(Trouble) as caught:
            list(feed)
        assert caught.value.__cause__.epoch == 3


@each((INLINE, THREADS), ())
def test_steps_that_get_over_what_failed_leave_the_rest_to_the_for(mode):
    source = Troubled({0}, 6)
    with penstock.Loader(source, **mode.options) as feed:
        with pytest.raises(Trouble):
            list(feed)
        source.bad = set()
        assert [index for _, index in feed.steps(2)] == [0, 1]
        assert [index for _, index in feed] == [2, 3, 4, 5]
        assert feed.epoch == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_so_it_is_for_a_dataset(workers):
    def bad(x: Any) -> Any:
        raise ValueError("bad")

    with penstock.Dataset.range(6).map(bad).batch(2).build(workers=workers) as feed:
        for epoch in range(3):
            with pytest.raises(ValueError, match="bad") as caught:
                list(feed)
            assert caught.value.__cause__.epoch == epoch


@each(KINDS, ())
def test_the_index_of_a_shuffled_sample_is_the_one_that_failed(mode):
    for method in (Troubled, TroubledTogether):
        with penstock.Loader(
            method({11}), batch_size=6, shuffle=True, seed=2, **mode.options
        ) as feed:
            with pytest.raises(Trouble) as caught:
                list(feed)
            assert caught.value.__cause__.index == caught.value.index == 11


class Odd(Items):
    """Raises exceptions that are hard to send to another process."""

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
            # The traceback mentions the first exception in one form or another.
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

    lock = threading.Lock()
    source = Unsendable(6)
    with penstock.Loader(source, **mode.options) as feed:
        if not mode.method:
            assert len(list(feed)) == 6
            return
        with pytest.raises((TypeError, penstock.InvalidArgument), match="lock"):
            list(feed)


class NeitherWay(Items):
    def __getitem__(self, index):
        if index == 5:
            raise KeyError(index)
        return super().__getitem__(index)

    def __getitems__(self, indices):
        raise OSError("all at once")


@each(KINDS, ())
def test_what_getitems_raised_is_the_context_of_what_getitem_raises(mode):
    with penstock.Loader(NeitherWay(8), batch_size=4, **mode.options) as feed:
        with pytest.raises(KeyError) as caught:
            list(feed)
        assert isinstance(caught.value.__context__, OSError)
        assert str(caught.value.__context__) == "all at once"


class Leaving(Exception):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def __reduce__(self):
        raise SystemExit("while it was pickled")


class AfterLeaving(Items):
    def __getitem__(self, index):
        try:
            raise Leaving
        except Leaving:
            raise ValueError("of the item")  # noqa: B904


@each(KINDS, ())
def test_a_context_that_cannot_be_sent_takes_nothing_with_it(mode):
    with penstock.Loader(AfterLeaving(3), **mode.options) as feed:
        with pytest.raises(ValueError, match="of the item") as caught:
            list(feed)
        assert not mode.method or caught.value.__context__ is None

"""``__getitems__`` and ``collate``, which handle all samples of a batch: their exceptions, deaths
and retries."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, Mode, each
from faults import lost
from loader_datasets import BatchedSamples, Items, Trouble, Troubled, ten_items

pytestmark = pytest.mark.timeout(60)

# ---- __getitems__ --------------------------------------------------------------------------------


@each(KINDS, ())
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_getitems_of_a_wrong_length_is_told(policy, mode):
    class Short(BatchedSamples):
        def __getitems__(self, indices: list[int]) -> Any:
            return super().__getitems__(indices)[:-1]

    raised = pytest.raises(penstock.InvalidArgument, match="asked for 4 samples and returned 3")
    with (
        penstock.Loader(Short(10), batch_size=4, on_error=policy, **mode.options) as feed,
        raised as caught,
    ):
        list(feed)
    assert "a batch of indices 0 ... 3" in str(caught.value.__cause__)


class FailsTogether(Troubled):
    """`__getitems__` and `__getitem__` raise different exceptions."""

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
    raised = pytest.raises(LookupError, match="all together")
    with penstock.Loader(OnlyTogether({6}, 8), **options) as feed, raised:
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
    raised = pytest.raises(penstock.WorkerLost, match=r"a batch of indices 8 \.\.\. 9 ")
    with penstock.Loader(source, **options) as feed, raised:
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

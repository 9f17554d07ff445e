"""Error policies: skip, replace and retries."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, SPAWN, THREADS, Mode, assert_same, each
from dataset_functions import Unspeakable
from faults import lost
from loader_datasets import Flaky, Items, Trouble, Troubled, TroubledTogether

pytestmark = pytest.mark.timeout(60)

MOST = (INLINE, THREADS, PROCESSES)
OTHERS = (SPAWN, Mode(2, "forkserver"))


# ---- skip and replace ----------------------------------------------------------------------------


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
        # Batch 3 lost all its samples and was left out.
        assert rows == [[0, 3], [4, 5, 6, 7], [8, 10, 11], [16, 17, 18, 19]]
        assert feed.stats()["skipped"] == 7
        assert lost(feed) == [(0, i) for i in sorted(bad)]
        # The position counts tickets, not delivered batches.
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
        assert_same(list(feed), wanted)  # a retry draws the same numbers
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

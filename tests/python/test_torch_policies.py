"""Error policies of penstock.torch.DataLoader that depend on torch's behaviour."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import SubsetRandomSampler  # noqa: E402

import torch_datasets as data  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from torch_contract import MARKS, WAYS, each_way, flat, labels  # noqa: E402

pytestmark = MARKS

HERE = pytest.mark.parametrize("name", ["in line", "threads"])


def losses(loader):
    return [loss[:2] for loss in loader.stats()["losses"]]


# ---- replacements -------------------------------------------------------------------------------


@each_way
def test_what_a_sampler_left_out_replaces_nothing(way):
    options = {"batch_size": 5, "sampler": list(range(20)), "on_error": "replace", **way}
    with DataLoader(data.Troubled({3, 4, 17}), **options) as loader:
        # The batch's own indices, from the next one on.
        assert labels(loader)[0] == [0, 1, 2, 0, 0]
        assert labels(loader)[3] == [15, 16, 18, 18, 19]
        assert loader.stats()["replaced"] == 6


@HERE
def test_a_sample_is_replaced_by_another_index_or_skipped(name):
    options = {"on_error": "replace", **WAYS[name]}
    with DataLoader(data.Troubled({4}), batch_size=3, sampler=[4, 4, 1, 4], **options) as loader:
        assert labels(loader) == [[1, 1, 1]]
        assert (loader.stats()["replaced"], loader.stats()["skipped"]) == (2, 1)
    with DataLoader(data.Troubled({4}), batch_size=None, sampler=[3, 4, 5], **options) as loader:
        assert labels([(0, torch.as_tensor(y)) for _, y in loader]) == [3, 5]
        assert losses(loader) == [(0, 4)]


@each_way
def test_what_is_indexed_by_objects_is_replaced_too(way):
    keys = ["a", "bb", "cccc", ("c", 3), ("d", 4, 5)]
    options = {"sampler": keys, "on_error": "replace", **way}
    with DataLoader(data.TroubledNames(), batch_size=3, **options) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 4, 4], [3, 3]]
        assert loader.stats()["replaced"] == 2


@HERE
@pytest.mark.parametrize("options", [{"shuffle": True}, {}, {"shuffle": True, "seed": 1}])
def test_where_all_indices_are_the_epochs_any_of_them_may_replace(options, name):
    options = {"batch_size": 1, "on_error": "replace", **options, **WAYS[name]}
    with DataLoader(data.Troubled({4}, 12), **options) as loader:
        taken = flat(labels(loader))
        assert len(taken) == 12
        assert 4 not in taken


def test_a_subset_at_random_is_no_whole_epoch():
    options = {"sampler": SubsetRandomSampler(range(6)), "batch_size": 6}
    with DataLoader(data.Troubled({2}), on_error="replace", **options) as loader:
        for _ in range(5):
            (batch,) = labels(loader)
            assert set(batch) == {0, 1, 3, 4, 5}


# ---- samples that are no rows -------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_what_is_no_row_is_collated_and_not_lost(policy, way):
    dataset = data.Mixed({4}, 9)
    with DataLoader(dataset, batch_size=3, on_error=policy, **way) as loader:
        for _ in range(2):
            batches = [batch.tolist() for batch in loader]
            assert batches[0] == [0.0, 1.0, 2.0]
            assert batches[2] == [6.0, 7.0, 8.0]
            if policy == "skip":
                assert batches[1] == [3.0, 5.0]
            else:
                assert len(batches[1]) == 3
        assert losses(loader)[-1] == (1, 4)


@HERE
def test_losses_before_workers_collate_stay_listed(name):
    dataset = data.Troubled({4, 180}, 200)
    dataset.form = "numbers, then names"  # unlike from 150 on
    with DataLoader(dataset, batch_size=20, on_error="skip", **WAYS[name]) as loader:
        assert sum(len(batch["a"]) for batch in loader) == 198
        assert losses(loader) == [(0, 4), (0, 180)]
        assert loader.stats()["skipped"] == 2


@HERE
def test_what_was_counted_before_workers_collate_counts_on(name):
    dataset = data.Troubled({4, 180}, 200)
    dataset.form = "numbers, then names"  # unlike from 150 on
    with DataLoader(dataset, batch_size=20, on_error="skip", retries=1, **WAYS[name]) as loader:
        for epoch in (1, 2):
            assert sum(len(batch["a"]) for batch in loader) == 198
            stats = loader.stats()
            assert 198 * epoch <= stats["samples"] <= 200 * epoch
            assert stats["delivered"] == 10 * epoch
            assert (stats["epochs"], stats["errors"]) == (epoch, 0)
            # Workers that are ahead may have reached 180 before the others began to collate.
            assert stats["retried"] - 2 * epoch in (0, 1)
            assert 0 <= stats["wait_share"] <= 1
            assert stats["first_ns"] < stats["last_ns"]
            assert sum(worker["tickets"] for worker in stats["workers"]) >= 10 * epoch
            stages = [stage["stage"] for stage in stats["stages"]]
            assert len(set(stages)) == len(stages)
            assert {"__getitem__", "rows", "collate"} <= set(stages)


@HERE
def test_what_another_thread_sees_counted_while_workers_begin_to_collate(name):
    dataset = data.Troubled({4}, 200)
    dataset.form = "numbers, then names"  # unlike from 150 on
    with DataLoader(dataset, batch_size=20, on_error="skip", **WAYS[name]) as loader:
        batches, seen = iter(loader), []
        taken = [next(batches)]
        line = loader._latest
        make = line._make

        def look(*arguments):
            seen.append(loader.stats()["delivered"])
            made = make(*arguments)
            seen.append(loader.stats()["delivered"])
            return made

        line._make = look
        taken += batches
        assert len(seen) == 2
        assert all(1 <= delivered <= 8 for delivered in seen)
        assert loader.stats()["delivered"] == len(taken) == 10

"""Iterable datasets in penstock.torch.DataLoader beside torch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader as TorchLoader  # noqa: E402

import torch_datasets as data  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from torch_contract import MARKS, WAYS, all_same, labels  # noqa: E402

pytestmark = MARKS


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [4, None])
def test_iterable_datasets_are_shared_and_ordered_as_in_torch(batch_size, drop_last):
    if batch_size is None and drop_last:
        return
    dataset = data.Stream(40)
    options = {"batch_size": batch_size, "drop_last": drop_last, "num_workers": 3}
    with DataLoader(dataset, **options) as loader:
        theirs = TorchLoader(dataset, **options)
        for _ in range(2):
            all_same(list(loader), list(theirs))
        all_same(list(loader), list(theirs))


@pytest.mark.parametrize("name", ["in line", "threads"])
def test_in_one_process_an_iterable_dataset_is_one_stream(name):
    with DataLoader(data.Stream(10), batch_size=4, **WAYS[name]) as loader:
        for _ in range(2):
            assert labels(loader) == [
                [[i, i] for i in row] for row in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])
            ]


def test_too_long_an_iterable_dataset_is_warned_of():
    dataset = data.SizedStream(6)
    with DataLoader(dataset, batch_size=None) as loader:
        assert len(loader) == 6
        dataset.length = 8
        with pytest.warns(UserWarning, match="reported to be 6"):
            list(loader)


def test_streams_draw_apart_and_anew_each_epoch():
    with DataLoader(data.DrawnStream(), batch_size=2, num_workers=2, seed=1) as loader:
        first = torch.cat([x for x, _ in loader])
        second = torch.cat([x for x, _ in loader])
    drawn = torch.cat([first, second]).flatten().tolist()
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 6 * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_that_is_its_own_iterator_is_gone_through_in_each_epoch(workers):
    with DataLoader(data.OwnIterator(), 4, num_workers=workers) as loader:
        for _ in range(3):
            first = sorted(x[0].item() / 4096 for batch in loader for x in batch)
            assert first == sorted(workers * list(range(6)))

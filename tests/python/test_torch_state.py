"""The place of a penstock.torch.DataLoader: taken, and restored elsewhere."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")


import penstock  # noqa: E402
import torch_datasets as data  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from torch_contract import MARKS, all_same, labels  # noqa: E402

pytestmark = MARKS


ORDERS = {
    "sequential": lambda d: {},
    "torch's": lambda d: {"shuffle": True},
    "a generator": lambda d: {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
    "the engine's": lambda d: {"shuffle": True, "seed": 3},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("taken", [0, 3, 8])
def test_a_state_restores(order, taken):
    dataset = data.Numbers(30)  # 8 batches

    def make(**way):
        return DataLoader(dataset, 4, **ORDERS[order](dataset), **way)

    torch.manual_seed(11)
    with make(num_workers=2, use_threads=True) as loader:
        list(loader)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = json.loads(json.dumps(loader.state()))
        assert len(json.dumps(state)) < 10_000
        rest = labels(batches)
        following = labels(loader)
    torch.manual_seed(12)  # another run's
    with make() as loader:
        loader.restore(state)
        assert loader.state() == state
        restored = [labels(loader), labels(loader)]
    if taken == 8:
        restored = [[], restored[0]]  # that epoch was over
    assert restored[0] == rest
    if order in ("sequential", "the engine's"):
        assert restored[1] == following


def test_a_state_of_something_else_is_refused_and_changes_nothing():
    with (
        penstock.Loader(data.Numbers(30), workers=0) as feed,
        DataLoader(data.Numbers(30), batch_size=4) as loader,
    ):
        batches = iter(loader)
        next(batches)
        whole = loader.state()
        for wrong in (None, {}, feed.state(), {**whole, "loader": None}, {"version": 1}):
            with pytest.raises(penstock.InvalidArgument, match="no state of a DataLoader"):
                loader.restore(wrong)
        with pytest.raises(penstock.InvalidArgument, match="no state of a Loader"):
            feed.restore(whole)
        assert len(list(batches)) == 7


def test_a_stream_restores():
    with DataLoader(data.Stream(20), batch_size=3) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state()
        rest = list(batches)
    with DataLoader(data.Stream(20), batch_size=3) as loader:
        loader.restore(state)
        all_same(list(loader), rest)
        assert len(list(loader)) == 7

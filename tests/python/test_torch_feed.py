"""penstock.torch.feed: a Dataset's batches as torch tensors, over the same memory."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

import penstock
from penstock import Dataset

torch = pytest.importorskip("torch")

Pair = namedtuple("Pair", ["x", "y"])


def pair(x):
    return Pair(np.full((2, 3), x, np.float32), {"id": x, "name": f"no {x}"})


@pytest.mark.parametrize("workers", [0, 2])
def test_nests_stay_and_arrays_are_tensors(workers):
    dataset = Dataset.range(10).map(pair).batch(4)
    with penstock.torch.feed(dataset, workers=workers) as feed:
        for _ in range(2):
            batches = list(feed)
            assert [type(batch) for batch in batches] == [Pair] * 3
            assert [batch.y["id"].tolist() for batch in batches][2] == [8, 9]
            first = batches[0]
            assert first.x.dtype == torch.float32
            assert first.x.shape == (4, 2, 3)
            assert first.x[3].eq(3).all()
            assert first.y["id"].dtype == torch.int64
            assert isinstance(first.y["name"], penstock.Ragged)
            assert first.y["name"][3] == "no 3"


def test_tensors_share_the_memory_of_the_batch(monkeypatch):
    dataset = Dataset.arrays(np.arange(12.0).reshape(6, 2)).batch(3)
    seen = []
    plain = penstock.Loader.__iter__

    def recording(self):
        for batch in plain(self):
            seen.append(batch)
            yield batch

    monkeypatch.setattr(penstock.Loader, "__iter__", recording)
    with penstock.torch.feed(dataset, workers=1) as feed:
        tensors = list(feed)
    assert [t.data_ptr() for t in tensors] == [array.ctypes.data for array in seen]
    assert tensors[1].tolist() == [[6, 7], [8, 9], [10, 11]]  # held, so not overwritten


def test_elements_that_are_not_batched_and_types_that_torch_has_not():
    with penstock.torch.feed(Dataset.range(3), workers=0) as feed:
        numbers = list(feed)
    assert [number.item() for number in numbers] == [0, 1, 2]
    assert all(type(number) is torch.Tensor for number in numbers)
    with penstock.torch.feed(Dataset.items(["a", "bc"]), workers=0) as feed:
        assert list(feed) == ["a", "bc"]


def test_arrays_that_torch_would_refuse_or_must_not_write_to_are_copied():
    frozen = np.arange(4.0)
    frozen.flags.writeable = False
    samples = [frozen, np.arange(4.0)[::-1], np.arange(4, dtype=">i4")]
    with penstock.torch.feed(samples, workers=0) as feed:
        made = list(feed)
    assert [tensor.tolist() for tensor in made] == [[0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3]]
    made[0][0] = 9
    assert frozen[0] == 0


def test_bfloat16_is_torchs():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rows = np.arange(4).astype(ml_dtypes.bfloat16)
    with penstock.torch.feed(Dataset.arrays(rows).batch(2), workers=0) as feed:
        first = next(iter(feed))
    assert first.dtype == torch.bfloat16
    assert first.tolist() == [0, 1]


def test_places_and_steps_are_the_loaders():
    dataset = Dataset.range(12).shuffle(seed=3).batch(4)
    with (
        penstock.torch.feed(dataset, workers=1) as feed,
        penstock.torch.feed(dataset, workers=0) as other,
    ):
        steps = list(feed.steps(5))
        other.load_state_dict(feed.state_dict())
        assert [t.tolist() for t in other] == [t.tolist() for t in feed]
        assert len(steps) == 5
        assert all(isinstance(step, torch.Tensor) for step in steps)
        assert repr(feed).startswith("TensorLoader(range(0, 12) > shuffle(")


def test_the_spec_has_torchs_types():
    with penstock.torch.feed(Dataset.range(12).map(pair).batch(4), workers=0) as feed:
        spec = feed.element_spec
    assert spec.x == penstock.TensorSpec((None, 2, 3), torch.float32, "x")
    assert spec.y["name"].dtype is str


def test_the_dataloader_says_where_datasets_go():
    with pytest.raises(penstock.InvalidArgument, match=r"penstock\.torch\.feed\(dataset\)"):
        penstock.torch.DataLoader(Dataset.range(3))

"""torch tensors in a payload: their storages are sent once, and nothing else."""

from __future__ import annotations

import pytest

from penstock.processes import payload

torch = pytest.importorskip("torch")

LARGE = 200_000


def there_and_back(obj):
    with payload.pack(obj) as packed:
        return payload.unpack(packed.fd), packed.bytes


VIEWS = {
    "one row, strided": lambda: torch.arange(8.0).reshape(1, 8)[:, 2],
    "small part": lambda: torch.arange(LARGE)[3:5],
    "columns": lambda: torch.arange(60).reshape(6, 10)[:, 3:9],
    "transposed": lambda: torch.arange(6).reshape(2, 3).T,
    "windows": lambda: torch.arange(100).unfold(0, 20, 1),
    "nothing": lambda: torch.arange(9)[3:3],
    "number": lambda: torch.arange(9)[3],
    "conjugate": lambda: (torch.ones(1, dtype=torch.complex64) * 1j).conj().expand(5),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_tensors_arrive_as_they_were(view):
    tensor = VIEWS[view]()
    back, size = there_and_back(tensor)
    assert torch.equal(back, tensor)
    assert size < 10_000


def test_an_attribute_that_is_a_strided_row_is_watched():
    class Dataset:
        def __init__(self):
            self.row = torch.arange(8.0).reshape(1, 8)[:, 2]

    dataset = Dataset()
    tracker = payload.Tracker(dataset)
    assert tracker.changes() is None
    dataset.row[0] = 5
    changes = tracker.changes()
    assert changes is not None
    with changes:
        other = Dataset()
        payload.apply(other, changes.fd)
    assert other.row.tolist() == [5]


def test_an_expanded_tensor_travels_as_what_it_repeats():
    for tensor in (torch.zeros(1).expand(10**10), torch.arange(LARGE)[3:4].expand(7, 10**9)):
        back, size = there_and_back(tensor)
        assert size < 1000
        assert back.shape == tensor.shape
        assert back[..., -1].tolist() == tensor[..., -1].tolist()


def test_tensors_that_share_memory_share_it_in_workers():
    whole = torch.arange(float(LARGE))
    parts = {
        "whole": whole,
        "part": whole[2:4],
        "rows": whole.view(100, -1),
        "ints": whole.view(torch.int32),
    }
    back, size = there_and_back(parts)
    assert size < whole.nbytes + 10_000
    back["whole"][2] = 77
    assert back["part"].tolist() == [77, 3]
    assert back["rows"][0, 2] == 77
    assert back["ints"][2] == torch.tensor(77.0).view(torch.int32)
    few = torch.zeros(3)  # in the pickle itself
    back, _ = there_and_back([few, few[:2], few.detach(), torch.zeros(3)])
    back[0][0] = 1
    assert [tensor[0] for tensor in back] == [1, 1, 1, 0]

"""The contract of a DataLoader's batches: all modes, and equality with torch's batches."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

WAYS = {
    "in line": {},
    "threads": {"num_workers": 2, "use_multiprocessing": False},
    "processes": {"num_workers": 2},
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)

MARKS = [
    pytest.mark.timeout(120),  # a worker imports torch: seconds on a busy machine
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
]


def same(a, b):
    """Assert that two batches are equal in types, dtypes and values."""
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.is_contiguous() == b.is_contiguous()
        assert torch.equal(a.detach(), b.detach())
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    else:
        assert a == b


def all_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        same(a, b)


def labels(batches):
    return [y.tolist() for _, y in batches]


def flat(lists):
    return [value for values in lists for value in values]

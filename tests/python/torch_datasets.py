"""Datasets for the tests of penstock.torch: worker processes import this without test tools."""

from __future__ import annotations

import os
import random
from collections import OrderedDict, namedtuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Point = namedtuple("Point", ["x", "y"])


class Numbers(Dataset):
    """Sample i is made of the number i, by the function that `FORMS` has for `form`."""

    def __init__(self, length=23, form="tuple"):
        self.length = length
        self.form = form
        self.added = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return FORMS[self.form](index + self.added)


def image(i):
    return np.arange(i, i + 6, dtype="float32").reshape(2, 3)


FORMS = {
    "array": image,
    "tensor": lambda i: torch.from_numpy(image(i)),
    "tuple": lambda i: (image(i), i),
    "list": lambda i: [image(i), float(i)],
    "dict": lambda i: {"x": torch.full((2,), i), "y": i % 2 == 0, "name": f"number {i}"},
    "named": lambda i: Point(np.float32(i), np.int16(i)),
    "nest": lambda i: ({"a": [i, (image(i), "s")]}, Point("t", torch.tensor(i))),
    "int": lambda i: i,
    "float": lambda i: i / 4,
    "bool": lambda i: i % 3 == 0,
    "str": lambda i: str(i),
    "bytes": lambda i: str(i).encode(),
    "strings": lambda i: ("a", f"b{i}"),
    "string list": lambda i: ["a", f"b{i}"],
    "numpy scalars": lambda i: (np.float32(i), np.uint8(i), np.bool_(i % 2), np.float64(i)),
    "0-d array": lambda i: np.array(i, "int32"),
    "0-d tensor": lambda i: torch.tensor(i),
    "half": lambda i: torch.full((3,), i, dtype=torch.float16),
    "bfloat16": lambda i: torch.full((3,), i, dtype=torch.bfloat16),
    "complex": lambda i: torch.full((3,), i + 1j),
    "bool tensor": lambda i: torch.tensor([True, i % 2 == 0]),
    "non-contiguous": lambda i: torch.from_numpy(image(i)).t(),
    "empty tensor": lambda i: torch.zeros(0, 3),
    "empty tuple": lambda i: (),
    "uint16": lambda i: np.full(2, i, "uint16"),
    "ordered dict": lambda i: OrderedDict(b=image(i), a=i),
    "conjugate": lambda i: torch.full((3,), i + 1j).conj(),
    "negative": lambda i: torch.full((3,), i + 1j).conj().imag,
    "needs grad": lambda i: torch.full((2,), float(i), requires_grad=True),
    # Samples that cannot be rows, but that default_collate accepts.
    "keys in another order": lambda i: {"a": i, "b": 1} if i % 2 else {"b": 1, "a": i},
    "more keys": lambda i: {"a": i, "b": 1} if i else {"a": i},
    "float, then int": lambda i: i if i % 2 else float(i),
    "numbers, then names": lambda i: {"a": i, "b": 1} if i < 150 else {"b": 1, "a": i},
    "two dtypes": lambda i: torch.tensor(i, dtype=torch.int64 if i % 2 else torch.float32),
}

# Samples that default_collate rejects.
WRONG = {
    "none": lambda i: None,
    "set": lambda i: {1, 2},
    "object array": lambda i: np.array([None, i]),
    "string array": lambda i: np.array(["a", "b"]),
    "datetime": lambda i: np.datetime64(i, "s"),
    "structured": lambda i: np.zeros(2, [("a", "i4")]),
    "ragged": lambda i: torch.zeros(i % 3 + 1),
    "uneven": lambda i: [1] * (i % 2 + 1),
    "big-endian": lambda i: np.zeros(2, ">f4"),
}
FORMS.update(WRONG)


class Stream(IterableDataset):
    """0 to n - 1, divided among the workers; if `shared` is false, each worker yields all."""

    def __init__(self, length=30, shared=True):
        self.length = length
        self.shared = shared

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None or not self.shared else (info.id, info.num_workers)
        # Uneven: worker 0 has the most.
        mine = [i for i in range(self.length) if i * i % (2 * workers - 1) % workers == worker]
        for i in mine:
            yield i, np.full(2, i)


class OwnIterator(IterableDataset):
    """A dataset that is its own iterator, and is exhausted after one pass."""

    def __init__(self, length=6):
        self.left = list(range(length))
        self.rows = np.arange(length * 4096.0).reshape(length, 4096)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.rows[self.left.pop(0)]


class OwnBatches:
    """A batch sampler that is its own iterator, like Lightning's, and restarts at `iter`."""

    def __init__(self, length=7, size=2):
        self.length, self.batch_size = length, size

    def __len__(self):
        return -(-self.length // self.batch_size)

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at >= self.length:
            raise StopIteration
        first, self.at = self.at, min(self.at + self.batch_size, self.length)
        return list(range(first, self.at))


class OwnIndices:
    """A sampler that is its own iterator."""

    def __init__(self, length):
        self.length = length
        self.begun = 0

    def __iter__(self):
        self.at = -1
        self.begun += 1
        return self

    def __next__(self):
        self.at += 1
        if self.at == self.length:
            raise StopIteration
        return self.at


class Scaled:
    """A collate function with an attribute."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, samples):
        return [self.factor * int(label) for _, label in samples]


class Pair(tuple):
    """A tuple subclass that is not a named tuple."""


class Pairs(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Pair((torch.tensor(index), float(index)))


class SizedStream(Stream):
    def __len__(self):
        return self.length


class Draws(Dataset):
    """Draws of all generators for an index."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        import penstock

        return (
            torch.rand(2),
            np.random.rand(2),
            random.random(),
            penstock.rng().random(),
        )


class DrawnStream(IterableDataset):
    def __iter__(self):
        for _ in range(6):
            yield torch.rand(2), np.random.rand()


class Told(Dataset):
    """torch's worker info, and the value that worker_init_fn has stored there."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        info = get_worker_info()
        if info is None:
            return -1, -1, -1, 0, os.getpid(), 0
        noted = getattr(self, "noted", -1)
        return info.id, info.num_workers, noted, info.seed, os.getpid(), torch.get_num_threads()


def note(worker):
    dataset = get_worker_info().dataset
    dataset.noted = 10 * worker
    assert torch.initial_seed() == get_worker_info().seed


def fail_to_start(worker):
    raise ValueError("cannot start")


class Batched(Dataset):
    """A dataset that fetches many at once."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise AssertionError("one by one")

    def __getitems__(self, indices):
        return [(i, len(indices)) for i in indices]


class Broken(Numbers):
    def __getitem__(self, index):
        if index == 11:
            raise KeyError("number eleven")
        return super().__getitem__(index)


class Slow(Numbers):
    def __getitem__(self, index):
        if index == 3:
            import time

            time.sleep(60)
        return super().__getitem__(index)


class Keyed(Dataset):
    """Indexed by names, or by lists of numbers."""

    def __len__(self):
        return 4

    def __getitem__(self, key):
        if isinstance(key, list):
            return np.array(key) * 10
        return len(key)


class KeySampler:
    keys = ("a", "bb", "ccc", "dddd")

    def __iter__(self):
        return iter(self.keys)

    def __len__(self):
        return len(self.keys)


class BrokenSampler(KeySampler):
    def __iter__(self):
        yield "a"
        yield "bb"
        raise RuntimeError("no third one")


def join(samples):
    """A collate_fn: sums and the number of samples."""
    return {"sum": torch.stack([torch.from_numpy(x) for x, _ in samples]).sum(), "n": len(samples)}


def keep_arrays(samples):
    return np.stack([x for x, _ in samples]), [y for _, y in samples]


def double(item):
    return [2 * item[0], "doubled"]


class Troubled(Numbers):
    """Raises for some numbers."""

    def __init__(self, bad, length=100):
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"number {index}")
        return super().__getitem__(index)


class TroubledNames(Keyed):
    def __getitem__(self, key):
        if key in ("bb", ("c", 3)):
            raise ValueError(key)
        return len(key)


class Mixed(Troubled):
    """Numbers of two types, which only default_collate puts into one tensor."""

    def __getitem__(self, index):
        number = super().__getitem__(index)[1]
        return number if index % 2 else float(number)

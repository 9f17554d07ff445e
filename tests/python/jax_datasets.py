"""Datasets for test_jax: worker processes import this and neither jax nor test tools."""

from __future__ import annotations

from collections import namedtuple

import numpy as np

Point = namedtuple("Point", ["x", "y"])


class Images:
    """Batch i is full of i."""

    def __init__(self, length=8, rows=64):
        self.length = length
        self.rows = rows
        self.ended = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        x = np.full((self.rows, 32, 3), index, "float32")
        return x, np.full(self.rows, index, "int32")


class Counting(Images):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        x[:, 0, 0] = self.ended
        return x, y

    def on_epoch_end(self):
        self.ended += 1


class Broken(Images):
    def __getitem__(self, index):
        if index == 3:
            raise KeyError("number three")
        return super().__getitem__(index)


class Nest:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {
            "point": Point(np.float32(index), index),
            "list": [np.full(3, index, "float64"), f"name {index}"],
            "half": np.full((2, 2), index, "float16"),
            "big": np.full(2, index, ">i4"),
            "yes": index % 2 == 0,
            "complex": np.full(2, index + 1j, "complex64"),
        }


class Strings:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.array(["a", "b"]), np.zeros(3, "float32"), np.array([None, 1])

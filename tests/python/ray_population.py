"""A small model and its data, for members of a population that train in actors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import penstock

ROWS = 16


class Small(torch.nn.Module):
    """Has a buffer that changes in training."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.out = torch.nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.norm(self.hidden(inputs))))


def table() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((80, 6)).astype(np.float32)
    return x, np.arange(80) % 3


def batches(count: int = 7) -> list[Any]:
    """Data that all members share: ends, and is begun again."""
    x, y = table()
    return [(x[i : i + ROWS], y[i : i + ROWS]) for i in range(count)]


class Shuffled:
    """Data of each member, which has states. `seconds`: a batch takes as long."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def __call__(self, member: int, seed: int) -> Any:
        return _Slow(self._seconds, table(), batch_size=ROWS, shuffle=True, seed=seed, workers=0)


class _Slow(penstock.Loader):
    def __init__(self, seconds: float, *arguments: Any, **options: Any) -> None:
        self._seconds = seconds
        super().__init__(*arguments, **options)

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            time.sleep(self._seconds)
            yield batch


class Counted:
    """Data of each member without states. Appends the number of each batch to a file."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds

    def __call__(self, member: int, seed: int) -> Iterator[Any]:
        given = batches(7)
        for number in range(10_000):
            time.sleep(self._seconds)
            with open(self._folder / str(member), "a") as file:
                file.write(f"{number}\n")
            yield given[number % 7]


def ends_the_process_of_member_1(member: int, seed: int) -> Iterator[Any]:
    for number in range(10_000):
        if member == 1 and number == 3:
            os._exit(1)
        yield batches()[number % 7]


def raises(member: int, seed: int) -> Iterator[Any]:
    raise ValueError(f"no data for member {member}")

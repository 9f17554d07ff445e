"""Datasets for the tests of Loader, in a module that spawned workers can import."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np

import penstock


class Sized:
    """A data set of this many elements."""

    length = 12

    def __init__(self, length: int | None = None) -> None:
        if length is not None:
            self.length = length

    def __len__(self) -> int:
        return self.length


class Together:
    """Adds ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Items(Sized):
    """Whole batches: (array, index)."""

    def __init__(self, length: int = 12, width: int = 300) -> None:
        super().__init__(length)
        self.width = width

    def __getitem__(self, index: int) -> Any:
        return np.full(self.width, index, np.int32), index


class Samples(Sized):
    """Samples of several kinds: {"x": array, "y": int, "name": str}."""

    length = 37

    def __getitem__(self, index: int) -> Any:
        x = np.arange(6, dtype=np.float32).reshape(2, 3) + index
        return {"x": x, "y": index, "name": f"s{index}"}


class BatchedSamples(Together, Samples):
    """The same, with ``__getitems__``."""


class Keyed(Sized):
    """Draws from penstock.rng(), with the same numbers in every mode."""

    length = 11

    def __getitem__(self, index: int) -> Any:
        draw = penstock.rng()
        return index, draw.integers(0, 1 << 60, 4), draw.normal(size=3)


class GloballyRandom(Sized):
    """Draws from the global generators of NumPy and Python, like old code."""

    def __init__(self, length: int = 10, batched: bool = False) -> None:
        super().__init__(length)
        if batched:
            self.__getitems__ = self._getitems  # type: ignore[method-assign]

    def __getitem__(self, index: int) -> Any:
        return index, np.random.rand(3), random.random(), random.sample(range(1000), 4)[0]

    def _getitems(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


only_here = False  # set by a test; then only its forks have the new value


def parentage(number: object = None) -> Any:
    """Whether this process was forked from the test's process, and its parent's pid."""
    return np.array([only_here, os.getppid()])


class Parentage(Items):
    def __getitem__(self, index: int) -> Any:
        return parentage()


class Trouble(Exception):
    """The exception of these datasets; the consumer must get the same class."""

    def __init__(self, index: int, word: str = "trouble") -> None:
        super().__init__(index, word)
        self.index = index


class Troubled(Sized):
    """Raises for some indices."""

    def __init__(self, bad: set[int], length: int = 20, width: int = 400) -> None:
        super().__init__(length)
        self.bad = bad
        self.width = width

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise Trouble(index)
        return np.full(self.width, index, np.int64), index


class TroubledTogether(Together, Troubled):
    """The same, with ``__getitems__``."""


class Flaky(Sized):
    """Raises at the first `times` requests for an index, counted per process."""

    def __init__(self, times: int, length: int = 6) -> None:
        super().__init__(length)
        self.times = times
        self.asked: dict[int, int] = {}

    def __getitem__(self, index: int) -> Any:
        self.asked[index] = self.asked.get(index, 0) + 1
        if self.asked[index] <= self.times:
            raise Trouble(index)
        return index, penstock.rng().integers(1 << 40)


class Ragged(Sized):
    """One sample is longer than the others."""

    def __init__(self, length: int = 8, odd: int = 5) -> None:
        super().__init__(length)
        self.odd = odd

    def __getitem__(self, index: int) -> Any:
        return np.zeros(4 if index == self.odd else 3, np.float32), index


def count_to(n: int) -> Any:
    for i in range(n):
        yield np.full(300, i, np.int64), i


def ten_items() -> Any:
    yield from count_to(10)


def for_ever() -> Any:
    i = 0
    while True:
        yield i, penstock.rng().integers(1 << 50)
        i += 1


@penstock.threadsafe
def safe_items() -> Any:
    yield from count_to(10)


def raises_at_four() -> Any:
    yield from count_to(4)
    raise Trouble(4)

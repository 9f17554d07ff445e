"""Operations of `penstock.image` that move pixels by whole places, and `erase`, on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import Arrays, Numbers, picked
from .functions import Rows
from .images import PixelFunction


def sizes_of(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return (height, width) of each image of a batch."""
    return [(shape[1], shape[2])] * shape[0]


class RandomCrop(PixelFunction):
    """A box of every image."""

    random = True

    def __init__(self, operation: Any, fields: Sequence[str], size: tuple[int, int]) -> None:
        super().__init__(operation, fields)
        self._size = size

    def _numbers(self, shape: tuple[int, ...], rows: Rows) -> Numbers:
        return (self._drawn(sizes_of(shape), rows)[:, :2].astype(np.int32),)

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        (corners,) = numbers
        height, width = self._size
        y = corners[:, 1, None, None] + xp.arange(height)[None, :, None]
        x = corners[:, 0, None, None] + xp.arange(width)[None, None, :]
        return picked(xp, images, y, x)


class CenterCrop(PixelFunction):
    """The middle of every image."""

    def __init__(self, operation: Any, fields: Sequence[str], size: tuple[int, int]) -> None:
        super().__init__(operation, fields)
        self._size = size

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        free = [images.shape[1 + i] - self._size[i] for i in range(2)]
        if min(free) < 0:
            self._refuse(f"images of {tuple(images.shape[1:3])} are smaller than {self._size}")
        top, left = (round(each / 2) for each in free)  # halves to even, as torchvision
        return images[:, top : top + self._size[0], left : left + self._size[1]]


class RandomFlip(PixelFunction):
    """Every image mirrored or not. `axes` are those that may be: 2 horizontally, 1 vertically."""

    random = True

    def __init__(self, operation: Any, fields: Sequence[str], axes: Sequence[int]) -> None:
        super().__init__(operation, fields)
        self._axes = tuple(axes)

    def _numbers(self, shape: tuple[int, ...], rows: Rows) -> Numbers:
        return (self._drawn(sizes_of(shape), rows) == 1,)

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        (flips,) = numbers
        for axis in self._axes:
            flipped = flips[:, 2 - axis, None, None, None]
            images = xp.where(flipped, xp.reversed(images, axis), images)
        return images


class Pad(PixelFunction):
    """Every image with a border of one value."""

    def __init__(
        self, operation: Any, fields: Sequence[str], border: Sequence[int], value: int
    ) -> None:
        super().__init__(operation, fields)
        self._border, self._value = border, value

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        return xp.pad(images, self._border, self._value)


class Rot90(PixelFunction):
    """Every image turned by quarters."""

    def __init__(self, operation: Any, fields: Sequence[str], turns: int) -> None:
        super().__init__(operation, fields)
        self._turns = turns

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        return xp.rot90(images, self._turns)


class Erase(PixelFunction):
    """A box of every image set to one value, or none."""

    random = True

    def __init__(self, operation: Any, fields: Sequence[str], value: float) -> None:
        super().__init__(operation, fields)
        self._value = value

    def _numbers(self, shape: tuple[int, ...], rows: Rows) -> Numbers:
        return (self._drawn(sizes_of(shape), rows).astype(np.int32),)

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        (boxes,) = numbers
        left, top, width, height = (boxes[:, i, None, None, None] for i in range(4))
        y = xp.arange(images.shape[1])[None, :, None, None] - top
        x = xp.arange(images.shape[2])[None, None, :, None] - left
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        value = self._value
        if str(images.dtype).endswith("uint8"):  # rounded as by the engine: halves up
            value = math.floor(min(max(value, 0), 255) + 0.5)
        return xp.where(inside, value, images)

"""`image.random_affine` on a device: the coordinates of the engine's `Warper`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import Arrays, Numbers, picked
from .functions import Rows
from .images import PixelFunction
from .moves import sizes_of

_PLACES = 24  # binary places of coordinates
_PIXEL = 1 << _PLACES

Integers = np.ndarray[Any, Any]


class RandomAffine(PixelFunction):
    """Every image turned, moved, magnified and sheared.

    The host computes the coordinates of each row's first pixel and the way from there to each
    column; the device adds the two. Pixels between four are mixed in float32, as by torch's
    `grid_sample`, so a value may differ by 1 level from the engine's. Where a small error of a
    coordinate could choose another pixel (interpolation "nearest", the seam of "wrap", the border
    of "constant") the coordinates are the engine's integers, with 24 binary places.
    """

    random = True

    def __init__(
        self,
        operation: Any,
        fields: Sequence[str],
        fill: str,
        value: float,
        interpolation: str,
    ) -> None:
        super().__init__(operation, fields)
        self._fill, self._value, self._nearest = fill, value, interpolation == "nearest"

    def _numbers(self, shape: tuple[int, ...], rows: Rows) -> Numbers:
        _, height, width, _ = shape
        a, b, c, d, e, f = self._drawn(sizes_of(shape), rows).T[..., None]
        y, x, size = np.arange(height), np.arange(width), (width, height)
        down = np.stack([b * y + c, e * y + f], 1)  # (batch, 2, height), in pixels
        step = np.stack([a, d], 1)  # (batch, 2, 1)
        if self._nearest or self._fill == "wrap":
            last = np.array(size, np.int32).reshape(1, 2, 1, 1) - 1
            numbers = (*_split(_fixed(down), _fixed(step) * x), last)
        else:
            numbers = _grid(down, step * x, size)
        if self._fill == "constant":
            numbers = (*numbers, *_inside(_fixed(down), _fixed(step), size))
        return numbers

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        down, across, *rest = numbers
        if self._nearest or self._fill == "wrap":
            last, *inside = rest
            made = self._exactly(xp, images, down, across, last)
        else:
            inside = rest
            made = xp.sampled(images, down + across, self._fill == "reflect")
        if not inside:
            return made
        first, last = inside
        x = xp.arange(images.shape[2])[None, None, :, None]
        value = self._value
        if str(images.dtype).endswith("uint8"):
            value = math.floor(min(max(value, 0), 255) + 0.5)
        return xp.where((x < first) | (x > last), value, made)

    def _exactly(self, xp: Arrays, images: Any, down: Any, across: Any, last: Any) -> Any:
        """Return pixels at coordinates without rounding.

        `down` and `across` are those of `_split`; `last` ``(1, 2, 1, 1)`` is the last place x, y.
        """
        rest = down[:, 2:] + across[:, 2:]
        place = down[:, :2] + across[:, :2] + (rest >> _PLACES)
        rest = rest & (_PIXEL - 1)
        if self._fill == "wrap":
            place = _wrapped(xp, place, rest, last)
        if self._nearest:
            place = place + (rest >> (_PLACES - 1))
            if self._fill == "reflect":
                place = place % (2 * last + 2)
                place = xp.minimum(place, 2 * last + 1 - place)
            place = xp.minimum(place.clip(0), last)
            return picked(xp, images, place[:, 1], place[:, 0])
        places = xp.cast(place, "float32") + xp.cast(rest, "float32") * 2.0**-_PLACES
        places = _edges(places, last + 1)
        return xp.sampled(images, xp.stack([places[:, 0], places[:, 1]], 3), False)


def _fixed(pixels: Any) -> Integers:
    """Return int64 with 24 binary places, halves away from 0."""
    scaled = pixels * _PIXEL
    return np.asarray(np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(np.int64)


def _split(down: Integers, across: Integers) -> tuple[Integers, ...]:
    """Return each coordinate as two int32, the pixel and the places behind it.

    ``(batch, 4, height, 1)`` and ``(batch, 4, 1, width)``: pixels x, y; the places x, y.
    """
    down, across = (
        np.concatenate([each >> _PLACES, each & (_PIXEL - 1)], 1).astype(np.int32)
        for each in (down, across)
    )
    return down[:, :, :, None], across[:, :, None, :]


def _grid(down: Any, across: Any, size: tuple[int, int]) -> tuple[Any, ...]:
    """Return float32 whose sums are the grid of `Arrays.sampled`.

    ``(batch, height, 1, 2)`` and ``(batch, 1, width, 2)``.
    """
    along = np.array(size)[:, None]
    begins, ways = _edges(down, along), across * (2 / along)
    begins, ways = (each.swapaxes(1, 2).astype(np.float32) for each in (begins, ways))
    return begins[:, :, None], ways[:, None]


def _edges(places: Any, size: Any) -> Any:
    """Return places of pixels as numbers that are -1 and 1 at the outer edges of an image."""
    return (places * 2 + 1) / size - 1


def _inside(down: Integers, step: Integers, size: tuple[int, int]) -> tuple[Integers, ...]:
    """Return the first and the last column of each row that lie in the image.

    int32 ``(batch, height, 1, 1)``; coordinates may be beyond the border by what `_fixed` has
    rounded.
    """
    width = size[0]
    rounding = width // 2 + 1
    least = -rounding - down
    most = (np.array(size)[:, None] - 1) * _PIXEL + rounding - down
    level = (least <= 0) & (most >= 0)  # where no column moves along the axis
    back = step < 0
    least, most = np.where(back, -most, least), np.where(back, -least, most)
    divisor = np.where(step == 0, 1, abs(step))
    first = np.where(step == 0, np.where(level, 0, width), -(-least // divisor))
    last = np.where(step == 0, width - 1, most // divisor)
    between = first.max(1).clip(0, width), last.min(1).clip(-1, width - 1)
    first, last = (each.astype(np.int32)[:, :, None, None] for each in between)
    return first, last


def _wrapped(xp: Arrays, place: Any, rest: Any, last: Any) -> Any:
    """Return places whose period is one less than the size: `last`."""
    inside = (place >= 0) & ((place < last) | ((place == last) & (rest == 0)))
    # Multiples of the period below 0 are the last pixel, those above the first.
    wrapped = place % last.clip(1)
    wrapped = xp.where((place < 0) & (wrapped == 0) & (rest == 0), last, wrapped)
    return xp.where(inside, place, wrapped)

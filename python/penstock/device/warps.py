"""`image.random_affine` on a device: the integers of the engine's `Warper`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import Arrays, Numbers
from .functions import Rows
from .images import PixelFunction
from .moves import sizes_of

_PLACES = 24  # binary places of coordinates
_PIXEL = 1 << _PLACES
_WEIGHT_BITS = 14
_KEPT = 6  # binary places of values between the two directions


class RandomAffine(PixelFunction):
    """Every image turned, moved, magnified and sheared.

    A coordinate is two int32: the pixel, and 24 binary places behind it. The host computes that of
    each row's first pixel and the way from there to each column; the device adds the two.
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
        a, b, c, d, e, f = self._drawn(sizes_of(shape), rows).T[..., None]
        y, x = np.arange(shape[1]), np.arange(shape[2])
        down = np.stack([_fixed(b * y + c), _fixed(e * y + f)], 1)
        across = np.stack([_fixed(a) * x, _fixed(d) * x], 1)
        return tuple(
            np.concatenate([each >> _PLACES, each & (_PIXEL - 1)], 1).astype(np.int32)
            for each in (down, across)
        )

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        down, across = numbers  # (batch, 4, rows), (batch, 4, columns): pixels x, y; the rest x, y
        batch, height, width, _ = images.shape
        rest = down[:, 2:, :, None] + across[:, 2:, None, :]
        place = down[:, :2, :, None] + across[:, :2, None, :] + (rest >> _PLACES)
        rest = rest & (_PIXEL - 1)
        x = self._neighbours(xp, place[:, 0], rest[:, 0], width)
        y = self._neighbours(xp, place[:, 1], rest[:, 1], height)
        first = (xp.arange(batch) * (height * width))[:, None, None]
        rows = [first + each * width for each in y]
        corners = [xp.take_pixels(images, row + column) for row in rows for column in x]
        made = corners[0] if self._nearest else _blended(xp, corners, rest)
        if self._fill != "constant":
            return made
        rounding = width // 2 + 1  # coordinates may be off by so much
        outside = _outside(place[:, 0], rest[:, 0], width, rounding)
        outside = outside | _outside(place[:, 1], rest[:, 1], height, rounding)
        value = self._value
        if str(images.dtype).endswith("uint8"):
            value = math.floor(min(max(value, 0), 255) + 0.5)
        return xp.where(outside[..., None], value, made)

    def _neighbours(self, xp: Arrays, place: Any, rest: Any, size: int) -> list[Any]:
        """Return the one or two places along an axis whose pixels are mixed."""
        last = size - 1
        if self._fill == "wrap":
            inside = (place >= 0) & ((place < last) | ((place == last) & (rest == 0)))
            # Multiples of the period below 0 are the last pixel, those above the first.
            wrapped = place % max(last, 1)
            wrapped = xp.where((place < 0) & (wrapped == 0) & (rest == 0), last, wrapped)
            place = xp.where(inside, place, wrapped) if last else place * 0
        half = rest >> (_PLACES - 1)
        places = [place + half] if self._nearest else [place, place + 1]
        if self._fill == "reflect":
            return [_reflected(xp, each, size) for each in places]
        # Beyond the border both are the same pixel, so their weights do not matter.
        return [each.clip(0, last) for each in places]


def _outside(place: Any, rest: Any, size: int, rounding: int) -> Any:
    """Return which coordinates are beyond the border, by more than `rounding`."""
    last = size - 1
    below = (place < -1) | ((place == -1) & (rest < _PIXEL - rounding))
    return below | (place > last) | ((place == last) & (rest > rounding))


def _blended(xp: Arrays, corners: list[Any], rest: Any) -> Any:
    """Return pixels between four: vertically, then horizontally, rounded each time."""
    across, down = rest[:, 0, ..., None], rest[:, 1, ..., None]
    if str(corners[0].dtype).endswith("float32"):
        across, down = (xp.cast(each, "float32") * 2.0**-_PLACES for each in (across, down))
        top, top_right, bottom, bottom_right = corners
        left = top + (bottom - top) * down
        return left + (top_right + (bottom_right - top_right) * down - left) * across
    across, down = (each >> (_PLACES - _WEIGHT_BITS) for each in (across, down))
    top, top_right, bottom, bottom_right = (xp.cast(each, "int32") for each in corners)
    left = _mixed(xp, top, bottom, down, _WEIGHT_BITS - _KEPT)
    right = _mixed(xp, top_right, bottom_right, down, _WEIGHT_BITS - _KEPT)
    return xp.cast(_mixed(xp, left, right, across, _WEIGHT_BITS + _KEPT), "uint8")


def _mixed(xp: Arrays, one: Any, other: Any, weight: Any, shift: int) -> Any:
    total = xp.multiply_add(one * ((1 << _WEIGHT_BITS) - weight), other, weight)
    return (total + (1 << (shift - 1))) >> shift


def _fixed(pixels: Any) -> Any:
    """Return int64 with 24 binary places, halves away from 0."""
    scaled = pixels * _PIXEL
    return (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(np.int64)


def _reflected(xp: Arrays, place: Any, size: int) -> Any:
    place = place % (2 * size)
    return xp.where(place < size, place, 2 * size - 1 - place)

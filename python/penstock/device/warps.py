"""`image.random_affine` on a device: the integers of the engine's `Warper`."""

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
        place = down[:, :2, :, None] + across[:, :2, None, :]
        rest = down[:, 2:, :, None] + across[:, 2:, None, :]
        place, rest = place + (rest >> _PLACES), rest & (_PIXEL - 1)
        rounding = images.shape[2] // 2 + 1
        x = self._neighbours(xp, place[:, 0], rest[:, 0], images.shape[2], rounding)
        y = self._neighbours(xp, place[:, 1], rest[:, 1], images.shape[1], rounding)
        made = picked(xp, images, y[0], x[0]) if self._nearest else self._blended(xp, images, x, y)
        if self._fill != "constant":
            return made
        value = self._value
        if str(images.dtype).endswith("uint8"):
            value = math.floor(min(max(value, 0), 255) + 0.5)
        return xp.where((x[3] | y[3])[..., None], value, made)

    def _neighbours(self, xp: Arrays, place: Any, rest: Any, size: int, rounding: int) -> Any:
        """Return the two places along an axis, the way between them, and whether it is outside."""
        last = size - 1
        below, above = place < 0, (place > last) | ((place == last) & (rest > 0))
        outside = ((place < -1) | ((place == -1) & (rest < _PIXEL - rounding))) | (
            (place > last) | ((place == last) & (rest > rounding))
        )
        if self._fill == "wrap":
            period = max(last, 1)
            wrapped = place % period
            # Multiples of the period below 0 are the last pixel, those above the first.
            wrapped = xp.where(below & (wrapped == 0) & (rest == 0), last, wrapped)
            place = xp.where(below | above, wrapped, place) if last else place * 0
            rest = rest if last else rest * 0
        elif self._fill != "reflect":
            rest = xp.where(below | above, 0, rest)
            place = place.clip(0, last)
        if self._nearest:
            place, rest = place + (rest >> (_PLACES - 1)), rest * 0
        following = place + 1
        if self._fill == "reflect":
            return _reflected(xp, place, size), _reflected(xp, following, size), rest, outside
        return place, following.clip(0, last), rest, outside

    def _blended(self, xp: Arrays, images: Any, x: Any, y: Any) -> Any:
        top, top_right = picked(xp, images, y[0], x[0]), picked(xp, images, y[0], x[1])
        bottom, bottom_right = picked(xp, images, y[1], x[0]), picked(xp, images, y[1], x[1])
        right, down = x[2][..., None], y[2][..., None]
        if str(images.dtype).endswith("float32"):
            right, down = (xp.cast(each, "float32") * 2.0**-_PLACES for each in (right, down))
            left = top + (bottom - top) * down
            return left + (top_right + (bottom_right - top_right) * down - left) * right
        right, down = right >> (_PLACES - _WEIGHT_BITS), down >> (_PLACES - _WEIGHT_BITS)
        corners = (xp.cast(each, "int32") for each in (top, bottom, top_right, bottom_right))
        top, bottom, top_right, bottom_right = corners
        first = _mixed(top, bottom, down, _WEIGHT_BITS - _KEPT)
        second = _mixed(top_right, bottom_right, down, _WEIGHT_BITS - _KEPT)
        return xp.cast(_mixed(first, second, right, _WEIGHT_BITS + _KEPT), "uint8")


def _fixed(pixels: Any) -> Any:
    """Return int64 with 24 binary places, halves away from 0."""
    scaled = pixels * _PIXEL
    return (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(np.int64)


def _mixed(one: Any, other: Any, weight: Any, shift: int) -> Any:
    return (one * ((1 << _WEIGHT_BITS) - weight) + other * weight + (1 << (shift - 1))) >> shift


def _reflected(xp: Arrays, place: Any, size: int) -> Any:
    place = place % (2 * size)
    return xp.where(place < size, place, 2 * size - 1 - place)

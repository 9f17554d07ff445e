"""Operations of `penstock.image` on colours, on a device.

Colours are planes of whole numbers in float32: a kernel reads and writes them without gaps, and
nothing is converted between two changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import LUMA, Arrays, Numbers, luma
from .functions import Rows
from .images import PixelFunction
from .moves import sizes_of

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_MOST_PIXELS = (1 << 23) - 1  # whose grey has a sum of 31 bits
_SIXTHS = np.array([5, 3, 1], np.float32).reshape(1, 3, 1, 1)  # of red, green and blue

Range = Sequence[float]  # the least and the greatest


class Grayscale(PixelFunction):
    """Pillow's grey of every image."""

    dtypes = ("uint8",)
    flat = False

    def __init__(self, operation: Any, fields: Sequence[str], channels: int) -> None:
        super().__init__(operation, fields)
        self._channels = channels

    def _numbers(self, shape: tuple[int, ...], rows: Rows) -> Numbers:
        return (LUMA,)

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        grey = images[..., :1]
        if images.shape[3] >= 3:
            grey = xp.pixels(luma(xp, xp.planes(images[..., :3]), *numbers))
        return grey if self._channels == 1 else xp.concatenate([grey] * self._channels, 3)


class ColorJitter(PixelFunction):
    """Brightness, contrast, saturation and hue of every image changed, in an order of its own.

    The hue of all images is turned at once, since that takes longest. The other changes have places
    before and after; in those that an image does not need, its factor is 1.
    """

    random = True
    dtypes = ("uint8",)

    def __init__(
        self,
        operation: Any,
        fields: Sequence[str],
        brightness: Range,
        contrast: Range,
        saturation: Range,
        hue: Range,
    ) -> None:
        super().__init__(operation, fields)
        factors = (brightness, contrast, saturation)
        changing = [kind for kind, range_ in enumerate(factors) if list(range_) != [1, 1]]
        self._changing = [*changing, *([_HUE] if list(hue) != [0, 0] else [])]

    def _numbers(self, shape: tuple[int, ...], rows: Rows) -> Numbers:
        """Return what colours are mixed with at each place, and the turns of the hue.

        float32 ``(batch, places, 1, 1, 1)``: the factor, the share of the mean grey and that of the
        pixel's grey; ``(batch, 1, 1, 1)``: the turn in sixths; the weights of the grey, the sixths.
        """
        if shape[3] > 4:
            self._refuse(f"images have {shape[3]} channels; give 1 to 4")
        if shape[1] * shape[2] > _MOST_PIXELS:
            self._refuse(f"images have {shape[1] * shape[2]} pixels, more than {_MOST_PIXELS}")
        drawn = self._drawn(sizes_of(shape), rows)
        factors, order = drawn[:, :4], drawn[:, 4:].astype(np.int64)
        kinds = self._kinds(shape[3])
        order = order[np.isin(order, kinds)].reshape(shape[0], len(kinds))
        mixes = [kind for kind in kinds if kind != _HUE]
        kind = order[order != _HUE].reshape(shape[0], len(mixes))
        factor = np.take_along_axis(factors, kind, 1)
        if _HUE in kinds and mixes:
            before = np.arange(len(mixes)) < np.argmax(order == _HUE, 1)[:, None]
            factor = np.concatenate([np.where(b, factor, 1) for b in (before, ~before)], 1)
            kind = np.concatenate([kind, kind], 1)
        numbers = (factor, kind == _CONTRAST, kind == _SATURATION)
        turn = factors[:, _HUE, None, None, None]
        turn = (turn - np.floor(turn)) * 6
        return (
            *(each.astype(np.float32)[..., None, None, None] for each in numbers),
            *(turn.astype(np.float32), LUMA, _SIXTHS),
        )

    def _kinds(self, channels: int) -> list[int]:
        """Return the changes that change images of so many channels."""
        grey = channels < 3
        return [kind for kind in self._changing if not (grey and kind >= _SATURATION)]

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        *mixing, turn, weights, sixths = numbers
        kinds = self._kinds(images.shape[3])
        if not kinds:
            return images
        count = 3 if images.shape[3] >= 3 else 1
        colours = xp.planes(images[..., :count])
        places = mixing[0].shape[1]
        for i in range(places):
            if _HUE in kinds and 2 * i == places:
                colours = _turned(xp, colours, turn, sixths)
            colours = self._mixed(xp, colours, kinds, weights, *(each[:, i] for each in mixing))
        if kinds == [_HUE]:
            colours = _turned(xp, colours, turn, sixths)
        made = xp.pixels(colours)
        return xp.concatenate([made, images[..., count:]], 3) if images.shape[3] > count else made

    def _mixed(
        self,
        xp: Arrays,
        colours: Any,
        kinds: Sequence[int],
        weights: Any,
        factor: Any,
        of_mean: Any,
        of_grey: Any,
    ) -> Any:
        """Return colours at `factor` from black, the mean grey or their grey, as `Image.blend`."""
        base: Any = None  # black
        if _CONTRAST in kinds or _SATURATION in kinds:
            grey = luma(xp, colours, weights) if colours.shape[1] == 3 else colours
        if _CONTRAST in kinds:
            pixels = colours.shape[2] * colours.shape[3]
            mean = (xp.total(grey, (1, 2, 3))[:, None, None, None] + pixels // 2) // pixels
            base = xp.cast(mean, "float32") * of_mean
        if _SATURATION in kinds:
            base = grey * of_grey if base is None else xp.multiply_add(base, grey, of_grey)
        if base is None:
            return xp.floor((colours * factor).clip(0, 255))
        return xp.floor(xp.multiply_add(base, colours - base, factor).clip(0, 255))


def _turned(xp: Arrays, colours: Any, turn: Any, sixths: Any) -> Any:
    """Return colours whose hue is turned by `turn` sixths, 0 to 6; 0 changes nothing."""
    red, green, blue = colours[:, :1], colours[:, 1:2], colours[:, 2:]
    most = xp.maximum(xp.maximum(red, green), blue)
    chroma = most - xp.minimum(xp.minimum(red, green), blue)
    is_red, is_green = most == red, most == green
    ahead = xp.where(is_red, green - blue, xp.where(is_green, blue - red, red - green))
    hue = ahead / chroma.clip(1) + xp.where(is_red, turn, xp.where(is_green, turn + 2, turn + 4))
    k = (hue + sixths) % 6
    part = xp.minimum(k, 4 - k).clip(0, 1)
    return xp.floor(most + 0.5 - chroma * part)

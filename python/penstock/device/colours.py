"""Operations of `penstock.image` on colours, on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import Arrays, Numbers, luma
from .functions import Rows
from .images import PixelFunction
from .moves import sizes_of

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_MOST_PIXELS = (1 << 23) - 1  # whose grey has a sum of 31 bits

Range = Sequence[float]  # the least and the greatest


class Grayscale(PixelFunction):
    """Pillow's grey of every image."""

    dtypes = ("uint8",)
    flat = False

    def __init__(self, operation: Any, fields: Sequence[str], channels: int) -> None:
        super().__init__(operation, fields)
        self._channels = channels

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        grey = images[..., :1]
        if images.shape[3] >= 3:
            grey = xp.cast(luma(xp.cast(images, "int32")), "uint8")
        return grey if self._channels == 1 else xp.concatenate([grey] * self._channels, 3)


class ColorJitter(PixelFunction):
    """Brightness, contrast, saturation and hue of every image changed, in an order of its own."""

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
        """Return the kinds of change ``(batch, n)`` in their order, and the number of each."""
        if shape[3] > 4:
            self._refuse(f"images have {shape[3]} channels; give 1 to 4")
        if shape[1] * shape[2] > _MOST_PIXELS:
            self._refuse(f"images have {shape[1] * shape[2]} pixels, more than {_MOST_PIXELS}")
        drawn = self._drawn(sizes_of(shape), rows)
        factors, order = drawn[:, :4], drawn[:, 4:].astype(np.int32)
        factors[:, _HUE] = (factors[:, _HUE] - np.floor(factors[:, _HUE])) * 6
        kinds = self._kinds(shape[3])
        order = order[np.isin(order, kinds)].reshape(shape[0], len(kinds))
        return order, np.take_along_axis(factors, order.astype(np.int64), 1).astype(np.float32)

    def _kinds(self, channels: int) -> list[int]:
        """Return the changes that change images of so many channels."""
        grey = channels < 3
        return [kind for kind in self._changing if not (grey and kind >= _SATURATION)]

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        order, factors = numbers
        kinds = self._kinds(images.shape[3])
        count = 3 if images.shape[3] >= 3 else 1
        colours = xp.cast(images[..., :count], "int32")
        for i in range(len(kinds)):
            kind, factor = order[:, i, None, None, None], factors[:, i, None, None, None]
            if kinds == [_HUE]:
                colours = _turned(xp, colours, factor)
                continue
            changed = _mixed(xp, self._base(xp, colours, kind, kinds), colours, factor)
            if _HUE in kinds:
                changed = xp.where(kind == _HUE, _turned(xp, colours, factor), changed)
            colours = changed
        made = xp.cast(colours, "uint8")
        return xp.concatenate([made, images[..., count:]], 3) if images.shape[3] > count else made

    def _base(self, xp: Arrays, colours: Any, kind: Any, kinds: Sequence[int]) -> Any:
        """Return what colours are mixed with: black, the mean grey, or the pixel's grey."""
        grey = luma(colours) if colours.shape[3] == 3 else colours
        base: Any = grey * 0
        if _CONTRAST in kinds:
            pixels = colours.shape[1] * colours.shape[2]
            mean = (xp.total(grey, (1, 2)) + pixels // 2) // pixels
            base = xp.where(kind == _CONTRAST, xp.cast(mean, "int32"), base)
        if _SATURATION in kinds:
            base = xp.where(kind == _SATURATION, grey, base)
        return base


def _mixed(xp: Arrays, base: Any, colours: Any, factor: Any) -> Any:
    """Return colours at `factor` from `base`, without fractions, as Pillow's `Image.blend`."""
    mixed = xp.cast(base, "float32") + factor * xp.cast(colours - base, "float32")
    return xp.cast(mixed.clip(0, 255), "int32")


def _turned(xp: Arrays, colours: Any, shift: Any) -> Any:
    """Return colours whose hue is turned by `shift` sixths, 0 to 6; 0 changes nothing."""
    values = xp.cast(colours, "float32")
    red, green, blue = values[..., :1], values[..., 1:2], values[..., 2:]
    most = xp.maximum(xp.maximum(red, green), blue)
    chroma = most - xp.minimum(xp.minimum(red, green), blue)
    divisor = xp.where(chroma == 0, 1.0, chroma)
    hue = xp.where(most == green, (blue - red) / divisor + 2, (red - green) / divisor + 4)
    hue = xp.where(most == red, (green - blue) / divisor, hue)
    hue = xp.where(chroma == 0, 0.0, hue) + shift
    turned = []
    for first in (5, 3, 1):  # of red, green and blue
        k = first + hue
        k = xp.where(k >= 6, k - 6, k)
        k = xp.where(k >= 6, k - 6, k)
        part = xp.minimum(k, 4 - k).clip(0, 1)
        turned.append(most - chroma * part + 0.5)
    made = xp.cast(xp.concatenate(turned, 3), "int32")
    return xp.where(shift == 0, colours, made)

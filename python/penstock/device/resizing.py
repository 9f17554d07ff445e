"""`image.resize` and `image.random_resized_crop` on a device: the integers of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _engine
from .arrays import Arrays, Numbers, arrays_of
from .functions import Rows
from .images import ImageList, PixelFunction
from .moves import sizes_of

_WEIGHT_BITS = 22  # of the engine's AxisWeights
_CANVAS_BYTES = 1 << 27  # of images of different sizes that are resized at once

Box = tuple[float, float, float, float]  # left, top, width, height


class Resize(PixelFunction):
    """Every image, or a part of it, in another size.

    Weights are those of the engine: sums of integers with 22 binary places, horizontally first.
    """

    dtypes = ("uint8",)

    def __init__(
        self,
        operation: Any,
        fields: Sequence[str],
        size: tuple[int, int],
        filter: str,
        antialias: bool,
    ) -> None:
        super().__init__(operation, fields)
        self._size, self._filter, self._antialias = size, filter, antialias

    def _boxes(self, sizes: list[tuple[int, int]], rows: Rows) -> list[Box]:
        """Return the parts that are resized: one of all images, or one of each."""
        each = sizes[:1] if len(set(sizes)) == 1 else sizes
        return [(0, 0, width, height) for height, width in each]

    def _applied(self, images: Any, rows: Rows) -> Any:
        if not isinstance(images, ImageList):
            return super()._applied(images, rows)
        sizes = [(int(each.shape[0]), int(each.shape[1])) for each in images]
        boxes = self._boxes(sizes, rows)
        if len(boxes) == 1:
            boxes = boxes * len(sizes)
        if not images:
            height, width = self._size
            return arrays_of(images.empty).pad(images.empty, (0, 0, width - 1, height - 1), 0)
        xp, parts = arrays_of(images[0]), []
        for begin, end in _groups(sizes, images[0].shape[2]):
            height = max(size[0] for size in sizes[begin:end])
            width = max(size[1] for size in sizes[begin:end])
            canvas = xp.stack(
                [
                    xp.pad(each[None], (0, 0, width - each.shape[1], height - each.shape[0]), 0)[0]
                    for each in images[begin:end]
                ],
                0,
            )
            parts.append(self._in_parts(canvas, self._weights(boxes[begin:end])))
        return xp.concatenate(parts, 0)

    def _numbers(self, shape: tuple[int, ...], rows: Rows) -> Numbers:
        return self._weights(self._boxes(sizes_of(shape) or [(shape[1], shape[2])], rows))

    def _weights(self, boxes: Sequence[Box]) -> Numbers:
        """Return the first places and the weights, across and down."""
        height, width = self._size
        across = self._axis([(box[0], box[2]) for box in boxes], width)
        down = self._axis([(box[1], box[3]) for box in boxes], height)
        return *across, *down

    def _axis(self, spans: Sequence[tuple[float, float]], out: int) -> Numbers:
        # A filter looks at no pixel beyond its part: the part is an axis of its own.
        axes = [(int(length), 0, int(length)) for _, length in spans]
        found: Any = _engine.image_resize_weights(axes, out, self._filter, self._antialias)
        begins, weights = found
        firsts = np.array([[first] for first, _ in spans], np.int32)
        return begins + firsts, weights.swapaxes(1, 2)

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        across, across_weights, down, down_weights = numbers
        images = _summed(xp, images, across, across_weights, 2)
        return _summed(xp, images, down, down_weights, 1)


class RandomResizedCrop(Resize):
    """A random box of every image, in another size."""

    random = True

    def _boxes(self, sizes: list[tuple[int, int]], rows: Rows) -> list[Box]:
        return [(b[0], b[1], b[2], b[3]) for b in self._drawn(sizes, rows).tolist()]

    def _numbers(self, shape: tuple[int, ...], rows: Rows) -> Numbers:
        if shape[0] == 0:  # weights of any part
            return self._weights([(0, 0, shape[2], shape[1])])
        return super()._numbers(shape, rows)


def _summed(xp: Arrays, images: Any, begins: Any, weights: Any, axis: int) -> Any:
    """Return weighted sums along an axis.

    `begins` are ``(1 or batch, out)``, `weights` ``(1 or batch, taps, out)``.
    """
    rows, taps, out = weights.shape
    places = (begins[:, None] + xp.arange(taps)[:, None]).clip(0, images.shape[axis] - 1)
    places = places.reshape(rows, taps * out)
    pixels = xp.take(images, places[0], axis) if rows == 1 else xp.take_each(images, places, axis)
    shape, each = list(pixels.shape), [rows, 1, 1, 1, 1]
    shape[axis : axis + 1] = each[axis : axis + 2] = [taps, out]
    total = xp.total(pixels.reshape(shape) * weights.reshape(each), axis)
    return xp.cast(((total + (1 << (_WEIGHT_BITS - 1))) >> _WEIGHT_BITS).clip(0, 255), "uint8")


def _groups(sizes: Sequence[tuple[int, int]], channels: int) -> list[tuple[int, int]]:
    """Return spans of images that fit together into one canvas of bounded memory."""
    spans: list[tuple[int, int]] = []
    begin = height = width = 0
    for i, size in enumerate(sizes):
        height, width = max(height, size[0]), max(width, size[1])
        if i > begin and (i + 1 - begin) * height * width * channels > _CANVAS_BYTES:
            spans.append((begin, i))
            begin, (height, width) = i, size
    return [*spans, (begin, len(sizes))] if sizes else []

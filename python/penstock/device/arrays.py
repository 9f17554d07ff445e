"""The few functions on arrays that device operations are made of, for torch and for jax.

Operations are written once, over these functions and what tensors and arrays of jax have in common:
arithmetic, comparisons, shifts, `reshape`, `clip`, slices. Integers are int32 in both.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

Numbers = Sequence[np.ndarray[Any, Any]]  # what the host has computed for a batch


class Arrays(Protocol):
    """Functions on arrays of one framework, on one device.

    Attributes
    ----------
    part_values : int
        Values of a batch that are computed at once; bounds the memory in between.
    """

    part_values: int

    def run(self, compute: Callable[..., Any], images: Any, numbers: Numbers) -> Any:
        """Return ``compute(self, images, *numbers)``, with `numbers` sent to the device."""

    def cast(self, a: Any, dtype: str) -> Any:
        """Convert to "uint8", "int32" or "float32"; fractions are truncated."""

    def arange(self, n: int) -> Any:
        """int32 from 0 to n - 1."""

    def where(self, condition: Any, a: Any, b: Any) -> Any: ...
    def maximum(self, a: Any, b: Any) -> Any: ...
    def minimum(self, a: Any, b: Any) -> Any: ...
    def floor(self, a: Any) -> Any: ...
    def total(self, a: Any, axes: int | tuple[int, ...]) -> Any:
        """Return the sum of whole numbers along axes, as int32. REQUIRED: it has 31 bits."""

    def take(self, a: Any, index: Any, axis: int) -> Any:
        """Return the places `index`, one axis, along an axis."""

    def take_each(self, a: Any, index: Any, axis: int) -> Any:
        """The same, with the places ``(batch, n)`` of each image."""

    def take_pixels(self, images: Any, index: Any) -> Any:
        """Return pixels ``(batch, h, w, channels)`` at places in all images, ``(batch, h, w)``."""

    def sampled(self, images: Any, grid: Any, reflect: bool) -> Any:
        """Return pixels mixed from four, in the dtype of the images.

        Parameters
        ----------
        grid : array
            float32 ``(batch, h, w, 2)``: x, y. -1 and 1 are the outer edges of an image.
        reflect : bool
            Images go on mirrored beyond the edges. False: with their outermost pixels.
        """

    def planes(self, images: Any) -> Any:
        """Return float32 with the channels first: ``(batch, channels, height, width)``."""

    def pixels(self, planes: Any) -> Any:
        """Return uint8 with the channels last. Fractions are truncated."""

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """Return ``a + b * c``."""

    def stack(self, each: Sequence[Any], axis: int) -> Any: ...
    def concatenate(self, each: Sequence[Any], axis: int) -> Any: ...
    def pad(self, images: Any, border: Sequence[int], value: int) -> Any:
        """Add (left, top, right, bottom) to ``(batch, height, width, channels)``."""

    def rot90(self, images: Any, turns: int) -> Any: ...
    def reversed(self, a: Any, axis: int) -> Any: ...


class TorchArrays:
    """Tensors of any device."""

    part_values = 1 << 25

    def __init__(self, device: Any) -> None:
        import torch

        self._torch, self._device = torch, device

    def run(self, compute: Callable[..., Any], images: Any, numbers: Numbers) -> Any:
        return compute(self, images, *self._put(numbers))

    def _put(self, numbers: Numbers) -> list[Any]:
        """Send all numbers by one copy."""
        if not numbers:
            return []
        torch, ends = self._torch, list(itertools.accumulate(map(_aligned, numbers)))
        begins = [0, *ends[:-1]]
        # A copy from memory that is not pinned would wait for the device.
        pinned = self._device.type == "cuda"
        packed = torch.empty(ends[-1], dtype=torch.uint8, device="cpu", pin_memory=pinned)
        bytes_of = packed.numpy()
        for begin, each in zip(begins, numbers, strict=True):
            place = bytes_of[begin : begin + each.nbytes].view(each.dtype)
            place.reshape(each.shape)[...] = each
        there = packed.to(self._device, non_blocking=True)
        return [
            there[begin : begin + each.nbytes].view(_dtype(each)).view(each.shape)
            for begin, each in zip(begins, numbers, strict=True)
        ]

    def cast(self, a: Any, dtype: str) -> Any:
        return a.to(getattr(self._torch, dtype))

    def floor(self, a: Any) -> Any:
        return a.floor()

    def arange(self, n: int) -> Any:
        return self._torch.arange(n, dtype=self._torch.int32, device=self._device)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self._torch.where(condition, a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._torch.maximum(a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._torch.minimum(a, b)

    def total(self, a: Any, axes: int | tuple[int, ...]) -> Any:
        return a.sum(axes, dtype=self._torch.int32)

    def take(self, a: Any, index: Any, axis: int) -> Any:
        return self._torch.index_select(a, axis, index)

    def take_each(self, a: Any, index: Any, axis: int) -> Any:
        shape = list(a.shape)
        shape[axis] = index.shape[1]
        # take_along_dim would write the whole index to memory: 8 bytes for each value.
        whole = _broadcast(index, a.ndim, axis).long().expand(shape)
        return self._torch.gather(a, axis, whole)

    def take_pixels(self, images: Any, index: Any) -> Any:
        pixels = images.reshape(-1, images.shape[3])
        return pixels.index_select(0, index.reshape(-1)).reshape(*index.shape, images.shape[3])

    def sampled(self, images: Any, grid: Any, reflect: bool) -> Any:
        torch, whole = self._torch, images.dtype == self._torch.uint8
        if whole:  # the result is rounded by truncation; 0.5 costs no pass over memory here
            images = images + torch.tensor(0.5, dtype=torch.float32, device="cpu")
        made = torch.nn.functional.grid_sample(
            images.permute(0, 3, 1, 2),
            grid,
            padding_mode="reflection" if reflect else "border",
            align_corners=False,
        ).permute(0, 2, 3, 1)
        dtype = torch.uint8 if whole else torch.float32
        return made.to(dtype, memory_format=torch.contiguous_format)

    def planes(self, images: Any) -> Any:
        torch = self._torch
        first = images.permute(0, 3, 1, 2)
        return first.to(torch.float32, memory_format=torch.contiguous_format)

    def pixels(self, planes: Any) -> Any:
        torch = self._torch
        last = planes.permute(0, 2, 3, 1)
        return last.to(torch.uint8, memory_format=torch.contiguous_format)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return self._torch.addcmul(a, b, c)

    def stack(self, each: Sequence[Any], axis: int) -> Any:
        return self._torch.stack(list(each), axis)

    def concatenate(self, each: Sequence[Any], axis: int) -> Any:
        return self._torch.cat(list(each), axis)

    def pad(self, images: Any, border: Sequence[int], value: int) -> Any:
        left, top, right, bottom = border
        sides = (0, 0, left, right, top, bottom)
        return self._torch.nn.functional.pad(images, sides, value=value)

    def rot90(self, images: Any, turns: int) -> Any:
        return self._torch.rot90(images, turns, (1, 2))

    def reversed(self, a: Any, axis: int) -> Any:
        return a.flip(axis)


class JaxArrays:
    """Arrays of jax. What runs is compiled once for each shape of a batch."""

    part_values = 1 << 62  # little is in between

    def __init__(self) -> None:
        import jax.numpy as jnp

        self._jnp = jnp

    def run(self, compute: Callable[..., Any], images: Any, numbers: Numbers) -> Any:
        return _compiled(compute)(images, *numbers)

    def cast(self, a: Any, dtype: str) -> Any:
        return a.astype(dtype)

    def floor(self, a: Any) -> Any:
        return self._jnp.floor(a)

    def arange(self, n: int) -> Any:
        return self._jnp.arange(n, dtype="int32")

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self._jnp.where(condition, a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._jnp.maximum(a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._jnp.minimum(a, b)

    def total(self, a: Any, axes: int | tuple[int, ...]) -> Any:
        return self._jnp.sum(a, axes, dtype="int32")

    def take(self, a: Any, index: Any, axis: int) -> Any:
        return self._jnp.take(a, index, axis, mode="clip")

    def take_each(self, a: Any, index: Any, axis: int) -> Any:
        return self._jnp.take_along_axis(a, _broadcast(index, a.ndim, axis), axis, mode="clip")

    def take_pixels(self, images: Any, index: Any) -> Any:
        pixels = images.reshape(-1, images.shape[3])
        return self._jnp.take(pixels, index, 0, mode="clip")

    def sampled(self, images: Any, grid: Any, reflect: bool) -> Any:
        _, height, width, _ = images.shape
        (left, right, across), (top, bottom, down) = (
            self._neighbours(grid[..., axis], size, reflect)
            for axis, size in ((0, width), (1, height))
        )
        rows = []
        for y in (top, bottom):
            one, other = (self.cast(picked(self, images, y, x), "float32") for x in (left, right))
            rows.append(one + (other - one) * across)
        made = rows[0] + (rows[1] - rows[0]) * down
        return self.cast(made + 0.5, "uint8") if images.dtype == "uint8" else made

    def _neighbours(self, places: Any, size: int, reflect: bool) -> tuple[Any, Any, Any]:
        """Return two places along an axis whose pixels are mixed, and the weight of the second."""
        places = (places + 1) * (size / 2)  # from the outer edge, in pixels
        if reflect:
            places = places % (2 * size)
            places = self.minimum(places, 2 * size - places)
        places = (places - 0.5).clip(0, size - 1)
        first = self.cast(places, "int32")
        return first, (first + 1).clip(0, size - 1), (places - first)[..., None]

    def planes(self, images: Any) -> Any:
        return images.transpose(0, 3, 1, 2).astype("float32")

    def pixels(self, planes: Any) -> Any:
        return planes.transpose(0, 2, 3, 1).astype("uint8")

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return a + b * c

    def stack(self, each: Sequence[Any], axis: int) -> Any:
        return self._jnp.stack(each, axis)

    def concatenate(self, each: Sequence[Any], axis: int) -> Any:
        return self._jnp.concatenate(each, axis)

    def pad(self, images: Any, border: Sequence[int], value: int) -> Any:
        left, top, right, bottom = border
        sides = ((0, 0), (top, bottom), (left, right), (0, 0))
        return self._jnp.pad(images, sides, constant_values=value)

    def rot90(self, images: Any, turns: int) -> Any:
        return self._jnp.rot90(images, turns, (1, 2))

    def reversed(self, a: Any, axis: int) -> Any:
        return self._jnp.flip(a, axis)


def arrays_of(images: Any) -> Arrays:
    """Return the functions for a batch's framework and device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(images, torch.Tensor):
        return TorchArrays(images.device)
    return JaxArrays()


def picked(xp: Arrays, images: Any, y: Any, x: Any) -> Any:
    """Return the pixels at rows `y` and columns `x`, int32 that broadcast to ``(batch, h, w)``."""
    batch, height, width, _ = images.shape
    first = (xp.arange(batch) * (height * width))[:, None, None]
    return xp.take_pixels(images, first + y * width + x)


# Of red, green and blue in Pillow's grey, as in the engine's `luma`.
LUMA = np.array([19595, 38470, 7471], np.float32).reshape(1, 3, 1, 1) / 65536


def luma(xp: Arrays, colours: Any, weights: Any) -> Any:
    """Return Pillow's grey of three planes of whole numbers, as one plane. `weights` are `LUMA`.

    The sums have 24 bits at most, so float32 is exact.
    """
    weighed = colours * weights
    return xp.floor(weighed[:, :1] + weighed[:, 1:2] + weighed[:, 2:] + 0.5)


def _aligned(numbers: np.ndarray[Any, Any]) -> int:
    """Return the bytes of an array, rounded up so that any dtype may follow."""
    return -(-numbers.nbytes // 16) * 16


def _dtype(numbers: np.ndarray[Any, Any]) -> Any:
    import torch

    return getattr(torch, numbers.dtype.name)


def _broadcast(index: Any, axes: int, axis: int) -> Any:
    """Return ``(batch, n)`` with `n` along an axis of an array with `axes` axes."""
    shape = [1] * axes
    shape[0], shape[axis] = index.shape
    return index.reshape(shape)


@functools.lru_cache(maxsize=256)
def _compiled(compute: Callable[..., Any]) -> Any:
    import jax

    xp = JaxArrays()
    return jax.jit(lambda images, *numbers: compute(xp, images, *numbers))

"""The few functions on arrays that device operations are made of, for torch and for jax.

Operations are written once, over these functions and what tensors and arrays of jax have in common:
arithmetic, comparisons, shifts, `reshape`, `clip`, slices. Integers are int32 in both.
"""

from __future__ import annotations

import functools
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
    def total(self, a: Any, axes: tuple[int, ...]) -> Any:
        """Return the sum of int32 along axes, which are kept with a length of 1."""

    def take(self, a: Any, index: Any, axis: int) -> Any:
        """Return the places `index`, one axis, along an axis."""

    def take_each(self, a: Any, index: Any, axis: int) -> Any:
        """The same, with the places ``(batch, n)`` of each image."""

    def take_pixels(self, images: Any, index: Any) -> Any:
        """Return pixels ``(batch, h, w, channels)`` at places in all images, ``(batch, h, w)``."""

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """Return ``a + b * c``, of int32."""

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
        return compute(self, images, *(self._put(each) for each in numbers))

    def _put(self, numbers: np.ndarray[Any, Any]) -> Any:
        tensor = self._torch.from_numpy(np.ascontiguousarray(numbers))
        if self._device.type == "cuda":  # a copy from other memory would wait for the device
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def cast(self, a: Any, dtype: str) -> Any:
        return a.to(getattr(self._torch, dtype))

    def arange(self, n: int) -> Any:
        return self._torch.arange(n, dtype=self._torch.int32, device=self._device)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self._torch.where(condition, a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._torch.maximum(a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._torch.minimum(a, b)

    def total(self, a: Any, axes: tuple[int, ...]) -> Any:
        return a.sum(axes, keepdim=True)  # int64

    def take(self, a: Any, index: Any, axis: int) -> Any:
        return self._torch.index_select(a, axis, index)

    def take_each(self, a: Any, index: Any, axis: int) -> Any:
        return self._torch.take_along_dim(a, _broadcast(index, a.ndim, axis).long(), axis)

    def take_pixels(self, images: Any, index: Any) -> Any:
        pixels = images.reshape(-1, images.shape[3])
        return pixels.index_select(0, index.reshape(-1)).reshape(*index.shape, images.shape[3])

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

    def arange(self, n: int) -> Any:
        return self._jnp.arange(n, dtype="int32")

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self._jnp.where(condition, a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._jnp.maximum(a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._jnp.minimum(a, b)

    def total(self, a: Any, axes: tuple[int, ...]) -> Any:
        return self._jnp.sum(a, axes, keepdims=True)

    def take(self, a: Any, index: Any, axis: int) -> Any:
        return self._jnp.take(a, index, axis, mode="clip")

    def take_each(self, a: Any, index: Any, axis: int) -> Any:
        return self._jnp.take_along_axis(a, _broadcast(index, a.ndim, axis), axis, mode="clip")

    def take_pixels(self, images: Any, index: Any) -> Any:
        pixels = images.reshape(-1, images.shape[3])
        return self._jnp.take(pixels, index, 0, mode="clip")

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


def luma(colours: Any) -> Any:
    """Return Pillow's grey of int32 colours, with one channel, as the engine's `luma`."""
    weighed = colours[..., :1] * 19595 + colours[..., 1:2] * 38470 + colours[..., 2:3] * 7471
    return (weighed + 0x8000) >> 16


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

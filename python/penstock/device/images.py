"""Operations of `penstock.image` on batches of images on a device: tensors, or arrays of jax."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ..errors import InvalidArgument
from .functions import BatchFunction, Rows
from .words import JaxWords, TorchWords, Words, derived_key, halves, philox


class ImageFunction(BatchFunction):
    """An operation on fields of a batch. Immutable; any thread."""

    def __init__(self, name: str, fields: Sequence[str]) -> None:
        self._name = name
        self._fields = tuple(fields)

    def __call__(self, batch: Any, rows: Rows) -> Any:
        """Return the batch with other fields; the rest is passed on."""
        if not isinstance(batch, (dict, tuple, list)):
            if self._fields != ("",):
                self._refuse("the batch is one array, and its name is ''")
            return self._applied(batch, rows)
        keys = list(batch) if isinstance(batch, dict) else [str(i) for i in range(len(batch))]
        values = list(batch.values()) if isinstance(batch, dict) else list(batch)
        for field in self._fields:
            if field not in keys:
                self._refuse(f"a batch has no field {field!r}, only {keys}")
            values[keys.index(field)] = self._applied(values[keys.index(field)], rows)
        if isinstance(batch, dict):
            return dict(zip(keys, values, strict=True))
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)

    def _applied(self, images: Any, rows: Rows) -> Any:
        raise NotImplementedError

    def _check(self, images: Any, axes: tuple[int, ...]) -> None:
        name = str(getattr(images, "dtype", "")).removeprefix("torch.")
        if name not in ("uint8", "float32"):
            self._refuse(f"images are {name or type(images).__name__}; give uint8 or float32")
        if images.ndim not in axes:
            self._refuse(f"a batch of images has shape {tuple(images.shape)}")

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidArgument(why, self._name)

    def __repr__(self) -> str:
        return f"{self._name}(on='device')"


class Normalize(ImageFunction):
    """Images as float32: ``(x - mean) / std``, with channels last. The same bits as in workers."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], fields: Sequence[str]) -> None:
        super().__init__("image.normalize", fields)
        if len(mean) != len(std) or not mean:
            self._refuse(
                f"{len(mean)} numbers of mean and {len(std)} of std; give one of each, or one a "
                "channel"
            )
        if 0 in std:
            self._refuse("std is 0")
        self._mean, self._std = np.array(mean, np.float32), np.array(std, np.float32)
        self._tensors: dict[Any, tuple[Any, Any]] = {}  # mean and std on each device

    def _applied(self, images: Any, rows: Rows) -> Any:
        self._check(images, (3, 4))
        count = len(self._mean)
        if count > 1 and (images.ndim != 4 or images.shape[3] != count):
            self._refuse(
                f"images of shape {tuple(images.shape)} do not have {count} channels on the last "
                "axis; normalize before to_chw"
            )
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(images, torch.Tensor):
            return (images.astype(np.float32) - self._mean) / self._std
        if images.device not in self._tensors:
            numbers = (self._mean, self._std)
            self._tensors[images.device] = tuple(
                torch.tensor(n, device=images.device) for n in numbers
            )
        mean, std = self._tensors[images.device]
        return (images - mean).div_(std)  # float32


class ToChw(ImageFunction):
    """Images with their channels first: ``(batch, channels, height, width)``."""

    def __init__(self, fields: Sequence[str]) -> None:
        super().__init__("image.to_chw", fields)

    def _applied(self, images: Any, rows: Rows) -> Any:
        self._check(images, (4,))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(images, torch.Tensor):
            return images.permute(0, 3, 1, 2).contiguous()
        return images.transpose(0, 3, 1, 2)


class RandomCrop(ImageFunction):
    """A box of every image, at the place that the workers' operation draws."""

    random = True

    def __init__(self, height: int, width: int, fields: Sequence[str]) -> None:
        super().__init__("image.random_crop", fields)
        self._size = height, width

    def _applied(self, images: Any, rows: Rows) -> Any:
        self._check(images, (3, 4))
        height, width = self._size
        free = images.shape[1] - height, images.shape[2] - width
        if min(free) < 0:
            self._refuse(f"images of {tuple(images.shape[1:3])} are smaller than {self._size}")
        words, arange = _arithmetic(images)
        drawn = _drawn(words, arange, images.shape[0], rows)
        top = _below(words, drawn[0], drawn[1], free[0] + 1)
        left = _below(words, drawn[2], drawn[3], free[1] + 1)
        down = top[:, None, None] + arange(height)[None, :, None]
        right = left[:, None, None] + arange(width)[None, None, :]
        return images[arange(images.shape[0])[:, None, None], down, right]


class RandomFlip(ImageFunction):
    """Every image mirrored or not, as the workers' operation draws it."""

    random = True

    def __init__(self, horizontal: float, vertical: float, fields: Sequence[str]) -> None:
        super().__init__("image.random_flip", fields)
        for p in (horizontal, vertical):
            if not 0 <= p <= 1:
                self._refuse(f"a probability is {p}; give 0 to 1")
        self._each = (2, horizontal), (1, vertical)  # the axis of each

    def _applied(self, images: Any, rows: Rows) -> Any:
        self._check(images, (3, 4))
        words, arange = _arithmetic(images)
        drawn = _drawn(words, arange, images.shape[0], rows)
        for i, (axis, p) in enumerate(self._each):
            if p == 0:
                continue
            flipped = _less(words, drawn[2 * i], drawn[2 * i + 1], p)
            flipped = flipped.reshape(-1, *[1] * (images.ndim - 1))
            images = words.where(flipped, words.reversed(images, axis), images)
        return images


def _arithmetic(images: Any) -> tuple[Any, Callable[[int], Any]]:
    """Return the words of the images' framework, and its `arange` on their device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(images, torch.Tensor):
        return TorchWords(), lambda n: torch.arange(n, device=images.device)
    import jax.numpy as jnp

    return JaxWords(), lambda n: jnp.arange(n, dtype=jnp.uint32)


def _drawn(words: Words, arange: Callable[[int], Any], count: int, rows: Rows) -> tuple[Any, ...]:
    """Return the first four words of the engine's RandomStream at the address of each row."""
    low, high = halves(rows.first)
    lower = words.add(arange(count), low)
    upper = words.carried(lower, low, high)
    key = derived_key(rows.seed, rows.epoch, 0)
    return philox(words, (0, rows.operation, lower, upper), key)


def _below(words: Words, low: Any, high: Any, n: int) -> Any:
    """Return the engine's `RandomStream::below(n)`, but for one case in 2^48.

    Then the engine draws again, so that all results are equally likely.
    """
    part = words.multiply_high(low, n)
    total = words.add(words.multiply(high, n), part)
    return words.carried(total, part, words.multiply_high(high, n))


def _less(words: Words, low: Any, high: Any, p: float) -> Any:
    """Return whether the engine's `RandomStream::uniform()` is below `p` > 0."""
    limit = math.ceil(p * (1 << 53)) - 1  # the largest of the 53 bits that is below p
    upper, lower = limit >> 21, limit & ((1 << 21) - 1)
    return (high < words.word(upper)) | (
        (high == words.word(upper)) & (low >> words.word(11) <= words.word(lower))
    )

"""Operations of `penstock.image` on batches of images on a device: tensors, or arrays of jax."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ..errors import InvalidArgument
from .functions import BatchFunction


class ImageFunction(BatchFunction):
    """An operation on fields of a batch. Immutable; any thread."""

    def __init__(self, name: str, fields: Sequence[str]) -> None:
        self._name = name
        self._fields = tuple(fields)

    def __call__(self, batch: Any) -> Any:
        """Return the batch with other fields; the rest is passed on."""
        if not isinstance(batch, (dict, tuple, list)):
            if self._fields != ("",):
                self._refuse("the batch is one array, and its name is ''")
            return self._applied(batch)
        keys = list(batch) if isinstance(batch, dict) else [str(i) for i in range(len(batch))]
        values = list(batch.values()) if isinstance(batch, dict) else list(batch)
        for field in self._fields:
            if field not in keys:
                self._refuse(f"a batch has no field {field!r}, only {keys}")
            values[keys.index(field)] = self._applied(values[keys.index(field)])
        if isinstance(batch, dict):
            return dict(zip(keys, values, strict=True))
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)

    def _applied(self, images: Any) -> Any:
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

    def _applied(self, images: Any) -> Any:
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

    def _applied(self, images: Any) -> Any:
        self._check(images, (4,))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(images, torch.Tensor):
            return images.permute(0, 3, 1, 2).contiguous()
        return images.transpose(0, 3, 1, 2)

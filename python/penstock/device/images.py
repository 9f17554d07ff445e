"""Operations of `penstock.image` on batches of images on a device: tensors, or arrays of jax."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from .. import _engine
from ..base.ragged import Ragged
from ..errors import InvalidArgument
from .arrays import Arrays, Numbers, arrays_of
from .functions import BatchFunction, Rows


class ImageList(list[Any]):
    """Images of different sizes on a device, such as `image.decode` makes there.

    uint8 ``(height, width, channels)`` each. `image.resize` and `image.random_resized_crop` make
    one array of them.

    Parameters
    ----------
    images : iterable of array
    empty : array, optional
        REQUIRED if there are no images: uint8 ``(0, 1, 1, channels)``.
    """

    def __init__(self, images: Iterable[Any], empty: Any = None) -> None:
        super().__init__(images)
        self.empty = empty


class ImageFunction(BatchFunction):
    """An operation on fields of a batch. Immutable; any thread."""

    dtypes: tuple[str, ...] = ("uint8", "float32")

    def __init__(self, name: str, fields: Sequence[str]) -> None:
        self._name = name
        self._fields = tuple(fields)

    def __call__(self, batch: Any, rows: Rows) -> Any:
        """Return the batch with other fields; the rest is passed on."""
        if not isinstance(batch, (dict, tuple, list)) or isinstance(batch, ImageList):
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
        if isinstance(images, ImageList):
            self._refuse('images have different sizes; resize them before, with on="device"')
        if isinstance(images, Ragged):
            self._refuse(f"images are {images!r}; decode and resize them before")
        name = str(getattr(images, "dtype", "")).removeprefix("torch.")
        if name not in self.dtypes:
            self._refuse(
                f"images are {name or type(images).__name__}; give {' or '.join(self.dtypes)}"
            )
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


class PixelFunction(ImageFunction):
    """A native operation that runs on a device.

    The engine checks its arguments and draws its random numbers, on the host, so both are those of
    the workers. The host computes what has few numbers for each image (`_numbers`), and the device
    what has many (`_pixels`).

    Parameters
    ----------
    operation : Op of the engine
        The same operation, in the workers.
    fields : list of str
    """

    flat = True  # images without an axis of channels stay so

    def __init__(self, operation: Any, fields: Sequence[str]) -> None:
        super().__init__(operation.title().partition("(")[0], fields)
        self._operation = operation

    def _drawn(self, sizes: Sequence[tuple[int, int]], rows: Rows) -> np.ndarray[Any, Any]:
        """Return what `image.parameters` describes, float64, for images of these sizes."""
        address = (rows.seed, rows.epoch, rows.first)
        return np.asarray(
            _engine.image_drawn_parameters(self._operation, address, rows.operation, list(sizes))
        )

    def _numbers(self, shape: tuple[int, ...], rows: Rows) -> Numbers:
        """Return arrays for images of a shape with channels; the first axis is 1 or the batch."""
        return ()

    def _pixels(self, xp: Arrays, images: Any, *numbers: Any) -> Any:
        """Return the result for images with channels. jax compiles it."""
        raise NotImplementedError

    def _applied(self, images: Any, rows: Rows) -> Any:
        self._check(images, (3, 4))
        flat = images.ndim == 3
        if flat:
            images = images[..., None]
        made = self._in_parts(images, self._numbers(tuple(images.shape), rows))
        return made[..., 0] if flat and self.flat else made

    def _in_parts(self, images: Any, numbers: Numbers) -> Any:
        xp = arrays_of(images)
        count = max(xp.part_values // max(int(np.prod(images.shape[1:])), 1), 1)
        if images.shape[0] <= count:
            return xp.run(self._pixels, images, numbers)
        parts = []
        for begin in range(0, images.shape[0], count):
            end = begin + count
            of_part = [each if each.shape[0] == 1 else each[begin:end] for each in numbers]
            parts.append(xp.run(self._pixels, images[begin:end], of_part))
        return xp.concatenate(parts, 0)

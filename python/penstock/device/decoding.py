"""`image.decode` on a device: JPEGs by nvJPEG, through torchvision."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from .. import _engine
from ..base.ragged import Ragged
from ..errors import DataLoss, InvalidArgument, NotFound
from .functions import Rows
from .images import ImageFunction, ImageList

_JPEG = b"\xff\xd8\xff"


class Decode(ImageFunction):
    """The images of a batch of JPEGs, as an `ImageList` on a device of torch's."""

    def __init__(
        self, channels: int, fast: bool, exif: bool, partial: bool, fields: Sequence[str]
    ) -> None:
        super().__init__("image.decode", fields)
        if channels not in (1, 3):
            self._refuse(f'channels is {channels}; with on="device" give 1 or 3')
        for name, value in (("fast", fast), ("partial", partial)):
            if value:
                self._refuse(f'{name}=True is of on="workers"')
        self._channels, self._exif = channels, exif
        self._device: Any = None

    def placed(self, device: Any) -> Decode:
        """Return the function for a device, or raise an error if it cannot decode there."""
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(device, jax.Device):
            self._refuse(
                f"{device} is a device of jax's; decode in workers, or give penstock.torch.feed a "
                "device of torch's"
            )
        import torch

        _torchvision_io(self._name)
        placed = Decode(self._channels, False, self._exif, False, self._fields)
        placed._device = torch.device(device)
        return placed

    def _applied(self, images: Any, rows: Rows) -> Any:
        if not isinstance(images, Ragged) or images.kind != "bytes":
            self._refuse(f"a field is {type(images).__name__}; give a batch of encoded images")
        import torch

        shape = (0, 1, 1, self._channels)
        empty = torch.empty(shape, dtype=torch.uint8, device=self._device)
        if len(images) == 0:
            return ImageList([], empty)
        files = [images[i] for i in range(len(images))]
        for i, file in enumerate(files):
            if not file.startswith(_JPEG):
                raise self._damaged(i, "it is no JPEG; decode other formats in workers")
        decoded = self._decoded(files)
        turns = [_engine.jpeg_orientation(f) if self._exif else 1 for f in files]
        upright = [_upright(each, turn) for each, turn in zip(decoded, turns, strict=True)]
        return ImageList([each.permute(1, 2, 0).contiguous() for each in upright], empty)

    def _decoded(self, files: list[bytes]) -> list[Any]:
        """Return tensors ``(channels, height, width)``."""
        import torch

        io = _torchvision_io(self._name)
        mode = io.ImageReadMode.RGB if self._channels == 3 else io.ImageReadMode.GRAY
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the bytes are read-only
            encoded = [torch.frombuffer(file, dtype=torch.uint8) for file in files]
        try:
            return list(io.decode_jpeg(encoded, mode=mode, device=self._device))
        except RuntimeError as error:
            text = str(error).partition("\n")[0]
            for i, each in enumerate(encoded):
                try:
                    io.decode_jpeg([each], mode=mode, device=self._device)
                except RuntimeError as one:
                    text = str(one).partition("\n")[0]
                    raise self._damaged(i, text) from one
            raise InvalidArgument(
                f"torchvision cannot decode on {self._device}: {text}; decode in workers",
                self._name,
            ) from error

    def _damaged(self, row: int, why: str) -> DataLoss:
        return DataLoss(f"row {row} of the batch: {why}", self._name)


def _torchvision_io(operation: str) -> Any:
    try:
        from torchvision import io
    except (ImportError, RuntimeError, OSError) as error:  # also one that does not fit torch
        raise NotFound(
            f"torchvision cannot be imported ({str(error).partition(chr(10))[0]}); install the "
            "version that fits torch, or decode in workers",
            operation,
        ) from error
    return io


def _upright(image: Any, orientation: int) -> Any:
    """Return ``(channels, height, width)`` turned as an Exif orientation, 1 to 8, says."""
    if orientation >= 5:
        image = image.transpose(1, 2)
    if orientation in (2, 3, 6, 7):
        image = image.flip(2)
    if orientation in (3, 4, 7, 8):
        image = image.flip(1)
    return image

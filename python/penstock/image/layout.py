"""The last operations: normalized values, and the order of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from ..base.arguments import one_of
from ..dataset.recipe import Operation
from ..device.functions import BatchFunction
from ..device.images import Normalize, ToChw
from ..operations import _floats, _names
from .arguments import PLACES, Fields


@overload
def normalize(
    mean: float | Sequence[float],
    std: float | Sequence[float],
    *,
    fields: Fields = "image",
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def normalize(
    mean: float | Sequence[float],
    std: float | Sequence[float],
    *,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def normalize(
    mean: float | Sequence[float],
    std: float | Sequence[float],
    *,
    fields: Fields = "image",
    on: str = "workers",
) -> Operation | BatchFunction:
    """Turn uint8 into float32: ``(x - mean) / std``, of values from 0 to 255.

    Only `to_chw` may follow. `penstock.normalize` does the same for arrays of other dtypes.

    Parameters
    ----------
    mean, std : float, or one for each channel
        Numbers for values from 0 to 1, as torchvision's, are to be multiplied by 255.
    fields
        As of `decode`.
    on : {"workers", "device"}
        device: a function for batches, ``dataset.batch(n).map(normalize(..., on="device"),
        device="cuda:0")``, so that one byte a value is sent to the device. The results are the same
        bits.
    """
    name = "image.normalize"
    one_of("on", on, PLACES, name)
    numbers = _floats("mean", mean), _floats("std", std), _names(fields, name)
    return Normalize(*numbers) if on == "device" else Operation("image_normalize", *numbers)


@overload
def to_chw(*, fields: Fields = "image", on: Literal["workers"] = "workers") -> Operation: ...
@overload
def to_chw(*, fields: Fields = "image", on: Literal["device"]) -> BatchFunction: ...
def to_chw(*, fields: Fields = "image", on: str = "workers") -> Operation | BatchFunction:
    """Put the channels first: ``(channels, height, width)``. Only `normalize` may follow.

    With ``on="device"``, as of `normalize`, it comes after `normalize`.
    """
    name = "image.to_chw"
    one_of("on", on, PLACES, name)
    names = _names(fields, name)
    return ToChw(names) if on == "device" else Operation("image_to_chw", names)

"""Erasing parts of images, and mixing images of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from ..base.arguments import flag, integer, leaf, one_of, real
from ..dataset.recipe import Operation
from ..device.functions import BatchFunction
from ..device.moves import Erase
from ..operations import _names
from .arguments import PLACES, Fields, pair_of


@overload
def erase(
    p: float = 0.5,
    scale: Sequence[float] = (0.02, 0.33),
    ratio: Sequence[float] = (0.3, 3.3),
    value: float = 0,
    *,
    fields: Fields = "image",
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def erase(
    p: float = 0.5,
    scale: Sequence[float] = (0.02, 0.33),
    ratio: Sequence[float] = (0.3, 3.3),
    value: float = 0,
    *,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def erase(
    p: float = 0.5,
    scale: Sequence[float] = (0.02, 0.33),
    ratio: Sequence[float] = (0.3, 3.3),
    value: float = 0,
    *,
    fields: Fields = "image",
    on: str = "workers",
) -> Operation | BatchFunction:
    """Set a random box to one value, as torchvision's `RandomErasing` does.

    Parameters
    ----------
    p : float
        The probability.
    scale : pair of float
        The least and the greatest part of the image's area that a box has.
    ratio : pair of float
        The least and the greatest height by width of a box; its logarithm is uniform.
    value : float
        Of every channel.
    fields
        As of `decode`.
    on
        As of `random_flip`.
    """
    name = "image.erase"
    one_of("on", on, PLACES, name)
    names, number = _names(fields, name), real("value", value, name)
    operation = Operation(
        "image_erase",
        real("p", p, name),
        pair_of("scale", scale, name),
        pair_of("ratio", ratio, name),
        number,
        names,
    )
    return Erase(operation._native, names, number) if on == "device" else operation


def mixup(
    alpha: float = 1.0,
    *,
    num_classes: int | None = None,
    labels: str = "label",
    channels_first: bool = False,
    fields: Fields = "image",
) -> Operation:
    """Mix each image of a batch with the one before it, and their labels, as torchvision does.

    Map it behind `batch`. The first image is mixed with the last. All images of a batch are mixed
    in one proportion, from the distribution Beta(`alpha`, `alpha`).

    Parameters
    ----------
    alpha : float
        Above 0, at most 1000.
    num_classes : int, optional
        REQUIRED for integer labels ``(n,)``, which become float32 ``(n, num_classes)``. Labels that
        are float32 ``(n, classes)`` stay so.
    labels : str
        The name of the labels' leaf.
    channels_first : bool
        Images are ``(n, channels, height, width)``.
    fields
        As of `decode`; uint8 or float32 ``(n, height, width, channels)`` or ``(n, height, width)``.

    Examples
    --------
    >>> train.batch(64).map(penstock.image.mixup(0.2, num_classes=10))
    """
    return _mix("mixup", alpha, num_classes, labels, channels_first, fields)


def cutmix(
    alpha: float = 1.0,
    *,
    num_classes: int | None = None,
    labels: str = "label",
    channels_first: bool = False,
    fields: Fields = "image",
) -> Operation:
    """Put a box of the image before it into each image of a batch; labels are mixed by area.

    The arguments are those of `mixup`.
    """
    return _mix("cutmix", alpha, num_classes, labels, channels_first, fields)


def _mix(
    function: str, alpha: Any, num_classes: Any, labels: Any, channels_first: Any, fields: Any
) -> Operation:
    name = f"image.{function}"
    classes = 0
    if num_classes is not None:
        classes = integer("num_classes", num_classes, 1, 1 << 20, operation=name)
    return Operation(
        f"image_{function}",
        real("alpha", alpha, name),
        classes,
        leaf("labels", labels, name),
        flag("channels_first", channels_first, name),
        _names(fields, name),
    )

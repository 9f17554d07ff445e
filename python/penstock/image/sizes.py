"""Operations that make images of another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from ..base.arguments import flag, integer, integer_list, string
from ..dataset.recipe import Operation
from ..device.functions import BatchFunction
from ..device.moves import CenterCrop, Pad, RandomCrop
from ..device.resizing import RandomResizedCrop, Resize
from ..errors import InvalidArgument
from .arguments import (
    MOST_SIDE,
    Fields,
    Others,
    is_list,
    moved_of,
    pair_of,
    runs_on_device,
    size_of,
)


@overload
def resize(
    height: int,
    width: int,
    *,
    filter: str = "bilinear",
    antialias: bool = True,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def resize(
    height: int,
    width: int,
    *,
    filter: str = "bilinear",
    antialias: bool = True,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def resize(
    height: int,
    width: int,
    *,
    filter: str = "bilinear",
    antialias: bool = True,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: str = "workers",
) -> Operation | BatchFunction:
    """Resize as Pillow does, bit for bit; of images with alpha each channel by itself.

    Parameters
    ----------
    height, width : int
    filter : {"bilinear", "nearest", "box", "bicubic", "lanczos"}
    antialias : bool
        False: the filter is not widened where an image shrinks.
    fields
        As of `decode`.
    masks, boxes, keypoints, on
        As of `random_flip`.
    """
    name = "image.resize"
    size, moved = (
        size_of(height, width, name),
        moved_of(fields, masks, boxes, keypoints, 0, name),
    )
    how = string("filter", filter, name), flag("antialias", antialias, name)
    operation = Operation("image_resize", *size, *how, moved)
    if runs_on_device(on, moved, name):
        return Resize(operation._native, moved[0], size, *how)
    return operation


@overload
def center_crop(
    height: int,
    width: int,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def center_crop(
    height: int,
    width: int,
    *,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def center_crop(
    height: int,
    width: int,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: str = "workers",
) -> Operation | BatchFunction:
    """Cut the middle out. A smaller image is an `InvalidArgument`.

    `masks`, `boxes`, `keypoints` and `on` are as of `random_flip`.
    """
    name = "image.center_crop"
    size, moved = (
        size_of(height, width, name),
        moved_of(fields, masks, boxes, keypoints, 0, name),
    )
    operation = Operation("image_center_crop", *size, moved)
    if runs_on_device(on, moved, name):
        return CenterCrop(operation._native, moved[0], size)
    return operation


@overload
def random_crop(
    height: int,
    width: int,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def random_crop(
    height: int, width: int, *, fields: Fields = "image", on: Literal["device"]
) -> BatchFunction: ...
def random_crop(
    height: int,
    width: int,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: str = "workers",
) -> Operation | BatchFunction:
    """Cut out a box anywhere in the image. A smaller image is an `InvalidArgument`.

    `masks`, `boxes` and `keypoints` are as of `random_flip`, and so is `on`.

    Examples
    --------
    >>> small.map(penstock.image.pad(4)).map(penstock.image.random_crop(32, 32))
    """
    name = "image.random_crop"
    size, moved = (
        size_of(height, width, name),
        moved_of(fields, masks, boxes, keypoints, 0, name),
    )
    operation = Operation("image_random_crop", *size, moved)
    if runs_on_device(on, moved, name):
        return RandomCrop(operation._native, moved[0], size)
    return operation


@overload
def random_resized_crop(
    height: int,
    width: int,
    scale: Sequence[float] = (0.08, 1.0),
    ratio: Sequence[float] = (3 / 4, 4 / 3),
    *,
    filter: str = "bilinear",
    antialias: bool = True,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def random_resized_crop(
    height: int,
    width: int,
    scale: Sequence[float] = (0.08, 1.0),
    ratio: Sequence[float] = (3 / 4, 4 / 3),
    *,
    filter: str = "bilinear",
    antialias: bool = True,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def random_resized_crop(
    height: int,
    width: int,
    scale: Sequence[float] = (0.08, 1.0),
    ratio: Sequence[float] = (3 / 4, 4 / 3),
    *,
    filter: str = "bilinear",
    antialias: bool = True,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: str = "workers",
) -> Operation | BatchFunction:
    """Cut out a box of random size, shape and place, and resize it, as torchvision does.

    Parameters
    ----------
    height, width : int
        Of the result.
    scale : pair of float
        The least and the greatest part of the image's area that a box has.
    ratio : pair of float
        The least and the greatest width by height of a box; its logarithm is uniform.
    filter, antialias
        As of `resize`.
    fields
        As of `decode`.
    masks, boxes, keypoints, on
        As of `random_flip`.
    """
    name = "image.random_resized_crop"
    size, moved = (
        size_of(height, width, name),
        moved_of(fields, masks, boxes, keypoints, 0, name),
    )
    ranges = pair_of("scale", scale, name), pair_of("ratio", ratio, name)
    how = string("filter", filter, name), flag("antialias", antialias, name)
    operation = Operation("image_random_resized_crop", *size, *ranges, *how, moved)
    if runs_on_device(on, moved, name):
        return RandomResizedCrop(operation._native, moved[0], size, *how)
    return operation


@overload
def pad(
    padding: int | Sequence[int],
    value: int = 0,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    mask_fill: int = 0,
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def pad(
    padding: int | Sequence[int],
    value: int = 0,
    *,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def pad(
    padding: int | Sequence[int],
    value: int = 0,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    mask_fill: int = 0,
    on: str = "workers",
) -> Operation | BatchFunction:
    """Add a border of one value.

    Parameters
    ----------
    padding : int, (horizontal, vertical) or (left, top, right, bottom)
    value : int
        0 to 255, of every channel.
    fields
        As of `decode`.
    masks, boxes, keypoints, on
        As of `random_flip`.
    mask_fill : int
        Of the new pixels of masks, where those of the image have one value.
    """
    name = "image.pad"
    given = integer_list("padding", padding if is_list(padding) else [padding], 0, name)
    sides = {1: given * 4, 2: given * 2, 4: given}.get(len(given))
    if sides is None or max(sides) > MOST_SIDE:
        raise InvalidArgument(
            f"padding is {padding!r}; give an integer, (horizontal, vertical), or "
            f"(left, top, right, bottom), at most {MOST_SIDE}",
            name,
        )
    moved = moved_of(fields, masks, boxes, keypoints, mask_fill, name)
    value = integer("value", value, 0, 255, operation=name)
    operation = Operation("image_pad", sides, value, moved)
    if runs_on_device(on, moved, name):
        return Pad(operation._native, moved[0], sides, value)
    return operation

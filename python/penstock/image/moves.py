"""Operations that move pixels: flips, turns, warps; and boxes that lost their area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from ..base.arguments import integer, leaf, real, string
from ..dataset.recipe import Operation
from ..device.functions import BatchFunction
from ..device.moves import RandomFlip, Rot90
from ..device.warps import RandomAffine
from ..operations import _names
from .arguments import (
    Fields,
    Others,
    fill_of,
    moved_of,
    numbers_of,
    pair_of,
    range_of,
    runs_on_device,
)


@overload
def random_flip(
    horizontal: float = 0.5,
    vertical: float = 0.0,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def random_flip(
    horizontal: float = 0.5,
    vertical: float = 0.0,
    *,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def random_flip(
    horizontal: float = 0.5,
    vertical: float = 0.0,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: str = "workers",
) -> Operation | BatchFunction:
    """Mirror images with these probabilities: left to right, and top to bottom.

    Parameters
    ----------
    horizontal, vertical : float
    fields
        As of `decode`.
    masks : str or list of str, optional
        Fields that are moved as the first image is: uint8 or float32 ``(height, width)`` or
        ``(height, width, channels)``, of the image's size. Pixels are taken as they are, never
        mixed; `resize` takes uint8 only.
    boxes : str or list of str, optional
        Fields with boxes: float32 ``(n, 4)``, with any `n` in each element: left, top, right and
        bottom, from 0 to the width or height. What lies beyond the image is cut off; a box that is
        beyond it keeps its row and has no area. Numbers behind the first four stay.
    keypoints : str or list of str, optional
        Fields with points: float32 ``(n, 2)``, x and y of a pixel; (0, 0) is the centre of the
        first one. They may come to lie beyond the image. Numbers behind the first two stay.
    on : {"workers", "device"}
        device: a function for batches, as of `normalize`: the images are those that this operation
        makes in the workers directly before `batch`, as the last operations there. Put it before
        `to_chw`. It moves no masks, boxes or keypoints.

    Raises
    ------
    InvalidArgument
        A field has another dtype or shape, or a mask another size than the image.

    Notes
    -----
    Boxes move as torchvision's `tv_tensors.BoundingBoxes` do. Turned by other angles than quarters,
    a box becomes the smallest upright one around it.

    Examples
    --------
    >>> travels = {"masks": "mask", "boxes": "boxes"}
    >>> dataset.map(penstock.image.random_flip(**travels)).map(
    ...     penstock.image.random_resized_crop(224, 224, **travels)
    ... )
    """
    name = "image.random_flip"
    each = real("horizontal", horizontal, name), real("vertical", vertical, name)
    moved = moved_of(fields, masks, boxes, keypoints, 0, name)
    operation = Operation("image_random_flip", *each, moved)
    if runs_on_device(on, moved, name):
        axes = [axis for axis, share in zip((2, 1), each, strict=True) if share > 0]
        return RandomFlip(operation._native, moved[0], axes)
    return operation


@overload
def rot90(
    k: int = 1,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def rot90(
    k: int = 1,
    *,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def rot90(
    k: int = 1,
    *,
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    on: str = "workers",
) -> Operation | BatchFunction:
    """Turn counter-clockwise by `k` quarters, as `numpy.rot90`.

    `masks`, `boxes`, `keypoints` and `on` are as of `random_flip`.
    """
    name = "image.rot90"
    turns = integer("k", k, -(1 << 31), (1 << 31) - 1, operation=name) % 4
    moved = moved_of(fields, masks, boxes, keypoints, 0, name)
    operation = Operation("image_rot90", turns, moved)
    if runs_on_device(on, moved, name):
        return Rot90(operation._native, moved[0], turns)
    return operation


@overload
def random_affine(
    degrees: float | Sequence[float] = 0,
    translate: Sequence[float] = (0, 0),
    scale: Sequence[float] = (1, 1),
    shear: float | Sequence[float] = 0,
    fill: str | float = "nearest",
    *,
    interpolation: str = "bilinear",
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    mask_fill: int = 0,
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def random_affine(
    degrees: float | Sequence[float] = 0,
    translate: Sequence[float] = (0, 0),
    scale: Sequence[float] = (1, 1),
    shear: float | Sequence[float] = 0,
    fill: str | float = "nearest",
    *,
    interpolation: str = "bilinear",
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def random_affine(
    degrees: float | Sequence[float] = 0,
    translate: Sequence[float] = (0, 0),
    scale: Sequence[float] = (1, 1),
    shear: float | Sequence[float] = 0,
    fill: str | float = "nearest",
    *,
    interpolation: str = "bilinear",
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    mask_fill: int = 0,
    on: str = "workers",
) -> Operation | BatchFunction:
    """Turn, move, magnify and shear around the centre, as torchvision's `RandomAffine` does.

    Each number is uniform in its range. The size of the image stays. In workers the sums are
    integers: a pixel differs by 1 at most from the exact one. On a device they are float32: a pixel
    differs by 1 at most from that of the workers.

    Parameters
    ----------
    degrees : float or pair of float
        The range of the angle, clockwise; one number d is ``(-d, d)``. From -360 to 360.
    translate : pair of float
        The greatest move to the right or left, and up or down, as a part of the width and of the
        height; 0 to 1. Moves are whole pixels.
    scale : (least, greatest) or (least x, greatest x, least y, greatest y)
        Above 1 magnifies. One number for both directions, or with four one for each. From 0.01 to
        100.
    shear : float, (least, greatest) or (least x, greatest x, least y, greatest y)
        The range of the angles; one number s is ``(-s, s)``. Along y only if four are given. From
        -80 to 80.
    fill : {"nearest", "constant", "reflect", "wrap"} or float
        Pixels beyond the border, as `scipy.ndimage` and Keras name them: the nearest one, 0, the
        image mirrored, the image repeated. A number: this value in every channel.
    interpolation : {"bilinear", "nearest"}
        "nearest" makes no new values, for masks of classes.
    fields
        As of `decode`.
    masks, boxes, keypoints, on
        As of `random_flip`.
    mask_fill : int
        Of the new pixels of masks, where those of the image have one value.
    """
    name = "image.random_affine"
    sheared = range_of("shear", shear, name, (1, 2, 4))
    moved = moved_of(fields, masks, boxes, keypoints, mask_fill, name)
    how = *fill_of(fill, name), string("interpolation", interpolation, name)
    operation = Operation(
        "image_random_affine",
        range_of("degrees", degrees, name),
        pair_of("translate", translate, name),
        numbers_of("scale", scale, name, (2, 4)),
        [*sheared, 0.0, 0.0][:4],
        *how,
        moved,
    )
    if runs_on_device(on, moved, name):
        return RandomAffine(operation._native, moved[0], *how)
    return operation


def perspective(
    distortion: float = 0.5,
    p: float = 0.5,
    fill: str | float = 0,
    *,
    interpolation: str = "bilinear",
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    mask_fill: int = 0,
) -> Operation:
    """See an image from another side: its corners move inwards, as torchvision's does.

    Parameters
    ----------
    distortion : float
        How far a corner moves at most: this part of half the width, and of half the height.
    p : float
        The probability.
    fill, interpolation
        As of `random_affine`.
    fields
        As of `decode`.
    masks, boxes, keypoints
        As of `random_flip`.
    mask_fill : int
        Of the new pixels of masks, where those of the image have one value.
    """
    name = "image.perspective"
    return Operation(
        "image_perspective",
        real("distortion", distortion, name),
        real("p", p, name),
        *fill_of(fill, name),
        string("interpolation", interpolation, name),
        moved_of(fields, masks, boxes, keypoints, mask_fill, name),
    )


def sanitize_boxes(
    boxes: str = "boxes",
    labels: Others = None,
    *,
    min_size: float = 1.0,
    min_area: float = 1.0,
) -> Operation:
    """Remove the boxes that are left without an area, as torchvision's `SanitizeBoundingBoxes`.

    Operations that move pixels cut boxes at the border, and a box beyond it keeps its row. This
    removes it, behind the last of them. What is left has a length of its own in each element:
    `Dataset.batch` gives a `Ragged`, and `Dataset.padded_batch` an array.

    Parameters
    ----------
    boxes : str
        The field with the boxes: float32 ``(n, 4)``, or more columns.
    labels : str or list of str, optional
        Fields with a row for each box, such as its class, which are removed with it. An element
        with another number of rows is an `InvalidArgument` at its place.
    min_size, min_area : float
        In pixels: narrower or lower boxes, and those of a smaller area, are removed. So are boxes
        with a coordinate that is not-a-number.

    Examples
    --------
    >>> cut = penstock.image.random_crop(224, 224, boxes="boxes")
    >>> photos.map(cut).map(penstock.image.sanitize_boxes("boxes", labels="classes"))
    """
    name = "image.sanitize_boxes"
    return Operation(
        "image_sanitize_boxes",
        leaf("boxes", boxes, name),
        _names(labels, name),
        real("min_size", min_size, name),
        real("min_area", min_area, name),
    )

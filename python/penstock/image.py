"""Native operations on images, for `penstock.Dataset.map`.

An image is a uint8 array ``(height, width, channels)``; `decode` makes one of the bytes of a file,
and `encode` the bytes of a file of one. Operations that move pixels, `erase`, `normalize` and
`to_chw` also take float32. Every operation works on the field ``"image"``, or on those that
`fields` names; the other fields are passed on. Random numbers are keyed by the seed, the epoch, the
element and the operation, so they are the same for any number and kind of workers; all fields of
one operation get the same.

Masks, boxes and keypoints of other fields follow their image through every operation that moves
pixels: name them by `masks`, `boxes` and `keypoints`, as `random_flip` describes.

Operations that follow each other are one pass over each image: `decode` decodes only the rows that
the crop behind it needs, and nothing is stored in between.

Examples
--------
>>> train = (penstock.Dataset.image_folder("train", validation_split=0.2, subset="training")
...          .shuffle(seed=7)
...          .map(penstock.image.decode())
...          .map(penstock.image.random_resized_crop(224, 224))
...          .map(penstock.image.random_flip())
...          .map(penstock.image.normalize((124, 116, 104), (58, 57, 57)))
...          .batch(64))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, overload

import numpy as np

from .base.arguments import flag, integer, integer_list, leaf, one_of, real, several, string
from .dataset.dataset import Dataset
from .dataset.recipe import Operation
from .device.colours import ColorJitter, Grayscale
from .device.decoding import Decode
from .device.functions import BatchFunction
from .device.images import Normalize, ToChw
from .device.moves import CenterCrop, Erase, Pad, RandomCrop, RandomFlip, Rot90
from .device.resizing import RandomResizedCrop, Resize
from .device.warps import RandomAffine
from .errors import InvalidArgument
from .operations import _floats, _names

__all__ = [
    "auto_augment",
    "autocontrast",
    "center_crop",
    "color_jitter",
    "compose",
    "cutmix",
    "decode",
    "encode",
    "equalize",
    "erase",
    "gamma",
    "gaussian_blur",
    "grayscale",
    "invert",
    "mixup",
    "normalize",
    "pad",
    "parameters",
    "perspective",
    "posterize",
    "rand_augment",
    "random_affine",
    "random_crop",
    "random_flip",
    "random_resized_crop",
    "resize",
    "rot90",
    "sanitize_boxes",
    "sharpness",
    "solarize",
    "to_chw",
    "trivial_augment_wide",
]

Fields: TypeAlias = "str | Sequence[str]"
Others: TypeAlias = "str | Sequence[str] | None"

_MOST_SIDE = 65535
_PLACES = ("workers", "device")


@overload
def decode(
    channels: int = 3,
    fast: bool = False,
    exif: bool = True,
    partial: bool = False,
    *,
    fields: Fields = "image",
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def decode(
    channels: int = 3,
    *,
    exif: bool = True,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def decode(
    channels: int = 3,
    fast: bool = False,
    exif: bool = True,
    partial: bool = False,
    *,
    fields: Fields = "image",
    on: str = "workers",
) -> Operation | BatchFunction:
    """Decode images: bytes become uint8 ``(height, width, channels)``.

    The format is that of the first bytes: BMP, GIF (its first frame), JPEG, PGM, PNG, PPM or WebP.
    Pixels are those of Pillow: an accurate DCT, smooth upsampling. CMYK becomes RGB; of a PNG's 16
    bits the upper 8 count; alpha is left out unless `channels` is 4. A file that cannot be decoded
    is a `DataLoss` that names the file and the byte.

    Parameters
    ----------
    channels : {3, 1, 4}
        Colours, grey, or colours and alpha.
    fast : bool
        Of JPEGs: a less accurate DCT and colours without smoothing; and where a resize to half the
        size or less follows, a smaller image is decoded. Of WebPs: colours without smoothing.
    exif : bool
        Turn JPEGs, PNGs and WebPs as their Exif orientation says.
    partial : bool
        Of a file that is cut off behind its header, take the pixels that are there. The others are
        0, or in JPEGs grey, as libjpeg fills them. Other damage remains an error.
    fields : str or list of str
        Names of leaves, such as ``"image"`` or ``"0"``; ``""`` where the element is nothing but
        the bytes.
    on : {"workers", "device"}
        device: a function for batches of JPEGs, as of `normalize`, on a device of torch's by
        torchvision's `decode_jpeg`; of CUDA's, by nvJPEG. `resize` or `random_resized_crop` with
        ``on="device"`` follows, since images differ in size. `channels` is 3 or 1. Pixels differ
        from those of workers by a few levels.

    Raises
    ------
    NotFound
        With ``on="device"``, by `Dataset.map`: torchvision is not installed, or does not fit torch.
    """
    name = "image.decode"
    one_of("on", on, _PLACES, name)
    if channels not in (1, 3, 4) or isinstance(channels, bool):
        raise InvalidArgument(f"channels is {channels!r}; give 1, 3 or 4", name)
    options = (
        int(channels),
        flag("fast", fast, name),
        flag("exif", exif, name),
        flag("partial", partial, name),
        _names(fields, name),
    )
    return Decode(*options) if on == "device" else Operation("image_decode", *options)


def encode(format: str, quality: int | None = None, *, fields: Fields = "image") -> Operation:
    """Encode images: uint8 ``(height, width, channels)`` or ``(height, width)`` becomes bytes.

    Only `decode` may follow.

    Parameters
    ----------
    format : {"jpeg", "png"}
        A JPEG has 1 or 3 channels, with colours at half the resolution. A PNG has 1 to 4; the
        second or the fourth is alpha.
    quality : int, optional
        Of JPEGs, 1 to 100; 90 unless given.
    fields
        As of `decode`.

    Examples
    --------
    >>> small = photos.map(penstock.image.resize(256, 256)).map(penstock.image.encode("jpeg"))
    """
    name = "image.encode"
    if format not in ("jpeg", "png"):
        raise InvalidArgument(f"format is {format!r}; give 'jpeg' or 'png'", name)
    if format == "png" and quality is not None:
        raise InvalidArgument("a PNG has no quality; leave it out", name)
    quality = 90 if quality is None else quality
    return Operation(
        "image_encode",
        format == "png",
        integer("quality", quality, 1, 100, operation=name),
        _names(fields, name),
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
    size, moved = _size(height, width, name), _moved(fields, masks, boxes, keypoints, 0, name)
    how = string("filter", filter, name), flag("antialias", antialias, name)
    operation = Operation("image_resize", *size, *how, moved)
    if _on_device(on, moved, name):
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
    size, moved = _size(height, width, name), _moved(fields, masks, boxes, keypoints, 0, name)
    operation = Operation("image_center_crop", *size, moved)
    if _on_device(on, moved, name):
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
    size, moved = _size(height, width, name), _moved(fields, masks, boxes, keypoints, 0, name)
    operation = Operation("image_random_crop", *size, moved)
    if _on_device(on, moved, name):
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
    size, moved = _size(height, width, name), _moved(fields, masks, boxes, keypoints, 0, name)
    ranges = _pair("scale", scale, name), _pair("ratio", ratio, name)
    how = string("filter", filter, name), flag("antialias", antialias, name)
    operation = Operation("image_random_resized_crop", *size, *ranges, *how, moved)
    if _on_device(on, moved, name):
        return RandomResizedCrop(operation._native, moved[0], size, *how)
    return operation


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
    moved = _moved(fields, masks, boxes, keypoints, 0, name)
    operation = Operation("image_random_flip", *each, moved)
    if _on_device(on, moved, name):
        axes = [axis for axis, share in zip((2, 1), each, strict=True) if share > 0]
        return RandomFlip(operation._native, moved[0], axes)
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
    given = integer_list("padding", padding if _is_list(padding) else [padding], 0, name)
    sides = {1: given * 4, 2: given * 2, 4: given}.get(len(given))
    if sides is None or max(sides) > _MOST_SIDE:
        raise InvalidArgument(
            f"padding is {padding!r}; give an integer, (horizontal, vertical), or "
            f"(left, top, right, bottom), at most {_MOST_SIDE}",
            name,
        )
    moved = _moved(fields, masks, boxes, keypoints, mask_fill, name)
    value = integer("value", value, 0, 255, operation=name)
    operation = Operation("image_pad", sides, value, moved)
    if _on_device(on, moved, name):
        return Pad(operation._native, moved[0], sides, value)
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
    moved = _moved(fields, masks, boxes, keypoints, 0, name)
    operation = Operation("image_rot90", turns, moved)
    if _on_device(on, moved, name):
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
    sheared = _range("shear", shear, name, (1, 2, 4))
    moved = _moved(fields, masks, boxes, keypoints, mask_fill, name)
    how = *_fill(fill, name), string("interpolation", interpolation, name)
    operation = Operation(
        "image_random_affine",
        _range("degrees", degrees, name),
        _pair("translate", translate, name),
        _numbers("scale", scale, name, (2, 4)),
        [*sheared, 0.0, 0.0][:4],
        *how,
        moved,
    )
    if _on_device(on, moved, name):
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
        *_fill(fill, name),
        string("interpolation", interpolation, name),
        _moved(fields, masks, boxes, keypoints, mask_fill, name),
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


def parameters(operation: Operation, field: str = "parameters") -> Operation:
    """Add the random numbers of an operation as a field, and leave the image as it is.

    For images that go to the device as uint8, and are flipped, cropped or coloured there. The
    numbers are those that the operation itself draws at this place of the chain, so they are the
    same for any number and kind of workers. Behind `batch` they are an array ``(batch, n)``.

    ===================================  ===========================================================
    operation                            numbers
    ===================================  ===========================================================
    random_flip                          horizontal, vertical: 1 or 0
    random_crop, random_resized_crop     left, top, width, height of the box
    random_affine                        a, b, c, d, e, f: the pixel (x, y) of the result is at
                                         (a x + b y + c, d x + e y + f) in the image; (0, 0) is the
                                         centre of the first pixel
    perspective                          a to f, and g, h: both are divided by (g x + h y + 1)
    color_jitter                         factors of brightness, contrast and saturation, turn of the
                                         hue; then the numbers 0 to 3 of these, in the order of
                                         their application
    gaussian_blur                        sigma
    erase                                left, top, width, height of the box; 0 if there is none
    ===================================  ===========================================================

    Parameters
    ----------
    operation : Operation
        One of these, of one image, without masks, boxes and keypoints. Map `decode` before.
    field : str
        The new field of the element, which is a dict: float32 ``(n,)``.

    Raises
    ------
    InvalidArgument
        Another operation; the element is no dict, or has a field of this name.

    Examples
    --------
    >>> batch = next(iter(
    ...     photographs.map(penstock.image.decode()).map(penstock.image.resize(224, 224))
    ...     .map(penstock.image.parameters(penstock.image.random_flip(), "flip")).batch(64)))
    >>> images, flip = torch.from_dlpack(batch["image"]).cuda(), torch.from_dlpack(batch["flip"])
    >>> images = torch.where(flip[:, 0].cuda().bool()[:, None, None, None], images.flip(2), images)
    """
    name = "image.parameters"
    if not isinstance(operation, Operation):
        raise InvalidArgument(
            f"a {type(operation).__name__}; give an operation of penstock.image", name
        )
    return Operation("image_parameters", operation, string("field", field, name))


@overload
def color_jitter(
    brightness: float | Sequence[float] = 0,
    contrast: float | Sequence[float] = 0,
    saturation: float | Sequence[float] = 0,
    hue: float | Sequence[float] = 0,
    *,
    fields: Fields = "image",
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def color_jitter(
    brightness: float | Sequence[float] = 0,
    contrast: float | Sequence[float] = 0,
    saturation: float | Sequence[float] = 0,
    hue: float | Sequence[float] = 0,
    *,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def color_jitter(
    brightness: float | Sequence[float] = 0,
    contrast: float | Sequence[float] = 0,
    saturation: float | Sequence[float] = 0,
    hue: float | Sequence[float] = 0,
    *,
    fields: Fields = "image",
    on: str = "workers",
) -> Operation | BatchFunction:
    """Change colours at random, in a random order, as torchvision's `ColorJitter` does.

    uint8 with 1 to 4 channels; the last one of 2 or 4 is alpha, and stays. Brightness, contrast and
    saturation are Pillow's `ImageEnhance`, bit for bit.

    Parameters
    ----------
    brightness, contrast, saturation : float or pair of float
        The range of the factor; one number x is ``(max(0, 1 - x), 1 + x)``.
    hue : float or pair of float
        The range of the turn, from -0.5 to 0.5; one number x is ``(-x, x)``.
    fields
        As of `decode`.
    on
        As of `random_flip`. On a device, images have at most 8,388,607 pixels, and a few
        values in many thousands may differ by 1 from those of the workers.
    """
    name = "image.color_jitter"
    one_of("on", on, _PLACES, name)
    names = _names(fields, name)
    ranges = (
        _factors("brightness", brightness, name),
        _factors("contrast", contrast, name),
        _factors("saturation", saturation, name),
        _range("hue", hue, name),
    )
    operation = Operation("image_color_jitter", *ranges, names)
    return ColorJitter(operation._native, names, *ranges) if on == "device" else operation


def invert(p: float = 1.0, *, fields: Fields = "image") -> Operation:
    """255 minus the value, with the probability `p`. Of uint8, as all colours."""
    return Operation("image_invert", real("p", p, "image.invert"), _names(fields, "image.invert"))


def posterize(bits: int, p: float = 1.0, *, fields: Fields = "image") -> Operation:
    """Keep the upper `bits` (1 to 8) of every value, with the probability `p`."""
    name = "image.posterize"
    return Operation(
        "image_posterize",
        integer("bits", bits, 1, 8, operation=name),
        real("p", p, name),
        _names(fields, name),
    )


def solarize(threshold: int = 128, p: float = 1.0, *, fields: Fields = "image") -> Operation:
    """Invert the values from `threshold` (0 to 256) on, with the probability `p`."""
    name = "image.solarize"
    return Operation(
        "image_solarize",
        integer("threshold", threshold, 0, 256, operation=name),
        real("p", p, name),
        _names(fields, name),
    )


def autocontrast(p: float = 1.0, *, fields: Fields = "image") -> Operation:
    """Stretch each channel to 0 to 255, as Pillow does, with the probability `p`."""
    name = "image.autocontrast"
    return Operation("image_autocontrast", real("p", p, name), _names(fields, name))


def equalize(p: float = 1.0, *, fields: Fields = "image") -> Operation:
    """Make all values of a channel equally frequent, as Pillow does, with the probability `p`."""
    name = "image.equalize"
    return Operation("image_equalize", real("p", p, name), _names(fields, name))


def sharpness(factor: float, p: float = 1.0, *, fields: Fields = "image") -> Operation:
    """Sharpen (a factor above 1) or smooth (below 1) as Pillow does, with the probability `p`."""
    name = "image.sharpness"
    return Operation(
        "image_sharpness", real("factor", factor, name), real("p", p, name), _names(fields, name)
    )


def gamma(gamma: float, p: float = 1.0, *, fields: Fields = "image") -> Operation:
    """``255 * (x / 255) ** gamma``, with the probability `p`."""
    name = "image.gamma"
    return Operation(
        "image_gamma", real("gamma", gamma, name), real("p", p, name), _names(fields, name)
    )


def rand_augment(
    n: int = 2,
    m: int = 9,
    fill: str | float = 0,
    *,
    interpolation: str = "nearest",
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    mask_fill: int = 0,
) -> Operation:
    """Apply `n` operations at random, as torchvision's `RandAugment` does.

    They shear, move, turn, change brightness, colour, contrast and sharpness, posterize, solarize,
    autocontrast, equalize, or do nothing. uint8 with 1 to 4 channels.

    Parameters
    ----------
    n : int
        How many, one after the other.
    m : int
        How strong, from 0 to 30.
    fill, interpolation
        As of `random_affine`.
    fields
        As of `decode`.
    masks, boxes, keypoints
        As of `random_flip`.
    mask_fill : int
        Of the new pixels of masks, where those of the image have one value.
    """
    name = "image.rand_augment"
    return Operation(
        "image_rand_augment",
        integer("n", n, 1, 100, operation=name),
        integer("m", m, 0, 30, operation=name),
        *_fill(fill, name),
        string("interpolation", interpolation, name),
        _moved(fields, masks, boxes, keypoints, mask_fill, name),
    )


def auto_augment(
    policy: str = "imagenet",
    fill: str | float = 0,
    *,
    interpolation: str = "nearest",
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    mask_fill: int = 0,
) -> Operation:
    """Apply two operations of a learned policy, as torchvision's `AutoAugment` does.

    One of the policy's 25 pairs of operations is chosen; each of the two is applied with its
    probability and magnitude (Cubuk and others, "AutoAugment", CVPR 2019). uint8 with 1 to 4
    channels.

    Parameters
    ----------
    policy : {"imagenet", "cifar10", "svhn"}
        The images that it was learned on.
    fill, interpolation
        As of `random_affine`.
    fields
        As of `decode`.
    masks, boxes, keypoints
        As of `random_flip`.
    mask_fill : int
        Of the new pixels of masks, where those of the image have one value.
    """
    name = "image.auto_augment"
    return Operation(
        "image_auto_augment",
        string("policy", policy, name),
        *_fill(fill, name),
        string("interpolation", interpolation, name),
        _moved(fields, masks, boxes, keypoints, mask_fill, name),
    )


def trivial_augment_wide(
    fill: str | float = 0,
    *,
    interpolation: str = "nearest",
    fields: Fields = "image",
    masks: Others = None,
    boxes: Others = None,
    keypoints: Others = None,
    mask_fill: int = 0,
) -> Operation:
    """Apply one operation of any strength, as torchvision's `TrivialAugmentWide` does.

    The operations are those of `rand_augment`, in wider ranges (Mueller and Hutter,
    "TrivialAugment", ICCV 2021). uint8 with 1 to 4 channels.

    Parameters
    ----------
    fill, interpolation
        As of `random_affine`.
    fields
        As of `decode`.
    masks, boxes, keypoints
        As of `random_flip`.
    mask_fill : int
        Of the new pixels of masks, where those of the image have one value.
    """
    name = "image.trivial_augment_wide"
    return Operation(
        "image_trivial_augment_wide",
        *_fill(fill, name),
        string("interpolation", interpolation, name),
        _moved(fields, masks, boxes, keypoints, mask_fill, name),
    )


def gaussian_blur(
    kernel_size: int, sigma: float | Sequence[float] = (0.1, 2.0), *, fields: Fields = "image"
) -> Operation:
    """Blur by a Gaussian, as torchvision does. uint8 with 1 to 4 channels.

    Parameters
    ----------
    kernel_size : int
        Odd, from 1 to 255.
    sigma : float or pair of float
        The standard deviation in pixels, or its range. From 0.01 to 1000.
    fields
        As of `decode`.
    """
    name = "image.gaussian_blur"
    given = sigma if hasattr(sigma, "__iter__") else (sigma, sigma)
    return Operation(
        "image_gaussian_blur",
        integer("kernel_size", kernel_size, 1, 255, operation=name),
        _pair("sigma", given, name),
        _names(fields, name),
    )


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
    one_of("on", on, _PLACES, name)
    names, number = _names(fields, name), real("value", value, name)
    operation = Operation(
        "image_erase",
        real("p", p, name),
        _pair("scale", scale, name),
        _pair("ratio", ratio, name),
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


@overload
def grayscale(
    channels: int = 1,
    *,
    fields: Fields = "image",
    on: Literal["workers"] = "workers",
) -> Operation: ...
@overload
def grayscale(
    channels: int = 1,
    *,
    fields: Fields = "image",
    on: Literal["device"],
) -> BatchFunction: ...
def grayscale(
    channels: int = 1,
    *,
    fields: Fields = "image",
    on: str = "workers",
) -> Operation | BatchFunction:
    """Turn colours into Pillow's grey, in 1 or 3 equal channels. `on` is as of `random_flip`."""
    name = "image.grayscale"
    one_of("on", on, _PLACES, name)
    count, names = integer("channels", channels, 1, 3, operation=name), _names(fields, name)
    operation = Operation("image_grayscale", count, names)
    return Grayscale(operation._native, names, count) if on == "device" else operation


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
    one_of("on", on, _PLACES, name)
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
    one_of("on", on, _PLACES, name)
    names = _names(fields, name)
    return ToChw(names) if on == "device" else Operation("image_to_chw", names)


class compose:
    """Operations, callable on one image: for tests, and for looking at what they do.

    The result is the one that `Dataset.map` with the same operations gives for the element at the
    place `index` of that epoch.

    Parameters
    ----------
    operations : list of operations

    Examples
    --------
    >>> augment = penstock.image.compose(
    ...     [penstock.image.random_affine(degrees=20), penstock.image.random_flip()]
    ... )
    >>> augment(picture, seed=7, epoch=0, index=3)
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        name = "image.compose"
        self.operations = tuple(several("operations", operations, "operations", name))
        for operation in self.operations:
            if not isinstance(operation, Operation):
                raise InvalidArgument(
                    f"{operation!r} is no operation; give those of penstock.image", name
                )

    def __call__(self, image: Any, *, seed: int = 0, epoch: int = 0, index: int = 0) -> Any:
        """The result for one image.

        Parameters
        ----------
        image : array or bytes, or dict
            The field ``"image"``; or an element with all fields, which is returned as a dict.
        seed, epoch, index : int
            The address of the random numbers.
        """
        name = "image.compose"
        place = integer("index", index, 0, (1 << 62), operation=name)
        element = image if isinstance(image, dict) else {"image": image}
        dataset = Dataset.source(_Everywhere(element, place + 1))
        for operation in self.operations:
            dataset = dataset.map(operation)
        with dataset.build(workers=0, seed=seed) as feed:
            whole = integer("epoch", epoch, 0, operation=name)
            feed.restore({**feed.state(), "epoch": whole, "batches": place})
            made = next(iter(feed))
        copied = {field: _copied(value) for field, value in made.items()}
        return copied if isinstance(image, dict) else copied["image"]

    def __repr__(self) -> str:
        return f"image.compose({list(self.operations)})"


class _Everywhere:
    """A source with one element at every place."""

    def __init__(self, element: dict[str, Any], count: int) -> None:
        self.element, self.count = element, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, _: int) -> dict[str, Any]:
        return self.element


def _copied(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value


def _moved(
    fields: Any, masks: Any, boxes: Any, keypoints: Any, mask_fill: Any, operation: str
) -> tuple[list[str], list[str], list[str], list[str], int]:
    """What an operation moves."""
    return (
        _names(fields, operation),
        _names(masks, operation),
        _names(boxes, operation),
        _names(keypoints, operation),
        integer("mask_fill", mask_fill, 0, 255, operation=operation),
    )


def _on_device(on: str, moved: tuple[Any, ...], operation: str) -> bool:
    one_of("on", on, _PLACES, operation)
    if on == "device" and any(moved[1:]):
        raise InvalidArgument(
            'masks, boxes and keypoints are moved by on="workers" only', operation
        )
    return on == "device"


def _size(height: Any, width: Any, operation: str) -> tuple[int, int]:
    return (
        integer("height", height, 1, _MOST_SIDE, operation=operation),
        integer("width", width, 1, _MOST_SIDE, operation=operation),
    )


def _pair(name: str, value: Any, operation: str) -> list[float]:
    pair = [real(name, each, operation) for each in several(name, value, "two numbers", operation)]
    if len(pair) != 2:
        raise InvalidArgument(f"{name} is {value!r}; give the least and the greatest", operation)
    return pair


def _numbers(name: str, values: Any, operation: str, lengths: Sequence[int]) -> list[float]:
    given = [real(name, each, operation) for each in several(name, values, "numbers", operation)]
    if len(given) in lengths:
        return given
    raise InvalidArgument(
        f"{name} is {values!r}; give {' or '.join(str(length) for length in lengths)} numbers",
        operation,
    )


def _range(name: str, value: Any, operation: str, lengths: Sequence[int] = (1, 2)) -> list[float]:
    """One number d is (-d, d)."""
    given = _numbers(name, value if hasattr(value, "__iter__") else [value], operation, lengths)
    if len(given) > 1:
        return given
    if given[0] < 0:
        raise InvalidArgument(
            f"{name} is {value!r}; give 0 or more, or the least and the greatest", operation
        )
    return [-given[0], given[0]]


def _factors(name: str, value: Any, operation: str) -> list[float]:
    """One number x is (max(0, 1 - x), 1 + x)."""
    least, most = _range(name, value, operation)
    if hasattr(value, "__iter__"):
        return [least, most]
    return [max(0.0, 1 + least), 1 + most]


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


def _fill(value: Any, operation: str) -> tuple[str, float]:
    if isinstance(value, str):
        return string("fill", value, operation), 0.0
    return "constant", real("fill", value, operation)


def _is_list(value: Any) -> bool:
    return not hasattr(value, "__index__")

"""Images out of the bytes of files, and back."""

from __future__ import annotations

from typing import Literal, overload

from ..base.arguments import flag, integer, one_of
from ..dataset.recipe import Operation
from ..device.decoding import Decode
from ..device.functions import BatchFunction
from ..errors import InvalidArgument
from ..operations import _names
from .arguments import PLACES, Fields


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
        size or less follows, a smaller image is decoded; where the image is made smaller, colours
        beyond black or white are cut off after the resize. Of WebPs: colours without smoothing.
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
    one_of("on", on, PLACES, name)
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

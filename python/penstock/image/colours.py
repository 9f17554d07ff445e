"""Operations on colours, on brightness and on sharpness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from ..base.arguments import integer, one_of, real
from ..dataset.recipe import Operation
from ..device.colours import ColorJitter, Grayscale
from ..device.functions import BatchFunction
from ..operations import _names
from .arguments import PLACES, Fields, factors_of, pair_of, range_of


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
    one_of("on", on, PLACES, name)
    names = _names(fields, name)
    ranges = (
        factors_of("brightness", brightness, name),
        factors_of("contrast", contrast, name),
        factors_of("saturation", saturation, name),
        range_of("hue", hue, name),
    )
    operation = Operation("image_color_jitter", *ranges, names)
    return ColorJitter(operation._native, names, *ranges) if on == "device" else operation


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
    one_of("on", on, PLACES, name)
    count, names = integer("channels", channels, 1, 3, operation=name), _names(fields, name)
    operation = Operation("image_grayscale", count, names)
    return Grayscale(operation._native, names, count) if on == "device" else operation


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


def gamma(gamma: float, p: float = 1.0, *, fields: Fields = "image") -> Operation:
    """``255 * (x / 255) ** gamma``, with the probability `p`."""
    name = "image.gamma"
    return Operation(
        "image_gamma", real("gamma", gamma, name), real("p", p, name), _names(fields, name)
    )


def channel_shift(shift: float | Sequence[float], *, fields: Fields = "image") -> Operation:
    """Add a random number to all colours, as Keras' ``channel_shift_range`` does.

    Results are rounded and stay within the least and the greatest value of the image. uint8 with 1
    to 4 channels; the last one of 2 or 4 is alpha, and stays.

    Parameters
    ----------
    shift : float or pair of float
        The range of the number, from -255 to 255; one number x is ``(-x, x)``.
    fields
        As of `decode`.
    """
    name = "image.channel_shift"
    return Operation("image_channel_shift", range_of("shift", shift, name), _names(fields, name))


def sharpness(factor: float, p: float = 1.0, *, fields: Fields = "image") -> Operation:
    """Sharpen (a factor above 1) or smooth (below 1) as Pillow does, with the probability `p`."""
    name = "image.sharpness"
    return Operation(
        "image_sharpness", real("factor", factor, name), real("p", p, name), _names(fields, name)
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
        pair_of("sigma", given, name),
        _names(fields, name),
    )

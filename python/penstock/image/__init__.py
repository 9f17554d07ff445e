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

from .colours import (
    autocontrast,
    channel_shift,
    color_jitter,
    equalize,
    gamma,
    gaussian_blur,
    grayscale,
    invert,
    posterize,
    sharpness,
    solarize,
)
from .composed import compose, parameters
from .erasing import cutmix, erase, mixup
from .files import decode, encode
from .layout import normalize, to_chw
from .moves import perspective, random_affine, random_flip, rot90, sanitize_boxes
from .policies import auto_augment, rand_augment, trivial_augment_wide
from .sizes import center_crop, pad, random_crop, random_resized_crop, resize

__all__ = [
    "auto_augment",
    "autocontrast",
    "center_crop",
    "channel_shift",
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

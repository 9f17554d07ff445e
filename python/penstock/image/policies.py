"""Augmentations by policies: RandAugment, AutoAugment, TrivialAugment."""

from __future__ import annotations

from ..base.arguments import integer, string
from ..dataset.recipe import Operation
from .arguments import Fields, Others, fill_of, moved_of


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
        *fill_of(fill, name),
        string("interpolation", interpolation, name),
        moved_of(fields, masks, boxes, keypoints, mask_fill, name),
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
        *fill_of(fill, name),
        string("interpolation", interpolation, name),
        moved_of(fields, masks, boxes, keypoints, mask_fill, name),
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
        *fill_of(fill, name),
        string("interpolation", interpolation, name),
        moved_of(fields, masks, boxes, keypoints, mask_fill, name),
    )

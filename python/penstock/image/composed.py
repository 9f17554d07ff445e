"""Operations on one image, and the random numbers that they draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.arguments import integer, several, string
from ..dataset.dataset import Dataset
from ..dataset.recipe import Operation
from ..errors import InvalidArgument


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
    channel_shift                        the number that is added
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

"""Images of 224 x 224 x 3 uint8: turned, moved, magnified, mirrored, normalised; batches of 64.

The border is mirrored where the library can. The peers get the whole map as one matrix and read the
image once, bilinearly, in two threads, and most of them release Python's lock meanwhile; Keras'
ImageDataGenerator draws its own, as its users have it. Their batches are float32 too.
"""

from __future__ import annotations

import collections
import concurrent.futures
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from harness import WORKERS, Case, Figure, Figures, Size, Target, closing, epochs, expect

BATCH, SIDE = 64, 224
AHEAD = 4  # batches
WARM = 24  # batches that do not count
DEGREES, MOVE, SCALE = 15, 0.1, (0.8, 1.2)
MEAN = np.array([123.7, 116.3, 103.5], np.float32)
STD = np.array([58.4, 57.1, 57.4], np.float32)
OURS = "penstock, 2 threads"
PILLOW = "Pillow, 2 threads"
KERAS = "Keras' ImageDataGenerator, 2 threads"
OPENCV = "OpenCV, 2 threads"

AUGMENT = Case(
    "augment",
    "augmented images: 224x224x3 uint8 to float32, batches of 64",
    {"rate": Figure("images/s", more_is_better=True)},
    full={"count": 512, "rounds": 16, "seconds": 3.0},
    quick={"count": 512, "rounds": 6, "seconds": 0.5},
    targets=[
        Target("rate", OURS, PILLOW, at_least=5),
        Target("rate", OURS, KERAS, at_least=5),
        Target("rate", OURS, OPENCV, at_least=1),
    ],
)


def photographs(count: int) -> Any:
    """Slopes, waves and noise, different in every image."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    made = np.empty((count, SIDE, SIDE, 3), np.uint8)
    random = np.random.default_rng(0)
    for image in made:
        for c in range(3):
            period, angle = random.uniform(10, 60), random.uniform(0, math.pi)
            wave = np.sin((x * math.cos(angle) + y * math.sin(angle)) / period)
            image[..., c] = 110 + 60 * wave + random.normal(0, 8, (SIDE, SIDE))
    return made


def measure(size: Size, start: Callable[[], Any]) -> Figures:
    def check(kept: list[Any], last: Any) -> None:
        expect(len(kept) == size.rounds * size.count // BATCH, f"{len(kept)} batches came")
        expect(last.shape == (BATCH, SIDE, SIDE, 3) and last.dtype == np.float32, "other arrays")
        expect(abs(float(np.mean(kept))) < 1, "the mean is far from 0")

    def look(batch: Any) -> float:
        return float(batch[0].mean())

    figures = epochs(start, look, check, size.seconds, WARM)
    return {"rate": BATCH / figures["steady"]}


@AUGMENT.entry(OURS, "ours", "random_affine, random_flip, normalize")
def ours(size: Size) -> Figures:
    import penstock
    from penstock import image

    dataset = (
        penstock.Dataset.arrays(photographs(size.count))
        .map(image.random_affine(DEGREES, (MOVE, MOVE), SCALE, fill="reflect", fields=""))
        .map(image.random_flip(fields=""))
        .map(image.normalize(MEAN, STD, fields=""))
        .batch(BATCH)
    )
    with closing(dataset.repeat(size.rounds).build(workers=WORKERS, max_queue_size=AHEAD)) as feed:
        return measure(size, lambda: feed)


def in_threads(size: Size, augment: Callable[[Any, Any, Any, bool], None]) -> Figures:
    """Batches in order; each image by a thread, which writes it into its batch."""
    data = photographs(size.count)
    random = np.random.default_rng(1)

    def make(batch: Any, place: int, image: Any, draws: Any) -> None:
        turn, x, y, scale, flip = draws
        angle = math.radians((2 * turn - 1) * DEGREES)
        magnified = SCALE[0] + (SCALE[1] - SCALE[0]) * scale
        a, b = math.cos(angle) / magnified, math.sin(angle) / magnified
        centre = (SIDE - 1) / 2
        move_x, move_y = round((2 * x - 1) * MOVE * SIDE), round((2 * y - 1) * MOVE * SIDE)
        c = centre - a * (centre + move_x) - b * (centre + move_y)
        f = centre + b * (centre + move_x) - a * (centre + move_y)
        augment(batch[place], image, (a, b, c, -b, a, f), flip < 0.5)

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:

        def begin(first: int) -> tuple[Any, list[Any]]:
            batch = np.empty((BATCH, SIDE, SIDE, 3), np.float32)
            draws = random.random((BATCH, 5))
            return batch, [
                pool.submit(make, batch, i, data[first + i], draws[i]) for i in range(BATCH)
            ]

        def start() -> Iterable[Any]:
            ahead: collections.deque[Any] = collections.deque()
            batches = size.rounds * size.count // BATCH
            for number in range(batches + AHEAD):
                if number < batches:
                    ahead.append(begin(number * BATCH % size.count))
                if number >= AHEAD:
                    batch, parts = ahead.popleft()
                    for part in parts:
                        part.result()
                    yield batch

        return measure(size, start)


@AUGMENT.entry(PILLOW, "peer", "Image.transform, transpose; NumPy")
def pillow(size: Size) -> Figures:
    from PIL import Image

    def augment(to: Any, image: Any, matrix: Any, flip: bool) -> None:
        a, b, c, d, e, f = matrix
        # Pillow counts from the corner of a pixel.
        data = (a, b, c + 0.5 - (a + b) / 2, d, e, f + 0.5 - (d + e) / 2)
        made = Image.fromarray(image).transform(
            (SIDE, SIDE), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR
        )
        if flip:
            made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        np.subtract(np.asarray(made), MEAN, out=to)
        np.divide(to, STD, out=to)

    return in_threads(size, augment)


@AUGMENT.entry(OPENCV, "peer", "warpAffine, flip; NumPy")
def opencv(size: Size) -> Figures:
    import cv2

    cv2.setNumThreads(1)

    def augment(to: Any, image: Any, matrix: Any, flip: bool) -> None:
        made = cv2.warpAffine(
            image,
            np.array(matrix).reshape(2, 3),
            (SIDE, SIDE),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT,
        )
        if flip:
            made = cv2.flip(made, 1)
        np.subtract(made, MEAN, out=to)
        np.divide(to, STD, out=to)

    return in_threads(size, augment)


@AUGMENT.entry("torchvision, 2 threads", "peer", "v2.functional.affine, horizontal_flip")
def torchvision(size: Size) -> Figures:
    import torch
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)
    mean, std = (torch.from_numpy(each).reshape(3, 1, 1) for each in (MEAN, STD))

    def augment(to: Any, image: Any, matrix: Any, flip: bool) -> None:
        a, b, c, _, _, f = matrix
        magnified = 1 / math.hypot(a, b)
        # Its angle is clockwise, and its shift that of the image after the turn about the centre.
        centre = (SIDE - 1) / 2
        back_x, back_y = c - centre + a * centre + b * centre, f - centre - b * centre + a * centre
        made = functional.affine(
            torch.from_numpy(image).permute(2, 0, 1),
            angle=math.degrees(math.atan2(b, a)),
            translate=[
                round(-(a * back_x - b * back_y) * magnified**2),
                round(-(b * back_x + a * back_y) * magnified**2),
            ],
            scale=magnified,
            shear=[0.0, 0.0],
            interpolation=functional.InterpolationMode.BILINEAR,
        )
        if flip:
            made = functional.horizontal_flip(made)
        to[...] = ((made - mean) / std).permute(1, 2, 0).numpy()

    return in_threads(size, augment)


@AUGMENT.entry("albumentations, 2 threads", "peer", "Affine, HorizontalFlip, Normalize")
def albumentations(size: Size) -> Figures:
    import albumentations as library
    import cv2

    cv2.setNumThreads(1)
    chain = library.Compose(
        [
            library.Affine(
                rotate=(-DEGREES, DEGREES),
                translate_percent=(-MOVE, MOVE),
                scale=SCALE,
                interpolation=cv2.INTER_LINEAR,
                border_mode=cv2.BORDER_REFLECT,
                p=1,
            ),
            library.HorizontalFlip(p=0.5),
            library.Normalize(tuple(MEAN / 255), tuple(STD / 255)),
        ]
    )

    def augment(to: Any, image: Any, matrix: Any, flip: bool) -> None:
        to[...] = chain(image=image)["image"]

    return in_threads(size, augment)


@AUGMENT.entry(KERAS, "peer", "random_transform, standardize")
def keras(size: Size) -> Figures:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import scipy.ndimage  # noqa: F401  Keras needs it
    from keras.src.legacy.preprocessing.image import ImageDataGenerator

    generator = ImageDataGenerator(
        rotation_range=DEGREES,
        width_shift_range=MOVE,
        height_shift_range=MOVE,
        zoom_range=SCALE,
        horizontal_flip=True,
        fill_mode="reflect",
        featurewise_center=True,
        featurewise_std_normalization=True,
    )
    generator.mean, generator.std = MEAN, STD

    def augment(to: Any, image: Any, matrix: Any, flip: bool) -> None:
        to[...] = generator.standardize(generator.random_transform(image.astype(np.float32)))

    return in_threads(size, augment)


CASES = (AUGMENT,)

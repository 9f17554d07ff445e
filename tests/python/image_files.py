"""Pictures and their files, as Pillow makes them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

import penstock


def picture(width: int, height: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    """Something like a photograph: slopes, waves, edges and a little noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = []
    for _ in range(channels):
        slope = random.uniform(-1, 1, 2)
        wave = 40 * np.sin(x / random.uniform(5, 30) + y / random.uniform(5, 30))
        edge = 60 * (x * slope[0] + y * slope[1] > random.uniform(-0.3, 0.3) * width)
        noise = random.normal(0, 6, x.shape)
        planes.append(110 + 40 * slope[0] * x / width + wave + edge + noise)
    image = np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)
    return image[..., 0] if channels == 1 else image


def encoded(image: np.ndarray | Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """The bytes of a file."""
    made = image if isinstance(image, Image.Image) else Image.fromarray(image)
    file = io.BytesIO()
    made.save(file, kind, **options)
    return file.getvalue()


def by_pillow(data: bytes, mode: str = "RGB") -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def resized(pixels: np.ndarray, width: int, height: int, filter: Any) -> np.ndarray:
    """What Pillow makes of an image, horizontally first; Pillow 13 chooses the order itself."""
    made = Image.fromarray(pixels).resize((width, pixels.shape[0]), filter)
    return np.asarray(made.resize((width, height), filter))


def mapped(elements: list[Any], *operations: Any, **options: Any) -> list[np.ndarray]:
    """What the operations make of images or of files' bytes."""
    dataset = penstock.Dataset.items([{"image": element} for element in elements])
    for operation in operations:
        dataset = dataset.map(operation)
    with dataset.build(**{"workers": 0, **options}) as feed:
        return [np.array(element["image"]) for element in feed]


def one(element: Any, *operations: Any) -> np.ndarray:
    return mapped([element], *operations)[0]


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *before: bytes) -> bytes:
    """A PNG by its description, for kinds that Pillow does not write. `before`: more chunks."""
    head = struct.pack(">2I5B", width, height, depth, colour, 0, 0, 0)
    chunks = [chunk(b"IHDR", head), *before, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def chunk(name: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

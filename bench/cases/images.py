"""JPEGs of 500x375 at quality 90, decoded to batches of 64 images of 224x224.

Whole images are resized, to uint8; or random boxes are cut out, resized, mirrored by chance and
normalized, to float32. The files are crops of a few pictures of noise whose spectrum is that of
photographs. Pixels of whole images are compared with Pillow's. `fast=True` decodes with the less
accurate DCT, and no more than half of the size where the resize allows it; here it does not. The
limits decode as many images as an epoch has with libjpeg-turbo on two threads, accurately or as
`fast=True` does, and do nothing else: from memory, or also read from their files, as every feed has
to.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    BEST_PEER,
    WORKERS,
    Case,
    Figure,
    Figures,
    Size,
    Target,
    best_of,
    closing,
    epochs,
    expect,
    once,
)

BATCH, SIDE, WIDTH, HEIGHT = 64, 224, 500, 375
WARM = 6  # batches that do not count
# Batches, as the peers have; the default makes 10 of 38 MB, and takes new memory for each.
AHEAD = 4
MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
OURS = "penstock, 2 threads"
FAST = "penstock, 2 threads, fast=True"
DECODES = "limit: libjpeg-turbo decodes, 2 threads"
READS = "limit: files are read and decoded, 2 threads"
FAST_READS = "limit: files are read and decoded as fast=True"


# ---- the files


def scene(seed: int) -> Any:
    """Noise of every scale, the coarser the stronger: uint8 (900, 1200, 3)."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    total = np.zeros((900, 1200, 3), np.float32)
    for cells in (3, 6, 12, 25, 50, 100, 200, 400, 800):
        for channel in range(3):
            noise = Image.fromarray(rng.normal(0, 1, (cells, cells)).astype(np.float32))
            layer = np.asarray(noise.resize((1200, 900), Image.Resampling.BICUBIC))
            # Colours differ less than brightness.
            total[..., channel] += layer * (30 if channel == 0 else 8) * (6 / cells) ** 0.55
    total[..., 1:] += total[..., :1]
    return np.clip(total + 120, 0, 255).astype(np.uint8)


def folder(size: Size) -> Path:
    return size.path(f"jpegs-{size.count}")


def files(size: Size) -> list[str]:
    return [str(folder(size) / f"{i:05}.jpg") for i in range(size.count)]


def prepare(size: Size) -> None:
    from PIL import Image

    def make(part: Path) -> None:
        part.mkdir()
        rng = np.random.default_rng(7)
        scenes = [scene(seed) for seed in range(8)]
        for i in range(size.count):
            whole = scenes[i % len(scenes)]
            y, x = rng.integers(900 - HEIGHT), rng.integers(1200 - WIDTH)
            photo = Image.fromarray(whole[y : y + HEIGHT, x : x + WIDTH])
            photo.save(part / f"{i:05}.jpg", quality=90)

    once(folder(size), make)


def case(key: str, title: str, targets: list[Target]) -> Case:
    return Case(
        key,
        f"JPEG 500x375 q90, {title}, batches of 64",
        {"rate": Figure("images/s", more_is_better=True), "first": Figure("ms to the first", 1e3)},
        full={"count": 1024, "rounds": 3, "seconds": 3.0},
        quick={"count": 512, "rounds": 2, "seconds": 0.5},
        prepare=prepare,
        targets=targets,
    )


RESIZE = case(
    "images-resize",
    "resized to 224x224",
    [
        Target("rate", OURS, BEST_PEER, at_least=1.05),
        Target("rate", OURS, DECODES, at_least=0.95, says="95 % of decoding alone"),
        Target("rate", OURS, READS, at_least=0.95, says="95 % of reading and decoding"),
        Target("rate", FAST, BEST_PEER, at_least=1.4),
        Target("rate", FAST, FAST_READS, at_least=0.95, says="95 % of reading and fast decoding"),
    ],
)
CROP = case(
    "images-crop",
    "random boxes resized to 224x224, mirrored, normalized",
    [
        Target("rate", OURS, BEST_PEER, at_least=1.5),
        Target("rate", OURS, DECODES, at_least=0.9, says="90 % of decoding whole images"),
    ],
)


# ---- the work of one image


def box_of(width: int, height: int) -> tuple[int, int, int, int]:
    """As torchvision's RandomResizedCrop: left, top, width and height."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if w <= width and h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def normalized(pixels: Any) -> Any:
    pixels = pixels[:, ::-1] if random.random() < 0.5 else pixels
    return (pixels - np.float32(MEAN)) / np.float32(STD)


def by_pillow(path: str, crop: bool) -> Any:
    from PIL import Image

    with Image.open(path) as photo:
        bilinear = Image.Resampling.BILINEAR
        if not crop:
            return np.asarray(photo.resize((SIDE, SIDE), bilinear))
        x, y, w, h = box_of(*photo.size)
        pixels = photo.resize((SIDE, SIDE), bilinear, box=(x, y, x + w, y + h))
        return normalized(np.asarray(pixels))


def by_opencv(path: str, crop: bool) -> Any:
    """Libjpeg-turbo, and OpenCV's resize, which looks at four pixels alone: it is not smoothed."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(0)
    with open(path, "rb") as file:
        pixels = simplejpeg.decode_jpeg(file.read(), "RGB")
    if crop:
        x, y, w, h = box_of(pixels.shape[1], pixels.shape[0])
        pixels = pixels[y : y + h, x : x + w]
    pixels = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return normalized(pixels) if crop else pixels


# ---- the entries


def measure(size: Size, crop: bool, rounds: int, start: Callable[[], Any]) -> Figures:
    paths = files(size)

    def check(kept: list[Any], last: Any) -> None:
        counts = np.bincount(np.concatenate(kept), minlength=size.count)
        expect((counts == rounds).all(), "images are missing")
        pixels, numbers = last
        wanted = np.stack([by_pillow(paths[int(i)], False) for i in numbers])
        expect(pixels.shape == wanted.shape, f"the shape is {pixels.shape}")
        if crop:  # of other boxes: normalized they are about as bright
            expect(pixels.dtype == np.float32, f"the dtype is {pixels.dtype}")
            off = abs(float((pixels * STD + MEAN).mean() - wanted.mean()))
        else:
            off = float(np.abs(pixels.astype(float) - wanted).mean())
        expect(off < 15, f"pixels differ by {off:.0f}")

    def look(batch: Any) -> Any:
        return np.array(batch[1])

    figures = epochs(start, look, check, size.seconds, WARM)
    return {"rate": BATCH / figures["steady"], "first": figures["first"]}


def ours(size: Size, crop: bool, fast: bool = False) -> Figures:
    import penstock
    from penstock import image

    data = penstock.Dataset.files(files(size), labels=range(size.count)).shuffle(seed=1)
    data = data.map(image.decode(fast=fast, fields="bytes"))
    if crop:
        data = (
            data.map(image.random_resized_crop(SIDE, SIDE, fields="bytes"))
            .map(image.random_flip(fields="bytes"))
            .map(image.normalize(MEAN, STD, fields="bytes"))
        )
    else:
        data = data.map(image.resize(SIDE, SIDE, fields="bytes"))
    data = data.map(penstock.select("bytes", "label"))  # no paths: what the peers deliver
    data = data.batch(BATCH).repeat(size.rounds)
    with closing(data.build(workers=WORKERS, max_queue_size=AHEAD)) as feed:
        return measure(size, crop, size.rounds, lambda: feed)


class Images:
    """Images by number, and their numbers."""

    def __init__(self, paths: list[str], decode: Callable[[str, bool], Any], crop: bool) -> None:
        self.paths, self.decode, self.crop = paths, decode, crop

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return self.decode(self.paths[number], self.crop), number


def torch_workers(size: Size, crop: bool, decode: Callable[[str, bool], Any]) -> Figures:
    import torch

    loader = torch.utils.data.DataLoader(
        Images(files(size), decode, crop),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        prefetch_factor=2,
    )

    def start() -> Iterator[Any]:
        for _ in range(size.rounds):
            for pixels, numbers in loader:
                yield pixels.numpy(), numbers.numpy()

    return measure(size, crop, size.rounds, start)


def pool(size: Size, crop: bool) -> Figures:
    """Each task fills a batch; three are under way."""
    paths = files(size)

    def batch(numbers: Any) -> tuple[Any, Any]:
        pixels = np.empty((len(numbers), SIDE, SIDE, 3), np.float32 if crop else np.uint8)
        for i, number in enumerate(numbers):
            pixels[i] = by_opencv(paths[number], crop)
        return pixels, numbers

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as threads:

        def start() -> Iterator[Any]:
            waiting: collections.deque[Any] = collections.deque()
            for _ in range(size.rounds):
                order = np.random.default_rng().permutation(size.count)
                for begin in range(0, size.count, BATCH):
                    waiting.append(threads.submit(batch, order[begin : begin + BATCH]))
                    if len(waiting) > WORKERS:
                        yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        return measure(size, crop, size.rounds, start)


def mlx(size: Size, crop: bool) -> Figures:
    import mlx.data

    elements = [{"number": i, "image": path.encode()} for i, path in enumerate(files(size))]
    buffer = mlx.data.buffer_from_vector(elements)

    def start() -> Iterator[Any]:
        for _ in range(size.rounds):
            stream = buffer.shuffle().load_image("image")
            if crop:
                stream = stream.image_random_area_crop("image", (0.08, 1.0), (3 / 4, 4 / 3))
                stream = stream.image_random_h_flip("image", 0.5)
            stream = stream.image_resize("image", SIDE, SIDE)
            if crop:
                stream = stream.key_transform("image", standardized)
            for batch in stream.batch(BATCH).ordered_prefetch(WORKERS, WORKERS):
                yield batch["image"], batch["number"]

    return measure(size, crop, size.rounds, start)


def standardized(pixels: Any) -> Any:
    return (pixels - np.float32(MEAN)) / np.float32(STD)


def tensorflow(size: Size, crop: bool) -> Figures:
    import tensorflow as tf

    def load(number: Any, path: Any) -> Any:
        data = tf.io.read_file(path)
        if not crop:
            image = tf.image.resize(tf.io.decode_jpeg(data, channels=3), [SIDE, SIDE])
            return tf.cast(tf.ensure_shape(image, [SIDE, SIDE, 3]) + 0.5, tf.uint8), number
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data),
            tf.zeros([1, 0, 4]),
            min_object_covered=0,
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
        image = tf.io.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, [SIDE, SIDE]))
        return (image - MEAN) / STD, number

    data = tf.data.Dataset.from_tensor_slices((list(range(size.count)), files(size)))
    data = data.shuffle(size.count).repeat(size.rounds).map(load, num_parallel_calls=WORKERS)
    options = tf.data.Options()
    options.deterministic = False
    data = data.batch(BATCH).prefetch(WORKERS).with_options(options)
    return measure(size, crop, size.rounds, data.as_numpy_iterator)


def spdl(size: Size) -> Figures:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    scaled = spdl.io.get_video_filter_desc(
        scale_width=SIDE, scale_height=SIDE, pix_fmt="rgb24", scale_mode=None
    )

    def batch(paths: list[str]) -> tuple[Any, Any]:
        buffer = spdl.io.load_image_batch(
            paths, width=None, height=None, pix_fmt=None, filter_desc=scaled
        )
        return spdl.io.to_numpy(buffer), np.array([int(Path(path).stem) for path in paths])

    try:
        batch(files(size)[:1])
    except Exception as error:
        raise ImportError("SPDL finds no libraries of FFmpeg") from error

    def start() -> Iterator[Any]:
        for _ in range(size.rounds):
            paths = files(size)
            random.shuffle(paths)
            pipeline = PipelineBuilder().add_source(paths).aggregate(BATCH)
            built = pipeline.pipe(batch, concurrency=WORKERS).add_sink(WORKERS)
            with (running := built.build(num_threads=WORKERS)).auto_stop():
                yield from running

    return measure(size, False, size.rounds, start)


def decode_alone(size: Size, fast: bool = False, read: bool = False) -> Figures:
    import simplejpeg

    decode = functools.partial(
        simplejpeg.decode_jpeg, colorspace="RGB", fastdct=fast, fastupsample=fast
    )

    paths = [Path(path) for path in files(size)]
    stored = {path: path.read_bytes() for path in paths}

    def part(which: list[Path]) -> None:
        for path in which:
            data = path.read_bytes() if read else stored[path]
            expect(decode(data).shape == (HEIGHT, WIDTH, 3), "a size")

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as threads:
        parts = [paths[i::WORKERS] * size.rounds for i in range(WORKERS)]
        seconds = best_of(lambda: list(threads.map(part, parts)), size.seconds)
    kilobytes = sum(map(len, stored.values())) / len(stored) / 1e3
    return {"rate": len(stored) * size.rounds / seconds, "note": f"{kilobytes:.0f} kB a file"}


for of, crop in ((RESIZE, False), (CROP, True)):
    of.entry(OURS, "ours", "Dataset.files.map(image.decode()) and so on")(
        functools.partial(ours, crop=crop)
    )
    if not crop:
        of.entry(FAST, "ours", "image.decode(fast=True)", beside=FAST)(
            functools.partial(ours, crop=crop, fast=True)
        )
    of.entry("torch DataLoader, 2 workers, Pillow", "peer")(
        functools.partial(torch_workers, crop=crop, decode=by_pillow)
    )
    of.entry("torch DataLoader, 2 workers, simplejpeg + OpenCV", "peer", "not smoothed")(
        functools.partial(torch_workers, crop=crop, decode=by_opencv)
    )
    of.entry("2 threads, simplejpeg + OpenCV", "peer", "a loop by hand, not smoothed")(
        functools.partial(pool, crop=crop)
    )
    of.entry("mlx-data, 2 threads", "peer", "ordered_prefetch")(functools.partial(mlx, crop=crop))
    of.entry("tf.data, 2 threads", "peer", "not deterministic")(
        functools.partial(tensorflow, crop=crop)
    )
    of.entry(DECODES, "limit", "by simplejpeg")(decode_alone)
RESIZE.entry(READS, "limit", "by simplejpeg")(functools.partial(decode_alone, read=True))
for fast_limit, reads in (
    ("limit: libjpeg-turbo decodes as fast=True", False),
    (FAST_READS, True),
):
    RESIZE.entry(fast_limit, "limit", "by simplejpeg", beside=FAST)(
        functools.partial(decode_alone, fast=True, read=reads)
    )
RESIZE.entry("SPDL, 2 threads", "peer", "load_image_batch, bicubic")(spdl)

CASES = (RESIZE, CROP)

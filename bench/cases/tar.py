"""The JPEGs of `images.py` in tar archives: decoded, resized to 224x224, in batches of 64.

The archives have 256 samples each: a JPEG, and a number as text. penstock shuffles all samples;
webdataset the archives and a buffer of 256 samples. penstock also reads the JPEGs as single
files. SPDL's and grain's entries read the same archives through an index of their members,
which they have before the clock starts.
"""

from __future__ import annotations

import functools
import io
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import BEST_PEER, WORKERS, Case, Figures, Size, Target, closing, once

from cases import images
from cases.images import BATCH, SIDE

EACH = 256  # samples of an archive
OURS = "penstock, 2 threads"
FILES = "penstock, 2 threads, from single files"
WEBDATASET = "webdataset, 2 workers"


def folder(size: Size) -> Path:
    return size.path(f"tars-{size.count}")


def archives(size: Size) -> list[str]:
    return [str(folder(size) / f"{i:03}.tar") for i in range(-(-size.count // EACH))]


def prepare(size: Size) -> None:
    images.prepare(size)

    def make(part: Path) -> None:
        part.mkdir()
        paths = images.files(size)
        for number, path in enumerate(archives(size)):
            with tarfile.open(part / Path(path).name, "w", format=tarfile.USTAR_FORMAT) as tar:
                for i in range(number * EACH, min((number + 1) * EACH, size.count)):
                    for name, data in (
                        (f"{i:05}.jpg", Path(paths[i]).read_bytes()),
                        (f"{i:05}.cls", str(i).encode()),
                    ):
                        member = tarfile.TarInfo(name)
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))

    once(folder(size), make)


CASE = Case(
    "tar",
    "tar of JPEG 500x375 q90, resized to 224x224, batches of 64",
    images.RESIZE.figures,
    full=images.RESIZE.full,
    quick=images.RESIZE.quick,
    prepare=prepare,
    targets=[
        Target("rate", OURS, FILES, at_least=0.97, says="not slower, but for noise"),
        Target("rate", OURS, WEBDATASET, at_least=3),
        Target("rate", OURS, BEST_PEER, at_least=1),
    ],
)


@CASE.entry(OURS, "ours", "Dataset.tar.map(image.decode()) and so on")
def ours(size: Size) -> Figures:
    import penstock
    from penstock import image

    data = penstock.Dataset.tar(archives(size), fields=["jpg", "cls"]).shuffle(seed=1)
    data = data.map(image.decode(fields="jpg")).map(image.resize(SIDE, SIDE, fields="jpg"))
    with closing(data.batch(BATCH).repeat(size.rounds).build(workers=WORKERS)) as feed:

        def start() -> Iterator[Any]:
            for batch in feed:
                yield batch["jpg"], np.array([int(bytes(number)) for number in batch["cls"]])

        return images.measure(size, False, size.rounds, start)


@CASE.entry(FILES, "ours", "Dataset.files", beside=FILES)
def from_files(size: Size) -> Figures:
    return images.ours(size, crop=False)


def decoded(data: bytes) -> Any:
    """By libjpeg-turbo and OpenCV, which does not smooth."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(0)
    pixels = simplejpeg.decode_jpeg(data, "RGB")
    return cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)


def decoded_by_pillow(data: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as photo:
        return np.asarray(photo.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def of_webdataset(sample: dict[str, Any], decode: Callable[[bytes], Any]) -> tuple[Any, int]:
    return decode(sample["jpg"]), int(sample["cls"])


def webdataset(size: Size, decode: Callable[[bytes], Any]) -> Figures:
    import torch
    import webdataset as wds

    data = (
        wds.WebDataset(archives(size), shardshuffle=100, empty_check=False)
        .shuffle(EACH)
        .map(functools.partial(of_webdataset, decode=decode))
        .batched(BATCH)
    )
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=WORKERS, persistent_workers=True, prefetch_factor=2
    )

    def start() -> Iterator[Any]:
        for _ in range(size.rounds):
            for pixels, numbers in loader:
                yield np.asarray(pixels), np.asarray(numbers)

    return images.measure(size, False, size.rounds, start)


# A member of an archive: its path, where its bytes begin, their number, and the sample's number.
Member = tuple[str, int, int, int]


def members(size: Size) -> list[Member]:
    found = []
    for path in archives(size):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    found.append((path, member.offset_data, member.size, int(member.name[:5])))
    return found


def loaded(member: Member) -> tuple[Any, int]:
    path, offset, count, number = member
    with open(path, "rb") as file:
        file.seek(offset)
        return decoded(file.read(count)), number


def stacked(pairs: list[Any]) -> tuple[Any, Any]:
    return np.stack([pixels for pixels, _ in pairs]), np.array([number for _, number in pairs])


def spdl(size: Size) -> Figures:
    from spdl.pipeline import PipelineBuilder

    index = members(size)

    def start() -> Iterator[Any]:
        for _ in range(size.rounds):
            order = random.sample(index, len(index))
            pipeline = PipelineBuilder().add_source(order).pipe(loaded, concurrency=WORKERS)
            built = pipeline.aggregate(BATCH).pipe(stacked).add_sink(WORKERS)
            with (running := built.build(num_threads=WORKERS)).auto_stop():
                yield from running

    return images.measure(size, False, size.rounds, start)


def grain(size: Size) -> Figures:
    import grain as library

    data = library.MapDataset.source(members(size)).shuffle(3).map(loaded).batch(BATCH)
    options = library.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=4)

    def start() -> Iterator[Any]:
        for _ in range(size.rounds):
            yield from data.to_iter_dataset(options)

    return images.measure(size, False, size.rounds, start)


CASE.entry(WEBDATASET, "peer", "Pillow")(functools.partial(webdataset, decode=decoded_by_pillow))
CASE.entry("webdataset, 2 workers, simplejpeg + OpenCV", "peer", "not smoothed")(
    functools.partial(webdataset, decode=decoded)
)
CASE.entry("SPDL, 2 threads, simplejpeg + OpenCV", "peer", "members by an index, not smoothed")(
    spdl
)
CASE.entry("grain, 2 threads, simplejpeg + OpenCV", "peer", "members by an index, not smoothed")(
    grain
)

CASES = (CASE,)

"""Samples: a crop, flip, colour, blur and normalise in NumPy, 96x96x3, in batches of 64."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
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
    closing,
    epochs,
    exactly_once,
    expect,
    keep_heap,
    once,
)
from peers import grain_processes, grain_threads, keras_epoch, side_by_side, torch_loader

BATCH, SIDE, CROP, IMAGES = 64, 96, 80, 500
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
SPREAD = np.array([0.229, 0.224, 0.225], np.float32)
GREY = np.array([0.299, 0.587, 0.114], np.float32)


def blur(image: Any, axis: int) -> Any:
    """A 1-2-1 blur along one axis, edges repeated."""
    edges: list[Any] = [(0, 0)] * 3
    edges[axis] = (1, 1)
    wide = np.pad(image, edges, "edge")
    before = wide[:-2] if axis == 0 else wide[:, :-2]
    after = wide[2:] if axis == 0 else wide[:, 2:]
    return image * 0.5 + (before + after) * 0.25


def augment(image: Any, k: int) -> Any:
    """Draw everything from `k` alone, so that any batch can be checked."""
    draw = (k * 2654435761 + 12345) & 0xFFFFFFFF
    top, left = draw % (SIDE - CROP + 1), (draw >> 8) % (SIDE - CROP + 1)
    out = image[top : top + CROP, left : left + CROP]
    if draw >> 16 & 1:
        out = out[:, ::-1]
    out = out.astype(np.float32) * (1 / 255)
    out *= 0.8 + 0.4 * (draw >> 17 & 255) / 255
    colour = np.float32(0.6 + 0.8 * (draw >> 24 & 255) / 255)
    out = out * colour + ((out @ GREY) * (1 - colour))[..., None]
    out = blur(blur(out, 0), 1)
    np.clip(out, 0, 1, out=out)
    out -= MEAN
    out /= SPREAD
    return np.ascontiguousarray(out.transpose(2, 0, 1))


def images_file(size: Size) -> str:
    return str(size.path(f"images-{IMAGES}x{SIDE}.npy"))


def prepare(size: Size) -> None:
    def make(part: Any) -> None:
        rng = np.random.default_rng(3)
        with open(part, "wb") as file:
            np.save(file, rng.integers(0, 256, (IMAGES, SIDE, SIDE, 3), np.uint8))

    once(size.path(f"images-{IMAGES}x{SIDE}.npy"), make)


class Samples:
    """(number, image); opens the images at the first request, so its pickle is small."""

    def __init__(self, path: str, count: int) -> None:
        self.path, self.count = path, count
        self.images: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> tuple[int, Any]:
        if self.images is None:
            self.images = np.load(self.path)
        k = int(k)
        return k, augment(self.images[k % IMAGES], k)


def samples(size: Size) -> Samples:
    return Samples(images_file(size), size.count)


def stack(items: list[tuple[int, Any]]) -> tuple[Any, Any]:
    return np.array([k for k, _ in items]), np.stack([image for _, image in items])


def batch(data: Samples, number: int) -> tuple[Any, Any]:
    first = number * BATCH
    return stack([data[k] for k in range(first, min(first + BATCH, len(data)))])


def measure(
    size: Size, start: Callable[[], Any], numpy_of: Callable[[Any], Any] = np.asarray
) -> Figures:
    data = samples(size)

    def check(kept: list[Any], last: Any) -> None:
        exactly_once(kept, size.count)
        ids, images = numpy_of(last[0]), numpy_of(last[1])
        wanted = np.stack([data[int(k)][1] for k in ids])
        expect(np.allclose(images, wanted, atol=1e-5), "a batch is not what was made")

    def look(batch: Any) -> Any:
        return np.array(numpy_of(batch[0]))

    figures = epochs(start, look, check, size.seconds, began=time.perf_counter())
    rate = size.count / -(-size.count // BATCH) / figures["steady"]
    return {"rate": rate, "first": figures["first"]}


OURS = "penstock, 2 processes"
DATASET = "penstock.Dataset.map, 2 processes"
LIMIT, LIMIT_FREED = "limit: two loops, heap kept", "limit: two loops, malloc as it comes"
SPDL_POOL = "SPDL iterate_in_subprocess x2, segment pool"
CASE = Case(
    "samples",
    "an augmentation in NumPy, 96x96x3, batches of 64",
    {
        "rate": Figure("samples/s", more_is_better=True),
        "first": Figure("ms to the first batch", 1e3, compared=False),
    },
    full={"count": 20_000, "seconds": 3.0},
    quick={"count": 6_400, "seconds": 0.1},
    prepare=prepare,
    targets=[
        Target("rate", OURS, LIMIT, at_least=0.94, says="94 % of the limit"),
        Target("rate", OURS, BEST_PEER, at_least=1.25),
        Target("rate", DATASET, LIMIT, at_least=0.94, says="94 % of the limit"),
        Target("rate", DATASET, BEST_PEER, at_least=1.25),
    ],
)


@CASE.entry(OURS, "ours", "shuffled, queue of 8")
def ours(size: Size) -> Figures:
    import penstock

    loader = penstock.Loader(
        samples(size),
        batch_size=BATCH,
        shuffle=True,
        workers=WORKERS,
        use_multiprocessing=True,
        max_queue_size=8,
    )
    with closing(loader) as feed:
        return measure(size, lambda: feed)


@CASE.entry(DATASET, "ours", "range.shuffle.map(the augmentation).batch, queue of 8")
def ours_dataset(size: Size) -> Figures:
    import penstock

    numbers = penstock.Dataset.range(size.count).shuffle(seed=1)
    chain = numbers.map(samples(size).__getitem__).batch(BATCH)
    with closing(chain.build(workers=WORKERS, max_queue_size=8)) as feed:
        return measure(size, lambda: feed)


@CASE.entry("penstock, 2 threads", "ours", "shuffled, queue of 8", quick=False)
def ours_threads(size: Size) -> Figures:
    import penstock

    loader = penstock.Loader(
        samples(size), batch_size=BATCH, shuffle=True, workers=WORKERS, max_queue_size=8
    )
    with closing(loader) as feed:
        return measure(size, lambda: feed)


def of_torch(x: Any) -> Any:
    return x.numpy()


def torch_stack(items: list[tuple[int, Any]]) -> Any:
    import torch

    return tuple(torch.from_numpy(part) for part in stack(items))


def torch(size: Size, **options: Any) -> Figures:
    loader = torch_loader(
        samples(size), batch_size=BATCH, shuffle=True, prefetch_factor=4, **options
    )
    return measure(size, lambda: loader, of_torch)


@CASE.entry("torch DataLoader, 2 processes", "peer", "shuffled, prefetch_factor 4")
def torch_default(size: Size) -> Figures:
    return torch(size)


@CASE.entry("torch DataLoader, NumPy collate, heap kept", "peer", "mallopt by hand", quick=False)
def torch_kept(size: Size) -> Figures:
    return torch(size, collate_fn=torch_stack, worker_init_fn=keep_heap)


def keras(size: Size, processes: bool) -> Figures:
    data = samples(size)
    epoch = keras_epoch(
        lambda number: batch(data, number),
        -(-size.count // BATCH),
        workers=WORKERS,
        use_multiprocessing=processes,
        max_queue_size=10,
    )
    return measure(size, epoch)


@CASE.entry("Keras PyDataset, 2 processes", "peer", "max_queue_size 10")
def keras_processes(size: Size) -> Figures:
    return keras(size, True)


@CASE.entry(
    "Keras PyDataset, 2 threads",
    "peer",
    "max_queue_size 10",
    quick=False,
    beside="penstock, 2 threads",
)
def keras_threads(size: Size) -> Figures:
    return keras(size, False)


@CASE.entry(
    "grain mp_prefetch, 2 processes", "peer", "shuffled, 4 buffered per worker", quick=False
)
def grain_in_processes(size: Size) -> Figures:
    import grain

    data = grain.MapDataset.source(samples(size)).shuffle(1).batch(BATCH, batch_fn=stack)
    data = grain_processes(data, 4)
    return measure(size, lambda: data)


@CASE.entry("grain, 2 threads", "peer", "shuffled, prefetch_buffer_size 4", quick=False)
def grain_in_threads(size: Size) -> Figures:
    import grain

    data = grain.MapDataset.source(samples(size)).shuffle(1).batch(BATCH, batch_fn=stack)
    data = grain_threads(data, 4)
    return measure(size, lambda: data)


class Share:
    """Every second batch, for one of two subprocesses."""

    def __init__(self, data: Samples, part: int) -> None:
        self.data, self.part = data, part

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.part, -(-len(self.data) // BATCH), WORKERS):
            yield batch(self.data, number)


@CASE.entry(SPDL_POOL, "peer", "two subprocesses, merged in turns")
def spdl_pool(size: Size) -> Figures:
    import functools

    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    bytes_of_batch = 4 * 3 * CROP * CROP * BATCH + 65536
    shares = [
        iterate_in_subprocess(
            functools.partial(Share, samples(size), part),
            buffer_size=4,
            arena=SharedMemorySegmentPool(bytes_of_batch, 8),
        )
        for part in range(WORKERS)
    ]

    def epoch() -> Iterator[Any]:
        running = [iter(share) for share in shares]
        while running:
            for one in list(running):
                try:
                    made = next(one)
                except StopIteration:
                    running.remove(one)
                else:
                    yield made

    return measure(size, epoch)


@CASE.entry("tf.data from_generator", "peer", "one Python loop, prefetch 4", quick=False)
def tf_data(size: Size) -> Figures:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import tensorflow as tf

    data = samples(size)
    batches = tf.data.Dataset.from_generator(
        lambda: (batch(data, number) for number in range(-(-size.count // BATCH))),
        output_signature=(
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None, 3, CROP, CROP], tf.float32),
        ),
    ).prefetch(4)
    return measure(size, batches.as_numpy_iterator)


@CASE.entry("in line", "peer", "one loop, np.stack")
def in_line(size: Size) -> Figures:
    data = samples(size)
    return measure(size, lambda: (batch(data, k) for k in range(-(-size.count // BATCH))))


def limit_loop(path: str, count: int, kept: bool, part: int) -> float:
    """One of two processes: every second sample, no batches. Seconds per sample."""
    if kept:
        keep_heap()
    data = Samples(path, count)
    for k in range(200):
        data[k]
    mine = range(part, min(count, 10_000), WORKERS)
    began = time.perf_counter()
    for k in mine:
        data[k]
    return (time.perf_counter() - began) / len(mine)


def limit(size: Size, kept: bool) -> Figures:
    _, each = side_by_side("cases.samples", "limit_loop", images_file(size), size.count, kept)
    return {"rate": sum(1 / seconds for seconds in each)}


CASE.entry(LIMIT, "limit", "mallopt: freed memory stays")(lambda size: limit(size, True))
CASE.entry(LIMIT_FREED, "limit", quick=False)(lambda size: limit(size, False))

CASES = [CASE]

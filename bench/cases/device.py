"""Batches that are on a GPU when the step asks for them, by the clock of the GPU.

Without a GPU that torch can use, these entries are "not installed".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    cpu_seconds,
    expect,
)
from peers import torch_loader

DEVICE = "cuda:0"
WARM = 20  # steps before the clock: until all buffers have pages, and are pinned


def torch_on_gpu() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise ImportError("no GPU that torch can use")
    torch.zeros(1, device=DEVICE)  # the context, which a model on the device has made
    return torch


class Rows:
    """Samples that lie in memory: views of arrays, as tensors."""

    def __init__(self, images: np.ndarray, passes: int) -> None:
        import torch

        self.images = torch.from_numpy(images)
        self.passes = passes

    def __len__(self) -> int:
        return len(self.images) * self.passes

    def __getitem__(self, index: int) -> tuple[Any, int]:
        at = index % len(self.images)
        return self.images[at], at


def pinned_loader(images: np.ndarray, passes: int, batch: int, **options: Any) -> Iterator[Any]:
    """Today's way: torch's DataLoader with pinned memory, and copies that do not wait."""
    loader = torch_loader(
        Rows(images, passes), batch_size=batch, pin_memory=True, drop_last=True, **options
    )
    for x, y in loader:
        yield x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)


def steps_of(
    torch: Any, batches: Iterable[tuple[Any, Any]], step: Callable[[Any, Any], None]
) -> Figures:
    """Run a step for each batch.

    Returns the share of the time that the device was not in a step, the time of a step with its
    wait, and the cores that the host kept busy.
    """
    events, labels = [], []
    cpu = cpu_seconds()
    began = time.perf_counter()
    for x, y in batches:
        if len(events) == WARM:
            torch.cuda.synchronize()
            cpu, began = cpu_seconds(), time.perf_counter()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step(x, y)
        end.record()
        events.append((start, end))
        labels.append((y[0].clone(), x.flatten()[0].clone()))
        del x, y
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    used = cpu_seconds() - cpu
    for y, first in labels:
        expect(int(first) == int(y) % 251, "a batch is not the one of its labels")
    timed = events[WARM:]
    span = timed[0][0].elapsed_time(timed[-1][1])
    busy = sum(start.elapsed_time(end) for start, end in timed)
    return {
        "idle": 1 - busy / span,
        "step": seconds / len(timed),
        "cores": used / seconds,
    }


def marked(images: np.ndarray) -> np.ndarray:
    """Images whose first value tells their number."""
    images[:, 0, 0, 0] = np.arange(len(images)) % 251
    return images


def sleep_of(torch: Any, seconds: float) -> Callable[[Any, Any], None]:
    """A step that keeps the device busy for so long, and reads all of the batch."""
    cycles = 10_000_000
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        cycles = int(cycles * seconds * 1e3 / start.elapsed_time(end))

    def step(x: Any, _: Any) -> None:
        x.sum()
        torch.cuda._sleep(cycles)

    return step


# ---- batches of 154 MB ---------------------------------------------------------------------------

FED = "penstock.torch.feed, threads"
FED_PROCESSES = "penstock.torch.DataLoader, processes"
PINNED = "torch DataLoader, pin_memory, non_blocking"
LINK = "copies out of pinned memory"
GATHERED = "threads that gather into pinned memory, and copies"
BUSY = {"idle": Figure("% of the time", 100, compared=False), "cores": Figure("cores of the host")}

LARGE = Case(
    "device-large",
    "batches of 154 MB (256x224x224x3 float32) from memory, a step of 20 ms: the device is idle",
    BUSY,
    full={"count": 100, "seconds": 0.02},
    quick={"count": 40, "seconds": 0.02},
    targets=[Target("idle", FED, at_most=0.01, says="idle under 1 %")],
    on_device=True,
)
SPEED = Case(
    "device-link",
    "batches of 154 MB from memory to the device, nothing computed",
    {"rate": Figure("GB/s", 1e-9, more_is_better=True), "cores": Figure("cores of the host")},
    full={"count": 100},
    quick={"count": 40},
    targets=[Target("rate", FED, GATHERED, at_least=0.95, says="0.95 of gathering and copying")],
    on_device=True,
)


def large_images() -> np.ndarray:
    return marked(np.full((512, 224, 224, 3), 0.5, np.float32))


def fed(images: np.ndarray, passes: int, batch: int) -> Iterator[tuple[Any, Any]]:
    import penstock

    rows = penstock.Dataset.arrays({"x": images, "y": np.arange(len(images))})
    chain = rows.shuffle(seed=1).repeat(passes).batch(batch, drop_last=True)
    with penstock.torch.feed(chain, device=DEVICE, workers=WORKERS) as feed:
        for one in feed:
            yield one["x"], one["y"]


def fed_by_processes(images: np.ndarray, passes: int, batch: int) -> Iterator[tuple[Any, Any]]:
    import penstock.torch

    loader = penstock.torch.DataLoader(
        Rows(images, passes), batch, num_workers=WORKERS, device=DEVICE, drop_last=True
    )
    with loader:
        yield from loader


def by_pinning(images: np.ndarray, passes: int, batch: int) -> Iterator[tuple[Any, Any]]:
    return pinned_loader(images, passes, batch)


Feed = Callable[[np.ndarray, int, int], Iterable[tuple[Any, Any]]]
FEEDS: list[tuple[str, str, Feed]] = [
    (FED, "ours", fed),
    (FED_PROCESSES, "ours", fed_by_processes),
    (PINNED, "peer", by_pinning),
]


def add_large(name: str, role: str, feed: Feed) -> None:
    @LARGE.entry(name, role)
    def idle(size: Size) -> Figures:
        torch = torch_on_gpu()
        batches = feed(large_images(), size.count // 2, 256)
        return steps_of(torch, batches, sleep_of(torch, size.seconds))

    @SPEED.entry(name, role)
    def rate(size: Size) -> Figures:
        torch = torch_on_gpu()
        images = large_images()
        found = steps_of(torch, feed(images, size.count // 2, 256), lambda x, y: None)
        return {"rate": images.nbytes / 2 / found["step"], "cores": found["cores"]}


for way in FEEDS:
    add_large(*way)


@SPEED.entry(LINK, "limit")
def link(size: Size) -> Figures:
    torch = torch_on_gpu()
    images = torch.from_numpy(large_images()[:256]).pin_memory()
    there = torch.empty_like(images, device=DEVICE)
    pairs = ((there.copy_(images, non_blocking=True), torch.zeros(1)) for _ in range(size.count))
    found = steps_of(torch, ((x, y + 0.5) for x, y in pairs), lambda x, y: None)
    return {"rate": images.nbytes / found["step"], "cores": found["cores"]}


@SPEED.entry(GATHERED, "limit")
def gathered(size: Size) -> Figures:
    torch = torch_on_gpu()
    images = large_images()
    order = np.random.default_rng(1).permutation(len(images))
    slots = [torch.empty(256, 224, 224, 3).pin_memory() for _ in range(3)]
    copied = [torch.cuda.Event() for _ in slots]
    there = torch.empty(256, 224, 224, 3, device=DEVICE)
    shares = np.array_split(np.arange(256), WORKERS)

    def batches() -> Iterator[tuple[Any, Any]]:
        with ThreadPoolExecutor(WORKERS) as threads:
            for k in range(size.count):
                slot, event = slots[k % 3], copied[k % 3]
                event.synchronize()
                rows, to = order[k % 2 * 256 :][:256], slot.numpy()

                def gather(share: Any, rows: Any = rows, to: Any = to) -> None:
                    for at in share:
                        np.copyto(to[at], images[rows[at]])

                list(threads.map(gather, shares))
                there.copy_(slot, non_blocking=True)
                event.record()
                yield there, torch.tensor(rows[:1])

    found = steps_of(torch, batches(), lambda x, y: None)
    return {"rate": images.nbytes / 2 / found["step"], "cores": found["cores"]}


# ---- ResNet-50 -----------------------------------------------------------------------------------

STAYS = "the step alone, on a batch that stays there"
BESIDE = "the step beside a copy of a batch out of pinned memory"
RESNET = Case(
    "device-resnet",
    "ResNet-50 in bfloat16, 224x224x3 bytes, batch 256: training",
    {
        "rate": Figure("images/s", more_is_better=True),
        "cores": Figure("cores of the host", compared=True),
        "idle": Figure("% of the time", 100, compared=False),
    },
    full={"count": 60},
    quick={"count": 24},
    targets=[
        Target("rate", FED, STAYS, at_least=0.99, says="the step's own rate within 1 %"),
        Target("rate", FED, BESIDE, at_least=0.99, says="the rate beside a bare copy within 1 %"),
        Target("cores", FED, BEST_PEER, at_least=1, says="with the fewest cores of the host"),
    ],
    on_device=True,
)


def resnet_step(torch: Any) -> Callable[[Any, Any], None]:
    import torchvision

    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(x: Any, y: Any) -> None:
        x = x.permute(0, 3, 1, 2).to(torch.bfloat16).div_(255)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model(x), y % 1000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def resnet(feed: Feed, size: Size) -> Figures:
    torch = torch_on_gpu()
    images = np.random.default_rng(0).integers(0, 255, (2048, 224, 224, 3), np.uint8)
    step = resnet_step(torch)
    blank = torch.zeros(256, 224, 224, 3, dtype=torch.uint8, device=DEVICE)
    for _ in range(3):  # cuDNN tries its algorithms
        step(blank, torch.zeros(256, dtype=torch.int64, device=DEVICE))
    torch.cuda.synchronize()
    found = steps_of(torch, feed(marked(images), size.count // 8, 256), step)
    return {"rate": 256 / found["step"], "cores": found["cores"], "idle": found["idle"]}


def add_resnet(name: str, role: str, feed: Feed) -> None:
    @RESNET.entry(name, role)
    def train(size: Size) -> Figures:
        return resnet(feed, size)


for way in FEEDS:
    add_resnet(*way)


@RESNET.entry(STAYS, "limit")
def step_alone(size: Size) -> Figures:
    def same(images: np.ndarray, passes: int, batch: int) -> Iterator[tuple[Any, Any]]:
        import torch

        x = torch.from_numpy(images[:batch]).to(DEVICE)
        y = torch.arange(batch, device=DEVICE)
        return ((x, y) for _ in range(passes * (len(images) // batch)))

    return resnet(same, size)


@RESNET.entry(BESIDE, "limit", "cudaMemcpyAsync on a stream of its own, nothing made by the host")
def step_beside(size: Size) -> Figures:
    def copied(images: np.ndarray, passes: int, batch: int) -> Iterator[tuple[Any, Any]]:
        import torch

        x = torch.from_numpy(images[:batch]).pin_memory()
        there = [x.to(DEVICE) for _ in range(2)]
        y = torch.arange(batch, device=DEVICE)
        copies = torch.cuda.Stream()
        for k in range(passes * (len(images) // batch)):
            copies.wait_stream(torch.cuda.current_stream())
            yield there[k % 2], y
            with torch.cuda.stream(copies):
                there[1 - k % 2].copy_(x, non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)

    return resnet(copied, size)


# ---- 200 ms to load, 200 ms to train -------------------------------------------------------------

OVERLAP = Case(
    "device-overlap",
    "200 ms to load and 200 ms to train, a worker: ms per step",
    {"step": Figure("ms per step", 1e3)},
    full={"count": 24, "seconds": 0.2},
    quick={"count": 14, "seconds": 0.2},
    targets=[Target("step", "penstock.torch.DataLoader", at_most=0.202, says="202 ms")],
    on_device=True,
)


class Slow:
    """Batches that take their time."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        began = time.perf_counter()
        x = np.full((64, 224, 224, 3), index % 251, np.uint8)
        time.sleep(max(0.0, self.seconds - (time.perf_counter() - began)))
        return x, np.full(64, index)


def overlap(size: Size, batches: Iterable[tuple[Any, Any]]) -> Figures:
    torch = torch_on_gpu()
    return {"step": steps_of(torch, batches, sleep_of(torch, size.seconds))["step"]}


@OVERLAP.entry("penstock.torch.DataLoader", "ours")
def overlap_ours(size: Size) -> Figures:
    import penstock.torch

    torch_on_gpu()
    data = Slow(size.count, size.seconds)
    with penstock.torch.DataLoader(data, None, num_workers=1, device=DEVICE) as loader:
        return overlap(size, loader)


@OVERLAP.entry("torch DataLoader, pin_memory", "peer")
def overlap_torch(size: Size) -> Figures:
    torch_on_gpu()
    data = Slow(size.count, size.seconds)
    loader = torch_loader(data, batch_size=None, num_workers=1, pin_memory=True)
    sent = (tuple(part.to(DEVICE, non_blocking=True) for part in batch) for batch in loader)
    return overlap(size, sent)


@OVERLAP.entry("in line", "peer")
def overlap_inline(size: Size) -> Figures:
    torch = torch_on_gpu()
    data = Slow(size.count, size.seconds)

    def sent() -> Iterator[tuple[Any, Any]]:
        for k in range(size.count):
            x, y = (torch.from_numpy(part).to(DEVICE) for part in data[k])
            yield x, y
            torch.cuda.synchronize()  # as a loop that prints its loss

    return overlap(size, sent())


# ---- the first batch -----------------------------------------------------------------------------

THERE = "penstock.torch.feed, on the device"
FIRST = Case(
    "device-first",
    "the first batch of 38 MB on the device, later than in memory",
    {"later": Figure("ms", 1e3, compared=False), "first": Figure("ms", 1e3)},
    full={"count": 7},
    quick={"count": 3},
    targets=[Target("later", THERE, at_most=0.05, says="under 50 ms after the host's first batch")],
    on_device=True,
)


@FIRST.entry(THERE, "ours")
def first(size: Size) -> Figures:
    import penstock

    torch = torch_on_gpu()
    images = marked(np.zeros((1024, 224, 224, 3), np.uint8))
    rows = penstock.Dataset.arrays({"x": images, "y": np.arange(len(images))})
    chain = rows.shuffle(seed=1).batch(256)

    def until_there(device: str | None) -> float:
        began = time.perf_counter()
        with penstock.torch.feed(chain, device=device, workers=WORKERS) as feed:
            batch = next(iter(feed))
            batch["x"].flatten()[:1].tolist()  # waits for it
            return time.perf_counter() - began

    until_there(None)
    here = np.median([until_there(None) for _ in range(size.count)])
    cold = until_there(DEVICE)  # the driver meets penstock
    there = np.median([until_there(DEVICE) for _ in range(size.count)])
    torch.cuda.synchronize()
    return {"later": max(cold, there) - here, "first": cold, "warm": there - here, "host": here}


CASES = [LARGE, SPEED, RESNET, OVERLAP, FIRST]

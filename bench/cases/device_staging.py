"""The CPU time of the consumer's thread to stage a batch on a device and take it.

The driver is that of the tests: its calls enqueue work for a thread, which takes longer than those
of a real one. So this is no statement about a link. As in a feed, two more batches are in transfer;
as in torch's threads, the device's context is current.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Figure, Figures, Size, Target, once

SOURCE = Path(__file__).resolve().parents[2] / "tests/cpp/device/fake_driver.cc"
OURS = "penstock, a dict of two arrays"


def library(size: Size) -> Path:
    return size.path("libfake_cuda.so")


def prepare(size: Size) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return
    if library(size).exists() and library(size).stat().st_mtime < SOURCE.stat().st_mtime:
        library(size).unlink()

    def build(part: Path) -> None:
        flags = ["-std=c++20", "-O3", "-shared", "-fPIC", "-pthread"]
        subprocess.run([compiler, *flags, str(SOURCE), "-o", str(part)], check=True)

    once(library(size), build)


CASE = Case(
    "device_staging",
    "a batch staged and taken, the consumer's CPU time, with a driver for tests",
    {
        "cpu": Figure("us per batch", 1e6, compared=False),
        "copies": Figure("copies per batch", compared=False),
        "calls": Figure("calls of the driver", compared=False),
    },
    full={"count": 20_000},
    quick={"count": 5_000},
    prepare=prepare,
    targets=[
        Target("cpu", OURS, at_most=20e-6, says="under 20 us"),
        Target("copies", OURS, at_most=1.0, says="one copy"),
    ],
)


def driver_for_tests(size: Size) -> ctypes.CDLL:
    """Return the driver, which penstock uses too; batches are taken without torch."""
    from penstock.device import place

    if not library(size).exists():
        raise ImportError("no C++ compiler")
    driver = ctypes.CDLL(str(library(size)))
    driver.fake_get.restype = ctypes.c_long
    place.library = str(library(size))
    place.tensors_from = lambda staged: staged.take(1)
    return driver


@CASE.entry(OURS, "ours")
def staged(size: Size) -> Figures:
    from penstock.device import place

    driver = driver_for_tests(size)
    context = ctypes.c_void_p()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxPushCurrent_v2(context)
    device = place.CudaDevice(0)
    batch = {"x": np.zeros((32, 32), np.float32), "y": np.arange(32)}
    rounds, each = 20, size.count // 20
    best = float("inf")
    sent = deque(device.send(batch) for _ in range(2))
    calls = driver.fake_get(b"calls")
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(each):
            sent.append(device.send(batch))
            device.deliver(sent.popleft())
        best = min(best, (time.thread_time() - began) / each)
    calls = driver.fake_get(b"calls") - calls
    stats = device.stats()
    sent.clear()
    device.close()
    copies = stats["copies"] / stats["batches"]
    return {"cpu": best, "copies": copies, "calls": calls / (rounds * each)}


FEED = "penstock.torch.feed"
FIRST = Case(
    "device_first_staging",
    "the first batch of 38 MB staged and taken, the consumer's CPU time, with a driver for tests",
    {
        "cpu": Figure("ms", 1e3, compared=False),
        "calls": Figure("calls of the driver", compared=False),
        "pinned": Figure("MB pinned", 1e-6, compared=False),
        "copied": Figure("MB copied", 1e-6, compared=False),
    },
    full={"count": 9},
    quick={"count": 3},
    prepare=prepare,
    targets=[Target("cpu", FEED, at_most=5e-3, says="a tenth of the 50 ms of device-first")],
)


class Clocked:
    """A place, and the CPU time of the thread that sends to it and takes from it."""

    def __init__(self, place: Any) -> None:
        self.place, self.cpu = place, 0.0

    def send(self, batch: Any) -> Any:
        return self.clocked(self.place.send, batch)

    def deliver(self, sent: Any) -> Any:
        return self.clocked(self.place.deliver, sent)

    def clocked(self, function: Callable[[Any], Any], argument: Any) -> Any:
        began = time.thread_time()
        result = function(argument)
        self.cpu += time.thread_time() - began
        return result


@FIRST.entry(FEED, "ours")
def first(size: Size) -> Figures:
    import penstock.torch
    from penstock.device import place

    driver = driver_for_tests(size)
    driver.fake_set(b"unfilled", 1)  # the device's memory is no work of the host
    place.check_torch = lambda: None
    images = np.ones((1024, 224, 224, 3), np.uint8)
    rows = penstock.Dataset.arrays({"x": images, "y": np.arange(len(images))})
    found = []
    for _ in range(size.count):
        calls, copied = driver.fake_get(b"calls"), driver.fake_get(b"bytes copied")
        with penstock.torch.feed(rows.batch(256), device="cuda:0", workers=2) as feed:
            feed._way = clock = Clocked(feed._place)
            batch = next(iter(feed))
            found.append(
                {
                    "cpu": clock.cpu,
                    "calls": driver.fake_get(b"calls") - calls,
                    "pinned": driver.fake_get(b"pinned in use"),
                    "copied": driver.fake_get(b"bytes copied") - copied,
                }
            )
            del batch
    return {key: float(np.median([each[key] for each in found])) for key in found[0]}


CASES = [CASE, FIRST]

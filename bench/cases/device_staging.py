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
from pathlib import Path

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


@CASE.entry(OURS, "ours")
def staged(size: Size) -> Figures:
    from penstock.device import place

    if not library(size).exists():
        raise ImportError("no C++ compiler")
    driver = ctypes.CDLL(str(library(size)))
    driver.fake_get.restype = ctypes.c_long
    context = ctypes.c_void_p()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxPushCurrent_v2(context)
    place.library = str(library(size))
    place.tensors_from = lambda staged: staged.take(1)  # without torch
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


CASES = [CASE]

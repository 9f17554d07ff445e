"""Train on minibatches of an HDF5 file, while the next ones are being loaded.

Run as ``python examples/hdf5.py [file.h5]``. The file has X, rows of any shape, and Y, a number for
each row; without a file, one is written. A linear model is trained in NumPy: first with slices that
h5py reads in the training loop, then with batches that penstock reads meanwhile. Prints how long
the model waited for data.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

import penstock

BATCH = 128


def write_example(path: Path, rows: int = 4096) -> None:
    """Write noisy images of 3 x 64 x 64, compressed, and their mean brightness."""
    random = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        x = file.create_dataset(
            "X", (rows, 3, 64, 64), np.uint8, chunks=(64, 3, 64, 64), compression="gzip"
        )
        y = file.create_dataset("Y", (rows,), np.float32)
        for begin in range(0, rows, 64):
            level = random.integers(20, 200, (64, 1, 1, 1))
            noise = random.integers(0, 16, (64, 3, 64, 64))
            x[begin : begin + 64] = (level + noise).astype(np.uint8)
            y[begin : begin + 64] = level[:, 0, 0, 0]


class Linear:
    """y = w x + b, trained by gradient descent."""

    def __init__(self, size: int) -> None:
        self.w = np.zeros(size, np.float32)
        self.b = np.float32(0)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        x = x.reshape(len(x), -1).astype(np.float32) / 255
        for _ in range(3):
            error = x @ self.w + self.b - y / 255
            self.w -= 2e-4 * (error @ x) / len(x)
            self.b -= np.float32(0.05 * error.mean())
        return float(np.abs(error).mean() * 255)


def slices(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Before: the loop waits while h5py reads and decompresses each slice."""
    with h5py.File(path) as file:
        x, y = file["X"], file["Y"]
        for begin in range(0, len(x), BATCH):
            yield x[begin : begin + BATCH], y[begin : begin + BATCH]


def train(
    batches: Iterator[tuple[np.ndarray, np.ndarray]], size: int
) -> tuple[float, float, float]:
    """Return seconds in all, seconds of waiting, and the last mean error."""
    model, waited, error = Linear(size), 0.0, 0.0
    began = now = time.perf_counter()
    for x, y in batches:
        waited += time.perf_counter() - now
        error = model.step(x, y)
        now = time.perf_counter()
    return time.perf_counter() - began, waited, error


def main() -> None:
    with contextlib.ExitStack() as stack:
        if len(sys.argv) > 1:
            path = Path(sys.argv[1])
        else:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "example.h5"
            write_example(path)
        with h5py.File(path) as file:
            size = int(np.prod(file["X"].shape[1:]))
        feed = penstock.Dataset.hdf5(path, ("X", "Y")).batch(BATCH).build()
        stack.enter_context(feed)
        for name, batches in (("h5py in the loop", slices(path)), ("penstock", iter(feed))):
            seconds, waited, error = train(batches, size)
            share = 100 * waited / seconds
            print(
                f"{name:17} {seconds:6.2f} s, of which the model waited {waited:6.2f} s "
                f"({share:2.0f} %); last error {error:.2f}"
            )


if __name__ == "__main__":
    main()

"""Batches that cost almost nothing; the module imports only NumPy."""

import numpy as np


class Steps:
    """Batches of 256 KiB."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> "np.ndarray":
        return np.full(65536, k, np.float32)


class Hooked(Steps):
    """The same, with a change between epochs."""

    def on_epoch_end(self) -> None:
        self.count += 0

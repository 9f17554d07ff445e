"""Datasets for the checks of penstock.keras: worker processes import this without Keras."""

from __future__ import annotations

import numpy as np


class Batches:
    """Batch i has the number i, and the changes of the parent's hooks that reached the worker.

    Not a PyDataset, and in a module without one, so worker processes start without Keras;
    `KerasBatches` is a PyDataset.
    """

    def __init__(self, length=10, form="xy", rows=4):
        self.length = length
        self.form = form
        self.rows = rows
        self.ended = 0
        self.begun = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        x = np.full((self.rows, 3), index, "float32")
        x[:, 1] = self.ended
        x[:, 2] = self.begun
        y = np.full((self.rows, 1), index % 2, "float32")
        if self.form == "x":
            return (x,)
        if self.form == "weights":
            return x, y, np.full((self.rows,), float(index == 3), "float32")
        if self.form == "dict":
            return {"a": x, "b": 2 * x}, y
        return x, y

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1

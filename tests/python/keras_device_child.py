"""The checks of keras_child, with batches that go through a device: KERAS_BACKEND is torch.

The device is the driver for tests, whose library is the first argument.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import fake_cuda
from keras_checks import main
from penstock.device import place
from penstock.keras import py_dataset

staged_arrays = 0


def _tensors(staged):
    global staged_arrays
    staged_arrays += len(staged)
    return [torch.from_numpy(each.numpy()) for each in fake_cuda.Tensor.all_of(staged)]


if __name__ == "__main__":
    library = Path(sys.argv[1])
    fake_cuda.Tensor.driver = fake_cuda.Driver(library)
    place.library = str(library)
    place.check_torch = lambda: None
    place.tensors_from = _tensors
    py_dataset._torch_device = lambda: "cuda:0"
    main("keras_child")
    print("PASSED staged", staged_arrays)

"""LeNet-5 in torch, and scikit-learn's digits drawn to 28x28: for the other examples."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def lenet5():
    """A new LeNet-5 for images of 28x28."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def digits():
    """Images of 28x28 and labels, for training and for testing."""
    data = load_digits()
    images = (data.images / 16).astype(np.float32)[:, None]
    images = torch.nn.functional.interpolate(torch.from_numpy(images), (28, 28), mode="bilinear")
    order = np.random.default_rng(0).permutation(len(images))
    return [(images.numpy()[part], data.target[part]) for part in (order[:1400], order[1400:])]


def accuracy(module, x, y):
    """The fraction of the images that the network names rightly."""
    with torch.inference_mode():
        return float((module(torch.from_numpy(x)).argmax(1).numpy() == y).mean())

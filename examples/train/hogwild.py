"""Hogwild on scikit-learn's digits: workers that change the same weights without waiting.

python examples/train/hogwild.py [workers]
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_digits

import penstock
from penstock import train

HIDDEN, EPOCHS, BATCH = 64, 15, 32


def forward(weights, x):
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0)
    logits = hidden @ weights["w2"] + weights["b2"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, odds / odds.sum(axis=1, keepdims=True)


def step(batch, views):
    """Write the gradient of the mean cross-entropy to `views.gradients`; return the loss."""
    x, y = batch
    weights, gradients = views.weights, views.gradients
    hidden, odds = forward(weights, x)
    rows = np.arange(len(y))
    loss = -np.log(odds[rows, y] + 1e-9).mean()
    odds[rows, y] -= 1
    odds /= len(y)
    below = (odds @ weights["w2"].T) * (hidden > 0)
    np.matmul(hidden.T, odds, out=gradients["w2"])
    np.matmul(x.T, below, out=gradients["w1"])
    odds.sum(axis=0, out=gradients["b2"])
    below.sum(axis=0, out=gradients["b1"])
    return loss


def new_parameters(**options):
    rng = np.random.default_rng(1)
    first, second = (rng.normal(0, 0.15, shape) for shape in [(64, HIDDEN), (HIDDEN, 10)])
    blocks = {"w1": first, "b1": (HIDDEN,), "w2": second, "b2": (10,)}
    return train.Parameters(blocks, **options)


def digits():
    """Images and labels, for training and for testing."""
    data = load_digits()
    images = (data.data / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    return [(images[part], data.target[part]) for part in (order[:1400], order[1400:])]


def accuracy(weights, x, y):
    return (forward(weights, x)[1].argmax(axis=1) == y).mean()


def main() -> None:
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    known, unknown = digits()
    parameters = new_parameters()
    with penstock.Loader(known, batch_size=BATCH, shuffle=True, seed=2) as feed:
        hogwild = train.Hogwild(step, parameters, train.Adam(3e-3), feed, workers=workers)
        report = hogwild.run(epochs=EPOCHS)
    print(
        f"{report.updates} updates by {workers} workers, {report.updates_per_second:.0f} a second"
    )
    print(f"staleness {report.mean_staleness:.2f} in the mean, at most {max(report.staleness)}")
    print(
        f"loss {report.recent_loss:.3f}, {accuracy(parameters, *unknown):.1%} of the unknown right"
    )


if __name__ == "__main__":
    main()

"""A network in plain NumPy on scikit-learn's digits, fed, held and updated by penstock.

python examples/train/digits_numpy.py [weights.safetensors]
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


def backward(weights, x, y, gradients):
    """Write the gradient of the mean cross-entropy into `gradients`; return the loss."""
    hidden, odds = forward(weights, x)
    rows = np.arange(len(y))
    loss = -np.log(odds[rows, y] + 1e-9).mean()
    odds[rows, y] -= 1
    odds /= len(y)
    np.matmul(hidden.T, odds, out=gradients["w2"])
    odds.sum(axis=0, out=gradients["b2"])
    below = (odds @ weights["w2"].T) * (hidden > 0)
    np.matmul(x.T, below, out=gradients["w1"])
    below.sum(axis=0, out=gradients["b1"])
    return loss


def main() -> None:
    digits = load_digits()
    images = (digits.data / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    known, unknown = order[:1400], order[1400:]

    rng = np.random.default_rng(1)
    parameters = train.Parameters(
        {
            "w1": rng.normal(0, np.sqrt(2 / 64), (64, HIDDEN)),
            "b1": (HIDDEN,),
            "w2": rng.normal(0, np.sqrt(1 / HIDDEN), (HIDDEN, 10)),
            "b2": (10,),
        }
    )
    gradients = parameters.gradients()
    feed = penstock.Loader(
        (images[known], digits.target[known]), batch_size=BATCH, shuffle=True, seed=2
    )
    steps = EPOCHS * len(feed)
    rate = train.Schedule.cosine(3e-3, steps).after_warmup(50)
    updater = train.Updater(parameters, train.Adam(rate, clip_norm=5.0))
    with feed:
        for epoch in range(EPOCHS):
            losses = []
            for x, y in feed:
                losses.append(backward(parameters, x, y, gradients))
                updater.apply(gradients)
            odds = forward(parameters, images[unknown])[1]
            right = (odds.argmax(axis=1) == digits.target[unknown]).mean()
            print(f"epoch {epoch:2}: loss {np.mean(losses):.3f}, {right:.1%} of the unknown right")
    print(f"{updater.step} updates, version {parameters.version}")
    if len(sys.argv) > 1:
        updater.save(sys.argv[1])


if __name__ == "__main__":
    main()

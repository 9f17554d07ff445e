"""Towers on scikit-learn's digits: several batches at a time, one update from their mean gradient.

python examples/train/towers.py [towers]
"""

from __future__ import annotations

import sys

import numpy as np
from hogwild import BATCH, EPOCHS, accuracy, digits, new_parameters, step

import penstock
from penstock import train


def fit(towers, batch_size):
    """Train with this many towers; return the weights and the result."""
    parameters = new_parameters()
    feed = penstock.Dataset.arrays(digits()[0]).shuffle(seed=2).batch(batch_size)
    made = train.Towers(step, parameters, train.Adam(3e-3), feed, towers=towers)
    return parameters, made.run(epochs=EPOCHS)


def main() -> None:
    towers = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    unknown = digits()[1]
    parameters, report = fit(towers, BATCH // towers)
    print(f"{report.updates} updates from {report.batches} batches by {towers} towers")
    right = accuracy(parameters, *unknown)
    print(f"loss {report.last_loss:.3f}, {right:.1%} of the unknown right")

    again, _ = fit(towers, BATCH // towers)
    same = all(np.array_equal(parameters[name], again[name]) for name in parameters)
    print(f"a second run has {'the same bits' if same else 'OTHER bits'}")
    one, _ = fit(1, BATCH)
    apart = max(np.abs(parameters[name] - one[name]).max() for name in parameters)
    print(f"one worker with batches of {BATCH} has weights that differ by {apart:.1g} at most")


if __name__ == "__main__":
    main()

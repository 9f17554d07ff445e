"""Compares the results of training with several workers and with one.

python bench/convergence.py [--runs N]

A small network on scikit-learn's digits, by a plain loop, by Hogwild and by towers with 1, 2 and 4
workers, all with the same number of samples. Prints a table with the loss on the training set and
the accuracy on the test set: the mean over runs with different orders, and the largest difference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "train"))

import hogwild as example

import penstock
from penstock import train

EPOCHS, BATCH = 15, 32
Row = tuple[float, float, float]  # loss, accuracy, staleness


def loss_of(weights: Any, x: Any, y: Any) -> float:
    odds = example.forward(weights, x)[1]
    return float(-np.log(odds[np.arange(len(y)), y] + 1e-9).mean())


def dataset(seed: int, batch: int = BATCH) -> penstock.Dataset:
    return penstock.Dataset.arrays(example.digits()[0]).shuffle(seed=seed).batch(batch)


def serial(seed: int, parameters: train.Parameters) -> float:
    updater = train.Updater(parameters, train.Adam(3e-3))
    gradients = parameters.gradients()
    views = train.Views(0, parameters, gradients)
    feed = dataset(seed)
    for _ in range(EPOCHS):
        for batch in feed:
            example.step(batch, views)
            updater.apply(gradients)
    return 0.0


def hogwild(workers: int) -> Callable[[int, train.Parameters], float]:
    def run(seed: int, parameters: train.Parameters) -> float:
        made = train.Hogwild(
            example.step, parameters, train.Adam(3e-3), dataset(seed), workers=workers
        )
        return made.run(epochs=EPOCHS).mean_staleness

    return run


def towers(count: int) -> Callable[[int, train.Parameters], float]:
    def run(seed: int, parameters: train.Parameters) -> float:
        feed = dataset(seed, BATCH // count)
        train.Towers(example.step, parameters, train.Adam(3e-3), feed, towers=count).run(
            epochs=EPOCHS
        )
        return 0.0

    return run


def measure(run: Callable[[int, train.Parameters], float], runs: int) -> list[Row]:
    known, unknown = example.digits()
    rows = []
    for seed in range(runs):
        parameters = example.new_parameters()
        staleness = run(seed, parameters)
        accuracy = float(example.accuracy(parameters, *unknown))
        rows.append((loss_of(parameters, *known), accuracy, staleness))
    return rows


def spread(values: list[float], form: Callable[[float], str]) -> str:
    mean = sum(values) / len(values)
    return f"{form(mean)} ± {form(max(abs(value - mean) for value in values))}"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--runs", type=int, default=5)
    runs = arguments.parse_args().runs
    ways: dict[str, Callable[[int, train.Parameters], float]] = {"a plain loop": serial}
    for count in (1, 2, 4):
        ways[f"Hogwild, {count} worker{'s' if count > 1 else ''}"] = hogwild(count)
    for count in (1, 2, 4):
        ways[f"towers: {count}, batches of {BATCH // count}"] = towers(count)
    print("| | loss | accuracy | mean staleness |\n|---|---|---|---|")
    for name, way in ways.items():
        losses, accuracies, staleness = zip(*measure(way, runs), strict=True)
        print(
            f"| {name} | {spread(list(losses), lambda v: f'{v:.4f}')} "
            f"| {spread(list(accuracies), lambda v: f'{v:.1%}')} "
            f"| {sum(staleness) / runs:.2f} |"
        )


if __name__ == "__main__":
    main()

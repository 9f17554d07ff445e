"""Thirty LeNet-5 on handwritten digits, each with its own learning rate, trained at the same time.

    python examples/train/population.py [steps] [picture.svg]

Prints each network as it completes, the best of them, and draws the thirty curves of the loss.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from lenet import accuracy, digits, lenet5

import penstock
from penstock import train

MEMBERS, BATCH = 30, 64
RATES = [float(lr) for lr in np.geomspace(1e-4, 1e-1, MEMBERS)]


def curves(results, path):
    """Write an SVG with a curve for each network: its loss by steps, coloured by learning rate."""
    wide, high, most = 720, 360, 3.0
    lines = []
    for result in sorted(results, key=lambda r: r.member):
        losses = np.minimum(np.nan_to_num(result.losses, nan=most), most)
        mean = np.convolve(losses, np.ones(5) / 5, "valid") if len(losses) > 4 else losses
        xs = np.linspace(0, wide, len(mean))
        points = " ".join(
            f"{x:.0f},{high - high * y / most:.0f}" for x, y in zip(xs, mean, strict=True)
        )
        colour = f"hsl({300 * result.member / MEMBERS:.0f} 80% 45%)"
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    text = f"loss, 0 to {most:g}; learning rates {RATES[0]:g} to {RATES[-1]:g}"
    title = f'<text x="8" y="20">{text}</text>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">'
    Path(path).write_text("\n".join([svg, title, *lines, "</svg>", ""]))


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    (x, y), test = digits()

    def data(member, seed):
        return penstock.Loader((x, y), batch_size=BATCH, shuffle=True, seed=seed, workers=0)

    results = []
    begun = time.perf_counter()
    with train.Population(
        lenet5, members=MEMBERS, hyper={"lr": RATES}, optimizer="adam"
    ) as networks:
        for result in networks.train(data, steps=steps).as_completed():
            results.append(result)
            right = accuracy(networks.module(result.member), *test)
            said = "diverged" if result.error else f"{right:.1%} right"
            print(f"network {result.member:2}: learning rate {RATES[result.member]:.5f}, {said}")
        seconds = time.perf_counter() - begun
        scores = [accuracy(networks.module(n), *test) for n in range(MEMBERS)]
    best = int(np.argmax(scores))
    print(
        f"{MEMBERS} networks, {steps} steps each in {seconds:.1f} s ({networks.strategy}); "
        f"the best one: learning rate {RATES[best]:.5f}, {scores[best]:.1%} right"
    )
    if len(sys.argv) > 2:
        curves(results, sys.argv[2])


if __name__ == "__main__":
    main()

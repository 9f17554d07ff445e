"""Train a small network on images five times, fed in five ways.

    make demo        or        .venv/bin/python examples/demo/train.py --epochs 12

The network is always the same. The first three runs (in line, by threads, by processes) use the
same data set (sequence.py), and only the line that builds the feed changes. In the fourth run
the same images come from a TFRecord file through a pipeline (records.py). In the fifth the engine
itself reads, decodes and augments the files (pictures.py). Prints a table, and writes report.html
about the last run. Then it runs the examples of asynchronous training, with a line for each
(asynchronous.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from asynchronous import print_rows
from digits import SIDE, list_images, write_digits
from pictures import pictures
from records import pipeline, write_records
from sequence import DigitSequence

BATCH_SIZE = 32
TARGET_ACCURACY = 0.97
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Run:
    """The times of one way of feeding, by epoch, in seconds."""

    name: str
    steps: int
    total: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    accuracy: float = 0.0

    # The first epoch also compiles the network and starts the workers; the table leaves it out.
    @property
    def ms_per_step(self) -> float:
        return 1e3 * sum(self.total[1:]) / (self.steps * len(self.total[1:]))

    @property
    def wait_share(self) -> float:
        return sum(self.waited[1:]) / sum(self.total[1:])


def build_model(seed, steps):
    import keras
    from keras import layers

    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Conv2D(8, 5, strides=2, padding="same", activation="relu"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, steps)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train_epoch(model, feed, run, title):
    """One epoch over `feed`, with a clock on both sides of every step."""
    from tqdm import tqdm

    images = 0
    right = 0.0
    waited = 0.0
    # Redrawn in a terminal; in a log file there is one line for each epoch.
    often = 0.1 if sys.stdout.isatty() else 3600
    layout = title + " {percentage:3.0f}% |{bar:24}| {desc}"
    started = before = time.perf_counter()
    with tqdm(total=len(feed), bar_format=layout, file=sys.stdout, mininterval=often) as bar:
        for x, y in feed:
            waited += time.perf_counter() - before
            _, accuracy = model.train_on_batch(x, y)
            images += len(x)
            right += len(x) * float(accuracy)
            before = time.perf_counter()
            elapsed = before - started
            bar.set_description_str(
                f"{images / elapsed:5.0f} images/s, waited {waited / elapsed:4.0%}, "
                f"accuracy {right / images:6.2%}",
                refresh=False,
            )
            bar.update()
    run.total.append(time.perf_counter() - started)
    run.waited.append(waited)


def train(name, source, workers, use_multiprocessing, options):
    import penstock

    model = build_model(options.seed, options.epochs * len(source))
    run = Run(name, len(source))

    # The line that builds the feed.
    with penstock.Loader(
        source, workers=workers, use_multiprocessing=use_multiprocessing, max_queue_size=10
    ) as feed:
        for epoch in range(options.epochs):
            train_epoch(model, feed, run, f"{name:9} {epoch + 1:2}/{options.epochs}")
        expected = options.epochs * len(source)
        delivered = feed.stats()["delivered"]
        if delivered != expected:
            raise SystemExit(f"{delivered} batches delivered, not {expected}")
        feed.report(str(options.report))

    test = DigitSequence(*list_images(options.data / "test"), BATCH_SIZE, SIDE)
    # Keras methods accept a feed in place of the sequence.
    _, run.accuracy = model.evaluate(penstock.keras.feed(test, workers=workers), verbose=0)
    print(f"{name}: test accuracy {run.accuracy:.2%}\n", flush=True)
    return run


def print_table(runs):
    print(f"{'fed':12}{'ms per step':>12}{'waited':>9}{'speed-up':>10}{'accuracy':>10}")
    for run in runs:
        speed_up = runs[0].ms_per_step / run.ms_per_step
        print(
            f"{run.name:12}{run.ms_per_step:12.1f}{run.wait_share:9.0%}"
            f"{speed_up:10.2f}{run.accuracy:10.2%}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=max(2, len(os.sched_getaffinity(0))))
    parser.add_argument("--data", type=Path, default=ROOT / "demo-data")
    parser.add_argument("--report", type=Path, default=ROOT / "report.html")
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error("--epochs: at least 2, the first is left out of the table")

    # Keras reads this variable when it is imported.
    os.environ.setdefault("KERAS_BACKEND", "jax")
    write_digits(options.data)
    files, labels = list_images(options.data / "train")
    records = options.data / "train.tfrecord"
    write_records(records, files, labels)

    def sequence():
        np.random.seed(options.seed)  # the sequence shuffles by this generator
        return DigitSequence(files, labels, BATCH_SIZE, SIDE, augment=True)

    runs = [
        train("in line", sequence(), 0, False, options),
        train("threads", sequence(), options.workers, False, options),
        train("processes", sequence(), options.workers, True, options),
        train(
            "TFRecord", pipeline(records, BATCH_SIZE, options.seed), options.workers, True, options
        ),
        train(
            "native",
            pictures(options.data / "train", BATCH_SIZE, SIDE, options.seed),
            options.workers,
            None,
            options,
        ),
    ]
    print(f"{options.workers} workers, batches of {BATCH_SIZE}, epochs 2 to {options.epochs}:\n")
    print_table(runs)
    print(f"\nWhat each worker did in the last run, and what was the bottleneck: {options.report}")
    print_rows()
    failed = [run.name for run in runs if run.accuracy < TARGET_ACCURACY]
    if failed:
        print(f"test accuracy is under {TARGET_ACCURACY:.0%}: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

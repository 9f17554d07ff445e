"""A network's predictions for scikit-learn's digits, by the samples' ids.

python examples/train/digits_numpy.py weights.safetensors
python examples/train/predict_ids.py weights.safetensors
"""

from __future__ import annotations

import sys

import numpy as np
from digits_numpy import forward
from sklearn.datasets import load_digits

import penstock
from penstock import train


def main() -> None:
    weights = train.Parameters.from_file(sys.argv[1])
    digits = load_digits()
    samples = penstock.Dataset.arrays(
        {
            "image": (digits.data / 16).astype(np.float32),
            "digit": digits.target,
            "id": np.arange(5000, 5000 + len(digits.data)),
        }
    )
    feed = samples.shuffle(seed=1).batch(64)  # in any order, an id stays with its row

    # The model needs batches of 100: the last one is padded, and the padding's outputs are dropped.
    odds, extras = train.predict(
        lambda x: forward(weights, x)[1], feed, inputs="image", batch_size=100, pad=True
    )
    said = odds.argmax(axis=1)
    wrong = np.flatnonzero(said != extras["digit"])
    for row in wrong[np.argsort(extras["id"][wrong])][:5]:
        print(f"id {extras['id'][row]}: a {extras['digit'][row]}, taken for a {said[row]}")

    def metrics(batch):
        odds = forward(weights, batch["image"])[1]
        of_digit = odds[np.arange(len(odds)), batch["digit"]]
        return {"accuracy": odds.argmax(axis=1) == batch["digit"], "loss": -np.log(of_digit + 1e-9)}

    print(train.evaluate(metrics, feed, batch_size=500))


if __name__ == "__main__":
    main()

"""A small network learns scikit-learn's digits in JAX, N steps for each check-in of Python.

python examples/train/loop.py        # N = 20
python examples/train/loop.py 1 5 50

For any N, the weights have the same bits, and callbacks get every step's loss in order.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import penstock
from penstock import train

EPOCHS, BATCH, KNOWN = 10, 32, 1400


def weights():
    first, second = jax.random.split(jax.random.PRNGKey(0))
    return {
        "w1": jax.random.normal(first, (64, 32)) / 8,
        "b1": jnp.zeros(32),
        "w2": jax.random.normal(second, (32, 10)) / 6,
        "b2": jnp.zeros(10),
    }


def scores(w, x):
    return jax.nn.relu(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


def loss_of(w, batch):
    odds = jax.nn.log_softmax(scores(w, batch["image"]))
    return -jnp.take_along_axis(odds, batch["digit"][:, None], axis=1).mean()


def step(w, batch):
    loss, slopes = jax.value_and_grad(loss_of)(w, batch)
    return jax.tree.map(lambda value, slope: value - 0.3 * slope, w, slopes), {"loss": loss}


def main():
    digits = load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
    samples = penstock.Dataset.arrays({"image": images[:KNOWN], "digit": labels[:KNOWN]})
    found = []
    for steps in map(int, sys.argv[1:] or ["20"]):
        losses = []
        loop = train.Loop(
            step,
            samples.shuffle(seed=1),
            steps=steps,
            batch_size=BATCH,
            state=weights(),
            callbacks=lambda number, metrics, losses=losses: losses.append(metrics["loss"]),
            workers=0,
        )
        loop.run()  # the first pass compiles
        report = loop.run(epochs=EPOCHS - 1)
        right = np.mean(scores(loop.state, images[KNOWN:]).argmax(axis=1) == labels[KNOWN:])
        print(
            f"N = {steps}: {report.seconds / report.steps * 1e6:.0f} us a step, loss "
            f"{losses[0]:.3f} to {np.mean(losses[-44:]):.3f} in {len(losses)} steps, "
            f"{right:.1%} of the unknown right"
        )
        found.append(np.asarray(loop.state["w1"]))
    if len(found) > 1:
        print("same bits:", all(np.array_equal(each, found[0]) for each in found))


if __name__ == "__main__":
    main()

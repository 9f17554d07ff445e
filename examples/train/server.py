"""Workers that share weights over a parameter server, and do not wait for each other.

    python examples/train/server.py                           # a server and two workers
    python examples/train/server.py --shards 3 --staleness 0  # synchronous: as one large batch
Each worker is a process that learns from its share of scikit-learn's digits. Workers on other
hosts: give the server ``listen="tcp://0.0.0.0:7000"`` and a secret, ``train.connect`` the same.
"""

import argparse
import subprocess
import sys

import numpy as np
from sklearn.datasets import load_digits

from penstock import Loader, train

SHAPES = {"w1": (64, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}
KNOWN, STEPS, BATCH = 1400, 400, 32  # the other digits are for the test at the end


def forward(weights, x):
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0)
    odds = np.exp(hidden @ weights["w2"] + weights["b2"])
    return hidden, odds / odds.sum(axis=1, keepdims=True)


def gradients(weights, batch):
    x, y = batch
    hidden, odds = forward(weights, x)
    loss = -np.log(odds[np.arange(len(y)), y]).mean()
    odds[np.arange(len(y)), y] -= 1
    odds /= len(y)
    below = (odds @ weights["w2"].T) * (hidden > 0)
    upper = {"w2": hidden.T @ odds, "b2": odds.sum(0)}
    return loss, {"w1": x.T @ below, "b1": below.sum(0), **upper}


def worker(x, y, which, workers, addresses):
    mine = slice(which, KNOWN, workers)
    with (
        Loader((x[mine], y[mine]), batch_size=BATCH, shuffle=True, seed=which) as feed,
        train.connect(addresses, name=str(which)) as client,
    ):
        batches = feed.steps(STEPS)
        losses = [client.step(batches, gradients) for _ in range(STEPS)]
    print(f"worker {which}: loss {np.mean(losses[-20:]):.3f}", flush=True)


def serve(x, y, workers, shards, staleness):
    rng = np.random.default_rng(0)
    parameters = train.Parameters(SHAPES)
    parameters.update({name: rng.normal(0, 0.15, SHAPES[name]) for name in ("w1", "w2")})
    options = {"shards": shards, "staleness": staleness, "workers": workers}
    with train.ParameterServer(parameters, train.Adam(lr=2e-3), **options) as server:
        command = [sys.executable, __file__, *server.addresses, "--workers", str(workers)]
        ran = [subprocess.Popen([*command, "--worker", str(i)]) for i in range(workers)]
        ended = [process.wait() for process in ran]
        versions = server.pull()
    right = (forward(parameters, x[KNOWN:])[1].argmax(axis=1) == y[KNOWN:]).mean()
    print(f"versions {versions}: {right:.1%} of the unknown right")
    sys.exit(max(ended))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--staleness", type=int)
    parser.add_argument("--worker", type=int, help="be this one, of the server at the addresses")
    parser.add_argument("addresses", nargs="*")
    given = parser.parse_args()
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x[order] / 16).astype(np.float32), y[order]
    if given.worker is None:
        serve(x, y, given.workers, given.shards, given.staleness)
    else:
        worker(x, y, given.worker, given.workers, given.addresses)

"""Chains whose rows stay on a device, for tests of torch and of jax."""

from __future__ import annotations

import numpy as np

import penstock

COUNT = 700
LENGTHS = (1, 2, 3, 100, 255, 256, 257, 258, 1000, 4097, 16_390)
SEEDS = ((0, 0), (7, 3), (2**63 + 11, 2**40 + 5))


def rows() -> penstock.Dataset:
    """Rows of several types, each of which has its number."""
    ids = np.arange(COUNT)
    return penstock.Dataset.arrays(
        {
            "x": (ids[:, None] * [1, 3, 7]).astype(np.uint8),
            "y": (ids.astype(np.float32), (ids % 2).astype(bool)),
            "z": ids.astype(np.int32)[:, None, None],
        }
    )


def doubled(row):
    return {**row, "x": row["x"].astype(np.float32) * 2}


CHAINS = {
    "stored order": lambda: rows().batch(64),
    "shuffled": lambda: rows().shuffle(seed=3).batch(64),
    "full batches": lambda: rows().shuffle(seed=3).batch(64, drop_last=True),
    "one order": lambda: rows().shuffle(seed=3, reshuffle=False).batch(64),
    "a table": lambda: rows().take(200).shuffle(seed=3).batch(64),
    "mapped": lambda: rows().shuffle(seed=3).map(doubled).batch(64),
    "shuffled, sharded": lambda: rows().shuffle(seed=3).shard(1, 3).batch(64),
    "padded shards": lambda: rows().shuffle(seed=3).shard(2, 3, remainder="pad").batch(64),
    "sharded, shuffled": lambda: rows().shard(1, 3).shuffle(seed=3).skip(9).take(200).batch(64),
    "shuffled twice": lambda: rows().shuffle(seed=3).take(300).shuffle(seed=4).batch(64),
    "batches left out": lambda: rows().shuffle(seed=3).batch(64).skip(2).take(7),
    "sharded batches": lambda: rows().shuffle(seed=3).batch(64).shard(0, 2).prefetch(2),
    "repeated": lambda: rows().shuffle(seed=3).batch(64).repeat(2).prefetch(2),
    "cached": lambda: rows().shuffle(seed=3).cache().shuffle(seed=5).batch(64),
}

# A part of the error, and a chain that has no rows to keep.
REFUSED = {
    "is a stream": lambda: rows().filter(lambda row: True).batch(8),
    "has no batches; add batch": rows,
    "put it before batch": lambda: rows().batch(8).map(doubled),
    "padded_batch.* cannot run": lambda: rows().padded_batch(8),
    "behind batch": lambda: rows().shuffle(seed=1).repeat(2).batch(8),
    "has no end; put repeat behind batch": lambda: rows().repeat().batch(8),
    r"use shuffle\(seed=\)": lambda: rows().shuffle(block=4).batch(8),
    "draws new random numbers": lambda: (
        penstock.Dataset.arrays({"image": np.zeros((8, 4, 4, 3), np.uint8)})
        .map(penstock.image.random_flip())
        .batch(8)
    ),
    "would change the number of rows": lambda: rows().map(doubled).on_error("skip").batch(8),
}

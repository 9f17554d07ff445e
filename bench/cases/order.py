"""A shuffled order of 100,000,000 indices: time to the first, rate, and correctness."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from harness import BEST_PEER, Case, Figure, Figures, Size, Target

PART = 256
# Whole orders of these lengths must hold every index once.
LENGTHS = (1, 2, 1000, 65536, 65537, 131073, 1_000_003)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def wrong_lengths(order: Callable[[int], Iterable[Any]], lengths: tuple[int, ...]) -> list[int]:
    wrong = []
    for length in lengths:
        came = np.concatenate([np.atleast_1d(np.asarray(part)) for part in order(length)])
        seen = np.bincount(came.astype(np.int64), minlength=length)
        if len(came) != length or len(seen) != length or (seen != 1).any():
            wrong.append(length)
    return wrong


def measure(
    size: Size, order: Callable[[int], Iterable[Any]], lengths: tuple[int, ...] = LENGTHS
) -> Figures:
    """order(n): numbers, or arrays of them."""
    wrong = wrong_lengths(order, lengths)
    memory, began = peak_bytes(), time.perf_counter()
    parts = iter(order(size.length))
    taken = np.size(next(parts))
    first = time.perf_counter() - began
    rate, taken, began = 0.0, 0, time.perf_counter()
    for part in parts:
        taken += 1 if isinstance(part, int) else np.size(part)
        spent = time.perf_counter() - began
        if taken >= size.take or spent > size.seconds:
            break
    rate = taken / (time.perf_counter() - began)
    return {
        "first": first,
        "rate": rate,
        "memory": peak_bytes() - memory,
        "wrong": len(wrong),
        "note": f"no permutation at {', '.join(map(str, wrong))}" if wrong else "",
    }


OURS, NUMPY = "penstock.Permutation", "NumPy default_rng().permutation"
GRAIN = "grain index_shuffle"
CASE = Case(
    "order",
    "a shuffled order of 100,000,000 indices",
    {
        "first": Figure("ms to the first", 1e3),
        "rate": Figure("M indices/s", 1e-6, more_is_better=True),
        "memory": Figure("MiB", 2**-20, compared=False),
        "wrong": Figure(f"of {len(LENGTHS)} lengths are no permutation", compared=False),
    },
    full={"length": 100_000_000, "take": 50_000_000, "seconds": 1.0},
    quick={"length": 100_000_000, "take": 50_000_000, "seconds": 0.3},
    targets=[
        Target("first", OURS, BEST_PEER, at_least=1),
        Target("rate", OURS, GRAIN, at_least=10),
        Target("memory", OURS, at_most=2**20, says="no memory (under 1 MiB)"),
        Target("wrong", OURS, at_most=0, says="a permutation at every length"),
    ],
)


@CASE.entry(OURS, "ours", "256 at a time")
def ours(size: Size) -> Figures:
    import penstock

    # Loads the extension, which is not measured.
    penstock.Permutation(10)[0]

    def order(n: int) -> Iterator[Any]:
        permutation = penstock.Permutation(n, seed=1)
        yield permutation[0]
        for at in range(1, n, PART):
            yield permutation.take(at, PART)

    return measure(size, order)


@CASE.entry(NUMPY, "peer", "the whole order at once")
def numpy_order(size: Size) -> Figures:
    def order(n: int) -> Iterator[Any]:
        whole = np.random.default_rng(1).permutation(n)
        for at in range(0, n, PART):
            yield whole[at : at + PART]

    return measure(size, order)


@CASE.entry(
    "torch RandomSampler", "peer", "what shuffle=True uses: numbers, one by one", quick=False
)
def torch_sampler(size: Size) -> Figures:
    import torch

    return measure(size, lambda n: torch.utils.data.RandomSampler(range(n)))


@CASE.entry(GRAIN, "peer", "what MapDataset.shuffle uses")
def grain_shuffle(size: Size) -> Figures:
    from grain.experimental import index_shuffle

    def order(n: int) -> Iterator[int]:
        for k in range(n):
            yield index_shuffle(index=k, max_index=n - 1, seed=1, rounds=4)

    return measure(size, order, LENGTHS[:-1])


@CASE.entry("tf.random.experimental.index_shuffle", "peer", "256 at a time", quick=False)
def tf_shuffle(size: Size) -> Figures:
    import tensorflow as tf

    seed = tf.constant([1, 2], tf.uint32)

    def order(n: int) -> Iterator[Any]:
        def shuffle(k: Any) -> Any:
            return tf.random.experimental.index_shuffle(k, seed, tf.constant(n - 1, tf.int64))

        part = tf.function(shuffle, input_signature=[tf.TensorSpec([None], tf.int64)])
        for at in range(0, n, PART):
            yield part(tf.range(at, min(at + PART, n), dtype=tf.int64)).numpy()

    return measure(size, order, LENGTHS[:-1])


CASES = [CASE]

"""Hogwild's own case: logistic regression over sparse rows, one row per update, plain SGD, in C++.

Features follow a power law, like words. All entries visit each row once a pass. penstock visits
blocks of 64 consecutive rows in random order, so the processor can prefetch the next row. The plain
loop is hand-written and visits rows in random order. With replicas each thread has a vector of its
own and twice the learning rate; merges take a tenth of the time. The limit shares nothing: each
thread has its own weights, which are averaged at the end, so its loss differs.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    BEST_LIMIT,
    BEST_PEER,
    WORKERS,
    Case,
    Figure,
    Figures,
    Size,
    Target,
    expect,
    once,
)

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "bench/hogwild_sparse.cc"
RATE, PASSES = 0.5, 3
OURS, OURS_1 = f"train::Hogwild, {WORKERS} threads", "train::Hogwild, 1 thread"
OURS_REPLICAS = f"train::Hogwild, {WORKERS} threads, {WORKERS} replicas"
PLAIN_1, SKLEARN = "plain C++ loop, 1 thread", "scikit-learn SGDClassifier, 1 thread"


def folder(size: Size) -> Path:
    return size.path(f"sparse-{size.rows}-{size.features}-{size.per_row}")


def make(part: Path, size: Size) -> None:
    """Rows with labels of a linear model, except for a tenth of them."""
    rng = np.random.default_rng(1)
    shape = (size.rows, size.per_row)
    at = (rng.random(shape) ** 3 * size.features).astype(np.int32)
    values = rng.uniform(0.1, 0.2, shape).astype(np.float32)
    truth = rng.normal(size=size.features).astype(np.float32)
    labels = np.where((truth[at] * values).sum(1) > 0, 1, -1).astype(np.float32)
    labels[rng.random(size.rows) < 0.1] *= -1
    part.mkdir()
    at.tofile(part / "at")
    values.tofile(part / "values")
    labels.tofile(part / "labels")


def program(size: Size) -> Path:
    return size.path("hogwild_sparse")


def prepare(size: Size) -> None:
    once(folder(size), lambda part: make(part, size))
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    libraries = sorted(ROOT.glob("build/test/release/penstock/libpenstock.a"))
    if compiler is None or not libraries:
        return
    newest = max(SOURCE.stat().st_mtime, libraries[-1].stat().st_mtime)
    if program(size).exists() and program(size).stat().st_mtime < newest:
        program(size).unlink()

    def build(part: Path) -> None:
        flags = ["-std=c++20", "-O3", f"-I{ROOT}", "-pthread"]
        linked = [str(libraries[-1]), "-lisal", "-ldeflate", "-lsodium", "-lssl", "-lcrypto"]
        subprocess.run([compiler, *flags, str(SOURCE), *linked, "-o", str(part)], check=True)  # type: ignore[arg-type]

    once(program(size), build)


def of_program(size: Size, way: str, threads: int) -> Figures:
    if not program(size).exists():
        raise ImportError("no C++ compiler, or no engine built in build/test/release")
    numbers = (threads, size.features, size.per_row, RATE, PASSES)
    command = [str(program(size)), str(folder(size)), way, *map(str, numbers)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    rate, loss = map(float, said)
    expect(loss < 0.65, f"the loss is {loss}: nothing was learnt")
    return {"rate": rate, "loss": loss}


CASE = Case(
    "hogwild_sparse",
    "Hogwild, sparse logistic regression, 80 of 50,000 features a row, one row per update",
    {
        "rate": Figure("M updates/s", 1e-6, more_is_better=True),
        "loss": Figure("mean loss", compared=False),
    },
    full={"rows": 200_000, "features": 50_000, "per_row": 80},
    quick={"rows": 20_000, "features": 50_000, "per_row": 80},
    prepare=prepare,
    targets=[
        Target("rate", OURS, BEST_PEER, at_least=1.5),
        Target("loss", OURS, OURS_1, at_least=0.98, says="the loss of one thread"),
        Target("rate", OURS_REPLICAS, BEST_LIMIT, at_least=0.95),
        Target("loss", OURS_REPLICAS, OURS_1, at_least=0.98, says="the loss of one thread"),
    ],
)


@CASE.entry(OURS, "ours")
def _(size: Size) -> Figures:
    return of_program(size, "ours", WORKERS)


@CASE.entry(OURS_1, "ours")
def _(size: Size) -> Figures:
    return of_program(size, "ours", 1)


@CASE.entry(OURS_REPLICAS, "ours")
def _(size: Size) -> Figures:
    return of_program(size, "replicas", WORKERS)


@CASE.entry(PLAIN_1, "peer", beside=OURS_1)
def _(size: Size) -> Figures:
    return of_program(size, "plain", 1)


@CASE.entry(f"plain C++ loop, {WORKERS} threads", "peer")
def _(size: Size) -> Figures:
    return of_program(size, "plain", WORKERS)


@CASE.entry(SKLEARN, "peer")
def _(size: Size) -> Figures:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import SGDClassifier

    at = np.fromfile(folder(size) / "at", np.int32)
    values = np.fromfile(folder(size) / "values", np.float32).astype(np.float64)
    labels = np.fromfile(folder(size) / "labels", np.float32)
    starts = np.arange(0, at.size + 1, size.per_row)
    rows = csr_matrix((values, at, starts), shape=(size.rows, size.features))
    model: Any = SGDClassifier(
        loss="log_loss", penalty=None, learning_rate="constant", eta0=RATE, fit_intercept=False
    )
    began = time.perf_counter()
    for _ in range(PASSES):
        model.partial_fit(rows, labels, classes=[-1, 1])
    seconds = time.perf_counter() - began
    loss = float(np.log1p(np.exp(-labels * model.decision_function(rows))).mean())
    return {"rate": PASSES * size.rows / seconds, "loss": loss}


@CASE.entry(f"limit: {WORKERS} threads with weights of their own", "limit")
def _(size: Size) -> Figures:
    return of_program(size, "own", WORKERS)


CASES = [CASE]

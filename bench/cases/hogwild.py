"""Hogwild with torch: two workers on one network, beside workers that share nothing.

A LeNet-5 on images of 28 x 28 and an MLP, in torch, batches of 32, plain SGD. All use one thread of
torch for each worker, and glibc keeps freed memory for all. The limit trains two networks: shared
weights cannot be faster, except by the cost of an update. The rows in C++ (hogwild_torch.cc) take
their batches from a Dataset, which is part of their time.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from harness import BEST_PEER, WORKERS, Case, Figure, Figures, Size, Target, expect
from peers import side_by_side

from cases import torch_programs

# At higher rates some runs do not learn, because weights change within a step; so do plain loops.
BATCH, RATE, SAMPLES = 32, 0.02, 2048
OURS, OURS_PROCESSES = "train.Hogwild, threads", "train.Hogwild, processes"
OURS_SNAPSHOT = 'train.Hogwild, threads, snapshot="update"'
LIMIT = "limit: two processes that share nothing"
OURS_CPP = f"train::Hogwild in C++, {WORKERS} threads, snapshots"
OURS_CPP_COMMON = f"train::Hogwild in C++, {WORKERS} threads"


def network(kind: str) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "mlp":
        layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(64, 10))
    first = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5)]
    second = [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def samples() -> tuple[Any, Any]:
    """Images of ten patterns with noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, SAMPLES)
    images = rng.normal(size=(10, 1, 28, 28))[labels] + rng.normal(size=(SAMPLES, 1, 28, 28))
    return images.astype(np.float32), labels


def batches(worker: int) -> Iterator[tuple[Any, Any]]:
    """Endless batches of existing tensors."""
    import torch

    images, labels = (torch.from_numpy(part) for part in samples())
    parts = [slice(i, i + BATCH) for i in range(0, SAMPLES, BATCH)]
    return itertools.cycle([(images[p], labels[p]) for p in parts[worker:] + parts[:worker]])


def loss_of(module: Any, batch: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1])


def check(module: Any) -> None:
    """The network has learnt: chance is 2.3."""
    loss = float(loss_of(module, next(batches(0))).detach())
    expect(loss < 1.5, f"the loss is {loss}")


def step(batch: Any, views: Any) -> Any:
    loss = loss_of(views.model, batch)
    loss.backward()
    return None


def ours(size: Size, kind: str, snapshot: Any = False) -> Figures:
    import torch

    import penstock
    from penstock import _engine, train

    torch.set_num_threads(1)
    _engine.keep_freed_memory()
    module = network(size.model)
    parameters, _ = penstock.torch.alias(module, shared=kind == "processes")
    feed = batches(0)
    hogwild = train.Hogwild(
        step,
        parameters,
        train.SGD(RATE),
        feed,
        workers=WORKERS,
        use_multiprocessing=kind == "processes",
        model=module,
        snapshot=snapshot,
    )
    if kind == "threads":
        hogwild.run(steps=40, epochs=None)
    report = hogwild.run(steps=size.steps, epochs=None)
    expect(report.updates == size.steps, "updates were lost")
    check(module)
    return {"rate": report.updates_per_second, "note": f"staleness {report.mean_staleness:.2f}"}


def plain(module: Any, worker: int, steps: int, optimizer: Any) -> None:
    for batch in itertools.islice(batches(worker), steps):
        optimizer.zero_grad()
        loss_of(module, batch).backward()
        optimizer.step()


def alone(model: str, steps: int, worker: int) -> float:
    """Return the steps per second of one process of the limit."""
    import torch

    from penstock import _engine

    torch.set_num_threads(1)
    _engine.keep_freed_memory()
    module = network(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    plain(module, worker, 20, optimizer)
    began = time.perf_counter()
    plain(module, worker, steps, optimizer)
    rate = steps / (time.perf_counter() - began)
    check(module)
    return rate


def aliased_threads(size: Size) -> Figures:
    """Threads with modules that share the parameters of one, each with torch's optimizer."""
    import torch

    from penstock import _engine

    torch.set_num_threads(1)
    _engine.keep_freed_memory()
    module = network(size.model)
    each = [network(size.model) for _ in range(WORKERS)]
    for other in each:
        for mine, theirs in zip(other.parameters(), module.parameters(), strict=True):
            mine.data = theirs.data

    def run(steps: int) -> float:
        def work(worker: int) -> None:
            torch.set_num_threads(1)
            optimizer = torch.optim.SGD(each[worker].parameters(), lr=RATE)
            plain(each[worker], worker, steps // WORKERS, optimizer)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return steps / (time.perf_counter() - began)

    run(40)
    rate = run(size.steps)
    check(module)
    return {"rate": rate}


def prepare(size: Size) -> None:
    torch_programs.build(size, "hogwild_torch")


def in_cpp(size: Size, way: str, workers: int) -> Figures:
    rate, loss = torch_programs.run(size, "hogwild_torch", size.model, way, workers, size.steps)
    expect(loss < 1.5, f"the loss is {loss}: nothing was learnt")
    return {"rate": rate}


def case(key: str, model: str, title: str, steps: int) -> Case:
    made = Case(
        key,
        title,
        {"rate": Figure("steps/s", more_is_better=True)},
        full={"model": model, "steps": steps},
        quick={"model": model, "steps": steps // 4},
        prepare=prepare,
        targets=[
            Target("rate", OURS, LIMIT, at_least=0.95),
            Target("rate", OURS_CPP, BEST_PEER, at_least=1),
        ],
    )
    made.entry(OURS, "ours")(lambda size: ours(size, "threads"))
    made.entry(OURS_SNAPSHOT, "ours")(lambda size: ours(size, "threads", snapshot="update"))
    made.entry(OURS_PROCESSES, "ours")(lambda size: ours(size, "processes"))
    made.entry("torch, two threads with aliased modules", "peer")(aliased_threads)

    @made.entry("torch, one thread", "peer")
    def _(size: Size) -> Figures:
        return {"rate": alone(size.model, size.steps, 0)}

    @made.entry(LIMIT, "limit")
    def _(size: Size) -> Figures:
        _, rates = side_by_side("cases.hogwild", "alone", size.model, size.steps // WORKERS)
        return {"rate": sum(rates)}

    @made.entry(OURS_CPP, "ours")
    def _(size: Size) -> Figures:
        return in_cpp(size, "snapshots", WORKERS)

    @made.entry(OURS_CPP_COMMON, "ours", beside=OURS_CPP)
    def _(size: Size) -> Figures:
        return in_cpp(size, "ours", WORKERS)

    @made.entry(f"C++ by hand, {WORKERS} threads, aliased modules", "peer", beside=OURS_CPP)
    def _(size: Size) -> Figures:
        return in_cpp(size, "threads", WORKERS)

    @made.entry("C++ by hand, one thread", "peer", beside=OURS_CPP)
    def _(size: Size) -> Figures:
        return in_cpp(size, "threads", 1)

    @made.entry(f"limit: {WORKERS} C++ threads that share nothing", "limit", beside=OURS_CPP)
    def _(size: Size) -> Figures:
        return in_cpp(size, "own", WORKERS)

    return made


CASES = [
    case("hogwild_lenet", "lenet", "Hogwild, LeNet-5, batch 32, two workers", 1600),
    case("hogwild_mlp", "mlp", "Hogwild, MLP, batch 32, two workers", 8000),
]

"""A tiny model that many threads ask: one call at a time, by hand, and as train.Batcher.

`rate` is calls per second of all threads. Each thread asks for its next row as soon as it has the
last one. By hand is what one writes without a library: a queue.Queue, a thread that takes what is
there, stacks it, calls the model, and sets the results of futures. In the limit each thread only
waits for its turn at a lock, as a caller waits for its row, and one of them calls the model with a
batch that is there. torch computes with one thread everywhere: OpenMP would give each thread that
calls a tiny model others to wait for.

`added`, of a single thread, is the time of a call beyond the model's own.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from harness import Case, Figure, Figures, Size, Target, expect

THREADS = 16
FEATURES, HIDDEN = 64, 64
OURS, ONE_BY_ONE, BY_HAND = "train.Batcher", "one by one", "queue.Queue and a thread"
RAY_SERVE = "Ray Serve's batch"
LIMIT = "limit: turns of threads"

Ask = Callable[[Any], Any]


def tiny_model() -> Callable[[Any], Any]:
    os.environ["OMP_NUM_THREADS"] = "1"  # for all threads; torch.set_num_threads is for this one
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 4)
    )

    def run(batch: Any) -> Any:
        with torch.inference_mode():
            return model(torch.from_numpy(batch)).numpy()

    return run


def inputs() -> Any:
    return np.random.default_rng(0).random((THREADS, FEATURES), np.float32)


class ByHand:
    """One model for many threads, without a library."""

    def __init__(self, model: Callable[[Any], Any]) -> None:
        self._model = model
        self._calls: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __call__(self, x: Any) -> Any:
        future: Future[Any] = Future()
        self._calls.put((x, future))
        return future.result()

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            calls = [self._calls.get()]
            while len(calls) < 64:
                try:
                    calls.append(self._calls.get_nowait())
                except queue.Empty:
                    break
            if None in calls:
                return
            rows = self._model(np.stack([x for x, _ in calls]))
            for (_, future), row in zip(calls, rows, strict=True):
                future.set_result(row)


def together(ask: Ask, size: Size) -> float:
    """Calls per second of all threads."""
    began = threading.Barrier(THREADS + 1)
    wrong = []
    rows = inputs()
    expected = tiny_model()(rows)

    def calls(who: int) -> None:
        x, y = rows[who], None
        began.wait()
        for _ in range(size.calls):
            y = ask(x)
        if not np.allclose(y, expected[who], atol=1e-5):
            wrong.append(who)

    threads = [threading.Thread(target=calls, args=(who,)) for who in range(THREADS)]
    for thread in threads:
        thread.start()
    began.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    expect(not wrong, f"threads {wrong} got other rows than their own")
    return THREADS * size.calls / seconds


MANY = Case(
    "batcher",
    f"{THREADS} threads ask a tiny torch model",
    {"rate": Figure("calls/s", more_is_better=True), "batch": Figure("calls a batch")},
    full={"calls": 1500},
    quick={"calls": 300},
    targets=[
        Target("rate", OURS, ONE_BY_ONE, at_least=5),
        Target("rate", OURS, BY_HAND, at_least=2),
    ],
)


@MANY.entry(OURS, "ours")
def ours(size: Size) -> Figures:
    from penstock import train

    with train.Batcher(tiny_model()) as ask:
        rate = together(ask, size)
        return {"rate": rate, "batch": ask.stats()["mean_batch"]}


@MANY.entry(ONE_BY_ONE, "peer", "each thread calls the model")
def one_by_one(size: Size) -> Figures:
    model = tiny_model()
    return {"rate": together(lambda x: model(x[None])[0], size)}


@MANY.entry(BY_HAND, "peer")
def by_hand(size: Size) -> Figures:
    ask = ByHand(tiny_model())
    rate = together(ask, size)
    ask.close()
    return {"rate": rate}


@MANY.entry(RAY_SERVE, "peer", "serve.batch")
def ray_serve(size: Size) -> Figures:
    from peers import ray_end, ray_head

    ray_head(200 << 20)
    from ray import cloudpickle, serve

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which its processes cannot import
    try:
        serve.start(proxy_location="Disabled")
        ask = serve.run(serve_model().bind(), name="bench", route_prefix=None)
        few = Size(**{**vars(size), "calls": size.calls // 30})
        return {"rate": together(lambda x: ask.remote(x).result(), few)}
    finally:
        serve.shutdown()
        ray_end()


def serve_model() -> Any:
    from ray import serve

    class Model:
        def __init__(self) -> None:
            self.model = tiny_model()

        @serve.batch(max_batch_size=64, batch_wait_timeout_s=0)
        async def __call__(self, rows: list[Any]) -> list[Any]:
            return list(self.model(np.stack(rows)))

    return serve.deployment(Model, ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64)


@MANY.entry(LIMIT, "limit", "a batch's model in each round of turns, no rows")
def turns(size: Size) -> Figures:
    """Each thread wakes the next one and sleeps until it is woken: a switch for each call."""
    model, rows = tiny_model(), inputs()
    turn = [threading.Lock() for _ in range(THREADS)]
    for lock in turn:
        lock.acquire()

    def calls(who: int) -> None:
        for _ in range(size.calls):
            turn[who].acquire()
            if who == 0:
                model(rows)
            turn[(who + 1) % THREADS].release()

    threads = [threading.Thread(target=calls, args=(who,)) for who in range(THREADS)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    turn[0].release()
    for thread in threads:
        thread.join()
    return {"rate": THREADS * size.calls / (time.perf_counter() - start)}


# ---- a lone caller -------------------------------------------------------------------------------

ALONE = Case(
    "batcher_alone",
    "one thread asks a tiny torch model",
    {"added": Figure("us added to the model's call", 1e6)},
    full={"calls": 5000},
    quick={"calls": 1000},
    targets=[Target("added", OURS, at_most=50e-6, says="under 50 us added where one calls alone")],
)


def added(ask: Ask, model: Callable[[Any], Any], size: Size) -> float:
    """Seconds of a call beyond the model's, in turns, so that other load affects both."""
    x = inputs()[0]
    times = {True: 0.0, False: 0.0}
    for part in range(20):
        mine = part % 2 == 0
        call = ask if mine else lambda x: model(x[None])[0]
        start = time.perf_counter()
        for _ in range(size.calls // 10):
            call(x)
        times[mine] += time.perf_counter() - start
    return (times[True] - times[False]) / size.calls


@ALONE.entry(OURS, "ours")
def ours_alone(size: Size) -> Figures:
    from penstock import train

    model = tiny_model()
    with train.Batcher(model) as ask:
        return {"added": added(ask, model, size)}


@ALONE.entry(BY_HAND, "peer")
def by_hand_alone(size: Size) -> Figures:
    model = tiny_model()
    ask = ByHand(model)
    result = added(ask, model, size)
    ask.close()
    return {"added": result}


CASES = [MANY, ALONE]

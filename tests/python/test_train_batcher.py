"""train.Batcher: calls of threads and of asyncio tasks become batches of one function."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import penstock
from faults import wait_until
from penstock import train

pytestmark = pytest.mark.timeout(60)

Pair = namedtuple("Pair", "state action")


class Gate:
    """A function that can be held up, and keeps its batches."""

    def __init__(self, function=lambda x: x * 2):
        self.function = function
        self.batches = []
        self.threads = []
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, x):
        self.batches.append(np.array(x).tolist())
        self.threads.append(threading.current_thread())
        self.begun.release()
        assert self.open.wait(30)
        return self.function(x)


def waiting(f):
    stats = f.stats()
    return stats["queued"] + stats["blocked"]


@pytest.fixture
def pool():
    with ThreadPoolExecutor(16) as threads:
        yield threads


def held(pool, f, gate, *values):
    """The futures of calls of which the first runs, and the others wait in this order."""
    futures = [pool.submit(f, values[0])]
    assert gate.begun.acquire(timeout=30)
    for number, value in enumerate(values[1:]):
        futures.append(pool.submit(f, value))
        wait_until(lambda number=number: waiting(f) == number + 1)
    return futures


def test_a_lone_call_is_run_by_its_own_thread():
    gate = Gate()
    gate.open.set()
    f = train.Batcher(gate)
    assert f(3) == 6
    assert gate.threads == [threading.current_thread()]
    assert repr(f) == "Batcher(Gate, max_batch=64, max_wait=0.0)"


def test_calls_that_wait_are_one_batch_in_the_order_of_their_arrival(pool):
    gate = Gate()
    f = train.Batcher(gate, max_batch=3)
    futures = held(pool, f, gate, *range(8))
    gate.open.set()
    assert [future.result() for future in futures] == [2 * i for i in range(8)]
    assert gate.batches == [[0], [1, 2, 3], [4, 5, 6], [7]]
    stats = f.stats()
    assert (stats["calls"], stats["batches"], stats["mean_batch"]) == (8, 4, 2.0)
    assert stats["total"]["p50"] <= stats["total"]["p99"] <= stats["total"]["max"] < 30
    for times in (stats["waited"], stats["total"]):
        assert sum(count for _, count in times["histogram"]) == times["count"] == 8
        assert times["histogram"] == sorted(times["histogram"])


@pytest.mark.parametrize("max_batch", [1, 7, 100])
def test_every_thread_gets_its_own_row(pool, max_batch):
    f = train.Batcher(lambda x: x.sum(axis=1), max_batch=max_batch, max_wait=0.0001)

    def calls(who):
        x = np.zeros(5)
        for i in range(200):
            x[:] = who * 1000 + i
            assert f(x) == 5 * (who * 1000 + i)

    list(pool.map(calls, range(16)))
    assert f.stats()["calls"] == 16 * 200
    assert f.stats()["queued"] == 0


def test_any_nest_goes_in_and_any_nest_comes_out(pool):
    gate = Gate(lambda x: x)
    gate.open.set()
    f = train.Batcher(lambda x: x, max_batch=100, max_wait=60)
    inputs = [
        {
            "image": np.full((3, 40, 40), i, np.float32),
            "pair": Pair(np.arange(i, i + 3), i),
            "list": [np.int8(i), float(i)],
        }
        for i in range(100)
    ]
    with ThreadPoolExecutor(100) as threads:
        rows = list(threads.map(f, inputs))
    assert f.stats()["batches"] == 1
    for x, row in zip(inputs, rows, strict=True):
        np.testing.assert_array_equal(row["image"], x["image"])
        assert row["image"].dtype == np.float32
        assert type(row["pair"]) is Pair
        assert row["pair"].state.tolist() == x["pair"].state.tolist()
        assert row["pair"].action == x["pair"].action
        assert [type(value) for value in row["list"]] == [np.int8, np.float64]
        assert row["list"] == x["list"]


def test_strings_are_stacked_as_ragged(pool):
    f = train.Batcher(lambda texts: [len(text) for text in texts] and np.char.str_len(list(texts)))
    assert list(pool.map(f, ["a", "bcd", "", "ä" * 500])) == [1, 3, 0, 500]


def test_rows_are_views_of_the_result():
    results = []

    def function(x):
        results.append(x + 1)
        return results[-1]

    f = train.Batcher(function)
    row = f(np.zeros(3))
    assert row.base is results[0]
    assert row.tolist() == [1, 1, 1]


def test_torch_tensors_go_in_and_come_out(pool):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 2)

    def function(x):
        with torch.inference_mode():
            return {"y": layer(torch.as_tensor(x))}

    f = train.Batcher(function, max_wait=0.01)
    inputs = [torch.randn(4) for _ in range(20)]
    for x, row in zip(inputs, pool.map(f, inputs), strict=True):
        assert isinstance(row["y"], torch.Tensor)
        torch.testing.assert_close(row["y"], layer(x).detach())


def test_an_input_unlike_the_others_fails_alone(pool):
    gate = Gate()
    f = train.Batcher(gate)
    first, unlike, same = held(pool, f, gate, np.zeros(2), np.zeros(3), np.ones(2))
    gate.open.set()
    assert first.result().tolist() == [0, 0]
    assert same.result().tolist() == [2, 2]
    with pytest.raises(penstock.errors.InvalidArgument, match=r"float64 \(3,?\).*float64 \(2,?\)"):
        unlike.result()
    with pytest.raises(penstock.errors.InvalidArgument, match="float32"):
        f(np.zeros(2, np.float32))
    with pytest.raises(penstock.errors.InvalidArgument):
        f(object())
    with pytest.raises(penstock.errors.InvalidArgument, match="is None"):
        f(None)
    assert f(np.ones(2)).tolist() == [2, 2]


def test_a_bad_first_input_decides_nothing():
    def function(x):
        if x.shape[1:] != (2,):
            raise ValueError("two columns")
        return x

    f = train.Batcher(function)
    with pytest.raises(ValueError, match="two columns"):
        f(np.zeros(3))
    assert f(np.zeros(2)).tolist() == [0, 0]


class Bad(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Odd(Exception):
    """Cannot be copied."""

    def __init__(self, one, two):
        super().__init__(one)


@pytest.mark.parametrize("error", [KeyError("k"), ValueError("v"), Odd(1, 2)])
def test_each_caller_of_a_batch_gets_its_exception(pool, error):
    def broken(x):
        if len(x) > 1:
            raise error
        return x

    gate = Gate(broken)
    f = train.Batcher(gate)
    first, *others = held(pool, f, gate, 0, 1, 2, 3)
    gate.open.set()
    assert first.result() == 0
    found = [future.exception() for future in others]
    assert all(type(each) is type(error) and each.args == error.args for each in found)
    if not isinstance(error, Odd):
        assert len(set(map(id, found))) == 3
    names = []
    trace = found[1].__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert "broken" in names
    assert f(5) == 5
    assert f.stats()["failed"] == 3


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (np.zeros(3), "3 rows for 1 calls"),
        (7, "a int without rows"),
        (None, "a NoneType without rows"),
        ({}, "no array"),
        ({"a": np.zeros(1), "b": np.zeros(0)}, "0 rows"),
        (np.float64(1), "float64 without rows"),
    ],
)
def test_a_result_without_a_row_for_each_call_is_an_error(result, text):
    f = train.Batcher(lambda x: result)
    with pytest.raises(penstock.errors.InvalidArgument, match=text):
        f(1)


def test_a_call_by_the_function_itself_is_an_error():
    def function(x):
        return f(x[0])

    f = train.Batcher(function)
    with pytest.raises(penstock.errors.InvalidArgument, match="calls its own batcher"):
        f(1)


def test_a_full_queue_blocks_and_a_timeout_withdraws(pool):
    gate = Gate()
    f = train.Batcher(gate, max_batch=1, max_queue=2)
    futures = held(pool, f, gate, 0, 1, 2, 3)
    assert (f.stats()["queued"], f.stats()["blocked"]) == (2, 1)
    with pytest.raises(penstock.errors.Timeout, match="the queue is full, of 2 calls"):
        f(4, timeout=0.05)
    gate.open.set()
    assert [future.result() for future in futures] == [0, 2, 4, 6]
    assert gate.batches == [[0], [1], [2], [3]]
    assert f.stats()["withdrawn"] == 1


def test_close_ends_waiting_calls_and_completes_the_batch_that_runs(pool):
    gate = Gate()
    with train.Batcher(gate) as f:
        first, second = held(pool, f, gate, 1, 2)
        f.close()
        with pytest.raises(penstock.errors.Closed):
            second.result()
        gate.open.set()
        assert first.result() == 2
    with pytest.raises(penstock.errors.Closed):
        f(3)
    f.close()
    assert f.closed
    assert gate.batches == [[1]]


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch": 0},
        {"max_batch": 8, "max_queue": 4},
        {"max_wait": -1},
        {"max_wait": "no"},
        {"function": 3},
    ],
)
def test_arguments_are_checked(options):
    with pytest.raises(penstock.errors.InvalidArgument):
        train.Batcher(**{"function": len, **options})


def test_a_batcher_of_an_objects_own_method_is_collected():
    class Policy:
        def __init__(self):
            self.act = train.Batcher(self.run)

        def run(self, x):
            return x

    async def ask(policy):
        return await policy.act.call_async(1)

    policy = Policy()
    assert policy.act(1) == 1
    assert asyncio.run(ask(policy)) == 1
    helper = policy.act._helper[1]
    gone = weakref.ref(policy)
    del policy

    def collected():
        gc.collect()
        return gone() is None

    wait_until(collected)  # the helper may not have left its batch
    helper.join(10)
    assert not helper.is_alive()


# ---- asyncio


def test_tasks_are_batched_and_get_their_own_rows():
    async def main():
        return await asyncio.gather(*(f.call_async(i) for i in range(500)))

    f = train.Batcher(lambda x: x * 2, max_batch=50)
    assert asyncio.run(main()) == [2 * i for i in range(500)]
    assert asyncio.run(main()) == [2 * i for i in range(500)]  # another event loop
    assert f.stats()["calls"] == 1000
    assert f.stats()["batches"] < 500


def test_tasks_and_threads_share_batches(pool):
    gate = Gate()
    f = train.Batcher(gate)

    async def main():
        first = asyncio.ensure_future(f.call_async(0))
        await asyncio.to_thread(gate.begun.acquire)
        second = asyncio.ensure_future(f.call_async(1))
        await asyncio.sleep(0)
        third = pool.submit(f, 2)
        while waiting(f) < 2:
            await asyncio.sleep(0.001)
        gate.open.set()
        return [await first, await second, await asyncio.wrap_future(third)]

    assert asyncio.run(main()) == [0, 2, 4]
    assert gate.batches == [[0], [1, 2]]


def test_a_cancelled_task_withdraws_its_call():
    gate = Gate()
    f = train.Batcher(gate)

    async def main():
        first = asyncio.ensure_future(f.call_async(0))
        await asyncio.to_thread(gate.begun.acquire)
        second, third = (asyncio.ensure_future(f.call_async(i)) for i in (1, 2))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(f.call_async(3), 0.01)
        first.cancel()  # runs: its result is dropped
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.open.set()
        return await third

    assert asyncio.run(main()) == 4
    assert gate.batches == [[0], [2]]
    assert f.stats()["withdrawn"] == 3


def test_errors_reach_tasks():
    def broken(x):
        raise KeyError("broken")

    async def ask(f):
        return await asyncio.gather(f.call_async(1), f.call_async(2), return_exceptions=True)

    assert [str(error) for error in asyncio.run(ask(train.Batcher(broken)))] == ["'broken'"] * 2

    async def stop(f, gate):
        tasks = [asyncio.ensure_future(f.call_async(i)) for i in range(2)]
        await asyncio.to_thread(gate.begun.acquire)
        tasks.append(asyncio.ensure_future(f.call_async(3)))
        await asyncio.sleep(0)
        f.close()
        with pytest.raises(penstock.errors.Closed):
            await tasks[2]
        gate.open.set()
        with pytest.raises(penstock.errors.Closed):
            await f.call_async(4)

    gate = Gate()
    asyncio.run(stop(train.Batcher(gate, max_batch=2), gate))


# ---- Ctrl-C, forks, exit

WAITS = """
import threading, time
from penstock import train

begun = threading.Event()

def function(x):
    begun.set()
    time.sleep(20)
    return x

f = train.Batcher(function)
threading.Thread(target=f, args=(0,), daemon=True).start()
begun.wait()
print("calls", flush=True)
begin = time.monotonic()
try:
    f(1)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begin < 5, f.stats()["withdrawn"])
"""


def test_ctrl_c_withdraws_a_call_that_waits():
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "calls\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "interrupted True 1\n"
    assert process.returncode == 0


def test_a_signal_handler_that_calls_its_batcher_is_an_error(pool):
    gate = Gate()
    f = train.Batcher(gate)
    first = pool.submit(f, 0)
    assert gate.begun.acquire(timeout=30)
    before = signal.signal(signal.SIGALRM, lambda *_: f(2))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(penstock.errors.InvalidArgument, match="signal handler"):
            f(1)
    finally:
        signal.signal(signal.SIGALRM, before)
    gate.open.set()
    assert first.result() == 0
    assert f(3) == 6
    assert gate.batches == [[0], [3]]


def test_a_slow_signal_handler_holds_up_no_other_caller(pool):
    gate = Gate()
    f = train.Batcher(gate)
    first = pool.submit(f, 0)
    assert gate.begun.acquire(timeout=30)
    others = []

    def handler(*_):
        wait_until(lambda: waiting(f) == 2)
        gate.open.set()
        others[0].result(20)
        others.append(pool.submit(f, 2).result(20))  # after this thread's own batch

    before = signal.signal(signal.SIGALRM, handler)
    try:
        others.append(pool.submit(f, 7))
        wait_until(lambda: waiting(f) == 1)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert f(1) == 2
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (first.result(), others[1]) == (0, 4)


def test_ctrl_c_in_the_function_interrupts_its_caller_alone():
    begun, interrupted = threading.Event(), threading.Event()
    results = []

    def function(x):
        if not interrupted.is_set():
            begun.set()
            wait_until(lambda: waiting(f) == 1)
            interrupted.set()
            signal.raise_signal(signal.SIGINT)
            time.sleep(10)
        return x

    def others():
        wait_until(lambda: waiting(f) == 1)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(f, 1)
            begun.wait(20)
            second = pool.submit(f, 2)
            results.extend([first.result(), second.result()])

    f = train.Batcher(function, max_batch=2, max_wait=60)
    starter = threading.Thread(target=others)
    starter.start()
    with pytest.raises(KeyboardInterrupt):
        f(0)
    starter.join(20)
    assert results == [1, 2]
    assert f.stats()["batches"] == 2


def test_a_forked_child_has_a_batcher_of_its_own(pool):
    gate = Gate()
    f = train.Batcher(gate)
    first, second = held(pool, f, gate, 1, 2)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            gate.open.set()
            f._function = lambda x: x + 100
            alone = f(5) == 105 and f.stats()["queued"] == 0

            async def ask():
                return await f.call_async(6)

            os._exit(0 if alone and asyncio.run(ask()) == 106 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    gate.open.set()
    assert (first.result(), second.result()) == (2, 4)


def test_a_program_ends_while_calls_wait():
    code = WAITS.split('print("calls"')[0] + (
        "threading.Thread(target=f, args=(1,), daemon=True).start()\ntime.sleep(0.2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=20, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

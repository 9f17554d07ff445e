"""train.Batcher with a name, called by processes that share only the name."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import penstock
from faults import wait_until
from penstock import train

pytestmark = pytest.mark.timeout(60)

# Calls with numbered rows, and prints what is wrong.
CALLER = """
import sys
import numpy as np
from penstock import train

name, who, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ask = train.attach_batcher(name)
wrong = 0
for i in range(count):
    x = who * 1000 + i
    y = ask({"x": np.full(20, x), "who": who})
    wrong += not (y["twice"] == 2 * x).all() or y["who"] != who
print(wrong, flush=True)
"""

# Calls once, and prints the error.
ONCE = """
import sys, time
from penstock import train

ask = train.attach_batcher(sys.argv[1])
print("attached", flush=True)
begin = time.monotonic()
try:
    print(ask(int(sys.argv[2])).tolist(), flush=True)
except BaseException as error:
    print(type(error).__name__, time.monotonic() - begin < 10, error, flush=True)
"""

# A batcher whose function does not return.
SERVER = """
import sys, time
from penstock import train

def function(x):
    print("running", flush=True)
    time.sleep(60)

f = train.Batcher(function, name=sys.argv[1])
print("serving", flush=True)
time.sleep(60)
"""


class Gate:
    def __init__(self):
        self.batches = []
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, x):
        self.batches.append(x.tolist())
        self.begun.release()
        assert self.open.wait(30)
        return x * 2


def waiting(f):
    return f.stats()["queued"]


def test_processes_threads_and_tasks_get_their_own_rows(name, start):
    def function(batch):
        return {"twice": batch["x"] * 2, "who": batch["who"]}

    with train.Batcher(function, name=name) as f:
        callers = [start("-c", CALLER, name, who, 200) for who in range(3)]

        def calls(who):
            for i in range(200):
                x = who * 1000 + i
                assert (f({"x": np.full(20, x), "who": who})["twice"] == 2 * x).all()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(calls, range(3, 6)))
        assert [caller.communicate(timeout=50)[0] for caller in callers] == ["0\n"] * 3
        assert f.stats()["calls"] == 6 * 200
        assert f.name == name
        assert f"name='{name}'" in repr(f)


def test_results_are_nests_of_numpy_arrays(name):
    torch = pytest.importorskip("torch")

    def function(batch):
        x = torch.as_tensor(batch["x"]).requires_grad_()
        return {"y": x * 2, "pair": (x.sum(dim=1), np.arange(len(x)))}

    with train.Batcher(function, name=name), train.attach_batcher(name) as ask:
        row = ask({"x": np.arange(3, dtype=np.float32)})
        assert row["y"].tolist() == [0, 2, 4]
        assert row["y"].dtype == np.float32
        assert [value.tolist() for value in row["pair"]] == [3, 0]
        assert ask.alive
        assert ask.name == name
        assert name in repr(ask)


def test_each_thread_of_a_client_calls_by_itself(name):
    gate = Gate()
    with train.Batcher(gate, name=name) as f, train.attach_batcher(name) as ask:
        with ThreadPoolExecutor(5) as pool:
            first = pool.submit(ask, 0)
            gate.begun.acquire()
            others = [pool.submit(ask, i) for i in range(1, 5)]
            wait_until(lambda: waiting(f) == 4)
            gate.open.set()
            assert [first.result(), *(other.result() for other in others)] == [0, 2, 4, 6, 8]
        assert sorted(gate.batches[1]) == [1, 2, 3, 4]


class Own(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (KeyError("no such row"), KeyError, "'no such row'"),
        (penstock.errors.DataLoss("damaged"), penstock.errors.DataLoss, "damaged"),
        (Own("own"), penstock.RemoteError, "Own: own"),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "bad"), penstock.RemoteError, "UnicodeDecodeError"),
    ],
)
def test_exceptions_reach_the_caller_with_their_traceback(name, error, kind, said):
    def broken(x):
        raise error

    with train.Batcher(broken, name=name), train.attach_batcher(name) as ask:
        with pytest.raises(kind) as caught:
            ask(1)
        assert said in str(caught.value)
        assert "in broken" in str(caught.value.__cause__)
        with pytest.raises(kind):
            ask(2)


def test_an_input_or_a_row_that_does_not_fit_fails_alone(name):
    with train.Batcher(lambda x: x, name=name), train.attach_batcher(name) as ask:
        assert ask(np.zeros(2)).tolist() == [0, 0]
        with pytest.raises(penstock.errors.InvalidArgument, match="names, shapes and dtypes"):
            ask(np.zeros(3))
        with pytest.raises(penstock.errors.InvalidArgument):
            ask(object())
        assert ask(np.ones(2)).tolist() == [1, 1]
    large = train.Batcher(lambda x: np.zeros((len(x), 5_000_000)), name=name)
    refused = pytest.raises(penstock.errors.InvalidArgument, match="40000")
    with large, train.attach_batcher(name) as ask, refused:
        ask(1)


def test_a_killed_process_takes_its_call_with_it(name, start):
    gate = Gate()
    with train.Batcher(gate, name=name) as f, ThreadPoolExecutor(2) as pool:
        first = pool.submit(f, 0)
        gate.begun.acquire()
        caller = start("-c", ONCE, name, 1)
        wait_until(lambda: waiting(f) == 1)
        second = pool.submit(f, 2)
        wait_until(lambda: waiting(f) == 2)
        caller.kill()
        wait_until(lambda: waiting(f) == 1)
        gate.open.set()
        assert (first.result(), second.result()) == (0, 4)
        assert gate.batches == [[0], [2]]
        assert f.stats()["withdrawn"] == 1


def test_a_killed_process_whose_batch_runs_disturbs_no_other(name, start):
    gate = Gate()
    with train.Batcher(gate, name=name) as f:
        killed = start("-c", ONCE, name, 1)
        gate.begun.acquire()
        killed.kill()
        killed.wait()
        other = start("-c", ONCE, name, 2)
        wait_until(lambda: waiting(f) == 1)
        gate.open.set()
        assert other.communicate(timeout=30)[0] == "attached\n4\n"


def test_callers_of_a_killed_batcher_get_closed_at_once(name, start):
    server = start("-c", SERVER, name)
    assert server.stdout.readline() == "serving\n"
    callers = [start("-c", ONCE, name, i) for i in range(2)]
    for caller in callers:
        assert caller.stdout.readline() == "attached\n"
    assert server.stdout.readline() == "running\n"
    server.kill()
    for caller in callers:
        assert caller.communicate(timeout=30)[0].startswith("Closed True ")


def test_close_ends_the_calls_of_other_processes(name, start):
    gate = Gate()
    f = train.Batcher(gate, max_batch=1, name=name)
    first = start("-c", ONCE, name, 0)
    gate.begun.acquire()
    second = start("-c", ONCE, name, 1)
    wait_until(lambda: waiting(f) == 1)
    f.close()
    assert second.communicate(timeout=30)[0].startswith("attached\nClosed True ")
    gate.open.set()
    first.communicate(timeout=30)
    with train.Batcher(lambda x: x, name=name), train.attach_batcher(name) as ask:  # free again
        assert ask(1) == 1


def test_a_timeout_withdraws_the_call(name):
    gate = Gate()
    with train.Batcher(gate, name=name) as f, train.attach_batcher(name) as ask:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(f, 0)
            gate.begun.acquire()
            with pytest.raises(penstock.errors.Timeout):
                ask(1, timeout=0.3)
            wait_until(lambda: f.stats()["withdrawn"] == 1)
            gate.open.set()
            assert first.result() == 0
            assert ask(3) == 6  # and not the row of an earlier call
        assert gate.batches == [[0], [3]]


def test_ctrl_c_withdraws_the_call_of_a_process(name, start):
    gate = Gate()
    with train.Batcher(gate, name=name) as f, ThreadPoolExecutor(1) as pool:
        first = pool.submit(f, 0)
        gate.begun.acquire()
        caller = start("-c", ONCE, name, 1)
        wait_until(lambda: waiting(f) == 1)
        caller.send_signal(signal.SIGINT)
        assert caller.communicate(timeout=30)[0].startswith("attached\nKeyboardInterrupt True")
        wait_until(lambda: f.stats()["withdrawn"] == 1)
        gate.open.set()
        assert first.result() == 0


def test_a_stopped_process_stops_no_other(name, start):
    with train.Batcher(lambda x: x, name=name):
        caller = start(
            "-c",
            CALLER.replace("ask({", "time.sleep(0.01) or ask({").replace(
                "import sys", "import sys, time"
            ),
            name,
            0,
            10_000,
        )
        time.sleep(1)
        caller.send_signal(signal.SIGSTOP)
        with train.attach_batcher(name) as ask:
            begin = time.monotonic()
            for i in range(100):
                ask({"x": np.full(20, i), "who": 1})
            assert time.monotonic() - begin < 10


def test_a_full_queue_leaves_calls_with_their_processes(name):
    gate = Gate()
    with train.Batcher(gate, max_batch=1, max_queue=2, name=name) as f:
        ask = train.attach_batcher(name)
        with ThreadPoolExecutor(6) as pool:
            calls = [pool.submit(ask, i) for i in range(6)]
            gate.begun.acquire()
            wait_until(lambda: waiting(f) == 2)
            time.sleep(0.2)
            assert (f.stats()["queued"], f.stats()["blocked"]) == (2, 0)
            gate.open.set()
            assert sorted(call.result() for call in calls) == [0, 2, 4, 6, 8, 10]
        ask.close()
        with pytest.raises(penstock.errors.Closed):
            ask(1)


def test_names_are_checked(name):
    taken = pytest.raises(penstock.errors.InvalidArgument, match=str(os.getpid()))
    with train.Batcher(len, name=name), taken:
        train.Batcher(len, name=name)
    with pytest.raises(penstock.errors.Timeout):
        train.attach_batcher(name, timeout=0)
    for bad in ("", "x" * 57, 3, "a\0b"):
        with pytest.raises(penstock.errors.InvalidArgument):
            train.Batcher(len, name=bad)


def test_a_strangers_items_are_ignored(name):
    with train.Batcher(lambda x: x, name=name), train.attach_batcher(name) as ask:
        with train.attach_channel(f"batcher/{name}") as stranger:
            for item in (1, {"to": "nobody", "call": 1, "x": 1}, {"to": "a"}, {"call": "b"}):
                stranger.put(item)
        assert ask(4) == 4


def test_a_forked_client_has_a_line_of_its_own(name):
    with train.Batcher(lambda x: x + 1, name=name):
        ask = train.attach_batcher(name)
        assert ask(1) == 2
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                os._exit(0 if all(ask(i) == i + 1 for i in range(50)) else 1)
            finally:
                os._exit(2)
        for i in range(50):
            assert ask(-i) == 1 - i
        assert os.waitpid(child, 0)[1] == 0
        ask.close()

"""The consumer's process: killed, interrupted, forked, or ended with a feed alive."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from faults import run, start, wait_for_ends, wait_until

pytestmark = pytest.mark.timeout(90)

MODES = ["in line", "threads", "fork", "forkserver", "spawn"]
METHODS = ["fork", "forkserver", "spawn"]
SLOW_METHODS = [pytest.param(method, marks=pytest.mark.slow) for method in METHODS[1:]]

# A script that feeds in the mode that its first argument names.
HEAD = """
import os, signal, sys, threading, time, warnings
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" has it ignored
warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")  # from Python 3.12 on
import penstock
from loader_datasets import Items
from faults import Slow

def options(mode=sys.argv[1]):
    if mode == "in line":
        return {"workers": 0}
    if mode == "threads":
        return {"workers": 2}
    return {"workers": 2, "use_multiprocessing": True, "start_method": mode}

def say(*words):
    print(*words, flush=True)
"""

RUNNING = (
    HEAD
    + """
feed = penstock.Loader(Slow(100000, 2000, 0.001), max_queue_size=4, **options())
try:
    for n, batch in enumerate(feed):
        if n == 5:
            say(*(worker["pid"] for worker in feed.stats()["workers"]))
finally:
    say("cleaned up")
"""
)


def shared_memory():
    return set(os.listdir("/dev/shm"))


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            found = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return found + [grandchild for child in found for grandchild in children_of(child)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("method", METHODS)
def test_workers_are_gone_within_a_second_when_the_parent_is_killed(method, number, tmp_path):
    before = shared_memory()
    with start(tmp_path, RUNNING, method) as script:
        pids = [int(word) for word in script.stdout.readline().split()]
        everyone = set(children_of(script.pid)) | set(pids)
        assert len(pids) == 2
        script.send_signal(number)
        script.wait(10)
        left = wait_for_ends(sorted(everyone), 1.0)
        assert not left, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
        assert script.returncode == -number
        assert "Traceback" not in script.stderr.read()
    # Concurrent tests may have files there for a moment.
    wait_until(lambda: shared_memory() <= before, "no file left in /dev/shm")


@pytest.mark.parametrize("method", ["fork", *SLOW_METHODS])
def test_a_parent_killed_with_workers_stuck_in_user_code(method, tmp_path):
    text = (
        HEAD
        + """
class Stuck(Items):
    def __getitem__(self, i):
        if i == 1:
            time.sleep(1000)
        return super().__getitem__(i)

feed = penstock.Loader(Stuck(10), **options())
iterator = iter(feed)
next(iterator)
say(*(worker["pid"] for worker in feed.stats()["workers"]))
next(iterator)
"""
    )
    with start(tmp_path, text, method) as script:
        pids = [int(word) for word in script.stdout.readline().split()]
        script.kill()
        script.wait(10)
        assert not wait_for_ends(pids, 1.0)


@pytest.mark.parametrize("mode", MODES)
def test_ctrl_c_ends_everything_with_one_traceback(mode, tmp_path):
    with start(tmp_path, RUNNING, mode) as script:
        pids = [int(word) for word in script.stdout.readline().split() if int(word)]
        pids = [pid for pid in pids if pid != script.pid]
        begin = time.monotonic()
        os.killpg(script.pid, signal.SIGINT)  # to the whole group, like a terminal
        out, error = script.communicate(timeout=20)
        took = time.monotonic() - begin
        assert not wait_for_ends(pids, 1.0)
    assert script.returncode == -signal.SIGINT
    assert out == "cleaned up\n"
    assert error.count("Traceback") == 1, error
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert "penstock worker" not in error
    assert took < 5


@pytest.mark.parametrize("mode", ["threads", "fork", "spawn"])
def test_ctrl_c_while_the_consumer_waits(mode, tmp_path):
    text = (
        HEAD
        + """
class Stuck(Items):
    def __getitem__(self, i):
        while i == 1:
            time.sleep(0.01)
        return super().__getitem__(i)

feed = penstock.Loader(Stuck(10), **options())
try:
    for _ in feed:
        say("waiting")
except KeyboardInterrupt:
    say("interrupted")
    feed.close()
    say("closed")
"""
    )
    with start(tmp_path, text, mode) as script:
        assert script.stdout.readline() == "waiting\n"
        begin = time.monotonic()
        os.killpg(script.pid, signal.SIGINT)
        try:
            out, error = script.communicate(timeout=20)
        finally:
            script.kill()
    assert (out, error, script.returncode) == ("interrupted\nclosed\n", "", 0)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("mode", ["threads", "fork", *SLOW_METHODS])
def test_a_feed_goes_on_after_an_interrupt_that_was_handled(mode, tmp_path):
    text = (
        HEAD
        + """
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGUSR1, interrupt)
feed = penstock.Loader(Slow(30, 2000, 0.05), max_queue_size=1, **options())
taken, interrupts = [], 0
state = feed.state()
next(iter(feed))  # an interrupt while workers are being started closes the feed
while True:
    feed.restore(state)
    if interrupts < 4:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        for _, index in feed:
            taken.append(index)
            state = feed.state()
        break
    except KeyboardInterrupt:
        interrupts += 1
say(interrupts == 4, sorted(set(taken)) == list(range(30)), feed.epoch)
"""
    )
    code, out, error = run(tmp_path, text, mode)
    assert (code, out, error) == (0, "True True 1\n", "")


ENDINGS = {
    "idle": "list(feed)",
    "never begun": "pass",
    "middle of an epoch": "iterator = iter(feed); next(iterator)",
    "in a function": "def f():\n    for batch in feed: return batch\nf()",
    "exception": "for batch in feed: raise LookupError('of the script')",
    "sys.exit": "for batch in feed: sys.exit(3)",
    "held batches": "held = list(feed)",
    "reference cycle": "class C: pass\nc = C(); c.me = c; c.feed = feed; c.it = iter(feed); next(c.it)",  # noqa: E501
    "closed in atexit": "import atexit\natexit.register(feed.close)\nnext(iter(feed))",
    "two feeds": (
        "other = penstock.Loader(Items(50), **options())\n"
        "a, b = iter(feed), iter(other)\nnext(a), next(b)"
    ),
    "used in atexit": "import atexit\nit = iter(feed)\natexit.register(lambda: next(it, None))",
}


EVERY = [*MODES[:3], *SLOW_METHODS]


SLOW, SOAK = (pytest.mark.slow,), (pytest.mark.slow, pytest.mark.soak)


def marks_of(mode, ending):
    """In line there is nothing to end, except for what an iterator holds."""
    if mode in METHODS[1:]:
        return SLOW
    few = ("middle of an epoch", "exception", "reference cycle", "used in atexit")
    return SOAK if mode == "in line" and ending not in few else ()


@pytest.mark.parametrize(
    ("mode", "ending"),
    [
        pytest.param(mode, ending, marks=marks_of(mode, ending))
        for mode in MODES
        for ending in ENDINGS
    ],
)
def test_the_interpreter_ends_with_a_feed_alive(mode, ending, tmp_path):
    text = (
        HEAD
        + """
feed = penstock.Loader(Items(50, 3000), max_queue_size=4, **options())
import atexit
atexit.register(say, "the end")
"""
        + ENDINGS[ending]
    )
    begin = time.monotonic()
    code, out, error = run(tmp_path, text, mode)
    assert time.monotonic() - begin < 15
    assert out == "the end\n"
    if ending == "exception":
        assert code == 1
        assert error.count("Traceback") == 1
        assert error.endswith("LookupError: of the script\n")
    elif ending == "used in atexit":
        assert code == 0
        assert not error or "Closed" in error
    else:
        assert (code, error) == (3 if ending == "sys.exit" else 0, "")


@pytest.mark.parametrize("mode", ["threads", "fork"])
def test_the_interpreter_ends_while_workers_are_in_user_code(mode, tmp_path):
    text = (
        HEAD
        + """
class Busy(Items):
    def __getitem__(self, i):
        end = time.monotonic() + (60 if i > 2 else 0)
        while time.monotonic() < end:
            sum(range(1000))       # holds the interpreter's lock
            time.sleep(0.0001)     # and lets go of it
        return super().__getitem__(i)

feed = penstock.Loader(Busy(50), **options())
iterator = iter(feed)
for _ in range(3):
    next(iterator)
say("done")
"""
    )
    for _ in range(2):
        begin = time.monotonic()
        code, out, error = run(tmp_path, text, mode)
        assert (code, out, error) == (0, "done\n", "")
        assert time.monotonic() - begin < 10


FORKED = (
    HEAD
    + """
feed = penstock.Loader(Items(40, 3000), max_queue_size=3, **options())
iterator = iter(feed)
held = [next(iterator) for _ in range(5)]
pid = os.fork()
if pid == 0:
    good = all((array == index).all() for array, index in held)
    for array, index in held:
        array += 1  # a private copy: the parent sees nothing of it
    for use in (lambda: next(iterator), lambda: list(feed), lambda: next(feed.steps(1))):
        try:
            use()
            say("the child went on")
        except penstock.Closed as error:
            good = good and "process" in str(error)
    feed.close()
    with penstock.Loader(Items(7), **options()) as mine:
        good = good and [index for _, index in mine] == list(range(7))
    if sys.argv[2] == "del":
        del held, iterator, feed
    say("child", good)
    if sys.argv[2] == "_exit":
        os._exit(0)
    sys.exit(0)
_, status = os.waitpid(pid, 0)
say("exit", os.waitstatus_to_exitcode(status))
held += iterator
say(len(held), all((array == index).all() for array, index in held))
say([index for _, index in feed] == list(range(40)), feed.stats()["restarts"])
"""
)


@pytest.mark.parametrize("ending", ["exit", "_exit", "del"])
@pytest.mark.parametrize("mode", EVERY)
def test_a_fork_of_the_parent_leaves_its_feed_alone(mode, ending, tmp_path):
    code, out, error = run(tmp_path, FORKED, mode, ending)
    assert (code, error) == (0, "")
    assert out.splitlines() == ["child True", "exit 0", "40 True", "True 0"]


# Forks while another thread is in the feed and holds its locks.
FORKED_AMID = (
    HEAD
    + """
def wait(index):
    if index == 5:
        time.sleep(1.5)
    return index

class Waiting:
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return wait(index)

class Beginning(Waiting):
    def on_epoch_begin(self):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(1.5)

source = {
    "next": Waiting,
    "dataset": lambda: penstock.Dataset.range(12).map(wait),
    "iter": Beginning,
}[sys.argv[2]]()
feed = penstock.Loader(source, max_queue_size=1, **options())
taken, state = [], feed.state()
def take():
    taken.extend(int(index) for index in (iterator if iterator is not None else feed))
iterator = None if sys.argv[2] == "iter" else iter(feed)
if iterator is not None:
    taken += [int(next(iterator)) for _ in range(5)]
thread = threading.Thread(target=take)
thread.start()
time.sleep(0.5)
uses = [lambda: next(iter(feed)), lambda: next(feed.steps(1)), lambda: feed.restore(state)]
if iterator is not None:
    uses.append(lambda: next(iterator))
codes = []
for use in (*uses, feed.close):
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)
        try:
            use()
            os._exit(0 if use == feed.close else 1)
        except penstock.Closed:
            os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
thread.join()
say(set(codes), taken == list(range(12)))
"""
)


@pytest.mark.parametrize("within", ["next", "dataset", "iter"])
@pytest.mark.parametrize("mode", EVERY)
def test_a_fork_is_refused_while_another_thread_is_in_the_feed(mode, within, tmp_path):
    code, out, error = run(tmp_path, FORKED_AMID, mode, within)
    assert (code, out, error) == (0, "{0} True\n", "")


def test_a_dataset_is_iterated_in_a_child_that_was_forked_while_another_thread_began(tmp_path):
    text = (
        HEAD
        + """
dataset = penstock.Dataset.range(5)
make = type(dataset).build
def slowly(*arguments, **options):
    if threading.current_thread() is not threading.main_thread():
        time.sleep(1.5)
    return make(*arguments, **options)
type(dataset).build = slowly
thread = threading.Thread(target=lambda: say([int(x) for x in dataset]))
thread.start()
time.sleep(0.5)
pid = os.fork()
if pid == 0:
    signal.alarm(10)
    say([int(x) for x in dataset])
    os._exit(0)
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
thread.join()
"""
    )
    code, out, error = run(tmp_path, text, "in line")
    assert (code, error) == (0, "")
    assert sorted(out.splitlines()) == ["0", "[0, 1, 2, 3, 4]", "[0, 1, 2, 3, 4]"]


def test_many_forks_while_a_feed_runs(tmp_path):
    text = (
        HEAD
        + """
import logging  # now: imported during a fork it would unlock what it did not lock
feed = penstock.Loader(Slow(300, 2000, 0.001), max_queue_size=3, **options())
stop = threading.Event()
codes = []
def fork():
    while not stop.is_set():
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
forker = threading.Thread(target=fork)
forker.start()
good = True
while good and len(codes) < 10:
    good = [index for _, index in feed] == list(range(300))
stop.set()
forker.join()
say(good, set(codes) == {7})
"""
    )
    for mode in ("threads", "fork"):
        code, out, error = run(tmp_path, text, mode)
        assert (code, out, error) == (0, "True True\n", "")


def test_multiprocessing_of_the_user_beside_a_feed(tmp_path):
    text = (
        HEAD
        + """
import multiprocessing
if __name__ == "__main__":
    feed = penstock.Loader(Items(40, 3000), max_queue_size=3, **options())
    iterator = iter(feed)
    held = [next(iterator)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        say(pool.map(abs, range(-5, 0)))
        held += iterator
        say(pool.map(abs, range(-5, 0)), len(held))
"""
    )
    code, out, error = run(tmp_path, text, "spawn")
    assert (code, error) == (0, "")
    assert out == "[5, 4, 3, 2, 1]\n[5, 4, 3, 2, 1] 40\n"


def test_a_process_that_ends_takes_no_time_over_its_workers(tmp_path):
    text = (
        HEAD
        + """
feed = penstock.Loader(Items(1000, 3000), **options())
next(iter(feed))
begin = time.monotonic()
feed.close()
say(time.monotonic() - begin)
"""
    )
    for mode in ("threads", "fork", "spawn"):
        code, out, error = run(tmp_path, text, mode)
        assert (code, error) == (0, "")
        assert float(out) < 1.0


def test_stopped_by_job_control_and_continued(tmp_path):
    with start(tmp_path, RUNNING, "fork") as script:
        pids = [int(word) for word in script.stdout.readline().split()]
        os.killpg(script.pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.killpg(script.pid, signal.SIGCONT)
        time.sleep(0.2)
        assert script.poll() is None
        os.killpg(script.pid, signal.SIGINT)
        _, error = script.communicate(timeout=20)
        assert not wait_for_ends(pids, 1.0)
    assert error.count("Traceback") == 1

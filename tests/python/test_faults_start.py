"""Workers that cannot start, or cannot use the data that they were sent."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from contract import SPAWN, Mode, each
from faults import Deadly, Slow, die, right, run, wait_until, worker_pids
from loader_datasets import Items

pytestmark = pytest.mark.timeout(60)

FORK = Mode(2, "fork")
SERVER = Mode(2, "forkserver")
METHODS = (FORK, SERVER, SPAWN)


class Unpicklable(Items):
    def __init__(self) -> None:
        super().__init__(5)
        self.inner = {"deep": [1, threading.local()]}


@each(METHODS, ())
def test_what_cannot_be_sent_is_named(mode):
    with (
        penstock.Loader(Unpicklable(), **mode.options) as feed,
        pytest.raises(penstock.InvalidArgument, match=r"dataset\.inner\['deep'\]\[1\].*_local"),
    ):
        list(feed)
    own = threading.local()
    with (
        penstock.Loader(
            Items(5), batch_size=2, collate=lambda samples: own and samples, **mode.options
        ) as feed,
        pytest.raises(penstock.InvalidArgument, match=r"collate.*_local"),
    ):
        list(feed)


@each((Mode(2), Mode(0)), ())
def test_threads_need_nothing_to_be_picklable(mode):
    with penstock.Loader(Unpicklable(), **mode.options) as feed:
        assert right(list(feed), 5)


class FailsThere(Items):
    """Cannot be rebuilt in a worker."""

    def __init__(self, how: str) -> None:
        super().__init__(5)
        self.how = how

    def __setstate__(self, state: Any) -> None:
        if state["how"] == "raises":
            raise RuntimeError("no such device here")
        if state["how"] == "imports":
            import a_module_that_is_not_there  # noqa: F401
        print("the last words of the worker", file=sys.stderr)
        sys.stderr.flush()
        os.write(2, b"and from below\n")
        os._exit(7)


@each((FORK, SPAWN), (SERVER,))
def test_an_exception_while_a_worker_starts_is_raised_here(mode):
    for how, kind, text in (
        ("raises", RuntimeError, "no such device here"),
        ("imports", ModuleNotFoundError, "a_module_that_is_not_there"),
    ):
        with penstock.Loader(FailsThere(how), **mode.options) as feed:
            with pytest.raises(kind, match=text) as caught:
                list(feed)
            cause = caught.value.__cause__
            assert isinstance(cause, penstock.WorkerTraceback)
            assert "__setstate__" in cause.traceback
            # Later calls raise Closed.
            with pytest.raises(penstock.Closed):
                list(feed)


@each((FORK, SPAWN), (SERVER,))
def test_a_worker_that_dies_three_times_before_it_is_ready_says_what_it_said(mode):
    with (
        penstock.Loader(FailsThere("dies"), **mode.options) as feed,
        pytest.raises(penstock.WorkerLost) as caught,
    ):
        list(feed)
    text = str(caught.value)
    assert "exited with 7" in text
    assert "the last words of the worker" in text
    assert "and from below" in text


class DiesAtStart(Slow):
    """A worker that starts while `folder`/armed exists dies, `times` times."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__(800, 4, 0.002)
        self.folder, self.times = folder, times

    def __setstate__(self, state: Any) -> None:
        self.__dict__ = state
        if (self.folder / "armed").exists():
            starts = [name for name in os.listdir(self.folder) if name != "armed"]
            if len(starts) < self.times:
                (self.folder / str(os.getpid())).touch()
                die("SIGKILL")


@each((Mode(2, "fork"),), (SERVER,))
@pytest.mark.parametrize("times", [6, 1000])
def test_workers_killed_as_they_come_while_others_deliver(times, mode, tmp_path):
    with penstock.Loader(DiesAtStart(tmp_path, times), **mode.options) as feed:
        iterator = iter(feed)
        batches = []
        while not all(worker["tickets"] for worker in feed.stats()["workers"]):
            batches.append(next(iterator))
        (tmp_path / "armed").touch()
        os.kill(worker_pids(feed)[0], signal.SIGKILL)
        if times == 6:
            batches += iterator
            assert right(batches, 800)
            wait_until(lambda: feed.stats()["restarts"] == 7)
        else:
            with pytest.raises(penstock.WorkerLost, match="before their first batch"):
                while True:
                    list(feed)
            assert len(os.listdir(tmp_path)) == 1 + 10


def test_a_module_that_workers_cannot_import_is_an_error_that_says_so(tmp_path):
    module = tmp_path / "passing_module.py"
    module.write_text(
        "class Dataset:\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, i): return i\n"
        "import os\n"
        "if os.environ.get('PENSTOCK_TEST_FAILS'): raise ImportError('not in a worker')\n"
    )
    code, out, _ = run(
        tmp_path,
        """
import os, sys, penstock
sys.path.insert(0, sys.argv[1])
import passing_module
os.environ["PENSTOCK_TEST_FAILS"] = "1"
feed = penstock.Loader(passing_module.Dataset(), workers=1, use_multiprocessing=True)
try:
    list(feed)
except ImportError as error:
    print("said:", error)
""",
        tmp_path,
    )
    assert code == 0
    assert "said: not in a worker" in out


def test_what_starting_workers_print_is_lost_where_standard_error_is_closed(tmp_path):
    code, out, _ = run(
        tmp_path,
        """
import os, sys
class Talkative:
    def __len__(self): return 4
    def __getitem__(self, i): return i
    def __getstate__(self): return {"n": 4}
    def __setstate__(self, state): print("unpacked", file=sys.stderr)
os.close(2)
import penstock
with penstock.Loader(Talkative(), batch_size=2, workers=2, use_multiprocessing=True) as feed:
    print([batch.tolist() for batch in feed])
""",
    )
    assert (code, out) == (0, "[[0, 1], [2, 3]]\n")


GUARDLESS = """
import sys, penstock
from loader_datasets import Items
feed = penstock.Loader(Items(6), workers=2, use_multiprocessing=True, start_method=sys.argv[1])
print([index for _, index in feed])
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_needs_no_guard(method, tmp_path):
    code, out, error = run(tmp_path, GUARDLESS, method)
    assert (code, out, error) == (0, "[0, 1, 2, 3, 4, 5]\n", "")


def test_what_a_script_defines_travels(tmp_path):
    code, out, error = run(
        tmp_path,
        """
import penstock
class Mine:
    def __len__(self): return 4
    def __getitem__(self, i):
        if i == 3: raise MyError("mine")
        return i * factor
class MyError(Exception): pass
factor = 3
feed = penstock.Loader(Mine(), workers=2, use_multiprocessing=True)
taken = []
try:
    for item in feed: taken.append(item)
except MyError as error:
    print(taken, repr(error))
""",
    )
    assert (code, out, error) == (0, "[0, 3, 6] MyError('mine')\n", "")


def test_a_script_that_is_imported_again_is_told_of_the_guard(tmp_path):
    code, out, _ = run(
        tmp_path,
        """
import multiprocessing, sys
import penstock
from loader_datasets import Items
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    print("exit code", process.exitcode)
else:
    try:
        penstock.Loader(Items(3), workers=1, use_multiprocessing=True)
    except penstock.InvalidArgument as error:
        print(error)
        raise SystemExit(5)
""",
    )
    assert code == 0
    assert 'if __name__ == "__main__":' in out
    assert "exit code 5" in out


# ---- limits --------------------------------------------------------------------------------------


class Hungry(Items):
    """Runs under a limit on address space, and exceeds it at one index."""

    def __init__(self, length: int, hungry: int) -> None:
        super().__init__(length, 50_000)
        self.hungry = hungry

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (700 << 20),) * 2)

    def __getitem__(self, index: int) -> Any:
        if index == self.hungry:
            np.ones(4 << 30, np.uint8)
        return super().__getitem__(index)


@each((FORK,), (SPAWN,))
def test_a_memory_limit_is_a_memory_error_at_its_place(mode):
    with penstock.Loader(Hungry(12, 7), **mode.options) as feed:
        seen = []
        with pytest.raises(MemoryError) as caught:
            for batch in feed:
                seen.append(batch)
        assert right(seen, 7)
        assert caught.value.__cause__.index == 7
    with penstock.Loader(Hungry(12, 7), on_error="skip", batch_size=3, **mode.options) as feed:
        assert [len(batch[1]) for batch in feed] == [3, 3, 2, 3]


DESCRIPTORS = """
import os, resource, sys
import penstock
from loader_datasets import Items
method, spare = sys.argv[1], int(sys.argv[2])
opened = []
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
before = sorted(os.listdir("/proc/self/fd"))
used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, most))
options = dict(workers=2, use_multiprocessing=True, start_method=method)
for attempt in range(2):
    try:
        with penstock.Loader(Items(6), **options) as feed:
            print("fed", [index for _, index in feed])
    except (penstock.Error, OSError) as error:
        print("refused", type(error).__name__, error)
    feed = None
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, most))
with penstock.Loader(Items(6), **options) as feed:
    print("fed", [index for _, index in feed])
del feed
print(sorted(os.listdir("/proc/self/fd")) == before or os.listdir("/proc/self/fd"))
"""


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(m, marks=pytest.mark.slow) for m in ("spawn", "forkserver"))]
)
def test_descriptors_used_up_are_an_error_and_no_leak(method, tmp_path):
    refused = 0
    for spare in (0, 3, 6, 9, 12, 20):
        code, out, error = run(tmp_path, DESCRIPTORS, method, spare)
        assert code == 0, error
        lines = out.splitlines()
        assert len(lines) == 4
        assert lines[2] == "fed [0, 1, 2, 3, 4, 5]"
        assert lines[3] == "True"
        for line in lines[:2]:
            assert line == lines[2] or line.startswith("refused ")
            refused += line.startswith("refused ")
            assert "bad_cast" not in line
            assert "cannot start a worker process" not in line or "ulimit -n" in line
    assert refused >= 6


def test_no_descriptor_for_a_replacement_is_an_error(tmp_path):
    source = Deadly(tmp_path, {4}, times=1)
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with penstock.Loader(source, max_queue_size=1, **Mode(1, "fork").options) as feed:
        iterator = iter(feed)
        next(iterator)
        used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, most))
        fillers = []
        try:
            while True:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        try:
            with pytest.raises((penstock.Error, OSError), match=r"(?i)descriptor|files|worker"):
                list(iterator)
        finally:
            for fd in fillers:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))

"""Ctrl-C and close() while the engine runs long in the calling thread: they take effect, and
lose nothing.

pytest cannot interrupt such code if the test fails, so each test runs as a separate script.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)

HEAD = """
import functools, itertools, os, signal, sys, threading, time
import penstock
from penstock import Dataset

signal.signal(signal.SIGALRM, signal.default_int_handler)

def press_ctrl_c(seconds):
    signal.setitimer(signal.ITIMER_REAL, seconds)

def interrupted(call, *arguments):
    begin = time.monotonic()
    press_ctrl_c(0.2)
    try:
        call(*arguments)
    except KeyboardInterrupt:
        assert time.monotonic() - begin < 5
    else:
        raise AssertionError("it came back")
"""


def run(text: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + text, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fine\n"


# Batches or elements at first; then none for ever.
SILENT = [
    (4, "Dataset.range(20).repeat().unique().batch(5)"),
    (0, "Dataset.range(20).repeat().unique()"),
    (0, "Dataset.generator(itertools.count).skip(10**12).batch(5)"),
    (0, "Dataset.range(20).repeat().shuffle(seed=1, buffer=10).skip(10**12)"),
    (4, "Dataset.range(20).cache().repeat().unique().map(float).batch(5)"),
]


def begun(dataset: str, first: int) -> str:
    return f"""
feed = {dataset}.build(workers=0)
batches = iter(feed)
for _ in range({first}):
    next(batches)
"""


@pytest.mark.parametrize(("first", "dataset"), SILENT)
def test_ctrl_c_ends_a_wait_for_a_stream_without_workers(first, dataset):
    run(
        f"""
{begun(dataset, first)}state = feed.state()
for _ in range(2):
    interrupted(next, iter(feed.steps(1)))
    assert feed.state() == state
feed.close()
print("fine")
"""
    )


def test_after_ctrl_c_the_stream_goes_on_where_it_was():
    run(
        """
box = {"then": 0}  # again and again, until it is something else
def numbers():
    more = iter(functools.partial(box.get, "then"), "go on")
    return itertools.chain(range(20), more, range(20, 40))

feed = Dataset.generator(numbers).unique().batch(5).build(workers=0)
seen = [batch.tolist() for batch in feed.steps(4)]
for _ in range(3):
    interrupted(next, iter(feed.steps(1)))
box["then"] = "go on"
seen += [batch.tolist() for batch in feed.steps(4)]
assert sum(seen, []) == list(range(40)), seen
print("fine")
"""
    )


@pytest.mark.parametrize(("first", "dataset"), SILENT)
def test_close_ends_a_wait_for_a_stream_without_workers(first, dataset):
    run(
        f"""
{begun(dataset, first)}threading.Timer(0.2, feed.close).start()
try:
    next(batches)
except penstock.Closed:
    print("fine")
"""
    )


@pytest.mark.parametrize(
    ("source", "content", "length"),
    [
        ("lines(path, index='beside')", "a\n1\n", 2),
        ("csv(path, {'a': 'int64'}, index='beside')", "a\n1\n", 1),
        ("tfrecord(path, index='beside')", "", 0),
    ],
)
def test_ctrl_c_ends_a_pass_over_a_file_for_its_index(source, content, length, tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"a\n")
        file.truncate(1 << 40)  # it has a hole, and takes hours
    run(
        f"""
path = sys.argv[1]
dataset = Dataset.{source}
for _ in range(2):
    interrupted(dataset.build)
    assert os.listdir(os.path.dirname(path)) == ["file"]
with open(path, "w") as file:
    file.write({content!r})
assert len(dataset) == {length}
print("fine")
""",
        str(path),
    )

"""Shared objects in a dataset: workers have the same memory, locks and managers."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

import penstock
from payload_child import ask
from penstock.processes import payload

METHODS = ("spawn", "forkserver", "fork")


class Counting:
    """Each sample adds its index to shared values, and returns values of another process."""

    def __init__(self, context):
        self.value = context.Value("q", 7)
        self.plain = context.RawArray("d", [1.5, 2.5])

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with self.value.get_lock():
            self.value.value += index
        return np.float64(self.plain[index % 2])


@pytest.mark.parametrize("method", METHODS)
def test_a_value_is_the_same_one_in_workers(method):
    dataset = Counting(multiprocessing.get_context("fork" if method == "fork" else "spawn"))
    options = {"workers": 1, "use_multiprocessing": True, "start_method": method}
    with penstock.Loader(dataset, batch_size=2, max_queue_size=1, **options) as loader:
        assert [b.tolist() for b in loader] == 4 * [[1.5, 2.5]]
        assert dataset.value.value >= 7 + sum(range(8))  # the next epoch may have begun
        dataset.plain[0] = 9
        assert [b.tolist() for b in loader][-1] == [9, 2.5]


def test_a_lock_made_for_forked_workers_is_refused_by_spawned_ones():
    dataset = Counting(multiprocessing.get_context("fork"))
    options = {"workers": 1, "use_multiprocessing": True}
    with (
        penstock.Loader(dataset, batch_size=2, **options) as loader,
        pytest.raises(penstock.InvalidArgument, match=r"get_context\('spawn'\)"),
    ):
        list(loader)


def test_queues_and_events_are_the_same_ones():
    context = multiprocessing.get_context("spawn")
    event, queue = context.Event(), context.SimpleQueue()
    event.set()
    queue.put("a word")
    with payload.pack([event, queue]) as packed:
        assert ask(packed, "(obj[0].is_set(), obj[1].get(), obj[1].put('another'))")[:2] == (
            True,
            "a word",
        )
    assert queue.get() == "another"


def test_a_proxy_reaches_its_manager():
    with multiprocessing.get_context("spawn").Manager() as manager:
        known = manager.dict(a=1)
        with payload.pack({"known": known}) as packed:
            assert ask(packed, "(obj['known'].setdefault('b', 2), dict(obj['known']))[1]") == {
                "a": 1,
                "b": 2,
            }
        assert known["b"] == 2


def test_memory_that_was_closed_since_is_an_error():
    reader, writer = multiprocessing.get_context("spawn").Pipe(duplex=False)
    with payload.pack([reader]) as packed:
        reader.close()
        with pytest.raises(RuntimeError, match="was closed before a worker opened it"):
            ask(packed, "1")
    writer.close()


def test_a_ctypes_object_of_the_programs_own_is_copied():
    import ctypes

    multiprocessing.get_context("spawn").Value("i", 1)  # makes multiprocessing register the class
    number = ctypes.c_int(5)
    with payload.pack([number]) as packed:
        assert payload.unpack(packed.fd)[0].value == 5


SHARING = """
import sys
import torch
from penstock.processes import payload
from payload_child import ask
torch.multiprocessing.set_sharing_strategy(sys.argv[1])
whole = torch.arange(6.0).share_memory_()
with payload.pack({"part": whole[2:4], "column": whole.view(3, 2)[:, 1]}) as packed:
    whole[2] = 77
    answer = ask(packed, "(obj['part'].tolist(), obj['column'].fill_(5).tolist())")
assert answer == ([77, 3], [5, 5, 5]), answer
assert whole.tolist() == [0, 5, 77, 5, 4, 5], whole
"""


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_a_tensor_in_shared_memory_is_the_same_memory(strategy):
    pytest.importorskip("torch")
    # In a process of its own, because torch's file manager runs as long as the process.
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SHARING, strategy]
    done = subprocess.run(command, env=path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_values_written_to_shared_memory_are_no_update():
    torch = pytest.importorskip("torch")

    class Dataset:
        pass

    dataset = Dataset()
    dataset.rows = torch.zeros(5).share_memory_()
    tracker = payload.Tracker(dataset)
    dataset.rows[0] = 1
    assert tracker.changes() is None
    dataset.rows = torch.ones(5).share_memory_()
    changes = tracker.changes()
    assert changes is not None
    with changes:
        other = Dataset()
        payload.apply(other, changes.fd)
    dataset.rows[1] = 3
    assert other.rows.tolist() == [1, 3, 1, 1, 1]

"""``worker_init``: called with its number in every worker process before its first batch."""

from __future__ import annotations

import os
import signal

import pytest

import penstock

NUMBER = -1  # of this worker


def remember(worker):
    global NUMBER
    NUMBER = worker


def fail(worker):
    raise KeyError(f"no resources for worker {worker}")


class Numbered:
    """Items have the number and process of the worker that made them."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return NUMBER, os.getpid()


def numbered(x):
    return x, NUMBER


def test_every_process_knows_its_number_first():
    options = {"workers": 2, "use_multiprocessing": True, "worker_init": remember}
    with penstock.Loader(Numbered(), batch_size=1, max_queue_size=1, **options) as feed:
        seen = {(int(number[0]), int(pid[0])) for number, pid in feed}
        pids = [worker["pid"] for worker in feed.stats()["workers"]]
    assert seen
    assert all(pids[number] == pid for number, pid in seen)
    assert remember_was_not_called_here()


def remember_was_not_called_here():
    return NUMBER == -1


def test_one_that_replaces_another_is_initialised_too():
    options = {"workers": 1, "use_multiprocessing": True, "worker_init": remember}
    with penstock.Loader(Numbered(), batch_size=1, max_queue_size=1, **options) as feed:
        batches = iter(feed)
        _, pid = next(batches)
        os.kill(int(pid[0]), signal.SIGKILL)
        later = [(int(number[0]), int(process[0])) for number, process in batches]
        assert len(later) == 39
        assert {number for number, _ in later} == {0}
        assert later[-1][1] != int(pid[0])
        assert feed.stats()["restarts"] == 1


def test_a_dataset_with_functions_has_processes():
    dataset = penstock.Dataset.range(20).map(numbered).batch(2)
    with dataset.build(workers=2, worker_init=remember) as feed:
        numbers = {int(n) for _, batch in feed for n in batch}
    assert numbers <= {0, 1}
    assert numbers


def test_what_it_raises_is_raised_here():
    options = {"workers": 1, "use_multiprocessing": True, "worker_init": fail}
    with (
        penstock.Loader(Numbered(), **options) as feed,
        pytest.raises(KeyError, match="no resources for worker 0"),
    ):
        next(iter(feed))


def test_what_cannot_travel_is_named():
    options = {"workers": 1, "use_multiprocessing": True}
    with (
        open(os.devnull) as file,
        penstock.Loader(Numbered(), worker_init=lambda _: file.read(), **options) as feed,
        pytest.raises(penstock.InvalidArgument, match="worker_init"),
    ):
        next(iter(feed))


def test_in_line_it_is_not_called_and_threads_refuse_it():
    with penstock.Loader(Numbered(), workers=0, worker_init=remember) as feed:
        assert next(iter(feed))[0] == -1
    with pytest.raises(penstock.InvalidArgument, match="workers are threads"):
        penstock.Loader(Numbered(), workers=2, worker_init=remember)
    with pytest.raises(penstock.InvalidArgument, match="workers are threads"):
        penstock.Dataset.range(4).batch(2).build(workers=1, worker_init=remember)
    with pytest.raises(penstock.InvalidArgument, match="worker_init is 3; give a function"):
        penstock.Loader(Numbered(), workers=0, worker_init=3)


def test_keras_feeds_take_it():
    pytest.importorskip("keras")
    options = {"workers": 1, "use_multiprocessing": True, "worker_init": remember}
    with penstock.keras.feed(Numbered(), **options) as feed:
        assert feed[0][0] == 0

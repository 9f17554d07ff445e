"""train.Pool: work for several devices, results in order of completion."""

from __future__ import annotations

import threading

import pytest

from penstock import errors, train


def test_results_come_as_they_are_completed():
    first = threading.Event()

    def work(device, item):
        if item == 0:
            assert first.wait(30)
        else:
            first.set()
        return item * 10

    results = list(train.Pool(["cpu", "cpu"]).run(work, [0, 1]))
    assert [(r.number, r.item, r.value) for r in results] == [(1, 1, 10), (0, 0, 0)]


def test_each_device_has_one_thread_and_takes_what_is_next():
    threads: dict[str, set[int]] = {"a": set(), "b": set()}

    def work(device, item):
        threads[device].add(threading.get_ident())
        return device

    results = list(train.Pool(["a", "b"]).run(work, range(50)))
    assert sorted(r.number for r in results) == list(range(50))
    assert all(r.value == r.device for r in results)
    assert all(len(idents) <= 1 for idents in threads.values())


def test_an_exception_belongs_to_its_item():
    def work(device, item):
        if item == 2:
            raise ValueError("two")
        return item

    results = list(train.Pool(["cpu"]).run(work, range(4)))
    assert [r.value for r in results] == [0, 1, None, 3]
    assert isinstance(results[2].error, ValueError)


def test_an_exception_of_the_items_is_raised_after_the_results_before():
    def items():
        yield 1
        raise OSError("gone")

    seen = []
    with pytest.raises(OSError, match="gone"):
        for result in train.Pool(["cpu"]).run(lambda device, item: item, items()):
            seen.append(result.value)
    assert seen == [1]


def test_leaving_early_begins_no_more():
    begun = []

    def work(device, item):
        begun.append(item)
        return item

    before = threading.active_count()
    for _ in train.Pool(["cpu"]).run(work, iter(range(1_000_000))):
        break
    assert len(begun) < 1_000_000
    assert threading.active_count() == before


def test_devices_are_a_list():
    for wrong in ("cuda:0", [], 2):
        with pytest.raises(errors.InvalidArgument, match="list of devices"):
            train.Pool(wrong)

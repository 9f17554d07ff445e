"""Changes of a dataset by epoch hooks, sent to running workers."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import threading
import types

import numpy as np
import pytest

from penstock import _engine, errors
from penstock.processes import payload

sys.path.insert(0, str(pathlib.Path(__file__).parent))

LARGE = 200_000  # more than what is page-aligned


def there_and_back(obj):
    with payload.pack(obj) as packed:
        return payload.unpack(packed.fd)


class Epochal:
    def __init__(self):
        self.order = np.arange(LARGE)
        self.table = np.zeros(LARGE)
        self.level = 0
        self.nested = {"a": [1, 2]}
        self.lock = None
        self.method = self.helper

    def helper(self):
        return self.level


def updated(tracker, copy):
    changes = tracker.changes()
    assert changes is not None
    with changes:
        payload.apply(copy, changes.fd)
    return copy


def test_only_changed_attributes_travel():
    dataset = Epochal()
    tracker = payload.Tracker(dataset)
    copy = there_and_back(dataset)
    copy.cache = object()
    table, cache = copy.table, copy.cache
    assert tracker.changes() is None
    dataset.order[::2] = 0
    dataset.level = 5
    updated(tracker, copy)
    np.testing.assert_array_equal(copy.order, dataset.order)
    assert copy.level == 5
    assert copy.table is table
    assert copy.cache is cache
    assert tracker.changes() is None


def test_a_change_deep_inside_is_seen():
    dataset = Epochal()
    tracker = payload.Tracker(dataset)
    dataset.nested["a"].append(3)
    assert updated(tracker, Epochal()).nested == {"a": [1, 2, 3]}


def test_deleted_and_new_attributes():
    dataset = Epochal()
    tracker = payload.Tracker(dataset)
    copy = there_and_back(dataset)
    del dataset.nested
    dataset.fresh = "new"
    updated(tracker, copy)
    assert not hasattr(copy, "nested")
    assert copy.fresh == "new"


def test_the_dataset_in_its_own_attributes_is_the_workers_own():
    dataset = Epochal()
    tracker = payload.Tracker(dataset)
    copy = there_and_back(dataset)
    dataset.level = 3
    with tracker.changes() as changes:
        assert changes.bytes < 10_000  # the bound method did not include the arrays
        payload.apply(copy, changes.fd)
    dataset.backwards = [dataset, dataset.helper]
    updated(tracker, copy)
    assert copy.backwards[0] is copy
    assert copy.backwards[1].__self__ is copy
    assert copy.method() == 3


def test_what_cannot_be_pickled_is_ignored_until_it_changes():
    dataset = Epochal()
    dataset.own = threading.local()
    tracker = payload.Tracker(dataset)
    assert tracker.changes() is None
    dataset.level = 9
    copy = Epochal()
    updated(tracker, copy)
    assert copy.level == 9
    dataset.own = threading.local()
    with pytest.raises(errors.InvalidArgument, match=r"dataset\.own \(a _thread._local\)"):
        tracker.changes()


def test_slots_frozen_dataclasses_and_private_names():
    class Slotted:
        __slots__ = ("__private", "plain")

        def __init__(self):
            self.__private = 1
            self.plain = 2

        def change(self):
            self.__private = 10
            del self.plain

        def private(self):
            return self.__private

    dataset, copy = Slotted(), Slotted()
    tracker = payload.Tracker(dataset)
    dataset.change()
    updated(tracker, copy)
    assert copy.private() == 10
    assert not hasattr(copy, "plain")

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        value: int

    frozen, frozen_copy = Frozen(1), Frozen(1)
    tracker = payload.Tracker(frozen)
    object.__setattr__(frozen, "value", 2)
    assert updated(tracker, frozen_copy).value == 2


def test_a_getstate_that_drops_a_cache_leaves_the_workers_cache_alone():
    class Caching:
        def __init__(self):
            self.level = 0
            self.cache = {}

        def __getstate__(self):
            return {**vars(self), "cache": {}}

    dataset, copy = Caching(), Caching()
    tracker = payload.Tracker(dataset)
    copy.cache["k"] = 1
    dataset.cache["other"] = 2
    assert tracker.changes() is None
    dataset.level = 1
    assert updated(tracker, copy).cache == {"k": 1}


@pytest.mark.parametrize("shape", ["renamed", "tuple"])
def test_a_state_that_only_setstate_can_read_goes_through_it(shape):
    class Custom:
        def __init__(self):
            self.value = 1

        def __getstate__(self):
            return {"the_value": self.value} if shape == "renamed" else (self.value,)

        def __setstate__(self, state):
            self.value = state["the_value"] if shape == "renamed" else state[0]

    dataset, copy = Custom(), Custom()
    tracker = payload.Tracker(dataset)
    dataset.value = 2
    assert updated(tracker, copy).value == 2
    assert tracker.changes() is None


def test_objects_shared_by_changed_attributes_stay_shared():
    dataset = types.SimpleNamespace(a=[1], b=None)
    dataset.b = {"same": dataset.a}
    tracker = payload.Tracker(dataset)
    dataset.a.append(2)
    copy = updated(tracker, types.SimpleNamespace())
    assert copy.b["same"] is copy.a


def test_the_hash_of_buffers_sees_every_bit_and_every_length():
    data = bytearray(np.random.default_rng(0).bytes(300))
    seen = {_engine.digest(data)}
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            seen.add(_engine.digest(data))
            data[at] ^= 1 << bit
    assert len(seen) == 1 + 8 * len(data)
    assert len({_engine.digest(bytes(n)) for n in range(300)}) == 300
    assert _engine.digest(memoryview(data)) == _engine.digest(bytes(data))
    assert len(_engine.digest(b"")) == 16


def test_updates_travel_as_bytes_too():
    dataset = Epochal()
    tracker = payload.Tracker(dataset)
    dataset.order += 1
    copy = Epochal()
    with tracker.changes() as changes:
        payload.apply(copy, changes.tobytes())
    np.testing.assert_array_equal(copy.order, dataset.order)

"""Objects that cannot be sent to worker processes, and errors that name them."""

from __future__ import annotations

import functools
import pathlib
import sqlite3
import sys
import threading

import pytest

from penstock import errors
from penstock.processes import payload

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from payload_child import ask


class Holder:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class WithSlots:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


class WithState:
    def __init__(self, lock):
        self.lock = lock

    def __getstate__(self):
        return {"kept": [self.lock]}


class Reducing:
    def __reduce__(self):
        raise RuntimeError("I stay here")


def numbers():
    yield 1


def closure_over(value):
    return lambda: value


def holding(case, tmp_path):
    lock = threading.local()
    deep = [None]
    deep.append({"deep": deep})
    cases = {
        "reader._lock": lambda: Holder(reader=Holder(_lock=lock)),
        "parts[1]['k'][0]": lambda: Holder(parts=[1, {"k": (lock,)}]),
        "slots.inner": lambda: Holder(slots=WithSlots(lock)),
        "stateful.kept[0]": lambda: Holder(stateful=WithState(lock)),
        "f.__closure__[0].cell_contents": lambda: Holder(f=closure_over(lock)),
        "f.args[0]": lambda: Holder(f=functools.partial(print, lock)),
        "method.__self__.lock": lambda: Holder(method=WithState(lock).__init__, x=deep),
        "stream": lambda: Holder(stream=numbers()),
        "db": lambda: Holder(db=sqlite3.connect(":memory:")),
        "log": lambda: Holder(log=open(tmp_path / "log", "w")),  # noqa: SIM115
        "raw": lambda: Holder(raw=open(tmp_path / "raw", "wb")),  # noqa: SIM115
        "odd[2]": lambda: Holder(odd=(1, 2, Reducing())),
    }
    return cases[case]()


@pytest.mark.parametrize(
    ("path", "type_name"),
    [
        ("reader._lock", "_thread._local"),
        ("parts[1]['k'][0]", "_thread._local"),
        ("slots.inner", "_thread._local"),
        ("f.__closure__[0].cell_contents", "_thread._local"),
        ("f.args[0]", "_thread._local"),
        ("stream", "generator"),
        ("db", "sqlite3.Connection"),
        ("log", "_io.TextIOWrapper"),
        ("raw", "_io.BufferedWriter"),
    ],
)
def test_the_error_names_the_attribute_that_cannot_travel(path, type_name, tmp_path):
    dataset = holding(path, tmp_path)
    with pytest.raises(errors.InvalidArgument) as caught:
        payload.pack(dataset)
    text = str(caught.value)
    assert text.startswith(f"dataset.{path} (a {type_name}) cannot be sent to worker processes: ")
    assert "__getitem__" in text
    assert "use_multiprocessing=False" in text
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("path", ["stateful.kept[0]", "method.__self__.kept[0]", "odd[2]"])
def test_the_error_follows_what_objects_say_of_themselves(path, tmp_path):
    dataset = holding(path.replace("__self__.kept[0]", "__self__.lock"), tmp_path)
    with pytest.raises(errors.InvalidArgument, match="cannot be sent") as caught:
        payload.pack(dataset)
    assert str(caught.value).startswith(f"dataset.{path} (a ")


def test_cycles_do_not_keep_the_error_from_finding_its_way():
    dataset = Holder(child=Holder())
    dataset.child.parent = dataset
    dataset.me = dataset
    dataset.child.z = [dataset.child, Holder(lock=threading.local())]
    with pytest.raises(errors.InvalidArgument, match=r"dataset\.child\.z\[1\]\.lock \(a _thread"):
        payload.pack(dataset)


def test_a_structure_too_deep_is_an_error_with_a_name():
    deep = None
    for _ in range(200_000):
        deep = [deep]
    try:
        with pytest.raises(errors.InvalidArgument, match=r"^samples \(a .*recursion"):
            payload.pack(Holder(deep=deep), "samples")
    finally:
        while deep:  # one by one, because freeing all at once would recurse as deeply
            deep = deep.pop()


def test_standard_error_may_be_referred_to():
    with payload.pack({"out": sys.__stderr__}) as packed:
        assert ask(packed, "obj['out'] is __import__('sys').stderr") in (True, False)


def test_getstate_may_drop_what_cannot_travel():
    class Lazy:
        def __init__(self):
            self.lock = threading.Lock()

        def __getstate__(self):
            return {**vars(self), "lock": None}

    with payload.pack(Lazy()) as packed:
        assert payload.unpack(packed.fd).lock is None

"""Containers of users' classes: their arrays are found, and they keep their class."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, Mode, each

pytestmark = pytest.mark.timeout(60)

OF_ONE_PROCESS = (INLINE, Mode(1))


class Attributed(dict):
    """A container whose items are its attributes."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


class Frozen(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("it is frozen")


class FrozenOrdered(OrderedDict):
    ready = False

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.ready:
            raise TypeError("it is frozen")
        super().__setitem__(key, value)


class Sealed(list):
    def append(self, value: Any) -> None:
        raise TypeError("it is sealed")

    extend = __setitem__ = __iadd__ = append  # type: ignore[assignment]


class Output(OrderedDict):
    """Items are also attributes, as in transformers' ModelOutput."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Default(defaultdict):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.last = key


class Copying(dict):
    """A class with its own code for copying."""

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.order = list(items)

    def __copy__(self) -> Copying:
        return Copying(self)


@dataclasses.dataclass
class Headed(dict):
    head: Any = None


@dataclasses.dataclass
class HeadedList(list):
    head: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Tagged(list):
    def __new__(cls, items: Any, tag: str) -> Any:
        return super().__new__(cls)

    def __init__(self, items: Any, tag: str) -> None:
        super().__init__(items)
        self.tag = tag

    def __getnewargs__(self) -> Any:
        return list(self), self.tag


class TaggedDict(dict):
    def __new__(cls, tag: str, items: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, tag: str, items: Any) -> None:
        super().__init__(items)
        self.tag = tag


class TaggedDefault(defaultdict):
    def __new__(cls, tag: str, items: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, tag: str, items: Any) -> None:
        super().__init__(list, items)
        self.tag = tag


@dataclasses.dataclass(slots=True)
class SlottedAnew:
    x: Any

    def __new__(cls, x: Any) -> Any:
        return object.__new__(cls)


@dataclasses.dataclass
class Wrong(Exception):
    x: Any
    tag: str = "t"


@dataclasses.dataclass
class PlainAnew:
    x: Any

    def __new__(cls, x: Any) -> Any:
        return object.__new__(cls)


@dataclasses.dataclass
class WrongOfSystem(OSError):
    x: Any

    def __new__(cls, x: Any) -> Any:
        return super().__new__(cls)


class Beside(dict):
    """Its data are attributes, not items."""

    def __init__(self, aux: Any) -> None:
        super().__init__(n=1)
        self.aux = aux


class Pair(NamedTuple):
    x: Any
    n: int = 1


def filled(made: Any, items: Any) -> Any:
    (made.update if isinstance(made, dict) else made.extend)(items)
    return made


def fields(x: Any) -> Any:
    made = np.empty(2, [("flag", "i1"), ("x", "O"), ("deep", [("x", "O", (2,))])])
    made["x"][:] = [x, "text"]
    made["deep"]["x"][1, 1] = x
    return made


def frozen_ordered(x: Any) -> Any:
    made = FrozenOrdered(b=1, x=x)
    made.move_to_end("b")
    made.ready = True
    return made


def leading_to_itself(x: Any) -> Any:
    aux = [x, (x,)]
    aux.append(aux)
    return Beside(aux)


MAKE = {
    "Attributed": lambda x: Attributed(x=x, n=1),
    "Frozen": lambda x: Frozen(x=x),
    "FrozenOrdered": frozen_ordered,
    "Sealed": lambda x: Sealed([1, x]),
    "Output": lambda x: Output(x=x),
    "Default": lambda x: Default(list, x=x),
    "Copying": lambda x: Copying({"n": 1, "x": x}),
    "Headed": lambda x: filled(Headed(x), {"x": x}),
    "HeadedList": lambda x: filled(HeadedList(x), [x]),
    "Slotted": Slotted,
    "Tagged": lambda x: Tagged([x], "t"),
    "TaggedDict": lambda x: TaggedDict("t", {"x": x}),
    "TaggedDefault": lambda x: TaggedDefault("t", {"x": x}),
    "SlottedAnew": SlottedAnew,
    "PlainAnew": PlainAnew,
    "Wrong": Wrong,
    "Wrong by keyword": lambda x: Wrong(x=x),
    "WrongOfSystem": lambda x: WrongOfSystem(x=x),
    "list beside": lambda x: Beside([x]),
    "dict beside": lambda x: Beside({"x": x}),
    "nest beside": lambda x: Beside([[1], [({"x": x}, "t")]]),
    "others beside": lambda x: Beside([Pair(x), deque([x]), defaultdict(list, x=x)]),
    "tuple in a field": lambda x: filled(Headed((x,)), {"n": 1}),
    "deque": lambda x: deque([0, x], maxlen=2),
    "attributes": lambda x: filled(Headed(x), {"n": 1}),
    "fields": fields,
}


class Again:
    """One buffer for all items, in a container of some class."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.buffer = np.zeros(300)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = index
        return MAKE[self.name](self.buffer)


def arrays_of(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        value = value.tolist()
    if isinstance(value, np.ndarray):
        return [value.tolist()] if value.dtype == object else [value]
    own = [] if isinstance(value, Attributed) else vars(value) if hasattr(value, "__dict__") else []
    parts = [getattr(value, name) for name in own]
    if isinstance(value, (Slotted, SlottedAnew)):
        parts.append(value.x)
    if isinstance(value, BaseException):
        parts += value.args
    if isinstance(value, (list, tuple, deque, dict)):
        parts += value.values() if isinstance(value, dict) else value
    return [array for part in parts for array in arrays_of(part)]


@each(OF_ONE_PROCESS, ())
@pytest.mark.parametrize("name", MAKE)
def test_a_buffer_used_again_in_any_container(name, mode):
    with penstock.Loader(Again(name), **mode.options) as feed:
        items = list(feed)
    for index, item in enumerate(items):
        assert type(item) is type(MAKE[name](None))
        arrays = arrays_of(item)
        assert len(arrays) == len(arrays_of(MAKE[name](np.zeros(300)))) > 0
        for array in arrays:
            assert (array == index).all()


@each(OF_ONE_PROCESS, ())
def test_containers_stay_what_they_are(mode):
    def item(name):
        with penstock.Loader(Again(name), **mode.options) as feed:
            return list(feed)[1]

    attributed = item("Attributed")
    assert attributed.__dict__ is attributed
    attributed.z = 3
    assert (attributed.x is attributed["x"], attributed["z"]) == (True, 3)
    output = item("Output")
    assert output.x is output["x"]
    ordered = item("FrozenOrdered")
    assert (list(ordered), ordered.ready) == (["x", "b"], True)
    default = item("Default")
    assert (default.default_factory, vars(default)) == (list, {})
    assert item("deque").maxlen == 2
    copying = item("Copying")
    assert (copying.order, list(copying)) == (["n", "x"], ["n", "x"])
    headed = item("Headed")
    assert headed.head is headed["x"]
    assert [item(name).tag for name in ("Tagged", "TaggedDict", "Wrong")] == ["t"] * 3
    assert item("Wrong by keyword").args == ()
    others = item("others beside").aux
    assert [type(other) for other in others] == [Pair, deque, defaultdict]
    assert (others[0].n, others[2].default_factory) == (1, list)
    tagged = item("TaggedDefault")
    assert (tagged.tag, tagged.default_factory) == ("t", list)


class Heads:
    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def headed(index: int) -> Any:
    return filled(Headed(np.full(300, index)), {"n": index})


def headed_list(index: int) -> Any:
    return filled(HeadedList(np.full(300, index)), [index])


@each(KINDS, ())
@pytest.mark.parametrize("make", [headed, headed_list])
def test_a_dataclass_that_is_a_container_keeps_its_items(make, mode):
    with penstock.Loader(Heads(make), **mode.options) as feed:
        for index, item in enumerate(feed):
            assert type(item) is type(make(index))
            assert (item.head == index).all()
            assert (list(item.items()) if isinstance(item, dict) else list(item)) == (
                [("n", index)] if isinstance(item, dict) else [index]
            )


@each(KINDS, ())
def test_a_dataclass_whose_new_wants_arguments_is_made_without(mode):
    with penstock.Loader(
        Heads(lambda index: PlainAnew(np.full(300, index))), **mode.options
    ) as feed:
        items = list(feed)
    assert [(type(item), item.x[-1]) for item in items] == [(PlainAnew, n) for n in range(3)]


@each(OF_ONE_PROCESS, ())
def test_an_attribute_that_leads_to_itself_does_so_in_the_copy(mode):
    buffer = np.zeros(300)

    def make(index: int) -> Any:
        buffer[:] = index
        return leading_to_itself(buffer)

    with penstock.Loader(Heads(make), **mode.options) as feed:
        for index, item in enumerate(list(feed)):
            first, (second,), itself = item.aux
            assert itself is item.aux
            assert first is second
            assert (first == index).all()


class Node(dict):
    """A node of a tree, each node of which leads to all others."""

    def __init__(self, parent: Any, index: int) -> None:
        super().__init__(x=np.full(300, index))
        self.parent, self.kids = parent, []
        self.mask = np.full(300, index)
        if parent is not None:
            parent.kids.append(self)


class Kids:
    def __init__(self) -> None:
        self.root = Node(None, -1)
        for index in range(2):
            Node(self.root, index)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.root.kids[index]


@each(OF_ONE_PROCESS, ())
def test_what_owns_a_container_is_shared_and_not_copied(mode):
    source = Kids()
    with penstock.Loader(source, **mode.options) as feed:
        for index, item in enumerate(feed):
            kid = source.root.kids[index]
            assert item.parent is source.root
            for array, own in ((item["x"], kid["x"]), (item.mask, kid.mask)):
                assert (array == index).all()
                assert not np.shares_memory(array, own)


@dataclasses.dataclass(eq=False)
class Branch(dict):
    """Children are items; neighbours are attributes beside an array, and refer to each other."""

    parent: Any
    around: list[Any]


@each(OF_ONE_PROCESS, ())
def test_a_field_that_leads_to_a_tree_is_shared_but_for_arrays(mode):
    root = Branch(None, [])
    around: list[Any] = [np.ones(300)]
    for index in range(3):
        around.append(filled(Branch(root, around), {"x": np.full(300, index)}))
    kids = around[1:]
    root.update(enumerate(kids))
    with penstock.Loader(Heads(kids.__getitem__), **mode.options) as feed:
        for index, item in enumerate(feed):
            assert item.parent is root
            assert (item["x"] == index).all()
            assert not np.shares_memory(item["x"], kids[index]["x"])
            assert (item.around[0] == 1).all()
            assert not np.shares_memory(item.around[0], around[0])
            assert all(one is kid for one, kid in zip(item.around[1:], kids, strict=True))
    with penstock.Loader([root], **mode.options) as feed:
        (item,) = feed
        assert [kid["x"][0] for kid in item.values()] == [0, 1, 2]


class Owned(dict):
    """Refers to objects that it does not own."""


@each(OF_ONE_PROCESS, ())
def test_a_long_index_and_lists_with_no_array_in_them_stay_themselves(mode):
    mask = np.ones(300)
    index: list[Any] = [(f"{number}.png", number) for number in range(10_000)]
    index.append(mask)  # if it were traversed up to here, it would be copied
    alone: list[Any] = [5, None, "q", [None]]
    alone.append(alone)

    def make(number: int) -> Any:
        item = filled(Owned(), {"x": np.full(300, number), "y": None, "z": 5})
        item.index, item.alone, item.mask = index, alone, [mask]
        return item

    with penstock.Loader(Heads(make), **mode.options) as feed:
        for number, item in enumerate(feed):
            assert (item["x"] == number).all()
            assert item.index is index
            assert item.alone is alone
            assert not np.shares_memory(item.mask[0], mask)

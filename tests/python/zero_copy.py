"""Datasets for the tests of zero-copy: every way in which other code may refer to an array."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np

LARGE = 5000  # elements: far above what travels inside a message
Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Boxed:
    x: Any
    n: int


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    x: Any
    n: int


class Items(list):
    """A list subclass."""


class Kept(np.ndarray):
    """An array subclass, which may keep references of its own."""


def fresh(i: int, dtype: Any = np.float64) -> Any:
    return np.arange(LARGE, dtype=dtype) + i


class Ways:
    """Makes item i by `way`. Kept arrays are changed afterwards, as a dataset may do."""

    def __init__(self, way: str, length: int = 6) -> None:
        self.way = way
        self.length = length
        self.store = np.arange(float(length * LARGE)).reshape(length, LARGE)
        self.buffer = np.zeros(LARGE)
        self.kept: list[Any] = []
        self.cache: dict[int, Any] = {}
        self.calls = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        # Arrays that were returned before and are still kept are overwritten, to detect aliases.
        for array in self.kept:
            array[...] = -1
        self.calls += 1
        return getattr(self, self.way)(i)

    def on_epoch_end(self) -> None:
        """With this hook, no item of the next epoch is made before, so counts are exact."""

    # ---- nobody else's: no copy ----
    def own(self, i: int) -> Any:
        return fresh(i)

    def own_float32(self, i: int) -> Any:
        return (np.random.rand(LARGE) * 0 + i).astype("float32")

    def own_2d(self, i: int) -> Any:
        return fresh(i).reshape(50, 100)

    def own_transposed(self, i: int) -> Any:
        return np.ascontiguousarray(fresh(i).reshape(50, 100)).T

    def own_fortran(self, i: int) -> Any:
        return np.asfortranarray(fresh(i).reshape(50, 100) * 1.0)

    def own_reversed(self, i: int) -> Any:
        return fresh(i)[::-1]

    def own_most_of(self, i: int) -> Any:
        return fresh(i)[10:]

    def own_big_endian(self, i: int) -> Any:
        return fresh(i).astype(">f8")

    def own_structured(self, i: int) -> Any:
        made = np.zeros(LARGE, [("a", "i4"), ("b", "f8", 2)])
        made["a"] = i
        return made

    def own_float16(self, i: int) -> Any:
        return np.full(LARGE, i, np.float16)

    def own_dates(self, i: int) -> Any:
        return (np.arange(LARGE) + i).astype("datetime64[s]")

    def own_text(self, i: int) -> Any:
        return np.array([f"{i} {k}" for k in range(LARGE)])

    def own_broadcast(self, i: int) -> Any:
        return np.broadcast_to(fresh(i), (2, LARGE))

    def own_in_tuple(self, i: int) -> Any:
        return fresh(i), fresh(i + 1)

    def own_in_list(self, i: int) -> Any:
        return [fresh(i), {"deep": (fresh(i + 1), i)}]

    def own_in_named_tuple(self, i: int) -> Any:
        return Pair(fresh(i), fresh(i + 1))

    def own_in_dataclass(self, i: int) -> Any:
        return Boxed(fresh(i), i)

    def own_read_only(self, i: int) -> Any:
        made = fresh(i)
        made.flags.writeable = False
        return made

    # ---- somebody else's: one copy ----
    def row_of_store(self, i: int) -> Any:
        self.kept = [self.store[i : i + 1]]
        self.store[i] = np.arange(LARGE) + i
        return self.store[i]

    def reused_buffer(self, i: int) -> Any:
        self.buffer[:] = np.arange(LARGE) + i
        return self.buffer

    def reused_buffer_in_tuple(self, i: int) -> Any:
        self.buffer[:] = np.arange(LARGE) + i
        return self.buffer, i

    def still_referenced(self, i: int) -> Any:
        made = fresh(i)
        self.kept = [made]
        return made

    def view_kept(self, i: int) -> Any:
        made = fresh(i)
        self.kept = [made[100:200]]
        return made

    def base_kept(self, i: int) -> Any:
        made = fresh(i)
        self.kept = [made]
        return made[10:]

    def cached_tuple(self, i: int) -> Any:
        made = (fresh(i), i)
        self.cache[i] = made
        self.kept = [made[0]]
        return made

    def cached_list_inside(self, i: int) -> Any:
        inner = [fresh(i)]
        self.cache[i] = inner
        self.kept = [inner[0]]
        return (inner, i)

    def cached_dict(self, i: int) -> Any:
        made = {"x": fresh(i)}
        self.cache[i] = made
        self.kept = [made["x"]]
        return made

    def cached_dataclass(self, i: int) -> Any:
        made = Boxed(fresh(i), i)
        self.cache[i] = made
        self.kept = [made.x]
        return made

    def twice_in_one(self, i: int) -> Any:
        made = fresh(i)
        return made, made

    def halves_of_one(self, i: int) -> Any:
        made = fresh(i)
        return made[: LARGE // 2], made[LARGE // 2 :]

    def reduced_view(self, i: int) -> Any:
        return fresh(i)[::100]

    def over_bytes(self, i: int) -> Any:
        return np.frombuffer(fresh(i).tobytes())

    def over_bytearray(self, i: int) -> Any:
        memory = bytearray(fresh(i).tobytes())
        made = np.frombuffer(memory)
        self.kept = [made]
        return made[:]

    def over_memoryview(self, i: int) -> Any:
        made = fresh(i)
        self.kept = [made]
        return np.asarray(memoryview(made))

    def in_a_closure(self, i: int) -> Any:
        made = fresh(i)

        def look() -> Any:
            return made

        self.cache[i] = look
        self.kept = [made]
        return made

    def subclass(self, i: int) -> Any:
        made = fresh(i).view(Kept)
        self.kept = [np.asarray(made)]
        return made

    def masked(self, i: int) -> Any:
        data = fresh(i)
        self.kept = [data]
        return np.ma.masked_array(data, data < 3)

    def diagonal(self, i: int) -> Any:
        return np.diagonal(fresh(i).reshape(50, 100))

    # ---- the same buffer again, in what holds it ----
    def buffer_in_ordered_dict(self, i: int) -> Any:
        return OrderedDict(n=i, x=self.reused_buffer(i))

    def buffer_in_default_dict(self, i: int) -> Any:
        made = defaultdict(list)
        made["x"] = [self.reused_buffer(i)]
        return made

    def buffer_in_deque(self, i: int) -> Any:
        return deque([i, self.reused_buffer(i)], maxlen=2)

    def buffer_in_list_of_a_class(self, i: int) -> Any:
        return Items([self.reused_buffer(i), i])

    def buffer_in_dataclass(self, i: int) -> Any:
        return Boxed(self.reused_buffer(i), i)

    def buffer_in_slots(self, i: int) -> Any:
        return Slots({"x": self.reused_buffer(i)}, i)

    def buffer_in_objects(self, i: int) -> Any:
        made = np.array([[None, i], ["x", ()]], dtype=object)
        made[0, 0] = self.reused_buffer(i)
        return made

    # ---- small, odd, or no arrays ----
    def zero_size(self, i: int) -> Any:
        return np.zeros((3, 0, i + 1))

    def zero_d(self, i: int) -> Any:
        return np.array(i)

    def scalars(self, i: int) -> Any:
        return np.float32(i), np.int64(i), np.bool_(i % 2), np.datetime64(i, "s"), np.str_("s")

    def record(self, i: int) -> Any:
        return self.own_structured(i)[0]

    def small(self, i: int) -> Any:
        return np.arange(3) + i

    def objects(self, i: int) -> Any:
        return np.array([{"i": i}, None, "x", np.arange(3) + i], dtype=object)

    def structured_objects(self, i: int) -> Any:
        made = np.zeros(3, [("a", "O"), ("b", "i4")])
        made["a"] = [i, str(i), None]
        return made

    def plain(self, i: int) -> Any:
        return {"i": i, 2: [1.5, None, True, "text", b"bytes", 1 << 80, -1j, {i}, "\ud800"]}

    def long_text(self, i: int) -> Any:
        return f"{i}" * 100_000, b"%d" % i * 100_000

    def empty_nests(self, i: int) -> Any:
        return (), [], {}, ([], ({},))

    def nothing(self, i: int) -> Any:
        return None

    def deep(self, i: int) -> Any:
        made: Any = fresh(i)
        for _ in range(200):
            made = [made]
        return made


NO_COPY = [name for name in vars(Ways) if name.startswith("own")]
ONE_COPY = [
    "row_of_store",
    "reused_buffer",
    "reused_buffer_in_tuple",
    "still_referenced",
    "view_kept",
    "base_kept",
    "cached_tuple",
    "cached_list_inside",
    "cached_dict",
    "cached_dataclass",
    "twice_in_one",
    "halves_of_one",
    "reduced_view",
    "over_bytes",
    "over_bytearray",
    "over_memoryview",
    "in_a_closure",
    "subclass",
    "masked",
    "diagonal",
]
HELD = [name for name in vars(Ways) if name.startswith("buffer_in")]
ODD = [
    "zero_size",
    "zero_d",
    "scalars",
    "record",
    "small",
    "objects",
    "structured_objects",
    "plain",
    "long_text",
    "empty_nests",
    "nothing",
    "deep",
]


def expected(way: str, i: int) -> Any:
    """The expected item i of a way, made here and never changed."""
    return Ways(way)[i]


def arrays_in(value: Any) -> list[Any]:
    """All arrays in a nest."""
    if isinstance(value, np.ndarray):
        return [value, *arrays_in(value.tolist())] if value.dtype == object else [value]
    if isinstance(value, dict):
        return [a for item in value.values() for a in arrays_in(item)]
    if isinstance(value, (list, tuple, deque)):
        return [a for item in value for a in arrays_in(item)]
    if dataclasses.is_dataclass(value):
        return arrays_in([getattr(value, field.name) for field in dataclasses.fields(value)])
    return []

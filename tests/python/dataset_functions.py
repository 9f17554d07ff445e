"""Functions for the tests of Dataset.map: in a module, so that workers can import them."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np

import penstock


def described(number: Any) -> dict[str, Any]:
    """An element with one leaf of every kind, and a random number."""
    return {
        "number": number * 2,
        "text": str(number),
        "bytes": b"x" * int(number % 5),
        "image": np.full((3, 4), number, np.float32),
        "draw": penstock.rng().integers(1 << 40),
        "nested": (number, [number + 1.5]),
    }


def drawn(number: Any) -> Any:
    return penstock.rng().integers(1 << 40)


def global_draw(number: Any) -> Any:
    return np.random.randint(1 << 30)


def added(left: Any, right: Any) -> Any:
    return left + right


def refuses_seven(number: Any) -> Any:
    if number % 100 == 7:
        raise ValueError(f"not {number}")
    return number


def as_long_as(number: Any) -> Any:
    return np.arange(number)


def is_low(element: dict[str, Any]) -> bool:
    return bool(element["number"] < 140)


def tenth_of(element: dict[str, Any]) -> Any:
    return element["text"][:1], element["number"] // 30


def drawn_for(element: Any) -> bool:
    return bool(penstock.rng().integers(2))


def number_of(element: dict[str, Any]) -> Any:
    return element["number"]


class Signs:
    """Returns True or the element's number, and creates a file named after its process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, element: Any) -> Any:
        open(os.path.join(self.folder, str(os.getpid())), "w").close()
        return element["number"] + 1 if isinstance(element, dict) else True


class FailsOnce:
    """Raises at the first call for each number in this process."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def __call__(self, number: Any) -> Any:
        if int(number) in self.seen:
            return number
        self.seen.add(int(number))
        raise OSError(f"{number} is not there yet")


class KillsOnce:
    """Kills the worker process at a number, once, as recorded by a file."""

    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path

    def __call__(self, number: Any) -> Any:
        if number == self.number and not os.path.exists(self.path):
            open(self.path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return number


class Kills:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, number: Any) -> Any:
        if number == self.number:
            os.kill(os.getpid(), signal.SIGKILL)
        return number


def summed(batch: Any) -> Any:
    return batch.sum()


class KillsBelow:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, number: Any) -> Any:
        if number < self.number:
            os.kill(os.getpid(), signal.SIGKILL)
        return number


class Sleeps:
    def __init__(self, number: int, seconds: float) -> None:
        self.number = number
        self.seconds = seconds

    def __call__(self, number: Any) -> Any:
        if number == self.number:
            time.sleep(self.seconds)
        return number


class Squares:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= self.count:
            raise IndexError(index)
        return {"x": np.full(2, index), "y": index * index}


def stop(number: Any) -> Any:
    raise StopIteration


def interrupted(number: Any) -> Any:
    if number == 3:
        raise KeyboardInterrupt
    return number


class Unspeakable(Exception):
    """Raises KeyboardInterrupt while its text is made."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def unspeakable(number: Any) -> Any:
    if number == 3:
        raise Unspeakable
    return number


def as_it_is(value: Any) -> Any:
    return value


SLOW_S = 0.002


def added_one(number: Any) -> Any:
    return number + 1


def slow(number: Any) -> Any:
    time.sleep(SLOW_S)
    return number


def slow_odd(number: Any) -> bool:
    time.sleep(SLOW_S)
    return bool(number % 2)


def slow_true(number: Any) -> bool:
    time.sleep(SLOW_S)
    return True


def is_odd(number: Any) -> bool:
    return bool(number % 2)


def holds_for_large_draws(number: Any) -> bool:
    return bool(penstock.rng().random() < 0.5)


def yields() -> Any:
    for number in range(23):
        yield {"n": number, "draw": penstock.rng().integers(1 << 40), "text": "x" * (number % 3)}


def yields_and_fails() -> Any:
    yield from range(7)
    raise ValueError("no more")


def doubled(element: dict[str, Any]) -> Any:
    return element["n"] * 2


def keeps_even(element: dict[str, Any]) -> bool:
    return bool(element["n"] % 2 == 0)


def is_small(number: Any) -> bool:
    return bool(number < 4)


def never(value: Any) -> bool:
    return False


def pid(value: Any) -> str:
    return str(os.getpid())


def always(value: Any) -> bool:
    return True


def sums(carry: Any, number: Any) -> Any:
    return carry + number, {"sum": carry + number, "draw": penstock.rng().integers(1 << 40)}


def keeps_all_and_lengthens(carry: dict[str, Any], number: Any) -> Any:
    """Elements with every kind of leaf, changed in place."""
    carry["seen"][int(number) % 3] += 1
    carry["text"] += "x" * int(number % 2)
    carry["list"] = np.append(carry["list"][-4:], number)
    return carry, {"seen": carry["seen"], "text": carry["text"], "sum": carry["list"].sum()}


def so_many(number: Any) -> penstock.Dataset:
    return penstock.Dataset.range(100 * number, 100 * number + number % 4).shuffle(seed=1)


def drawn_and_odd(number: Any) -> penstock.Dataset:
    return penstock.Dataset.range(number).map(drawn).filter(is_odd).batch(2)


def refuses_seven_datasets(number: Any) -> penstock.Dataset:
    return penstock.Dataset.range(int(refuses_seven(number)), int(number) + 2)


def carries_but_seven(carry: Any, number: Any) -> Any:
    return carry + refuses_seven(number), carry


def remainder(number: Any) -> Any:
    return number % 5


def endless_shuffle(number: Any) -> penstock.Dataset:
    return penstock.Dataset.range(9).filter(always).shuffle(seed=1)


class Meets:
    """Returns when a number of processes has called it, as counted by files in a folder."""

    def __init__(self, folder: str, wanted: int) -> None:
        self.folder = folder
        self.wanted = wanted

    def __call__(self, number: Any) -> dict[str, Any]:
        name = f"{os.getpid()}-{threading.get_ident()}"
        open(os.path.join(self.folder, name), "w").close()
        ends = time.monotonic() + 20
        while len(os.listdir(self.folder)) < self.wanted and time.monotonic() < ends:
            time.sleep(0.001)
        return {"n": number, "pid": os.getpid()}


def has_odd_number(element: dict[str, Any]) -> bool:
    return bool(element["n"] % 2)


class LosesOne(Exception):
    """An object that cannot be unpickled."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{text} {number}")


def refuses_in_its_own_way(number: Any) -> Any:
    if number % 10 == 7:
        raise LosesOne(int(number), "not")
    return number


def of_many_leaves(value: Any) -> dict[str, Any]:
    return {f"{name:060d}": value for name in range(250)}


def is_any(element: Any) -> bool:
    return True

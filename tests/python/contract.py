"""The contract of every feed: modes, equality, and checkpoints at every element."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

import penstock


@dataclasses.dataclass(frozen=True)
class Mode:
    """A number and kind of workers."""

    workers: int
    method: str = ""  # start method of processes; "": threads

    def __str__(self) -> str:
        kind = self.method or ("threads" if self.workers else "in line")
        return f"{self.workers} {kind}" if self.workers else kind

    @property
    def options(self) -> dict[str, Any]:
        if not self.method:
            return {"workers": self.workers}
        return {
            "workers": self.workers,
            "use_multiprocessing": True,
            "start_method": self.method,
        }


INLINE = Mode(0)
THREADS = Mode(2)
PROCESSES = Mode(2, "fork")
# The cheapest of each kind, for tests that do not depend on the number or start of workers.
KINDS = (INLINE, THREADS, PROCESSES)
SPAWN = Mode(2, "spawn")  # the default of users
FAST = (INLINE, Mode(1), THREADS, Mode(4), Mode(1, "fork"), SPAWN, Mode(2, "forkserver"))
SLOW = tuple(
    mode
    for method in ("spawn", "forkserver", "fork")
    for mode in (Mode(1, method), Mode(2, method), Mode(4, method))
    if mode not in FAST
)


def each(fast: Sequence[Mode] = FAST, slow: Sequence[Mode] = SLOW) -> Any:
    """Parametrise a test with `mode`; those of `slow` run with the slow tests."""
    return pytest.mark.parametrize(
        "mode",
        [*fast, *(pytest.param(m, marks=pytest.mark.slow) for m in slow if m not in fast)],
        ids=str,
    )


def assert_same(one: Any, other: Any, where: str = "value") -> None:
    """Equal in type, structure, dtype, shape and every bit."""
    assert type(one) is type(other), f"{where}: {type(one)} and {type(other)}"
    if isinstance(one, penstock.Ragged):
        assert_same(one.to_list(), other.to_list(), where)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, f"{where}: {one.dtype} and {other.dtype}"
        assert one.shape == other.shape, f"{where}: {one.shape} and {other.shape}"
        if one.dtype.hasobject:
            assert_same(one.tolist(), other.tolist(), where)
        else:
            assert one.tobytes() == other.tobytes(), f"{where}: {one} and {other}"
    elif isinstance(one, dict):
        assert list(one) == list(other), f"{where}: keys"
        for key in one:
            assert_same(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, (list, tuple, deque)):
        assert len(one) == len(other), f"{where}: {len(one)} and {len(other)} elements"
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            name = field.name
            assert_same(getattr(one, name), getattr(other, name), f"{where}.{name}")
    else:
        assert one == other or (one != one and other != other), f"{where}: {one!r} and {other!r}"


def options(mode: Mode) -> dict[str, Any]:
    """The options for a Dataset's `build`, which uses processes for Python functions by default."""
    return {"use_multiprocessing": False, **mode.options}


def plain(batch: Any) -> Any:
    """A batch as a value that can be compared by `==`."""
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return [plain(value) for value in batch]
    if isinstance(batch, penstock.Ragged):
        return [plain(value) for value in batch.to_list()]
    return batch.tolist() if isinstance(batch, (np.ndarray, np.generic)) else batch


def passed(feed: Any) -> list[Any]:
    """The batches of the next pass."""
    return [plain(batch) for batch in feed]


def epochs(feed: penstock.Loader, count: int) -> list[list[Any]]:
    """The batches of the next epochs. All are held, so none may be overwritten."""
    return [list(feed) for _ in range(count)]


@dataclasses.dataclass
class Record:
    """A run with the state before each batch."""

    batches: list[list[Any]]  # by epoch
    states: list[list[str]]  # by epoch: before each batch, as JSON

    @classmethod
    def of(cls, feed: penstock.Loader, count: int) -> Record:
        record = cls([], [])
        for _ in range(count):
            record.batches.append([])
            record.states.append([json.dumps(feed.state())])
            for batch in feed:
                record.batches[-1].append(batch)
                record.states[-1].append(json.dumps(feed.state()))
            record.states[-1].pop()  # it is the first state of the next epoch
        return record


def check_checkpoints(
    make: Callable[..., penstock.Loader],
    taken: Mode = INLINE,
    restored: Iterable[Mode] = KINDS,
    count: int = 2,
    ahead: int = 3,
) -> None:
    """Checkpoint a feed before every batch, restore each into feeds of other modes.

    Parameters
    ----------
    make : callable
        Makes the feed, given the options of a mode.
    taken, restored : Mode
        The workers when the states are taken, and after restoring them.
    count : int
        Epochs.
    ahead : int
        How many following batches must be the same; for the first state of every epoch, the whole
        epoch is compared, taken by a ``for``.
    """
    with make(**taken.options) as feed:
        record = Record.of(feed, count)
    flat = [batch for epoch in record.batches for batch in epoch]
    assert flat, "a feed without batches proves nothing"
    for mode in restored:
        with make(**mode.options) as feed:
            place = len(flat)
            # Backwards, so that no state is at the feed's current position.
            for epoch in reversed(range(count)):
                for step in reversed(range(len(record.batches[epoch]))):
                    place -= 1
                    feed.restore(json.loads(record.states[epoch][step]))
                    assert feed.epoch == epoch
                    assert json.dumps(feed.state()) == record.states[epoch][step]
                    wanted = flat[place : place + ahead]
                    assert_same(list(feed.steps(len(wanted))), wanted, f"{mode} from {place}")
                feed.restore(json.loads(record.states[epoch][0]))
                assert_same(list(feed), record.batches[epoch], f"{mode}, epoch {epoch}")

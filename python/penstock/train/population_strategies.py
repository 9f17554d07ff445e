"""What a population asks of its model's framework, and the two ways to compute gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from ..errors import OutOfMemory
from .member_rows import MemberRows
from .steps import OneThreadEach

__all__ = ["Architecture", "Buffers", "Concurrent", "Stacked", "Strategy", "Weights"]

Weights = Mapping[str, np.ndarray[Any, Any]]
Buffers = Mapping[str, np.ndarray[Any, Any]]


class Architecture(Protocol):
    """The model that all members have, in one framework. Members differ in weights and buffers."""

    name: str
    shapes: dict[str, tuple[int, ...]]  # of a member's weights

    def initial(self, seed: int) -> tuple[Weights, Buffers]:
        """Return the weights and buffers with which a member begins."""

    def make_rows(self, count: int, state_slabs: int) -> MemberRows:
        """Return rows where the model computes. Called once, before the methods below.

        Raises
        ------
        OutOfMemory
            The text says how many rows fit.
        """

    def available_bytes(self) -> int:
        """Return the memory that is free where the rows are."""

    def pair(self, batch: Any) -> tuple[Any, Any]:
        """Return a batch as (inputs, targets) of the framework, without a copy if possible."""

    def begin(self) -> None:
        """Called in the caller's thread before each step of `single`."""

    def single(self) -> Callable[[int, Any], float]:
        """Return a function of a row and a batch: it writes the gradient and returns the loss.

        Threads call it at the same time, each for another row.
        """

    def stacked(self) -> Callable[[Sequence[int], Any, bool], list[float]]:
        """Return such a function of several rows, as `Strategy.step`. It may raise.

        Raises
        ------
        InvalidArgument
            Members of this architecture cannot be computed together.
        """

    def module(self, row: int) -> Any:
        """Return the row's model, for the user: a view, or a copy."""

    def copy_of(self, weights: Weights, buffers: Buffers) -> Any:
        """Return a model, for the user, with copies of these."""

    def buffers(self, row: int) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the row's buffers."""

    def set_buffers(self, row: int, buffers: Buffers) -> None: ...


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a framework says that memory of a device is used up."""
    return type(error).__name__ == "OutOfMemoryError" or "RESOURCE_EXHAUSTED" in str(error)


class Strategy(Protocol):
    """Computes one step's losses and gradients; the gradients go to the members' rows."""

    def step(self, rows: Sequence[int], batches: Any, shared: bool) -> list[Any]:
        """Return a loss, or an exception, for each row.

        `batches`: a batch that all rows share, or one for each.
        """

    def close(self) -> None: ...


class Concurrent:
    """Threads compute the members' steps one by one, each with one of torch's threads."""

    def __init__(self, architecture: Architecture, threads: int) -> None:
        self._begin, self._compute = architecture.begin, architecture.single()
        self._threads = threads
        self._one_thread_each = OneThreadEach()
        self._one_thread_each.__enter__()
        self._pool = ThreadPoolExecutor(
            threads, "penstock-member", initializer=self._one_thread_each.here
        )

    def step(self, rows: Sequence[int], batches: Any, shared: bool) -> list[Any]:
        losses: list[Any] = [None] * len(rows)
        turns = iter(range(len(rows)))  # next() of it is atomic
        self._begin()

        def work() -> None:
            for turn in turns:
                try:
                    batch = batches if shared else batches[turn]
                    losses[turn] = self._compute(rows[turn], batch)
                except BaseException as error:
                    losses[turn] = error
                    if not isinstance(error, Exception):
                        raise

        try:
            jobs = [self._pool.submit(work) for _ in range(min(self._threads, len(rows)))]
            for job in jobs:
                job.result()
        finally:  # after Ctrl-C: no thread may read weights that the caller changes
            never = set(turns)
            while any(loss is None for n, loss in enumerate(losses) if n not in never):
                time.sleep(0.001)
        return losses

    def close(self) -> None:
        self._pool.shutdown()
        self._one_thread_each.__exit__()


class Stacked:
    """One call computes all members."""

    def __init__(self, architecture: Architecture) -> None:
        self._compute = architecture.stacked()

    def step(self, rows: Sequence[int], batches: Any, shared: bool) -> list[Any]:
        try:
            losses: list[Any] = list(self._compute(rows, batches, shared))
            return losses
        except Exception as error:
            if is_out_of_memory(error) and len(rows) > 1:
                raise self._too_many(rows, batches, shared) from error
            if len(rows) == 1:
                return [error]
        # Batches of different sizes, or a batch that fails: each member alone, so that a member's
        # exception is its own.
        return [
            self.step([row], batches if shared else [batches[n]], shared)[0]
            for n, row in enumerate(rows)
        ]

    def _too_many(self, rows: Sequence[int], batches: Any, shared: bool) -> OutOfMemory:
        """Try fewer rows, and say how many fit."""
        fit = len(rows)
        while fit > 1:
            fit //= 2
            try:
                self._compute(rows[:fit], batches if shared else batches[:fit], shared)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            else:
                return OutOfMemory(
                    f"a step of {len(rows)} members at once does not fit in the device's memory; "
                    f"one of {fit} does: give resident={fit}, and the others wait, or "
                    "strategy='concurrent'",
                    "Population",
                )
        return OutOfMemory(
            "not even a step of one member fits in the device's memory: make batches smaller",
            "Population",
        )

    def close(self) -> None:
        pass

"""A message of a stream, and windows over messages, for each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..base.arguments import integer
from ..errors import InvalidArgument


class Message(NamedTuple):
    """A message of a stream."""

    topic: str
    payload: bytes


class Windows:
    """The last messages of each key; a window every `step` messages of it.

    ``look`` returns the windows that messages complete, and changes nothing until ``advance``: a
    batch whose training failed is looked at again.
    """

    def __init__(self, window: int, step: int, key: Callable[[Any], Any] | None) -> None:
        self._size = integer("window", window, 1, operation="Online")
        self._step = integer("step", step, 1, operation="Online")
        self._key = key or (lambda message: getattr(message, "topic", ""))
        self._last: dict[Any, tuple[list[Any], int]] = {}  # messages, and how many before a window
        self._next: dict[Any, tuple[list[Any], int]] = {}

    def look(
        self, messages: list[Any], malformed: Callable[[Exception], None]
    ) -> tuple[list[list[Any]], list[int]]:
        """Return the windows, and for each the index of the message that completed it.

        `malformed` is called for each message whose key raises.
        """
        self._next = {}
        windows, ends = [], []
        for index, message in enumerate(messages):
            try:
                key = self._key(message)
            except Exception as error:
                malformed(error)
                continue
            before, wanted = self._next.get(key) or self._last.get(key) or ([], self._size)
            last = [*before, message][-self._size :]
            wanted -= 1
            if wanted == 0:
                windows.append(last)
                ends.append(index)
                wanted = self._step
            self._next[key] = last, wanted
        return windows, ends

    def advance(self) -> None:
        self._last.update(self._next)
        self._next = {}

    def state(self) -> Any:
        rows = []
        for key, (last, wanted) in self._last.items():
            if not all(isinstance(message, Message) for message in last):
                raise InvalidArgument(
                    "only windows of messages of bytes can be in a snapshot: let the source yield "
                    "bytes or (topic, bytes)",
                    "Online",
                )
            texts = [[topic, np.frombuffer(payload, np.uint8)] for topic, payload in last]
            rows.append([key, wanted, texts])
        return rows

    def restore(self, state: Any) -> None:
        self._last = {}
        for key, wanted, texts in state:
            last = [Message(topic, payload.tobytes()) for topic, payload in texts[-self._size :]]
            # The windows of the run before may have been shorter.
            self._last[key] = last, max(wanted, self._size - len(last))

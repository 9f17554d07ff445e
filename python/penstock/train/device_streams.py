"""Order of work on a device that several threads give it: streams and events of CUDA.

A device without streams executes work in the order in which the host gives it; there every class
of this module does nothing.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Order", "Queue", "mark", "wait"]


def mark(device: Any) -> Any:
    """Mark the work enqueued so far on the device's current stream; None: without streams."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait(device: Any, *marks: Any) -> None:
    """Let the device's current stream wait for marks, also of other devices. The host goes on.

    A device without streams works in the host's order: there the host waits.
    """
    for each in marks:
        if each is None:
            continue
        if device.type == "cuda":
            torch.cuda.current_stream(device).wait_event(each)
        else:
            each.synchronize()


class Order:
    """Work that is enqueued within `with` waits for the work of the `with` before.

    Threads: REQUIRED that one at a time enters.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._last: Any = None

    def __enter__(self) -> Order:
        if self._last is not None:
            wait(self._device, self._last)
        return self

    def __exit__(self, *_: object) -> None:
        self._last = mark(self._device)


class Queue:
    """A stream of one thread. Within `with` it is the current one, and its device is current."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._entered: Any = None
        self.done: Any = None  # a mark of the work of the last `with`

    def __enter__(self) -> Queue:
        if self._stream is not None:
            self._entered = torch.cuda.stream(self._stream)
            self._entered.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.done = mark(self.device)
        if self._stream is not None:
            self._entered.__exit__(*error)

"""Pool: one thread for each device, and work that goes to the device that is free."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from ..base.conventions import shown
from ..errors import InvalidArgument

__all__ = ["Pool", "PoolResult"]


@dataclass(frozen=True)
class PoolResult:
    """What became of one item.

    Attributes
    ----------
    number : int
        The item's place among the items, from 0.
    item, device : object
    value : object
        What the function returned; None if it raised.
    error : Exception, optional
        What the function raised.
    """

    number: int
    item: Any
    device: Any
    value: Any = None
    error: Exception | None = None


class Pool:
    """Run a function for many items on several devices, in one process.

    >>> pool = penstock.train.Pool(devices=["cuda:0", "cuda:1"])
    >>> for result in pool.run(train_one, settings):  # train_one(device, setting)
    ...     print(result.number, result.value)

    Each device has one thread, so a process has one context for each device, however many items
    there are. A device takes the next item as soon as it has finished one.

    Parameters
    ----------
    devices : sequence
        Handed to the function as they are. For torch's CUDA devices the thread's current device is
        set, too. A device that is named twice works on two items at a time.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        if not isinstance(devices, Sequence) or isinstance(devices, str) or not devices:
            raise InvalidArgument(f"devices is {devices!r}; give a list of devices", "Pool")
        self.devices = list(devices)

    def __repr__(self) -> str:
        return shown(self, devices=self.devices)

    def run(
        self, function: Callable[[Any, Any], Any], items: Iterable[Any]
    ) -> Iterator[PoolResult]:
        """Call ``function(device, item)`` for each item; yield results in order of completion.

        An exception of the function is the item's `PoolResult.error`; the others go on. `items` is
        iterated by the devices' threads, one at a time; an exception of it is raised here, after
        the results of the items before. Leaving the loop early lets running items finish, and
        begins no other.
        """
        done: queue.SimpleQueue[PoolResult | BaseException | None] = queue.SimpleQueue()
        numbered = enumerate(items)
        lock = threading.Lock()
        stop = threading.Event()

        def work(device: Any) -> None:
            try:
                with _current(device):
                    while True:
                        with lock:
                            if stop.is_set():
                                return
                            number, item = next(numbered, (None, None))
                        if number is None:
                            return
                        try:
                            result = PoolResult(number, item, device, function(device, item))
                        except Exception as error:
                            result = PoolResult(number, item, device, error=error)
                        done.put(result)
            except BaseException as error:
                stop.set()
                done.put(error)
            finally:
                done.put(None)

        threads = [
            threading.Thread(target=work, args=(device,), name=f"penstock-pool-{device}")
            for device in self.devices
        ]
        raised: BaseException | None = None
        try:
            for thread in threads:
                thread.start()
            running = len(threads)
            while running:
                result = done.get()
                if result is None:
                    running -= 1
                elif isinstance(result, PoolResult):
                    yield result
                else:
                    raised = raised or result
            if raised is not None:
                raise raised
        finally:
            stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


def _current(device: Any) -> Any:
    """A context in which torch's current device is this one, if it is one of CUDA's."""
    torch = sys.modules.get("torch")
    if torch is None or not str(device).startswith("cuda"):
        return nullcontext()
    return torch.cuda.device(device)

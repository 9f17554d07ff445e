"""Hogwild's workers as processes, each fed by a thread of this process."""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from .. import _engine
from ..base.notes import add_note
from ..errors import WorkerLost, unpack_exception
from ..processes import payload
from ..processes.child import Started, describe_exit
from ..processes.launch import Launcher, check_not_inheriting
from .batch_slot import Slot
from .hogwild_worker import BATCH, FAILED, LENGTH, STOPPED, WorkerPlan
from .steps import END, Source
from .updater import Updater

# A worker that dies this often in a row without finishing a step is not restarted again.
_MOST_FALSE_STARTS = 3


class _Lost(Exception):
    """The process has ended without reporting an error."""


class _Process:
    """One worker process: its socket, and two slots used in turn for its batches."""

    def __init__(self, started: Started, link: socket.socket, slots: list[Slot]):
        self.started = started
        self.link = link
        self._readable = select.poll()
        self._readable.register(link, select.POLLIN)
        self.slots = slots
        self.sent = 0
        self.done = 0

    def send(self, batch: Any) -> None:
        number = self.sent % len(self.slots)
        self.sent += 1
        message = BATCH.pack(number, *self.slots[number].write(batch))
        # If the worker has ended, receive() finds out why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.link.sendall(message)

    def receive(self) -> bytes:
        """Return READY, DONE or STOPPED; raise the worker's exception, or _Lost."""
        # poll() first: recv() would also be woken when the worker receives a batch.
        self._readable.poll()
        kind = self._exactly(1)
        if kind == FAILED:
            (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
            raise unpack_exception(self._exactly(length))
        return kind

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                more = self.link.recv(size - len(parts))
            except ConnectionResetError:
                more = b""
            if not more:
                raise _Lost
            parts += more
        return bytes(parts)

    def end(self) -> str:
        """End the process; return how it ended, with its standard error."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_WR)
        status = self.started.wait()
        stderr = self.started.said()
        self.started.close()
        self.link.close()
        for slot in self.slots:
            slot.close()
        how = describe_exit(0 if status is None else status)
        return how + (f"; its stderr:\n{stderr}" if stderr else "")


class Processes:
    """Starts worker processes for a run, feeds them, and replaces those that die.

    A batch counts as used once its worker has begun to apply its gradient, which the shared
    counters show even after the worker was killed. Other batches of a dead worker go to another.
    """

    def __init__(
        self,
        step: Callable[[Any, Any], Any],
        updater: Updater,
        workers: int,
        model: Any,
        own_state: bool,
        snapshot: int,
        non_finite: int,
        on_lost: str,
    ) -> None:
        check_not_inheriting()
        self.counters = _engine.SharedCounters.make(workers, True)
        self.engine = _engine.Hogwild(updater._engine, self.counters)
        self._workers = workers
        self._source: Any = None
        self._counting = threading.Lock()
        parameters = updater.parameters
        blocks = [(name, list(array.shape)) for name, array in parameters.items()]
        self._plan = WorkerPlan(step, model, updater.optimizer, blocks)
        self._updater = updater
        self._settings = {
            "own_state": own_state, "snapshot": snapshot, "non_finite": non_finite,
        }  # fmt: skip
        self._replaces = on_lost == "restart"
        self._payload: payload.Payload | None = None
        self._launcher = Launcher("spawn", "penstock.train.hogwild_worker:main")
        self._ready = threading.Barrier(workers + 1)
        self._before: list[int] = []  # steps of each worker before the run
        self.running: dict[int, Started] = {}  # by worker

    def begin(self, source: Source) -> None:
        self._source = source
        self.restarts = self.torn = 0
        self._payload = payload.pack(self._plan, "step")
        self._ready = threading.Barrier(self._workers + 1)
        self._before = [self.counters.counts(n)["steps"] for n in range(self._workers)]

    def ready(self) -> None:
        """Wait until all workers are ready for their first batch, or one has failed."""
        try:
            self._ready.wait()
        except threading.BrokenBarrierError:
            pass
        except BaseException:  # Ctrl-C
            self._ready.abort()
            raise

    def end(self) -> None:
        self._source = None
        if self._payload is not None:
            self._payload.close()

    def work(self, number: int) -> None:
        source = self._source
        false_starts = 0
        first = True
        try:
            while True:
                process = self._start_process(number)
                before = self.counters.counts(number)
                outstanding: collections.deque[Any] = collections.deque()
                try:
                    process.receive()  # READY
                    if first:
                        with contextlib.suppress(threading.BrokenBarrierError):
                            self._ready.wait()
                    first = False
                    self._feed(process, source, outstanding)
                    return
                except _Lost:
                    torn = self._remove_used(number, before, process.done, outstanding)
                    if not self._replaces:
                        self.counters.stop()
                finally:
                    for batch in reversed(outstanding):
                        source.put_back(batch)
                        self.counters.return_step()
                    how = process.end()
                    del self.running[number]
                finished = self.counters.counts(number)["steps"] > before["steps"]
                false_starts = 0 if finished else false_starts + 1
                if not self._replaces or false_starts >= _MOST_FALSE_STARTS:
                    where = " in the middle of an update" if torn else ""
                    raise WorkerLost(f"worker {number} was lost{where}: {how}", "Hogwild")
                with self._counting:
                    self.restarts += 1
                    self.torn += torn
        except BaseException as error:
            if not isinstance(error, WorkerLost):
                step = self.counters.counts(number)["steps"] - self._before[number]
                add_note(error, f"in worker {number} of Hogwild, step {step}")
            self._ready.abort()  # ends ready()
            raise

    def _feed(self, process: _Process, source: Source, outstanding: Any) -> None:
        """Keep the worker's slots filled until there are no more batches."""
        more = True
        while True:
            while more and len(outstanding) < len(process.slots):
                more = self.counters.claim_step()
                if not more:
                    break
                batch = source.take()
                if batch is END:
                    self.counters.return_step()
                    more = False
                    break
                outstanding.append(batch)
                process.send(batch)
            if not outstanding or process.receive() == STOPPED:
                return
            process.done += 1
            outstanding.popleft()

    def _remove_used(
        self, number: int, before: dict[str, Any], done: int, outstanding: Any
    ) -> bool:
        """Remove the batches that a dead worker used; return whether an update was torn."""
        now = self.counters.counts(number)
        begun, applied, skipped, steps = (
            now[name] - before[name] for name in ("begun", "applied", "skipped", "steps")
        )
        for _ in range(max(steps, begun + skipped) - done):
            outstanding.popleft()
        return bool(begun > applied)

    def _start_process(self, number: int) -> _Process:
        assert self._payload is not None
        updater = self._updater
        ours, theirs = socket.socketpair()
        slots = [Slot(), Slot()]
        fds = {
            "link": theirs.fileno(),
            "payload": self._payload.fd,
            "counters": self.counters.fd,
            "parameters": updater.parameters._slab.fd,
            "slot0": slots[0].fd,
            "slot1": slots[1].fd,
        }
        fds.update({f"state{i}": slab._slab.fd for i, slab in enumerate(updater.slabs)})
        settings: dict[str, object] = {**self._settings, "updates": self.counters.updates}
        try:
            started = self._launcher.start(number, fds, settings, capture=True)
        except BaseException:
            ours.close()
            for slot in slots:
                slot.close()
            raise
        finally:
            theirs.close()
        self.running[number] = started
        return _Process(started, ours, slots)

"""Main program of a Hogwild worker process: attach to shared memory, run a step per batch."""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Any

from .. import _engine
from ..processes import payload
from ..processes.bootstrap import restore_stderr
from .batch_slot import Slot
from .hogwild_threads import WorkerLoop, weights_of
from .parameters import Parameters, Slab
from .steps import OneThreadEach, views_of

# A message to a worker: a slot, and the arguments of `Slot.read`. The end of the stream: no more.
BATCH = struct.Struct("=QQQ")
# The first byte of a message from a worker.
READY, DONE, STOPPED, FAILED = b"R", b"D", b"S", b"X"
LENGTH = struct.Struct("=Q")  # of the packed exception behind FAILED


class WorkerPlan:
    """The data sent to a worker process once."""

    def __init__(
        self, step: Any, model: Any, optimizer: Any, blocks: list[tuple[str, list[int]]]
    ) -> None:
        self.step = step
        self.model = model
        self.optimizer = optimizer
        self.blocks = blocks


def main(index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    link = socket.socket(fileno=fds["link"])
    _engine.keep_freed_memory()
    try:
        loop, counters = _attach(index, fds, settings)
    except BaseException as error:
        _send_failure(link, error, f"worker {index}, starting")
        sys.exit(1)
    restore_stderr()
    slots = [Slot(fds["slot0"]), Slot(fds["slot1"])]
    link.send(READY)
    try:
        while len(message := link.recv(BATCH.size, socket.MSG_WAITALL)) == BATCH.size:
            if counters.stopped:
                link.send(STOPPED)
                return
            number, stream_end, end = BATCH.unpack(message)
            batch = slots[number].read(stream_end, end)
            loop.use(batch)
            del batch
            link.send(DONE)
    except BaseException as error:
        _send_failure(link, error, f"worker {index}")
        sys.exit(1)


def _attach(index: int, fds: dict[str, int], settings: dict[str, Any]) -> tuple[WorkerLoop, Any]:
    plan: WorkerPlan = payload.unpack(fds["payload"])
    os.close(fds["payload"])
    OneThreadEach().__enter__().here()
    blocks = plan.blocks
    parameters = Parameters.__new__(Parameters)
    Slab.__init__(parameters, _engine.Slab.open(fds["parameters"], blocks))
    states = [
        _engine.Slab.open(fds[name], blocks) for name in sorted(fds) if name.startswith("state")
    ]
    counters = _engine.SharedCounters.open(fds["counters"])
    own_state = settings["own_state"]
    if own_state and index > 0:
        for i, slab in enumerate(states):
            states[i] = slab.like(False)
            states[i].copy_from(slab)
    engine = _engine.HogwildWorker(
        parameters._slab,
        plan.optimizer._built,
        states,
        counters,
        index,
        not own_state,
        settings["non_finite"],
        settings["snapshot"],
    )
    engine.updates = settings["updates"]
    weights = weights_of(engine, parameters, settings["snapshot"])
    views = views_of(index, parameters, weights, plan.model, replicate=False)
    engine.begin()
    return WorkerLoop(plan.step, views, engine, settings["snapshot"]), counters


def _send_failure(link: socket.socket, error: BaseException, who: str) -> None:
    from ..errors import pack_exception

    packed = pack_exception(error, who)
    link.sendall(FAILED + LENGTH.pack(len(packed)) + packed)

"""Runs of train.Online that are killed: `online_child.py FOLDER`, with cases as JSON on stdin.

Each case is [name, place, ack]: a forked process uses the spool FOLDER/name, appends each token to
FOLDER/name.tokens when it is acknowledged, and kills itself at the place. Prints the exit statuses.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from penstock import _engine, train
from penstock.train import online, online_snapshot

MESSAGES = 50


class Model:
    """Its state is what it was trained on."""

    def __init__(self, place: str = "") -> None:
        self.seen: list[int] = []
        self.place = place
        self.steps = 0

    def predict(self, batch: Any) -> Any:
        self.die_at("predict", self.steps == 2)
        return batch

    def train(self, batch: Any) -> float:
        self.die_at("train", self.steps == 2)
        self.seen += batch.tolist()
        self.steps += 1
        self.die_at("trained", self.steps == 3)
        return 0.0

    def state(self) -> Any:
        self.die_at("snapshot", self.steps >= 2)
        return {"seen": np.array(self.seen, np.int64)}

    def restore(self, state: Any) -> None:
        self.seen = state["seen"].tolist()

    def die_at(self, place: str, now: bool = True) -> None:
        if now and place == self.place:
            os.kill(os.getpid(), signal.SIGKILL)


def prepare(messages: list[Any]) -> Any:
    return np.array([int(each.payload) for each in messages])


def run(folder: Path, name: str, place: str, ack: str) -> None:
    model = Model(place)
    tokens = os.open(folder / f"{name}.tokens", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def acknowledged(some: list[int]) -> None:
        os.write(tokens, "".join(f"{token}\n" for token in some).encode())
        model.die_at("acknowledged")

    class Output(online_snapshot.OutputFile):  # the file of a snapshot
        def write(self, data: Any) -> int:
            written = super().write(data)
            model.die_at("in a snapshot", model.steps >= 4 and self.tell() > 300)
            return written

        def publish(self) -> None:
            model.die_at("before a snapshot's name", model.steps >= 4)
            super().publish()
            model.die_at("before the trim", model.steps >= 4)

    online_snapshot.OutputFile = Output  # type: ignore[misc]
    online._FILE_BYTES = 200  # so that trims remove files
    source = _engine.PushSource.make(acknowledged)
    options: Any = {"spool": folder / name, "ack": ack, "max_batch": 10, "snapshot_steps": 2}
    with train.Online(source, prepare, model, **options) as live:
        live._start()
        for number in range(MESSAGES):
            source.push("t", str(number).encode(), number + 1, number + 1)
            model.die_at("receipt", number == 7)
        source.end()
        live.run()


if __name__ == "__main__":
    statuses = {}
    for name, place, ack in json.load(sys.stdin):
        child = os.fork()
        if child == 0:
            try:
                run(Path(sys.argv[1]), name, place, ack)
            finally:
                os._exit(3)  # it was not killed
        statuses[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    json.dump(statuses, sys.stdout)

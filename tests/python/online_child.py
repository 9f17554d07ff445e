"""A run of train.Online that is killed at a given place: `online_child.py SPOOL PLACE MESSAGES`.

Prints a line for each acknowledged token. The model's state is the list of what it was trained on.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

from penstock import _engine, train

SPOOL, PLACE, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
FIRST = int(sys.argv[4]) if len(sys.argv) > 4 else 0


def die_at(place: str) -> None:
    if place == PLACE:
        os.kill(os.getpid(), signal.SIGKILL)


class Model:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.steps = 0

    def predict(self, batch: Any) -> Any:
        if self.steps == 2:
            die_at("predict")
        return batch

    def train(self, batch: Any) -> float:
        if self.steps == 2:
            die_at("train")
        self.seen += batch.tolist()
        self.steps += 1
        if self.steps == 3:
            die_at("trained")
        return 0.0

    def state(self) -> Any:
        if self.steps >= 2:
            die_at("snapshot")
        return {"seen": np.array(self.seen, np.int64)}

    def restore(self, state: Any) -> None:
        self.seen = state["seen"].tolist()


def acknowledged(tokens: list[int]) -> None:
    os.write(1, "".join(f"{token}\n" for token in tokens).encode())
    die_at("acknowledged")


source = _engine.PushSource.make(acknowledged)
model = Model()
live = train.Online(
    source,
    lambda messages: np.array([int(each.payload) for each in messages]),
    model,
    spool=SPOOL,
    max_batch=10,
    snapshot_steps=2,
)
live._start()
for number in range(FIRST, FIRST + COUNT):
    source.push("t", str(number).encode(), token=number + 1)
    if number == 7:
        die_at("receipt")
source.end()
live.run()
live.close()
os.write(2, " ".join(map(str, model.seen)).encode())

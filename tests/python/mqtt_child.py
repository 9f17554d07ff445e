"""A trainer that may be killed: `mqtt_child.py URL SPOOL VERSION QOS`.

Prints the number of messages that the model was trained on, when it is connected and after each
batch; and when it gets SIGTERM, what it was trained on, as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from penstock import train

URL, SPOOL, VERSION, QOS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])


class Model:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def predict(self, batch: Any) -> Any:
        return batch

    def train(self, batch: Any) -> float:
        self.seen += batch.tolist()
        return 0.0

    def state(self) -> Any:
        return {"seen": np.array(self.seen, np.int64)}

    def restore(self, state: Any) -> None:
        self.seen = state["seen"].tolist()


def say_when_connected() -> None:
    while not live.stats()["source"].get("connected"):
        time.sleep(0.005)
    print(len(model.seen), flush=True)


model = Model()
source = train.mqtt(f"{URL}/t", qos=QOS, version=VERSION, client_id="trainer")
live = train.Online(
    source,
    lambda messages: np.array([int(each.payload) for each in messages]),
    model,
    spool=SPOOL,
    max_batch=50,
    snapshot_steps=5,
    on_batch=lambda step: print(len(model.seen), flush=True),
)
signal.signal(signal.SIGTERM, lambda *_: live.stop())
threading.Thread(target=say_when_connected, daemon=True).start()
with live:
    live.run()
print(json.dumps(model.seen))

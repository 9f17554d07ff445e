"""Messages of an MQTT broker: received, kept, predicted and trained on.

A message has its number, the time when it was sent, and 64 floats. The broker is mosquitto; the
sender and the bare client are mqtt_load.cc, on libmosquitto. All share the machine's cores.

`rate` is messages per second from the first to the last one; the LSTM's are sent at a fixed rate.
`lost` is the share that did not come.
`p50` and `p99` are ages: from when a message was sent until it was trained on.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Figure, Figures, Size, Target, expect, resident_bytes
from peers import Mosquitto

from cases.torch_programs import ROOT

ROW = np.dtype([("number", "<u8"), ("sent_ns", "<i8"), ("values", "<f4", 64)])
OURS, SINK = "train.Online", "libmosquitto in C, only receives"
TORCH, BY_HAND = "train.Online, torch", "torch and paho by hand"
TENSORFLOW, JAX = "train.Online, Keras on tensorflow", "train.Online, Keras on jax"
MOST = 1024  # messages of a batch

Prepare = Callable[[list[Any]], Any]


def rows_of(messages: list[Any]) -> Any:
    return np.frombuffer(b"".join([each.payload for each in messages]), ROW)


# ---- the sender and the bare client --------------------------------------------------------------


def prepare(size: Size) -> None:
    compiler = shutil.which("c++")
    made, source = size.path("mqtt_load"), ROOT / "bench/mqtt_load.cc"
    if compiler is None or (made.exists() and made.stat().st_mtime > source.stat().st_mtime):
        return
    line = [compiler, "-std=c++20", "-O2", str(source), "-o", str(made), "-lmosquitto"]
    subprocess.run(line, check=False, stderr=subprocess.DEVNULL)


def load(size: Size, *words: object, **options: Any) -> subprocess.Popen[Any]:
    if not size.path("mqtt_load").exists():
        raise ImportError("no C++ compiler, or no libmosquitto-dev")
    return subprocess.Popen([str(size.path("mqtt_load")), *map(str, words)], **options)


def sender(size: Size, port: int) -> subprocess.Popen[Any]:
    return load(size, "send", port, size.qos, size.rate, size.count)


@contextlib.contextmanager
def folder(size: Size) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=size.data) as where:
        yield Path(where)


def bare_client(size: Size) -> Figures:
    with folder(size) as where, Mosquitto(where) as broker:
        words = ("receive", broker.port, size.qos, size.count)
        sink = load(size, *words, stdout=subprocess.PIPE, text=True)
        assert sink.stdout is not None
        sink.stdout.readline()
        source = sender(size, broker.port)
        seconds, came, p50, p99 = map(float, sink.communicate()[0].split())
        source.kill()
        source.wait()
    return {
        "rate": came / seconds,
        "lost": 1 - came / size.count,
        "p50": p50 * 1e-3,
        "p99": p99 * 1e-3,
    }


class Account:
    """The messages that came, and their ages when they were done with."""

    def __init__(self, count: int) -> None:
        self.count, self.came = count, 0
        self._numbers: list[Any] = []
        self._ages: list[Any] = []
        self._first = self._last = 0

    def add(self, rows: Any) -> None:
        self._last = time.monotonic_ns()
        if not self.came:
            self._first = self._last
        self.came += len(rows)
        self._numbers.append(rows["number"])
        self._ages.append(self._last - rows["sent_ns"])

    def figures(self) -> Figures:
        numbers = np.concatenate(self._numbers)
        expect(len(np.unique(numbers)) == len(numbers), "messages came twice")
        ages = np.concatenate(self._ages) * 1e-9
        return {
            "rate": self.came / (self._last - self._first) * 1e9,
            "lost": 1 - self.came / self.count,
            "p50": float(np.quantile(ages, 0.5)),
            "p99": float(np.quantile(ages, 0.99)),
        }


def online(size: Size, model: Any, spool: bool = False, prepare: Prepare = rows_of) -> Figures:
    """Run train.Online until all messages came, or none for 5 seconds."""
    from penstock import train

    account = Account(size.count)
    with folder(size) as where, Mosquitto(where) as broker:
        live = train.Online(
            train.mqtt(f"mqtt://127.0.0.1:{broker.port}/x", qos=size.qos),
            prepare,
            model,
            max_batch=MOST,
            spool=where / "spool" if spool else None,
            fsync=0.01,
            snapshot_seconds=None,
            on_batch=lambda step: done(step),
        )
        sources = []

        def done(step: Any) -> None:
            account.add(rows_of(step.messages))
            if account.came == size.count:
                live.stop()

        def watch() -> None:
            while not live.stats()["source"].get("connected"):
                time.sleep(0.01)
            sources.append(sender(size, broker.port))
            before, since = 0, time.monotonic()
            while account.came < size.count and time.monotonic() - since < 5:
                time.sleep(0.1)
                if account.came != before:
                    before, since = account.came, time.monotonic()
            live.stop()

        watcher = threading.Thread(target=watch)
        grew = resident_bytes()
        with live:
            watcher.start()
            live.run()
            grew = resident_bytes() - grew
        watcher.join()
        for source in sources:
            source.kill()
            source.wait()
    return {**account.figures(), "grew": grew}


# ---- only received, and only kept ----------------------------------------------------------------


class Nothing:
    """A model that does nothing."""

    def predict(self, rows: Any) -> Any:
        return rows

    def train(self, rows: Any) -> float:
        return 0.0

    def state(self) -> Any:
        return {}

    def restore(self, state: Any) -> None:
        pass


FLOOD = Case(
    "mqtt_flood",
    "MQTT, QoS 0, as fast as the broker takes it",
    {
        "rate": Figure("messages/s", more_is_better=True),
        "lost": Figure("% lost", 100, compared=False),
        "grew": Figure("MiB grew", 2**-20, compared=False),
    },
    full={"qos": 0, "rate": 0, "count": 400_000},
    quick={"qos": 0, "rate": 0, "count": 100_000},
    targets=[
        Target("rate", OURS, SINK, at_least=0.9),
        Target("lost", OURS, at_most=0, says="none lost"),
        Target("grew", OURS, at_most=200 * 2**20, says="memory bounded"),
    ],
    prepare=prepare,
)


@FLOOD.entry(OURS, "ours", "each message a Python object")
def flood(size: Size) -> Figures:
    figures = online(size, Nothing())
    return {name: figures[name] for name in ("rate", "lost", "grew")}


@FLOOD.entry(SINK, "limit")
def flood_sink(size: Size) -> Figures:
    figures = bare_client(size)
    return {name: figures[name] for name in ("rate", "lost")}


KEPT = Case(
    "mqtt_kept",
    "MQTT, QoS 1, acknowledged when it is on the disk",
    {
        "rate": Figure("messages/s", more_is_better=True),
        "lost": Figure("% lost", 100, compared=False),
    },
    full={"qos": 1, "rate": 0, "count": 200_000},
    quick={"qos": 1, "rate": 0, "count": 40_000},
    targets=[
        Target("rate", OURS, SINK, at_least=0.7),
        Target("lost", OURS, at_most=0, says="none lost"),
    ],
    prepare=prepare,
)


@KEPT.entry(OURS, "ours", "a flush every 10 ms")
def kept(size: Size) -> Figures:
    figures = online(size, Nothing(), spool=True)
    return {name: figures[name] for name in ("rate", "lost")}


@KEPT.entry(SINK, "limit", "acknowledges at once, keeps nothing")
def kept_sink(size: Size) -> Figures:
    figures = bare_client(size)
    return {name: figures[name] for name in ("rate", "lost")}


# ---- a small LSTM that predicts each message and learns from it ----------------------------------


class Learner:
    """One forward pass: its outputs are the predictions, and their error is learned from."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._lstm, self._head = torch.nn.LSTM(4, 16, batch_first=True), torch.nn.Linear(16, 1)
        parameters = [*self._lstm.parameters(), *self._head.parameters()]
        self._optimizer = torch.optim.SGD(parameters, lr=0.01)
        for rows in (1, 32, 33, 64):
            warm = np.zeros(rows, ROW)
            self.predict(warm)
            self.train(warm)

    def predict(self, rows: Any) -> Any:
        import torch

        x = torch.from_numpy(np.ascontiguousarray(rows["values"]))
        self._target = x[:, 48:].mean(1, keepdim=True)
        self._outputs = self._head(self._lstm(x.view(-1, 16, 4))[0][:, -1])
        return self._outputs.detach().numpy()

    def train(self, rows: Any) -> Any:
        import torch

        self._optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self._outputs, self._target)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def keras_model(backend: str) -> Any:
    os.environ["KERAS_BACKEND"] = backend
    import keras

    model = keras.Sequential([keras.Input((16, 4)), keras.layers.LSTM(16), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    for rows in (1, 4, 16, 64, 256, MOST):  # the sizes to which Online pads
        x = np.zeros((rows, 16, 4), np.float32)
        model.predict_on_batch(x)
        model.train_on_batch(x, x[:, :1, 0], sample_weight=np.ones(rows, np.float32))
    return model


def pairs(messages: list[Any]) -> Any:
    values = rows_of(messages)["values"]
    return values.reshape(-1, 16, 4), values[:, 48:].mean(1, keepdims=True)


TRAIN = Case(
    "mqtt_train",
    "MQTT, 10,000 messages a second, an LSTM predicts and learns",
    {
        "p50": Figure("ms of age, half", 1e3),
        "p99": Figure("ms of age, 99 %", 1e3),
        "rate": Figure("messages/s", more_is_better=True),
        "lost": Figure("% lost or left", 100, compared=False),
    },
    full={"qos": 0, "rate": 10_000, "count": 60_000},
    quick={"qos": 0, "rate": 10_000, "count": 20_000},
    targets=[
        Target("p50", TORCH, BY_HAND, at_least=1 / 0.85),
        Target("p99", TORCH, BY_HAND, at_least=1 / 0.85),
        Target("lost", TORCH, at_most=0, says="none lost"),
        Target("rate", TENSORFLOW, SINK, at_least=0.95, says="keeps up"),
        Target("rate", JAX, SINK, at_least=0.95, says="keeps up"),
    ],
    prepare=prepare,
)


def ages(figures: Figures) -> Figures:
    return {name: figures[name] for name in ("p50", "p99", "rate", "lost")}


@TRAIN.entry(TORCH, "ours")
def online_torch(size: Size) -> Figures:
    return ages(online(size, Learner()))


@TRAIN.entry(TENSORFLOW, "ours", quick=False)
def online_tensorflow(size: Size) -> Figures:
    return ages(online(size, keras_model("tensorflow"), prepare=pairs))


@TRAIN.entry(JAX, "ours", quick=False)
def online_jax(size: Size) -> Figures:
    return ages(online(size, keras_model("jax"), prepare=pairs))


def taken(payloads: queue.SimpleQueue[bytes]) -> list[bytes]:
    """All that is there; nothing after 5 seconds."""
    batch = []
    with contextlib.suppress(queue.Empty):
        batch.append(payloads.get(timeout=5))
        while len(batch) < MOST:
            batch.append(payloads.get_nowait())
    return batch


@TRAIN.entry(BY_HAND, "peer", "a queue between paho's thread and a loop")
def by_hand(size: Size) -> Figures:
    import paho.mqtt.client

    learner, account = Learner(), Account(size.count)
    payloads: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with folder(size) as where, Mosquitto(where) as broker:
        subscribed = threading.Event()
        client = paho.mqtt.client.Client(paho.mqtt.client.CallbackAPIVersion.VERSION2)
        client.on_message = lambda _client, _data, message: payloads.put(message.payload)
        client.on_subscribe = lambda *_: subscribed.set()
        client.on_connect = lambda client, *_: client.subscribe("x", size.qos)
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        subscribed.wait(10)
        source = sender(size, broker.port)
        while account.came < size.count and (batch := taken(payloads)):
            rows = np.frombuffer(b"".join(batch), ROW)
            learner.predict(rows)
            learner.train(rows)
            account.add(rows)
        client.disconnect()
        client.loop_stop()
        source.kill()
        source.wait()
    return ages(account.figures())


@TRAIN.entry(SINK, "limit")
def train_sink(size: Size) -> Figures:
    return ages(bare_client(size))


CASES = [FLOOD, KEPT, TRAIN]

"""train.mqtt against a real mosquitto: every message once, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosquitto import Mosquitto, broker
from penstock import train
from penstock.errors import Closed, InvalidArgument

CHILD = Path(__file__).with_name("mqtt_child.py")
SHORT = {"connect_timeout": 0.5}


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with broker(tmp_path_factory.mktemp("mosquitto"), "max_inflight_messages 1000") as one:
        yield one


class Model:
    """Keeps what it is trained on."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def predict(self, batch: Any) -> Any:
        return np.zeros(len(batch))

    def train(self, batch: Any) -> float:
        self.seen += batch
        return 0.5

    def state(self) -> Any:
        return {"seen": np.array(self.seen)}

    def restore(self, state: Any) -> None:
        self.seen = state["seen"].tolist()


def texts(messages: list[Any]) -> Any:
    return [(each.topic, each.payload.decode()) for each in messages]


@contextlib.contextmanager
def learner(source: train.MqttClient, prepare: Any = texts, **settings: Any) -> Iterator[Any]:
    """An Online that runs in a thread, and its model."""
    model = Model()
    live = train.Online(source, prepare, model, **settings)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            live.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for(lambda: live.stats()["source"].get("connected", False) or errors)
        yield live, model
    finally:
        live.stop()
        thread.join()
        live.close()
    if errors:
        raise errors[0]


def payloads(messages: list[Any]) -> list[int]:
    return [int(each.payload) for each in messages]


def wait_for(condition: Any, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.005)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_wildcard_come_once_and_in_order(
    open_broker: Mosquitto, qos: int, version: str
) -> None:
    root = f"once/{version}/{qos}"
    source = train.mqtt(f"{open_broker.url}/{root}/+/value", qos=qos, version=version)
    with learner(source) as (live, model), train.mqtt(open_broker.url, version=version) as sender:
        for i in range(1000):
            sender.publish(f"{root}/{i % 3}/value", str(i), qos)
            sender.publish(f"{root}/{i % 3}/other", "not subscribed to", qos)
        wait_for(lambda: len(model.seen) == 1000)
        wait_for(lambda: qos == 0 or live.stats()["source"]["acknowledged"] == 1000)
    assert model.seen == [(f"{root}/{i % 3}/value", str(i)) for i in range(1000)]
    assert sender.stats()["on_their_way"] == 0
    assert sender.stats()["unsent"] == 0


def test_a_shared_subscription_gives_each_message_to_one_of_the_group(
    open_broker: Mosquitto,
) -> None:
    def member() -> train.MqttClient:
        return train.mqtt(open_broker.url, topics="$share/group/shared/#", version="5")

    with (
        learner(member()) as (_, first),
        learner(member()) as (_, second),
        train.mqtt(open_broker.url) as sender,
    ):
        for i in range(400):
            sender.publish(f"shared/{i}", str(i))
        wait_for(lambda: len(first.seen) + len(second.seen) == 400)
    assert {text for _, text in first.seen + second.seen} == {str(i) for i in range(400)}
    assert len(first.seen) > 50
    assert len(second.seen) > 50


def test_results_are_published_to_a_topic(open_broker: Mosquitto) -> None:
    results = train.mqtt(f"{open_broker.url}/results")
    source = train.mqtt(f"{open_broker.url}/inputs")
    with (
        learner(train.mqtt(f"{open_broker.url}/results")) as (_, watcher),
        results,
        learner(source, on_batch=results, max_batch=4),
        train.mqtt(open_broker.url) as sender,
    ):
        sender.publish("inputs", b"1")
        wait_for(lambda: watcher.seen)
    topic, text = watcher.seen[0]
    line = json.loads(text)
    assert topic == "results"
    assert line["predictions"] == [0.0]
    assert line["loss"] == 0.5
    assert line["messages"] == 1
    assert 0 < line["age"] < 20


@pytest.mark.parametrize("topics", [[], ["a", "b"], ["a/+"]])
def test_results_need_one_topic(topics: list[str]) -> None:
    results = train.mqtt("mqtt://localhost", topics=topics)
    with pytest.raises(InvalidArgument, match="one topic"):
        train.Online([], texts, Model(), on_batch=results)


def test_user_and_password_are_checked_by_the_broker(tmp_path: Path) -> None:
    with broker(tmp_path, user="someone:se/cret") as one:
        address = f"localhost:{one.port}"
        right = train.mqtt(f"mqtt://someone:se%2Fcret@{address}/t")
        with (
            learner(right) as (_, model),
            train.mqtt(f"mqtt://{address}", user="someone", password="se/cret") as sender,
        ):
            sender.publish("t", "1")
            wait_for(lambda: model.seen)
        wrong = train.mqtt(f"mqtt://someone:wrong@{address}/t")
        with pytest.raises(Closed, match="refused the connection") as caught, learner(wrong):
            pass
        assert "wrong" not in str(caught.value)
        assert "wrong" not in repr(wrong)
        with (
            train.mqtt(f"mqtt://{address}") as anonymous,
            pytest.raises(Closed, match="refused the connection"),
        ):
            anonymous.publish("t", "1")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority; a server's and a client's certificate of it; and an unknown one."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    def certificate(name: str, *arguments: str) -> None:
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2"),
            *("-subj", f"/CN={name}", *arguments),
        )

    for name in ("authority", "unknown"):
        certificate(name)
    for name in ("server", "client"):
        certificate(
            name,
            *("-CA", "authority.pem", "-CAkey", "authority.key"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
        )
    return folder


def test_tls_trusts_a_given_authority_and_shows_a_certificate(
    tmp_path: Path, certificates: Path
) -> None:
    files = {
        name: certificates / f"{name}.pem" for name in ("authority", "server", "client", "unknown")
    }
    tls = (
        f"cafile {files['authority']}\ncertfile {files['server']}\n"
        f"keyfile {certificates}/server.key\nrequire_certificate true"
    )
    own = {"certificate": files["client"], "key": certificates / "client.key"}
    with broker(tmp_path, tls=tls) as one:
        source = train.mqtt(f"{one.url}/t", ca=files["authority"], **own)
        with (
            learner(source) as (_, model),
            train.mqtt(one.url, ca=files["authority"], **own) as sender,
        ):
            for i in range(500):
                sender.publish("t", "x" * 1000 + str(i))
            wait_for(lambda: len(model.seen) == 500)
        assert [int(text[1000:]) for _, text in model.seen] == list(range(500))
        stranger = train.mqtt(f"{one.url}/t", ca=files["unknown"], **own)
        with pytest.raises(Closed, match="certificate"), learner(stranger):
            pass
        without = train.mqtt(f"{one.url}/t", ca=files["authority"], **SHORT)
        with pytest.raises(Closed), learner(without):
            pass


@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_that_ends_and_comes_back_loses_nothing(tmp_path: Path, qos: int) -> None:
    """Once it is stopped in the middle of messages, once it is killed."""
    with broker(tmp_path / "broker", "max_inflight_messages 1000") as one:
        source = train.mqtt(f"{one.url}/t", client_id="learner", qos=qos)
        with (
            learner(source, spool=tmp_path / "spool", prepare=payloads) as (live, model),
            train.mqtt(one.url, client_id="sender", qos=qos) as sender,
        ):
            for i in range(400):
                sender.publish("t", str(i))
                if i == 100:
                    one.stop()  # it saves what it has
                elif i == 300:
                    wait_for(lambda: sender.stats()["on_their_way"] == 0)
                    wait_for(lambda: live.stats()["source"]["acknowledged"] >= 301)
                    one.kill()
                elif i in (200, 350):
                    one.start()
            wait_for(lambda: len(set(model.seen)) == 400, 40)
            stats = live.stats()
    assert stats["source"]["reconnects"] == 2
    assert sender.stats()["reconnects"] == 2
    assert set(model.seen) == set(range(400))
    if qos == 2:
        assert len(model.seen) == 400


@pytest.mark.parametrize(("version", "qos"), [("3.1.1", 1), ("5", 2)])
def test_a_trainer_that_is_killed_trains_on_each_message_once(
    tmp_path: Path, version: str, qos: int
) -> None:
    messages, dice = 3000, random.Random(1)
    command = [sys.executable, str(CHILD), "", str(tmp_path / "spool"), version, str(qos)]
    children: list[subprocess.Popen[str]] = []

    def start() -> str:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line
        return line

    try:
        with broker(tmp_path / "broker", "max_inflight_messages 100") as one:
            command[2] = one.url
            start()
            with train.mqtt(one.url) as sender:
                for i in range(messages):
                    sender.publish("t", str(i), qos)
                    if i % 1000 == 999:
                        time.sleep(dice.uniform(0, 0.2))
                        children[-1].kill()
                        children[-1].wait()
                        line = start()
            last = children[-1]
            assert last.stdout is not None
            while line != f"{messages}\n":
                line = last.stdout.readline()
                assert line
            last.send_signal(signal.SIGTERM)
            out, _ = last.communicate(timeout=20)
    finally:
        for child in children:
            child.kill()
            child.communicate()
    seen = json.loads(out.splitlines()[-1])
    assert len(seen) == messages
    assert sorted(seen) == list(range(messages))


def test_a_burst_stays_within_the_bound(open_broker: Mosquitto) -> None:
    def slowly(messages: list[Any]) -> list[int]:
        time.sleep(0.001)
        return payloads(messages)

    source = train.mqtt(f"{open_broker.url}/burst", qos=1)
    most = 0
    with (
        learner(source, slowly, max_queue=500, max_batch=200) as (live, model),
        train.mqtt(open_broker.url) as sender,
    ):
        for i in range(20_000):
            sender.publish("burst", str(i))
            if i % 100 == 0:
                most = max(most, live.stats()["queued"])
        wait_for(lambda: len(model.seen) == 20_000)
    # What was read with the last full packet may come on top.
    assert 0 < most <= 500 + 32_768
    assert model.seen == list(range(20_000))


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_a_retained_message_comes_once_although_the_connection_was_lost(
    tmp_path: Path, version: str
) -> None:
    with broker(tmp_path) as one:
        publish_retained(one.port, b"kept", b"7")
        source = train.mqtt(f"{one.url}/kept", client_id="me", version=version)
        with learner(source, payloads) as (live, model):
            wait_for(lambda: model.seen == [7])
            one.stop()
            one.start()
            wait_for(lambda: live.stats()["source"]["reconnects"] == 1)
            wait_for(lambda: live.stats()["source"]["connected"])
            with train.mqtt(one.url) as sender:
                sender.publish("kept", "8")
            wait_for(lambda: 8 in model.seen)
    assert model.seen == [7, 8]


def publish_retained(port: int, topic: bytes, payload: bytes) -> None:
    """Publish a message that the broker keeps for later subscribers. QoS 0, MQTT 3.1.1."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01r")
        assert connection.recv(4) == b"\x20\x02\x00\x00"
        body = len(topic).to_bytes(2, "big") + topic + payload
        connection.sendall(b"\x31" + bytes([len(body)]) + body + b"\xe0\x00")
        assert connection.recv(1) == b""


def test_no_broker_is_an_error_in_time() -> None:
    source = train.mqtt("mqtt://localhost:1/t", **SHORT)
    with train.Online(source, texts, Model()) as live, pytest.raises(Closed, match="connect"):
        live.run()
    with (
        train.mqtt("mqtt://localhost:1", **SHORT) as sender,
        pytest.raises(Closed, match="connect"),
    ):
        sender.publish("t", "1")


def test_a_client_is_the_source_of_one_online(open_broker: Mosquitto) -> None:
    source = train.mqtt(f"{open_broker.url}/t")
    with (
        learner(source),
        train.Online(source, texts, Model()) as second,
        pytest.raises(InvalidArgument, match="in use"),
    ):
        second.run()
    with (
        train.Online(train.mqtt(open_broker.url), texts, Model()) as third,
        pytest.raises(InvalidArgument, match="no topic"),
    ):
        third.run()


@pytest.mark.parametrize(
    ("url", "settings", "match"),
    [
        ("http://localhost/t", {}, "mqtt://host/topic"),
        ("localhost:1883", {}, "mqtt://host/topic"),
        ("mqtt://user:secret@/t", {}, "no host"),
        ("mqtt://user:secret@host:x/t", {}, "port"),
        ("mqtt://host:0/t", {}, "port"),
        ("mqtt://host/a#", {}, "#"),
        ("mqtt://host/a/#/b", {}, "#"),
        ("mqtt://host/a+/b", {}, r"\+"),
        ("mqtt://host/t", {"qos": 3}, "qos"),
        ("mqtt://host/t", {"version": "4"}, "3.1.1"),
        ("mqtt://host/t", {"ca": "ca.pem"}, "mqtts"),
        ("mqtts://host/t", {"key": "key.pem"}, "together"),
        ("mqtts://host/t", {"ca": "no/such.pem"}, "no/such.pem"),
        ("mqtt://host/t", {"clean_start": False}, "client_id"),
        ("mqtt://host/t", {"keep_alive": -1}, "keep_alive"),
        ("mqtt://host/t", {"keep_alive": 70_000}, "keep_alive"),
        ("mqtt://host/t", {"session_expiry": "x"}, "session_expiry"),
        ("mqtt://host", {"topics": [1]}, "topic"),
        ("mqtt://host", {"topics": ["$share/group"]}, "share"),
    ],
)
def test_invalid_arguments_are_named(url: str, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match) as caught:
        train.mqtt(url, **settings)
    assert "secret" not in str(caught.value)


def test_messages_that_cannot_be_published_are_refused(open_broker: Mosquitto) -> None:
    with train.mqtt(open_broker.url) as sender:
        for topic in ("", "a/+", "#", "a" * 70_000, "a\0b"):
            with pytest.raises(InvalidArgument, match="topic"):
                sender.publish(topic, b"1")
        with pytest.raises(InvalidArgument, match="qos"):
            sender.publish("t", b"1", 3)
        for payload in (5, None, [1, 2], "\ud800"):
            with pytest.raises(InvalidArgument, match="payload"):
                sender.publish("t", payload)  # type: ignore[arg-type]
        sender.publish("t", b"")
    with pytest.raises(Closed):
        sender.publish("t", b"1")
    sender.close()

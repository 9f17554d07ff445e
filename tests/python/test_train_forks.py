"""Servers, clients and channels in processes that fork while their threads run."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)

BEGINNING = """
import os, sys, threading, time, uuid
import numpy as np
from penstock import errors, train

def refused(call):
    try:
        call()
    except errors.InvalidArgument:
        return
    raise AssertionError("was not refused")

def fork(body, times=1):
    for _ in range(times):
        child = os.fork()
        if child == 0:
            body()
            sys.exit(0)
        end = time.monotonic() + 20
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.kill(child, 9)
                os.waitpid(child, 0)
                os.write(2, b"a child hangs")
                os._exit(1)
            time.sleep(0.001)
"""


def run(program, *arguments):
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGINNING + program, *arguments],
        check=True,
        timeout=100,
    )


@pytest.mark.parametrize("end", ["pass", "server.close()", "with server: pass"])
def test_a_servers_child_ends_though_snapshots_are_written(tmp_path, end):
    run(
        f"""
server = train.ParameterServer(train.Parameters({{"w": (1000,)}}), train.SGD(1.0), shards=2,
                               snapshots=sys.argv[1])
def child():
    {end}
fork(child)
with train.connect(server.addresses) as client:
    assert client.push(client.gradients)
server.close()
assert server.parameters.version == 1
""",
        str(tmp_path),
    )


def test_a_servers_child_asks_it_nothing_and_connects_for_itself():
    run(
        """
server = train.ParameterServer(train.Parameters({"w": (200_000,)}), train.SGD(1.0), shards=2)
stop = False
def work():
    with train.connect(server.addresses) as client:
        while not stop:
            client.push(client.gradients)
            server.stats()
def child():
    refused(server.stats)
    refused(server.pull)
    server.close()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
fork(child, 12)
def client():
    with train.connect(server.addresses) as client:
        client.pull()
fork(client)
stop = True
for thread in threads: thread.join()
server.close()
"""
    )


def test_a_clients_child_gets_an_error_while_a_push_is_held():
    run(
        """
server = train.ParameterServer(train.Parameters({"w": (10,)}), train.SGD(1.0), staleness=0,
                               workers=2)
client = train.connect(server.addresses)
client.pull()
pushing = threading.Thread(target=lambda: client.push(client.gradients))
pushing.start()
while not any(worker["waiting"] for shard in server.stats() for worker in shard["workers"]):
    time.sleep(0.001)
def child():
    for call in (client.pull, client.stats, lambda: client.push(client.gradients)):
        refused(call)
    with client:
        pass
fork(child)
with train.connect(server.addresses) as second:
    assert second.push(second.gradients)
pushing.join()
client.close()
server.close()
"""
    )


def test_a_learners_child_has_no_channel_while_another_thread_takes():
    run(
        """
name = uuid.uuid4().hex
channel = train.channel(name)
experience = train.attach_channel(name)
stop = False
def put():
    while not stop: experience.put({"x": np.zeros(2000)})
def take():  # until the last put has returned: it waits if the channel is full
    while threads[0].is_alive(): channel.get(64, timeout=0.001)
threads = [threading.Thread(target=put), threading.Thread(target=take)]
for thread in threads: thread.start()
def child():
    refused(channel.stats)
    refused(lambda: channel.get(1))
    with channel:
        pass
fork(child, 12)
stop = True
for thread in threads: thread.join()
experience.close()
channel.close()
"""
    )

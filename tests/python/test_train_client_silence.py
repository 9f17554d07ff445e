"""Workers of stopped shards: their waits, and how soon Ctrl-C ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import train

LISTEN = pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])


def served(**options):
    parameters = train.Parameters({"w": (4096,)})
    return train.ParameterServer(
        parameters, train.SGD(1.0), shards=3, use_multiprocessing=True, **options
    )


def until(done):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextlib.contextmanager
def stopped(server):
    """Stops all shards; the code run meanwhile must take less than three seconds."""
    pids = server.pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: all(") T " in Path(f"/proc/{pid}/stat").read_text() for pid in pids))
        begin = time.monotonic()
        yield
        assert time.monotonic() - begin < 3
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def interrupted():
    """Ended by Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)


def workers(server):
    return [len(shard["workers"]) for shard in server.stats()]


@LISTEN
def test_ctrl_c_ends_a_connect_and_leaves_no_worker(listen):
    with served(listen=listen) as server:
        with stopped(server), interrupted():
            train.connect(server.addresses)
        assert workers(server) == [0, 0, 0]


@LISTEN
def test_ctrl_c_ends_a_question_for_statistics(listen):
    with served(listen=listen) as server:
        with stopped(server), interrupted():
            server.stats()
        assert workers(server) == [0, 0, 0]


@LISTEN
def test_ctrl_c_in_a_close_is_raised_and_the_client_is_closed(listen):
    with served(listen=listen) as server:
        client = train.connect(server.addresses)
        with stopped(server), interrupted():
            client.close()
        client.close()
        with pytest.raises(penstock.errors.Closed):
            client.stats()
        until(lambda: workers(server) == [0, 0, 0])


@LISTEN
def test_a_push_that_no_mode_holds_has_an_end_and_is_not_applied_later(listen):
    with served(listen=listen) as server, train.connect(server.addresses, timeout=1) as client:
        with stopped(server), pytest.raises(penstock.Timeout):
            client.push({"w": np.full(4096, -100)})
        assert client.push({"w": np.full(4096, -1)})
        client.pull()
        assert (client.parameters["w"] == 1).all()

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
def stopped(server, seconds=3):
    """Stops all shards; the code run meanwhile must take less than `seconds`."""
    pids = server.pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: all(") T " in Path(f"/proc/{pid}/stat").read_text() for pid in pids))
        begin = time.monotonic()
        yield
        assert time.monotonic() - begin < seconds
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


@LISTEN
def test_close_ends_the_held_pushes_of_other_threads_and_they_are_not_applied_later(listen):
    with (
        served(listen=listen, staleness=0, workers=2) as server,
        train.connect(server.addresses) as client,
    ):
        errors = []

        def push(method):
            with pytest.raises(penstock.errors.Closed, match=f"{method}: this client was closed"):
                getattr(client, method)({"w": np.full(4096, -100)})
            errors.append(method)

        threads = [threading.Thread(target=push, args=(each,)) for each in ("push", "push_pull")]
        for thread in threads:
            thread.start()
        until(lambda: all(w["waiting"] for s in server.stats() for w in s["workers"]))
        until(lambda: workers(server) == [1, 1, 1])
        begin = time.monotonic()
        client.close()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begin < 3
        assert sorted(errors) == ["push", "push_pull"]
        until(lambda: workers(server) == [0, 0, 0])
        with train.connect(server.addresses) as one, train.connect(server.addresses) as another:
            pusher = threading.Thread(target=one.push, args=({"w": np.full(4096, -1)},))
            pusher.start()
            assert another.push({"w": np.full(4096, -3)})
            pusher.join()
            another.pull()
            assert (another.parameters["w"] == 2).all()


@LISTEN
@pytest.mark.parametrize("call", ["pull", "push", "stats"])
def test_close_ends_a_call_to_stopped_shards(listen, call):
    with served(listen=listen) as server, train.connect(server.addresses) as client:
        errors = []

        def work():
            try:
                for _ in range(1_000_000):
                    client.push({"w": np.ones(4096)}) if call == "push" else getattr(client, call)()
            except penstock.Error as error:
                errors.append(type(error))

        thread = threading.Thread(target=work)
        thread.start()
        with stopped(server, seconds=30):  # close() waits some seconds for the shards' answers
            time.sleep(0.1)
            client.close()
            thread.join()
        assert errors == [penstock.errors.Closed]


@LISTEN
def test_a_signal_handler_may_close_the_client_whose_push_is_held(listen):
    with served(listen=listen, staleness=0, workers=2) as server:
        client = train.connect(server.addresses)
        before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        try:
            with pytest.raises(penstock.errors.Closed):
                client.push({"w": np.ones(4096)})
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)
        until(lambda: workers(server) == [0, 0, 0])

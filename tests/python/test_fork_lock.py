"""The lock of a Dataset: interrupted anywhere, and first taken by several threads of a child."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from penstock.base import fork_lock
from penstock.dataset.chain import Chain
from penstock.dataset.passes import Passes

pytestmark = pytest.mark.timeout(60)

MOST = 8  # number of trace events of one call to try


class Interrupted(Exception):
    pass


def at_event(number, act):
    """Call `act` at the number-th event that Python traces in the lock's own code."""
    left = [number]

    def trace(frame, event, argument):
        if frame.f_code.co_filename != fork_lock.__file__:
            return None
        left[0] -= 1
        if left[0] == -1:
            act()
        return trace

    sys.settrace(trace)


@pytest.mark.parametrize("number", range(MOST))
def test_an_interrupt_leaves_nothing_locked(number):
    def interrupt():
        raise Interrupted

    passes = Passes()
    before = sys.gettrace()
    at_event(number, interrupt)
    try:
        passes.take()
    except Interrupted:
        pass
    finally:
        sys.settrace(before)
    other = threading.Thread(target=passes.take, daemon=True)
    other.start()
    other.join(5)
    assert not other.is_alive()


@pytest.mark.parametrize("number", range(MOST))
def test_the_first_threads_of_a_child_take_one_and_the_same_lock(number, monkeypatch):
    paused, go_on, built = threading.Event(), threading.Event(), []

    class Native:
        def build(self, skip):
            built.append(threading.current_thread())
            go_on.set()
            if threading.current_thread() is not first:
                first.join(0.3)  # it must not acquire the lock meanwhile
            return "a plan"

    chain = object.__new__(Chain)
    chain._lock = fork_lock.ForkLock()
    chain._plans, chain._native = {}, Native()
    with chain._lock.here():
        pass
    child = os.getpid() + 1

    def pause():
        paused.set()
        go_on.wait(1)

    def begin():
        at_event(number, pause)
        chain._built(False)

    first, second = (threading.Thread(target=run) for run in (begin, lambda: chain._built(False)))
    monkeypatch.setattr(os, "getpid", lambda: child)
    first.start()
    paused.wait(0.3)
    second.start()
    first.join()
    second.join()
    assert len(built) == 1

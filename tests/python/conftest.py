"""What every test is held to: it leaves no process, no shared memory and no thread behind."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Iterator

import pytest

from launching import Answers
from leftovers import remains

# Dying workers are reaped and joined by threads of the engine: give those a moment.
GRACE_S = 5.0


# A shell's "&" and nohup have SIGINT ignored, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test after which there are processes, memfds or threads that were not there before."""
    before = remains()
    yield
    deadline = time.monotonic() + GRACE_S
    left = remains() - before
    while left and time.monotonic() < deadline:
        gc.collect()  # each time: a thread that ends late may have held what is in a cycle
        time.sleep(0.02)
        left = remains() - before
    if left:
        pytest.fail("left behind:\n  " + "\n  ".join(sorted(left)), pytrace=False)


@pytest.fixture
def answers() -> Iterator[Answers]:
    """A pipe that worker processes started by hand answer into."""
    pipe = Answers()
    yield pipe
    pipe.close()

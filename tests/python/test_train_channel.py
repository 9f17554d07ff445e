"""train.channel and train.attach_channel, between processes that share only the name."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import namedtuple

import numpy as np
import pytest

import penstock
from penstock import train

Step = namedtuple("Step", "state action")

# Puts numbered items until it is stopped, and prints how many were accepted.
PUTTER = """
import sys
import numpy as np
from penstock import train

name, who, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
experience = train.attach_channel(name)
let_in = 0
for i in range(count):
    let_in += experience.put({"who": who, "i": i, "x": np.full(20, who * 1000 + i)})
print(let_in, flush=True)
"""


def drained(channel):
    """All batches until all producers have ended."""
    while channel.producers or channel.stats()["queued"]:
        batch = channel.get(64, timeout=0.01)
        if batch is not None:
            yield batch


def test_any_nest_goes_through_and_comes_out_stacked(name):
    items = [
        {
            "state": np.full((2, 3), i, np.float32),
            "pair": (i, [np.int8(i), float(i)]),
            "step": Step(np.arange(i, i + 4)[::-2], bool(i % 2)),
            "none": np.zeros((0, 3)),
            "text": "a" * i,
            "bytes": bytes(i),
        }
        for i in range(5)
    ]
    with train.channel(name) as channel, train.attach_channel(name) as experience:
        for item in items:
            assert experience.put(item) is True
        batch = channel.get(10)
        assert batch["state"].dtype == np.float32
        np.testing.assert_array_equal(batch["state"], [item["state"] for item in items])
        number, (small, real) = batch["pair"]
        assert (number.dtype, small.dtype, real.dtype) == (np.int64, np.int8, np.float64)
        assert number.tolist() == small.tolist() == real.tolist() == [0, 1, 2, 3, 4]
        assert type(batch["step"]) is Step
        np.testing.assert_array_equal(batch["step"].state, [item["step"].state for item in items])
        assert batch["none"].shape == (5, 0, 3)
        assert list(batch["text"]) == [item["text"] for item in items]
        assert list(batch["bytes"]) == [item["bytes"] for item in items]
        assert channel.get(1, timeout=0) is None
        assert (channel.name, experience.name) == (name, name)


def test_items_of_other_shapes_come_as_a_list_in_their_order(name):
    with train.channel(name) as channel, train.attach_channel(name) as experience:
        for length in (3, 3, 5, 3):
            experience.put(np.arange(length))
        experience.put({"other": 1})
        items = channel.get(10)
        assert isinstance(items, list)
        assert [len(item) for item in items[:4]] == [3, 3, 5, 3]
        assert items[4] == {"other": 1}
        for _ in range(3):
            experience.put(np.arange(3))
        assert [item.tolist() for item in channel.get(2, stack=False)] == [[0, 1, 2]] * 2
        assert channel.get(2).tolist() == [[0, 1, 2]]


def test_taken_items_belong_to_the_learner(name):
    with train.channel(name, capacity=4096) as channel:
        with train.attach_channel(name) as experience:
            for i in range(10):
                experience.put(np.full(30, i))
            batch = channel.get(10)
            for _ in range(10):
                experience.put(np.full(30, 99))
        channel.close()
        batch[0, 0] += 1
        assert batch[0].tolist() == [1] + [0] * 29
        assert batch[9].tolist() == [9] * 30


@pytest.mark.parametrize("when_full", ["block", "drop_oldest", "drop_newest"])
def test_items_of_other_processes_are_counted_exactly(name, start, when_full):
    count = 500
    with train.channel(name, capacity=4096, when_full=when_full) as channel:
        putters = [start("-c", PUTTER, name, who, count) for who in range(3)]
        while len(channel.stats()["producers"]) < 3:
            assert not any(process.poll() for process in putters)
            channel.get(1, timeout=0.05)
        last, got = {}, {}
        for batch in drained(channel):
            np.testing.assert_array_equal(
                batch["x"], np.repeat(batch["who"] * 1000 + batch["i"], 20).reshape(-1, 20)
            )
            for who, i in zip(batch["who"].tolist(), batch["i"].tolist(), strict=True):
                assert i > last.get(who, -1)
                last[who] = i
                got[who] = got.get(who, 0) + 1
        let_in = {process.pid: int(process.stdout.read()) for process in putters}
        stats = channel.stats()
        for each in stats["producers"]:
            assert not each["alive"]
            assert each["put"] == let_in[each["pid"]] == each["got"] + each["dropped_oldest"]
            assert each["put"] + each["dropped_newest"] == count
        if when_full == "block":
            assert stats["got"] == 3 * count
        elif when_full == "drop_newest":
            assert stats["dropped_oldest"] == 0
        else:
            assert stats["dropped_newest"] == 0


def test_a_killed_producer_leaves_all_that_it_had_put(name, start):
    with train.channel(name) as channel:
        putter = start("-c", PUTTER.replace("print(let_in", "input(let_in"), name, 1, 300)
        got = 0
        while got < 300:
            got += len(channel.get(7)["i"])
        putter.send_signal(signal.SIGKILL)
        putter.wait()
        assert list(drained(channel)) == []
        assert channel.stats()["put"] == channel.stats()["got"] == 300


LEARNER = """
import sys
from penstock import train

channel = train.channel(sys.argv[1])
print(len(channel.get(1)), flush=True)
input()
"""


def test_a_killed_learner_is_an_error_or_waited_for(name, start):
    learner = start("-c", LEARNER, name)
    closing = train.attach_channel(name)
    lasting = train.attach_channel(name, reconnect=True)
    for _ in range(4):
        lasting.put({"x": 1})
    assert learner.stdout.readline() == "1\n"
    learner.kill()
    learner.wait()
    with pytest.raises(penstock.errors.Closed, match="has ended, and 0 items"):
        while True:
            closing.put({"x": 1})
    with pytest.raises(penstock.errors.Closed):
        closing.put({"x": 1})
    with pytest.raises(penstock.errors.Timeout, match="no other learner has come"):
        while True:
            lasting.put({"x": 1}, timeout=0.01)
    assert lasting.lost >= 3
    assert not lasting.alive
    with train.channel(name) as channel:
        assert lasting.put({"x": 2})
        assert channel.get(1)["x"].tolist() == [2]


def test_a_full_channel_blocks_and_lets_go_of_the_gil(name):
    with train.channel(name, capacity=4096) as channel, train.attach_channel(name) as experience:
        with pytest.raises(penstock.errors.Timeout, match="is full"):
            while True:
                experience.put(np.zeros(100), timeout=0.01)
        queued = channel.stats()["queued"]
        thread = threading.Thread(target=lambda: experience.put(np.ones(100)))
        thread.start()
        taken = np.concatenate([channel.get(1) for _ in range(queued + 1)])
        thread.join()
        assert taken[:, 0].tolist() == [0] * queued + [1]


def test_threads_put_through_one_producer(name):
    with train.channel(name, capacity=4096) as channel, train.attach_channel(name) as experience:

        def put(who):
            for i in range(200):
                experience.put({"who": who, "i": np.full(10, i)})

        threads = [threading.Thread(target=put, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        counts = dict.fromkeys(range(4), 0)
        while sum(counts.values()) < 800:
            for item in channel.get(16, stack=False):
                assert item["i"].tolist() == [counts[int(item["who"])]] * 10
                counts[int(item["who"])] += 1
        for thread in threads:
            thread.join()


def test_invalid_arguments_are_refused_with_a_remedy(name):
    with train.channel(name, capacity=4096) as channel, train.attach_channel(name) as experience:
        with pytest.raises(penstock.errors.InvalidArgument, match="larger capacity"):
            experience.put(np.zeros(600))
        with pytest.raises(penstock.errors.InvalidArgument):
            experience.put(object())
        with pytest.raises(penstock.errors.InvalidArgument, match="the item is None"):
            experience.put(None)
        with pytest.raises(penstock.errors.InvalidArgument, match="at least one item"):
            channel.get(0)
        with pytest.raises(penstock.errors.InvalidArgument, match="give an integer"):
            channel.get(1.5)
        with pytest.raises(penstock.errors.InvalidArgument, match=f"process {os.getpid()}"):
            train.channel(name)
        assert channel.stats()["put"] == 0
    with pytest.raises(penstock.errors.Closed):
        channel.get(1)
    with pytest.raises(penstock.errors.Closed):
        experience.put(1)
    with pytest.raises(penstock.errors.InvalidArgument, match="drop_oldest"):
        train.channel(name, when_full="wait")
    for capacity in (0, -1):
        with pytest.raises(penstock.errors.InvalidArgument):
            train.channel(name, capacity=capacity)
    for call in (train.channel, train.attach_channel):
        with pytest.raises(penstock.errors.InvalidArgument, match="give a str of UTF-8"):
            call("\ud800")
    with pytest.raises(penstock.errors.Timeout, match="no process has a channel"):
        train.attach_channel(name, timeout=0)


def test_a_forked_child_puts_for_itself_and_takes_nothing(name):
    channel = train.channel(name)
    experience = train.attach_channel(name)
    experience.put({"who": 1})
    child = os.fork()
    if child == 0:
        right = False
        try:
            experience.put({"who": 2})
            try:
                channel.get(1, timeout=0)
            except penstock.errors.InvalidArgument:
                right = True
        finally:
            os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    experience.put({"who": 1})
    got = [x for batch in (channel.get(1), channel.get(1), channel.get(1)) for x in batch["who"]]
    assert sorted(got) == [1, 1, 2]
    assert len(channel.stats()["producers"]) == 2
    channel.close()


def test_a_channel_is_a_source_of_a_dataset(name):
    with train.channel(name) as channel, train.attach_channel(name) as experience:

        def items():
            while (batch := channel.get(8, stack=False, timeout=0)) is not None:
                yield from batch

        for i in range(20):
            experience.put({"x": np.full(3, i), "i": i})
        feed = penstock.Loader(penstock.Dataset.generator(items).batch(5), workers=0)
        batches = list(feed)
        feed.close()
        assert [batch["x"].shape for batch in batches] == [(5, 3)] * 4
        assert np.concatenate([batch["i"] for batch in batches]).tolist() == list(range(20))


def test_ctrl_c_ends_waits(name, start):
    for call in ("train.channel(name).get(1)", "train.attach_channel(name, timeout=None)"):
        waiting = start(
            "-c",
            "import sys; from penstock import train\n"
            "name = sys.argv[1]; print('here', flush=True)\n"
            f"try: {call}\n"
            "except KeyboardInterrupt: print('ended', flush=True)",
            f"{name}-{len(call)}",
        )
        assert waiting.stdout.readline() == "here\n"
        while waiting.poll() is None:
            waiting.send_signal(signal.SIGINT)
            try:
                waiting.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        assert waiting.stdout.readline() in ("ended\n", "")

"""train.publish and train.attach, between processes that share only the name."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import penstock
from penstock import train

SHAPES = {"w": (30, 4), "scalar": (), "b": (4,)}


def fill(parameters, version):
    for array in parameters.values():
        array[...] = version
    parameters.version = version
    return parameters


def started(source, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process


def test_a_read_returns_the_newest_version_in_place(name):
    parameters = fill(train.Parameters(SHAPES), 3)
    assert train.publish(name, parameters) == 3
    with train.attach(name) as model:
        assert (model.name, model.version, model.alive) == (name, 3, True)
        with model.read() as (version, weights):
            assert version == 3
            assert list(weights) == list(SHAPES)
            for block, array in weights.items():
                assert array.shape == SHAPES[block]
                assert array.dtype == np.float32
                assert np.all(array == 3)
                assert not array.flags.writeable
                assert not array.flags.owndata
            with pytest.raises(ValueError, match="WRITEABLE"):
                weights["w"].flags.writeable = True
            fill(parameters, 4)
            assert train.publish(name, parameters) == 4
            assert np.all(weights["w"] == 3)
        with model.read() as (version, weights):
            assert version == 4
            assert np.all(weights["b"] == 4)
        assert train.publish(name, parameters) == 5


@pytest.mark.parametrize("shape", ["q", None, {}, np])
def test_an_invalid_shape_is_refused_by_its_block(name, shape):
    with pytest.raises(penstock.InvalidArgument, match="for block 'w'; give a shape"):
        train.attach(name, like={"w": shape}, timeout=0)


def test_a_shape_is_that_of_an_array(name):
    train.publish(name, train.Parameters(SHAPES))
    arrays = {block: np.zeros(shape) for block, shape in SHAPES.items()}
    train.attach(name, like=arrays).close()


def test_leaving_lets_go_of_the_version_and_a_kept_array_holds_it(name):
    parameters = fill(train.Parameters(SHAPES), 1)
    train.publish(name, parameters)
    publisher = train.publish.__globals__["_publishers"][name]
    model = train.attach(name)
    with model.read() as (_, weights):
        kept = weights["w"]
        assert publisher.holders == [os.getpid()]
    assert weights == {}
    assert publisher.holders == [os.getpid()]
    model.close()
    for version in range(2, 300):
        train.publish(name, fill(parameters, version))
    assert np.all(kept == 1)
    del kept, model
    gc.collect()
    assert publisher.holders == []


READER = """
import sys
from penstock import train
model = train.attach(sys.argv[1])
last = torn = 0
for read in range(int(sys.argv[2])):
    with model.read(max_lag=read % 2) as (version, weights):
        values = {float(x) for a in weights.values() for x in (a.min(), a.max())}
        torn += values != {float(version)}
        assert read % 2 or version >= last
        last = max(version, last)
print(torn, last)
"""


@pytest.mark.parametrize(
    "reads",
    [
        3000,
        pytest.param(30_000, marks=pytest.mark.slow),
        pytest.param(350_000, marks=[pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(500)]),
    ],
)
def test_no_read_of_other_processes_is_torn_with_a_learner_flat_out(name, reads):
    readers = [started(READER, name, str(reads)) for _ in range(3)]
    parameters = train.Parameters(SHAPES)
    version = 0
    while any(reader.poll() is None for reader in readers):
        version += 1
        assert train.publish(name, fill(parameters, version)) == version
    for reader in readers:
        torn, last = reader.communicate()[0].split()
        assert torn == "0"
        assert 0 < int(last) <= version


LEARNER = """
import sys
from penstock import train
parameters = train.Parameters({"w": (30, 4), "scalar": (), "b": (4,)})
parameters["w"] += 1
parameters.version = int(sys.argv[2])
train.publish(sys.argv[1], parameters)
print("published", flush=True)
sys.stdin.readline()
"""


def test_readers_outlive_a_killed_learner_and_go_on_with_the_next(name):
    first = started(LEARNER, name, "10")
    model = train.attach(name, like=SHAPES)
    assert model.version == 10
    with pytest.raises(penstock.errors.InvalidArgument, match=f"process {first.pid} serves it"):
        train.publish(name, train.Parameters(SHAPES))
    first.kill()
    first.communicate()
    with model.read() as (version, weights):
        assert version == 10
        assert np.all(weights["w"] == 1)
    assert not model.wait(11, timeout=0)
    second = started(LEARNER, name, "20")
    assert model.wait(20, timeout=60)
    assert model.alive
    with model.read() as (version, _):
        assert version == 20
    second.communicate("\n")
    model.close()
    with pytest.raises(penstock.errors.Closed):
        model.read()


def test_another_schema_is_refused_when_it_is_attached_to(name):
    train.publish(name, train.Parameters(SHAPES))
    with pytest.raises(penstock.errors.InvalidArgument, match=r"'b' is \(5,\) here and \(4,\)"):
        train.attach(name, like={**SHAPES, "b": 5})
    with pytest.raises(penstock.errors.InvalidArgument):
        train.attach(name, like=train.Parameters({"w": (30, 4)}))
    train.attach(name, like=train.Parameters(SHAPES)).close()
    with pytest.raises(penstock.errors.InvalidArgument):
        train.publish(name, train.Parameters({"w": (30, 4)}))


def test_attach_waits_for_the_first_version_or_raises_timeout(name):
    with pytest.raises(penstock.errors.Timeout, match=f"no process publishes '{name}'"):
        train.attach(name, timeout=0)
    found = []
    thread = threading.Thread(target=lambda: found.append(train.attach(name, timeout=None)))
    thread.start()
    train.publish(name, fill(train.Parameters(SHAPES), 6))
    thread.join()
    assert found[0].version == 6
    for wrong in (lambda: found[0].wait(-1), lambda: found[0].read(-1)):
        with pytest.raises(penstock.errors.InvalidArgument, match="is -1; give 0 or more"):
            wrong()
    found[0].close()
    with pytest.raises(penstock.errors.InvalidArgument, match=r"train\.Parameters"):
        train.publish(name, [np.zeros(3)])
    for wrong in (
        lambda: train.publish("\ud800", train.Parameters(SHAPES)),
        lambda: train.attach("\ud800"),
        lambda: train.attach(name, like={"\ud800": (1,)}),
    ):
        with pytest.raises(penstock.errors.InvalidArgument, match="give a str of UTF-8"):
            wrong()
    with pytest.raises(penstock.errors.InvalidArgument, match="timeout is nan"):
        train.attach(name, timeout=float("nan"))
    with pytest.raises(penstock.errors.InvalidArgument, match="like is a list"):
        train.attach(name, like=["w"])
    with pytest.raises(penstock.errors.NotFound):
        train.unpublish(name + "-other")


@pytest.mark.parametrize("wait", ["train.attach(sys.argv[1], timeout=None)", "model.wait(9)"])
def test_ctrl_c_ends_a_wait(name, wait):
    train.publish(name + "-there", fill(train.Parameters(SHAPES), 1))
    waiter = started(
        f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" has it ignored
from penstock import train
model = train.attach(sys.argv[1] + "-there")
print("waits", flush=True)
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted")
""",
        name,
    )
    try:
        assert waiter.stdout.readline() == "waits\n"
        waiter.send_signal(signal.SIGINT)
        out, _ = waiter.communicate(timeout=50)
        # The signal may have come before the `try`; then a traceback is a correct end, too.
        assert out == "interrupted\n" or waiter.returncode != 0
    finally:
        waiter.kill()
        waiter.wait()
        train.unpublish(name + "-there")


def test_a_forked_child_reads_for_itself_and_cannot_take_its_parents_name(name):
    train.publish(name, fill(train.Parameters(SHAPES), 2))
    model = train.attach(name)
    held = model.read()
    pid = os.fork()
    if pid == 0:
        try:
            with model.read() as (version, weights):
                good = version == 2 and bool(np.all(weights["w"] == 2))
            try:
                train.publish(name, train.Parameters(SHAPES))
                good = False
            except penstock.errors.InvalidArgument as error:
                good = good and f"process {os.getppid()}" in str(error)
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    with held as (version, weights):
        assert version == 2
        assert np.all(weights["b"] == 2)
    model.close()

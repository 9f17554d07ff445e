"""The public interface of the parameter server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import penstock
from penstock import train

SECRET = "a secret of tests"
BLOCKS = {"w": (40, 30), "b": (7,), "v": (5000,)}

WORKER = """
import sys
import numpy as np
from penstock import train
with train.connect(sys.argv[2:], name=sys.argv[1]) as client:
    for _ in range(20):
        client.pull()
        assert client.push({name: np.full(a.shape, -1) for name, a in client.parameters.items()})
    print(client.parameters.version)
"""


def served(**options):
    return train.ParameterServer(train.Parameters(BLOCKS), train.SGD(1.0), shards=2, **options)


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_processes_push_and_pull(listen):
    with served(listen=listen) as server:
        assert len(server.addresses) == 2
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, name, *server.addresses], stdout=subprocess.PIPE
            )
            for name in "ab"
        ]
        for worker in workers:
            said, _ = worker.communicate(timeout=100)
            assert worker.returncode == 0
            assert int(said) <= 40
        assert server.pull() == [40, 40]
        stats = server.stats()
        assert [shard["pushes"] for shard in stats] == [40, 40]
        assert stats[0]["workers"] == []  # both have left
    for array in server.parameters.values():
        assert (array == 40).all()
    assert server.parameters.version == 40


def test_encryption_is_for_both_ends():
    tcp = {"listen": "tcp://127.0.0.1:0", "secret": SECRET}
    for processes in (False, True):
        for encrypt in (True, False):
            with served(**tcp, encrypt=encrypt, processes=processes) as server:
                with pytest.raises(penstock.InvalidArgument, match="set encrypt at both"):
                    train.connect(server.addresses, secret=SECRET, encrypt=not encrypt)
                with train.connect(server.addresses, secret=SECRET, encrypt=encrypt) as client:
                    assert client.push({k: np.full(s, -1) for k, s in BLOCKS.items()})
                    assert client.stats()[0]["pushes"] == 1
                assert server.stats()[1]["pushes"] == 1


@pytest.mark.parametrize("processes", [False, True])
def test_on_one_host_tcp_needs_no_secret_and_strangers_are_refused(
    processes, tmp_path, monkeypatch
):
    with served(listen="tcp://127.0.0.1:0", processes=processes) as server:
        for encrypt in (None, True):
            with train.connect(server.addresses, encrypt=encrypt) as client:
                assert client.push({k: np.full(s, -1) for k, s in BLOCKS.items()})
        with pytest.raises(penstock.InvalidArgument, match="has no secret"):
            train.connect(server.addresses, secret=SECRET)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # another user's, or a container's
        with pytest.raises(penstock.InvalidArgument, match="give both ends the same secret"):
            train.connect(server.addresses)


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
@pytest.mark.parametrize("processes", [False, True])
def test_rows_are_pushed_beside_whole_blocks(listen, processes):
    optimizer = train.Adam(0.1)
    parameters = train.Parameters(BLOCKS)
    with train.ParameterServer(
        parameters, optimizer, shards=2, listen=listen, processes=processes
    ) as server:
        client = train.connect(server.addresses)
        rows, values = [38, 2, 38], np.arange(90, dtype=np.float32).reshape(3, 30)
        for _ in range(3):
            assert client.push({"w": train.Rows(rows, values), "b": np.ones(7)})
        assert client.push({"w": train.Rows([], np.zeros((0, 30)))})
        assert client.pull() == [4, 4]
        got = client.parameters
        moved = np.float32(-0.1) * 3  # Adam's step for a constant gradient of any size
        np.testing.assert_allclose(got["b"], moved, rtol=1e-5)
        np.testing.assert_allclose(got["w"][[2, 38]], moved, rtol=1e-5)
        assert (np.delete(got["w"], [2, 38], axis=0) == 0).all()
        assert (got["v"] == 0).all()
        for wrong in (
            {"w": train.Rows([40], np.zeros((1, 30)))},
            {"w": train.Rows([1], np.zeros((1, 29)))},
            {"w": train.Rows([1.5], np.zeros((1, 30)))},
            {"none": train.Rows([1], np.zeros((1, 30)))},
            {"w": train.Rows([1], np.full((1, 30), np.inf))},
        ):
            with pytest.raises((penstock.InvalidArgument, penstock.NotFound)):
                client.push(wrong)
        assert client.pull() == [4, 4]
        client.close()


def test_rows_are_not_compressed_or_compensated():
    rows = {"w": train.Rows([1], np.ones((1, 30)))}
    with (
        served() as server,
        train.connect(server.addresses, compress="float16") as client,
        pytest.raises(penstock.InvalidArgument, match="compress"),
    ):
        client.push(rows)
    with served(delay_compensation=0.5) as server, train.connect(server.addresses) as client:
        client.pull()
        with pytest.raises(penstock.InvalidArgument, match="delay_compensation"):
            client.push(rows)
        assert client.pull() == [0, 0]


def test_a_step_pulls_computes_and_pushes():
    with served() as server, train.connect(server.addresses, name="me") as client:
        feed = [1.0, 2.0, 3.0]

        def grad_fn(weights, batch):
            return float(weights["b"][0]), {k: np.full_like(v, -batch) for k, v in weights.items()}

        assert [client.step(feed, grad_fn) for _ in feed] == [0.0, 1.0, 3.0]
        with pytest.raises(StopIteration):
            client.step(feed, grad_fn)
        assert client.step(feed, grad_fn) == 6.0
        assert client.pull() == [4, 4]
        (worker,) = server.stats()[0]["workers"]
        assert worker["name"] == "me"
        assert worker["sequence"] == 4
        assert client.stats()[0]["version"] == 4


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_push_pull_returns_weights_with_the_push(listen):
    with served(listen=listen) as server, train.connect(server.addresses) as client:
        ones = {name: np.full(shape, -1) for name, shape in BLOCKS.items()}
        assert client.push_pull(ones)
        for array in client.parameters.values():
            assert (array == 1).all()
        assert client.parameters.version == 1
        other = train.Parameters(BLOCKS)
        client.gradients.zero()
        assert client.push_pull(client.gradients, other)
        assert other.version == 2
        assert client.push_pull({"w": train.Rows([1], np.full((1, 30), -5.0))}, other)
        assert (other["w"][1] == 6).all()
        assert (other["w"][0] == 1).all()
        assert client.sequence == 3
        for gradients, into, text in [
            (client.gradients, client.gradients, "give another slab"),
            (client.gradients, np.zeros(3), "into"),
            (3, other, "give a slab or a dict"),
            (train.Parameters({"w": (2,)}).gradients(), other, "the gradient has another layout"),
            ({**ones, "w": np.full(BLOCKS["w"], np.nan)}, other, "not finite"),
            ({"w": train.Rows([1], other["w"][1:2])}, other, "lies in the weights"),
            ({"w": train.Rows([10**6], np.zeros((1, 30)))}, other, "row"),
        ]:
            with pytest.raises(penstock.InvalidArgument, match=text) as caught:
                client.push_pull(gradients, into)
            assert caught.value.operation == "push_pull"
        assert client.sequence == 3


def test_dicts_that_threads_push_stay_apart():
    blocks = {"w": (300_000,)}
    with (
        train.ParameterServer(train.Parameters(blocks), train.SGD(1.0), shards=2) as server,
        train.connect(server.addresses) as client,
    ):

        def work(value: float) -> None:
            for _ in range(30):
                client.push({"w": np.full(blocks["w"], -value, np.float32)})

        threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.pull()
        assert (client.parameters["w"] == 180).all()


def test_synchronous_training_is_one_large_batch():
    with served(staleness=0, workers=2) as server:

        def work(name, value):
            with train.connect(server.addresses, name=name) as client:
                for _ in range(10):
                    client.gradients.update(
                        {k: np.full(a.shape, value) for k, a in client.gradients.items()}
                    )
                    assert client.push(client.gradients)

        threads = [threading.Thread(target=work, args=pair) for pair in (("a", -1), ("b", -3))]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert server.pull() == [10, 10]
        assert (server.parameters["v"] == 20).all()


def test_push_returns_false_after_the_lease_has_expired():
    with (
        served(staleness=1, lease=0.2) as server,
        train.connect(server.addresses) as slow,
        train.connect(server.addresses) as fast,
    ):
        zeros = {name: np.zeros(shape) for name, shape in BLOCKS.items()}
        for _ in range(4):
            assert fast.push(zeros)
        assert slow.push(zeros) is False
        assert slow.lapses == 1


@pytest.mark.parametrize("compress", ["float16", "bfloat16", "top_k"])
def test_compressed_gradients(compress):
    with served() as server:
        with train.connect(server.addresses, compress=compress, top_k=1.0) as client:
            client.push({name: np.full(shape, -0.5) for name, shape in BLOCKS.items()})
        server.pull()
        assert (server.parameters["w"] == 0.5).all()


def test_rounding_loses_values_and_top_k_sends_the_rest_later():
    for compress, sum_of in (("float16", 0), ("top_k", 100 * 1e-8)):
        parameters = train.Parameters({"w": (100,)})
        with (
            train.ParameterServer(parameters, train.SGD(1.0)) as server,
            train.connect(server.addresses, compress=compress, top_k=0.01) as client,
        ):
            for _ in range(100):
                assert client.push({"w": np.full(100, -1e-8)})
            server.pull()
            got = parameters["w"].sum() / 100
        # The last remainder of top_k has not been sent.
        assert 0.4 * sum_of <= got <= sum_of


def test_a_gradient_that_is_not_finite():
    with served() as server, train.connect(server.addresses) as client:
        client.gradients["w"][1, 2] = np.nan
        with pytest.raises(penstock.InvalidArgument, match=r"'w' is nan at \(1, 2\)"):
            client.push(client.gradients)
    with served(non_finite="skip") as server, train.connect(server.addresses) as client:
        client.gradients["w"][1, 2] = np.nan
        assert client.push(client.gradients) is False
        assert client.skipped == 1
        assert server.stats()[0]["skipped"] == 1


def test_a_gradient_that_is_skipped_leaves_nothing_for_top_k():
    with (
        served(non_finite="skip") as server,
        train.connect(server.addresses, compress="top_k", top_k=0.01) as client,
    ):
        assert (
            client.push({name: np.full(shape, np.nan) for name, shape in BLOCKS.items()}) is False
        )
        ones = {name: np.ones(shape) for name, shape in BLOCKS.items()}
        assert all(client.push(ones) for _ in range(120))
        server.pull()
        assert (server.parameters["w"] < 0).all()


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_a_push_that_was_interrupted_is_not_applied_later(listen):
    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    before = signal.signal(signal.SIGALRM, enough)
    try:
        with (
            served(staleness=0, workers=2, listen=listen) as server,
            train.connect(server.addresses, name="a") as one,
            train.connect(server.addresses, name="b") as other,
        ):
            gradients = one.gradients  # in memory that the shards read
            gradients["w"][:] = -100
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Enough):
                one.push(gradients)  # held, because the other worker has pushed nothing
            gradients["w"][:] = -2
            zeros = {name: np.zeros(shape) for name, shape in BLOCKS.items()}
            pushing = threading.Thread(target=other.push, args=(zeros,))
            pushing.start()
            assert one.push(gradients)
            pushing.join()
            server.pull()
            assert (server.parameters["w"] == 1).all()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_a_worker_that_only_pulls_notices_the_servers_end(listen):
    server = served(listen=listen)
    with train.connect(server.addresses, timeout=0.2) as client:
        assert client.pull() == [0, 0]
        server.close()
        with pytest.raises(penstock.Timeout):
            client.pull()


def test_versions_go_on_from_those_of_the_parameters():
    parameters = train.Parameters(BLOCKS)
    parameters.version = 5
    ones = {name: np.ones(shape) for name, shape in BLOCKS.items()}
    for processes in (False, True):
        with (
            train.ParameterServer(parameters, train.SGD(1.0), processes=processes) as server,
            train.connect(server.addresses) as client,
        ):
            client.push(ones)
    assert parameters.version == 7


def test_invalid_arguments_are_refused():
    parameters, sgd = train.Parameters(BLOCKS), train.SGD(1.0)
    for options in (
        {"shards": 0},
        {"shards": 10_000},
        {"staleness": -1},
        {"lease": 0},
        {"non_finite": "ignore"},
        {"staleness": 0, "delay_compensation": 0.1},
        {"listen": "tcp://0.0.0.0:0"},  # without a secret
        {"listen": ["unix:@", "unix:@"], "shards": 3},
    ):
        with pytest.raises(penstock.InvalidArgument):
            train.ParameterServer(parameters, sgd, **options)
    with pytest.raises(penstock.InvalidArgument):
        train.ParameterServer(BLOCKS, sgd)
    with pytest.raises(penstock.InvalidArgument):
        train.connect("unix:@nobody", compress="zip")
    with pytest.raises(penstock.Timeout):
        train.connect("unix:@nobody-is-here", timeout=0.1)
    with served() as server:
        with pytest.raises(penstock.InvalidArgument, match="missing"):
            train.connect(server.addresses[:1])
        client = train.connect(server.addresses)
        with pytest.raises(penstock.InvalidArgument):
            client.push({"w": np.zeros((40, 30))})
        client.close()
        with pytest.raises(penstock.Closed):
            client.pull()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shards": 1.5}, "shards is 1.5; give an integer"),
        ({"shards": "2"}, "shards is '2'; give an integer"),
        ({"shards": None}, "shards is None"),
        ({"staleness": 1.0}, "staleness is 1.0"),
        ({"workers": None}, "workers is None"),
        ({"workers": 1 << 32}, "workers is 4294967296; give 4294967295 at most"),
        ({"lease": None}, "lease is None; give a number"),
        ({"lease": "3"}, "lease is '3'; give a number"),
        ({"delay_compensation": "x"}, "delay_compensation is 'x'"),
        ({"snapshot_seconds": None}, "snapshot_seconds is None"),
        ({"non_finite": np.zeros(3)}, "non_finite is"),
        ({"listen": 3}, "listen is 3; give a list of addresses"),
        ({"listen": ["unix:@", 3], "shards": 2}, r"listen\[1\] is a int; give a str"),
        ({"listen": "\ud800"}, "listen has no UTF-8"),
        ({"secret": 0}, "secret is a int; give a str"),
        ({"encrypt": 1}, "encrypt is 1; give True or False"),
    ],
)
def test_a_servers_wrong_argument_is_named(options, text):
    for processes in (False, True):
        with pytest.raises(penstock.InvalidArgument, match=text):
            train.ParameterServer(
                train.Parameters(BLOCKS), train.SGD(1.0), processes=processes, **options
            )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": None}, "name is a NoneType; give a str"),
        ({"name": "\ud800"}, "name has no UTF-8"),
        ({"timeout": "x"}, "timeout is 'x'; give a number"),
        ({"timeout": np.ones(2)}, "timeout is array"),
        ({"top_k": None}, "top_k is None"),
        ({"compress": ["float16"]}, "compress is .'float16'.; there are"),
        ({"encrypt": 0}, "encrypt is 0; give True or False"),
        ({"addresses": None}, "addresses is None; give a list of addresses"),
        ({"addresses": [None]}, r"addresses\[0\] is a NoneType; give a str"),
    ],
)
def test_a_workers_wrong_argument_is_named(options, text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        train.connect(**{"addresses": "unix:@nobody-is-here", "timeout": 0.1} | options)


@pytest.mark.parametrize("make", [served, lambda **o: train.connect("unix:@nobody-is-here", **o)])
def test_a_wrong_secret_is_not_shown(make):
    with pytest.raises(penstock.InvalidArgument, match="secret is a bytes; give a str") as caught:
        make(secret=SECRET.encode())
    assert SECRET not in str(caught.value)


def test_numbers_of_numpy_are_taken():
    with (
        train.ParameterServer(
            train.Parameters(BLOCKS),
            train.SGD(1.0),
            shards=np.int32(2),
            staleness=np.int64(3),
            workers=np.uint8(0),
            lease=np.float32(30),
            snapshot_seconds=np.int16(60),
            encrypt=np.bool_(False),
            listen=np.array(["unix:@", "unix:@"]),
        ) as server,
        train.connect(
            np.array(server.addresses), timeout=np.float64(60), top_k=np.float32(0.1)
        ) as client,
    ):
        assert client.pull() == [0, 0]


def test_other_objects_than_slabs_rows_and_gradients_are_refused():
    with served() as server, train.connect(server.addresses) as client:
        for pull in (client.pull, server.pull):
            for into in ({}, np.zeros(3), False):
                with pytest.raises(
                    penstock.InvalidArgument, match=r"into is a .*; give Parameters"
                ):
                    pull(into=into)
        with pytest.raises(penstock.InvalidArgument, match=r"rows of block 'w' .* are a list that"):
            client.push({"w": train.Rows([[0], [1, 2]], np.zeros((2, 30)))})
        for made in ((), ({},), (1, {}, 2)):
            with pytest.raises(
                penstock.InvalidArgument, match=f"grad_fn returned a tuple of {len(made)}"
            ):
                client.step([1], lambda _, __, made=made: made)
        assert client.pull() == [0, 0]


def test_a_server_goes_on_from_its_snapshots(tmp_path):
    options = {"snapshots": tmp_path / "shards", "listen": f"unix:@test-{os.getpid()}"}

    def serve():
        return train.ParameterServer(
            train.Parameters(BLOCKS), train.Adam(0.1), shards=2, snapshot_seconds=0.01, **options
        )

    first = serve()
    client = train.connect(first.addresses, timeout=30)
    ones = {name: np.ones(shape) for name, shape in BLOCKS.items()}
    for _ in range(3):
        client.push(ones)
    first.close()
    second = serve()
    assert client.push(ones)  # the same worker continues
    assert client.pull() == [4, 4]
    reference = train.Updater(train.Parameters(BLOCKS), train.Adam(0.1))
    for _ in range(4):
        reference.apply(ones)
    assert (client.parameters["v"] == reference.parameters["v"]).all()
    client.close()
    second.close()
    with serve() as third, train.connect(third.addresses) as another:
        assert len(third.stats()[0]["workers"]) == 1  # a worker that left is not waited for
        assert another.push(ones)
    with pytest.raises(penstock.InvalidArgument, match="another number of shards"):
        train.ParameterServer(train.Parameters(BLOCKS), train.Adam(0.1), shards=3, **options)
    # An interrupted start has left files without a manifest.
    begun = tmp_path / "begun"
    train.ParameterServer(
        train.Parameters(BLOCKS), train.Adam(0.1), shards=2, snapshots=begun
    ).close()
    for manifest in begun.glob("*.json"):
        manifest.unlink()
    with train.ParameterServer(
        train.Parameters(BLOCKS), train.Adam(0.1), shards=2, snapshots=begun
    ) as again:
        assert again.pull() == [0, 0]


def test_a_network_learns_over_the_server():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 8)).astype(np.float32)
    truth = rng.normal(size=8).astype(np.float32)
    y = x @ truth
    parameters = train.Parameters({"w": (8,)})
    with train.ParameterServer(parameters, train.Adam(0.05)) as server:

        def work(which):
            batches = [np.arange(i, 512, 16) for i in range(which, 16, 2)]
            with train.connect(server.addresses) as client:
                for _ in range(40):
                    for batch in batches:

                        def grad_fn(weights, batch):
                            wrong = x[batch] @ weights["w"] - y[batch]
                            return {"w": x[batch].T @ wrong / len(batch)}

                        client.step([batch], grad_fn)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert np.abs(parameters["w"] - truth).max() < 0.05

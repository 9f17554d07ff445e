"""Feeds of all kinds on a CUDA device, by the real driver: run by `make test-gpu`."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

HERE = torch.device("cuda", 0)


def numbers(batches: int = 64):
    values = np.arange(batches * 8 * 100, dtype=np.float32).reshape(-1, 100)
    return penstock.Dataset.arrays({"x": values, "y": np.arange(batches * 8)}).batch(8)


@dataclasses.dataclass
class Fields:
    x: object
    name: str


class Odd:
    """Items of all types, each a whole batch."""

    types = ("bool", "uint8", "int64", "float16", "bfloat16", "float8_e4m3fn", "complex64")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int):
        tensors = {name: torch.full((4,), i).to(getattr(torch, name)) for name in self.types}
        packed = torch.nn.utils.rnn.pack_sequence([torch.full((3,), float(i)), torch.ones(2)])
        return (
            tensors,
            Fields(np.full((2, 3), i).T, "f"),
            collections.UserDict(z=np.zeros(0)),
            packed,
        )


def test_values_of_all_types_are_on_the_device():
    with penstock.torch.feed(Odd(), device="cuda", workers=0) as feed:
        for i, (tensors, fields, other, packed) in enumerate(feed):
            for name in Odd.types:
                dtype = getattr(torch, name)
                assert (tensors[name].device, tensors[name].dtype) == (HERE, dtype)
                expected = torch.full((4,), i).to(dtype)
                assert torch.equal(
                    tensors[name].cpu().view(torch.uint8), expected.view(torch.uint8)
                )
            assert (fields.x.device, fields.x.tolist()) == (HERE, [[i, i]] * 3)
            assert (other["z"].device, other["z"].shape) == (HERE, (0,))
            assert (packed.data.device, packed.batch_sizes.tolist()) == (HERE, [2, 2, 1])


def test_consumers_of_one_pass_have_their_batches_on_the_device():
    with numbers().feeds(2, devices=["cuda:0", "cuda:0"], workers=4) as feeds:
        firsts = [[int(batch["y"][0]) for batch in feed] for feed in feeds]
        figures = [each["device"] for each in feeds.stats()["feeds"]]
    assert firsts == [list(range(0, 512, 16)), list(range(8, 512, 16))]
    assert [each["gathered_bytes"] for each in figures] == [0, 0]


def test_another_thread_may_close_while_batches_are_taken():
    for _ in range(5):
        feed = penstock.torch.feed(numbers(1 << 12), device="cuda", workers=4)
        ended = []

        def take(feed=feed, ended=ended):
            try:
                for _ in feed:
                    pass
                ended.append("silently")
            except penstock.Closed:
                ended.append("closed")

        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(0.05)
        feed.close()
        thread.join(20)
        assert ended in (["closed"], ["silently"])
    assert int(torch.arange(5, device="cuda").sum()) == 10, "the device still works"


def test_a_feed_goes_on_while_another_thread_captures_a_graph():
    fixed, graph, kept = torch.ones(100, device="cuda"), torch.cuda.CUDAGraph(), []
    fixed.sum()
    with penstock.torch.feed(numbers(), device="cuda", workers=4) as feed:
        batches = iter(feed)

        def take():
            kept.extend(itertools.islice(batches, 32))  # memory for each

        thread = threading.Thread(target=take)
        with torch.cuda.graph(graph):
            total = fixed.sum()
            thread.start()
            thread.join(60)
        assert [int(batch["y"][0]) for batch in kept] == list(range(0, 256, 8))
        graph.replay()
        assert float(total) == 100


def test_batches_that_grow_use_few_buffers():
    sizes = [1 << 10, *range(100_000, 10_000_000, 100_000)]
    samples = [np.full(size, i, np.float32) for i, size in enumerate(sizes)]
    sums = []
    with penstock.torch.feed(samples, batch_size=None, device="cuda", workers=2) as feed:
        for batch in feed:
            torch.cuda._sleep(1_000_000)
            sums.append(batch.double().sum())
            del batch
        assert feed.stats()["device"]["slots"] <= 5
    assert torch.stack(sums).tolist() == [i * size for i, size in enumerate(sizes)]


def run_child(code: str, **environment: str) -> str:
    program = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        program,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_may_end_with_copies_in_flight():
    code = """
    import numpy as np, penstock, penstock.torch
    rows = penstock.Dataset.arrays(np.zeros((64, 1 << 20), np.float32)).batch(8)
    batches = iter(penstock.torch.feed(rows, device="cuda", workers=4))
    kept = [next(batches), next(batches)]
    print("end")
    """
    assert run_child(code) == "end\n"


def test_keras_on_torch_gets_batches_of_the_device():
    pytest.importorskip("keras")
    code = """
    import keras, numpy as np, penstock, penstock.keras
    x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with penstock.keras.feed((x, x[:, :1]), batch_size=32, workers=2) as feed:
        model.fit(feed, epochs=2, verbose=0)
        device = feed.stats()["device"]
    assert device["name"] == "cuda:0"
    print(device["batches"] >= 16)
    """
    assert run_child(code, KERAS_BACKEND="torch") == "True\n"


@pytest.mark.parametrize("way", ["feed", "feeds"])
def test_jax_gets_batches_of_the_device(way):
    code = """
    import sys
    import jax, numpy as np, penstock, penstock.jax
    try:
        (device, *_) = jax.devices("gpu")
    except RuntimeError:
        sys.exit("no GPU of jax")
    rows = penstock.Dataset.arrays(np.arange(64)).batch(8)
    if "WAY" == "feed":
        with penstock.jax.feed(rows, device=device, workers=2) as feed:
            got = list(feed)
            assert feed.stats()["device"]["batches"] == 8
    else:
        with rows.feeds(1, devices=[device], workers=2) as feeds:
            got = list(feeds[0])
    assert [batch.devices() for batch in got] == [{device}] * 8
    print([int(batch[0]) for batch in got])
    """.replace("WAY", way)
    jax = pytest.importorskip("jax")
    if all(device.platform == "cpu" for device in jax.devices()):
        pytest.skip("this jax has no GPU")
    no_hoarding = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    assert run_child(code, **no_hoarding) == f"{list(range(0, 64, 8))}\n"

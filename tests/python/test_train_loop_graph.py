"""train.Loop(graph=True): torch's steps as CUDA graphs.

On a real GPU if there is one; elsewhere with a fake device. The fake has the contract of graphs:
capturing runs nothing, and a replay reads and writes the memory of the capture.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import penstock
from penstock import train

torch = pytest.importorskip("torch")

from penstock.train.loop_graph import Cuda, Graph  # noqa: E402

ROWS, SIZE = 44, 4
RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.standard_normal((ROWS, 3)).astype(np.float32),
    "y": RNG.standard_normal((ROWS, 1)).astype(np.float32),
}
SAMPLES = penstock.Dataset.arrays(DATA).shuffle(seed=1)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Line:
    """A linear model, trained in place."""

    def __init__(self, quiet=False):
        self.w = torch.zeros((3, 1))
        self.quiet = quiet

    def __call__(self, batch):
        error = batch["x"] @ self.w - batch["y"]
        self.w.sub_(batch["x"].T @ error, alpha=0.05)
        return None if self.quiet else {"loss": (error**2).mean(), "first": error[0]}


class Pretended:
    """A device on which `step` runs; graphs record their batches and results."""

    def __init__(self, model):
        self.model = model
        self.capturing = None
        self.captures = self.replays = self.runs = self.waits = 0

    def step(self, batch):
        if self.capturing is None:
            return self.model(batch)
        before = self.model.w.clone()
        said = self.model(batch)
        self.model.w.copy_(before)
        self.capturing.append((batch, said))
        return said

    def has(self, leaf):
        return isinstance(leaf, torch.Tensor)

    def beside(self, work):
        self.runs += 1
        work()

    def capture(self, work):
        self.captures += 1
        self.capturing = graph = []
        work()
        self.capturing = None
        for _, said in graph:
            for leaf in said.values() if said else ():
                leaf.fill_(float("nan"))  # nothing has run

        def replay():
            self.replays += 1
            for batch, said in graph:
                made = self.model(batch)
                for name, leaf in (said or {}).items():
                    leaf.copy_(made[name])

        return replay

    def mark(self):
        def wait():
            self.waits += 1

        return wait

    def to_host(self, tensor):
        return tensor.clone()


class Buffers:
    """A feed of the device that has one buffer, and uses it again once its batch was dropped."""

    def __init__(self):
        self.buffer = {name: torch.zeros(SIZE, values.shape[1]) for name, values in DATA.items()}

    def __iter__(self):
        with penstock.Loader(SAMPLES.batch(SIZE), workers=0) as feed:
            for batch in feed:
                for name, values in batch.items():
                    self.buffer[name].copy_(torch.from_numpy(values))
                yield dict(self.buffer)
                for buffer in self.buffer.values():
                    buffer.fill_(float("nan"))


def plain(passes):
    model, said = Line(), []
    with penstock.Loader(SAMPLES.batch(SIZE), workers=0) as feed:
        for _ in range(passes):
            said += [model({k: torch.from_numpy(v) for k, v in batch.items()}) for batch in feed]
    return model.w, [{k: v.numpy() for k, v in each.items()} for each in said]


def assert_same(seen, expected):
    assert [number for number, _ in seen] == list(range(len(expected)))
    for (_, metrics), wanted in zip(seen, expected, strict=True):
        assert metrics["loss"] == wanted["loss"]
        assert np.array_equal(metrics["first"], wanted["first"])


def loop_of(model, device, seen, feed, **options):
    loop = train.Loop(
        model,
        SAMPLES if feed == "samples" else penstock.Loader(SAMPLES.batch(SIZE), workers=0),
        batch_size=SIZE if feed == "samples" else None,
        convert=torch.from_numpy,
        callbacks=lambda number, metrics: seen.append((number, metrics)),
        workers=0,
        **options,
    )
    loop._runner = Graph(device.step, device)
    return loop


@pytest.mark.parametrize("feed", ["samples", "batches"])
@pytest.mark.parametrize("steps", [1, 4, 11, 20])
def test_the_result_is_the_plain_loops(steps, feed):
    model, seen = Line(), []
    device = Pretended(model)
    loop_of(model, device, seen, feed, steps=steps).run(epochs=5)
    w, expected = plain(5)
    assert torch.equal(model.w, w)
    assert_same(seen, expected)
    lengths = 1 if steps in (1, 11, 20) else 2  # 11 steps a pass: 4, 4 and 3
    assert device.captures == device.runs == lengths
    runs = 5 * -(-11 // min(steps, 11))
    assert device.replays == runs - lengths


def test_the_clock_makes_runs_of_few_lengths():
    model, seen = Line(), []
    device = Pretended(model)
    loop_of(model, device, seen, "samples", seconds=0.05).run(epochs=30)
    w, expected = plain(30)
    assert torch.equal(model.w, w)
    assert_same(seen, expected)
    assert device.captures <= 5  # 1, 2, 4, 8 and 11


def test_metrics_are_not_overwritten_before_the_check_in():
    """With seconds= the host checks in after many replays of one graph."""
    model, seen = Line(), []
    device = Pretended(model)
    loop = loop_of(model, device, seen, "batches", steps=1, seconds=60.0)
    loop.run(epochs=4)
    assert loop._check_ins == 1
    assert_same(seen, plain(4)[1])


@pytest.mark.parametrize("steps", [1, 4, 11, 20])
def test_batches_of_a_device_leave_their_feed_as_they_arrive(steps):
    """The feed needs no buffer for each step of a run."""
    model, seen = Line(), []
    device = Pretended(model)
    loop = train.Loop(model, Buffers(), steps=steps, callbacks=lambda *each: seen.append(each))
    loop._runner = Graph(device.step, device)
    loop.run(epochs=3)
    expected = Line()
    losses = []
    for _ in range(3):
        for batch in Buffers():
            losses.append(float(expected(batch)["loss"]))
    assert torch.equal(model.w, expected.w)
    assert [metrics["loss"] for _, metrics in seen] == losses


def test_a_check_in_waits_once_for_the_metrics_of_all_steps():
    model, seen = Line(), []
    device = Pretended(model)
    loop_of(model, device, seen, "batches", steps=11).run(epochs=5)
    assert_same(seen, plain(5)[1])
    assert device.replays == 4
    assert device.waits == 4 + 2  # and for the report of the run: its end, and the last metrics


def test_steps_may_say_nothing():
    model = Line(quiet=True)
    device = Pretended(model)
    seen = []
    loop_of(model, device, seen, "samples", steps=4).run(epochs=3)
    assert torch.equal(model.w, plain(3)[0])
    assert {metrics for _, metrics in seen} == {None}


def by_hand(feed, step, steps=2):
    device = Pretended(step)
    loop = train.Loop(step, feed, steps=steps, convert=torch.from_numpy, workers=0)
    loop._runner = Graph(device.step, device)
    return loop, device


def test_fields_go_by_their_names():
    seen = []

    def step(batch):
        seen.append((float(batch["x"][0]), float(batch["y"][0])))

    step.w = torch.zeros(1)
    x, y = np.ones(1, np.float32), np.full(1, 10, np.float32)
    loop, device = by_hand([{"x": x, "y": y}, {"y": y, "x": x}] * 4, step)
    loop.run()
    assert device.replays
    assert set(seen) == {(1.0, 10.0)}


def test_batches_that_convert_made_different_are_not_spread_over_each_other():
    seen = []

    def step(batch):
        seen.append(float(batch["x"].sum()))

    step.w = torch.zeros(1)
    feed = [{"x": np.full(5, n, np.float32)} for n in (5, 1, 5, 1, 5, 5, 5, 5, 5, 5, 1, 5)]
    loop, device = by_hand(feed, step)
    loop._convert = lambda array: torch.from_numpy(array[: int(array[0])].copy())
    loop.run()
    assert device.captures == 2  # of (5, 1) and (5, 5); (1, 5) came once
    assert set(seen) == {25.0, 1.0}


def test_a_run_that_failed_is_not_captured_next():
    fails = [True]

    def step(batch):
        if fails.pop() if fails else False:
            raise RuntimeError("once")

    step.w = torch.zeros(1)
    loop, device = by_hand([{"x": np.ones(2, np.float32)}] * 2, step)
    with pytest.raises(RuntimeError, match="once"):
        loop.run()
    loop.run()
    assert (device.runs, device.captures) == (2, 0)
    loop.run()
    assert device.captures == 1


def test_a_step_that_fails_ends_the_run_with_its_number():
    model, seen = Line(), []
    device = Pretended(model)
    inner = device.step

    def step(batch):
        if device.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return inner(batch)

    device.step = step
    loop = loop_of(model, device, seen, "samples", steps=11)
    with pytest.raises(RuntimeError) as caught:
        loop.run(epochs=2)
    notes = " ".join(caught.value.__notes__) if hasattr(caught.value, "__notes__") else ""
    assert not notes or ("capturable=True" in notes and "in step 11 of Loop" in notes)
    assert len(seen) == 11


def test_unsupported_steps_and_batches_of_a_graph_are_refused():
    model, seen = Line(), []
    device = Pretended(model)
    loop = loop_of(model, device, seen, "samples", steps=4)
    loop._convert = None
    with pytest.raises(penstock.InvalidArgument, match="ndarray that is not on the current CUDA"):
        loop.run()
    loop = loop_of(model, device, seen, "samples", steps=4)
    loop._runner = Graph(lambda batch: {"loss": float(device.step(batch)["loss"])}, device)
    with pytest.raises(
        penstock.InvalidArgument, match=r"a step returned [0-9.]+; .* must return tensors of"
    ):
        loop.run()


def test_without_a_device_it_is_an_error():
    arguments = {"steps": 2, "batch_size": SIZE, "graph": True}
    if not torch.cuda.is_available():
        with pytest.raises(penstock.InvalidArgument, match="needs torch with a usable CUDA device"):
            train.Loop(Line(), SAMPLES, **arguments)
    with pytest.raises(penstock.InvalidArgument, match="graph is 1; give True or False"):
        train.Loop(Line(), SAMPLES, **{**arguments, "graph": 1})


def test_a_graph_is_captured_on_a_stream_of_the_device_that_is_current():
    at, streams = [0], []

    def graph(graph, *, stream, capture_error_mode):
        streams.append(stream)
        return nullcontext()

    device = Cuda()
    device._cuda = SimpleNamespace(
        CUDAGraph=lambda: SimpleNamespace(replay=None),
        Stream=lambda: SimpleNamespace(device=at[0]),
        current_device=lambda: at[0],
        graph=graph,
    )
    for at[0] in (0, 1, 0, 1):
        device.capture(lambda: None)
    assert [stream.device for stream in streams] == [0, 1, 0, 1]
    assert streams[0] is streams[2], "they are kept"


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("steps", [1, 4, 20])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_on_a_gpu_the_result_is_the_plain_loops(steps, name):
    found = []
    for graph in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1).cuda()
        capturable = {"capturable": True} if name == "Adam" else {}
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **capturable)

        def step(batch, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach()}

        losses = []
        loop = train.Loop(
            step,
            SAMPLES,
            steps=steps,
            batch_size=SIZE,
            convert=lambda array: torch.from_numpy(array).cuda(),
            callbacks=lambda number, metrics, losses=losses: losses.append(metrics["loss"]),
            workers=0,
            graph=graph,
        )
        loop.run(epochs=6)
        found.append((losses, [p.detach().cpu() for p in model.parameters()]))
    (eager, weights), (replayed, others) = found
    assert eager == replayed
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("steps", [1, 4, 20])
def test_on_a_gpu_batches_of_a_feed_are_used_as_they_arrive(steps):
    import penstock.torch

    found = []
    for graph in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)

        def step(batch, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach()}

        losses = []
        with penstock.torch.feed(SAMPLES.batch(SIZE), device="cuda", workers=2) as feed:
            loop = train.Loop(
                step,
                feed,
                steps=steps,
                callbacks=lambda number, metrics, losses=losses: losses.append(metrics["loss"]),
                graph=graph,
            )
            loop.run(epochs=6)
            if graph:
                assert feed.stats()["device"]["slots"] <= 5
        found.append((losses, [p.detach().cpu() for p in model.parameters()]))
    (eager, weights), (replayed, others) = found
    assert eager == replayed
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))

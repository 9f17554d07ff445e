"""Feeding a CUDA device, by the real driver: run by `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import device_operations  # noqa: E402
import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from device_operations import EVERY, MOVES, check_images, images_of_workers, mapped  # noqa: E402
from image_files import encoded, picture  # noqa: E402
from penstock import image  # noqa: E402
from penstock.device.functions import Rows as Address  # noqa: E402
from penstock.device.permutation import torch_permuted  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


class Rows:
    """Samples of worker processes, large enough to be copied in place."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, i: int):
        return np.full((64, 64), i, np.float32), i


def rows(batches: int = 64):
    values = np.arange(batches * 8 * 1000, dtype=np.float32).reshape(-1, 1000)
    return penstock.Dataset.arrays({"x": values, "y": np.arange(batches * 8)}).batch(8)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda", 0)])
def test_batches_are_on_the_device_in_order(device):
    with penstock.torch.feed(rows(), device=device, workers=4) as feed:
        for epoch in range(2):
            for i, batch in enumerate(feed):
                assert batch["x"].device == torch.device("cuda", 0)
                assert batch["y"].tolist() == list(range(8 * i, 8 * i + 8)), epoch
                assert float(batch["x"][0, 0]) == 8000 * i
        stats = feed.stats()["device"]
    assert stats["batches"] == stats["copies"] == 128


def test_a_buffer_is_not_overwritten_while_the_step_reads_it():
    """The host runs far ahead of a device that is busy."""
    busy = torch.zeros(4096, 4096, device="cuda")
    sums = []
    with penstock.torch.feed(rows(), device="cuda", workers=4) as feed:
        for batch in feed:
            busy = busy @ busy
            sums.append(batch["x"].double().sum())
            del batch
    values = np.arange(64 * 8 * 1000, dtype=np.float64).reshape(64, -1)
    np.testing.assert_allclose(torch.stack(sums).cpu().numpy(), values.sum(1))


def test_batches_of_worker_processes_are_read_where_they_lie():
    loader = penstock.torch.DataLoader(Rows(), batch_size=32, num_workers=4, device="cuda")
    with loader:
        for _ in range(3):
            for i, (x, y) in enumerate(loader):
                assert y.tolist() == list(range(32 * i, 32 * i + 32))
                assert x[:, 5, 7].tolist() == y.tolist()
        stats = loader.stats()["device"]
    assert stats["copies"] == stats["batches"] == 24
    assert stats["gathered_bytes"] == 0


def test_a_consumer_on_a_stream_of_its_own():
    stream = torch.cuda.Stream()
    sums = []
    with penstock.torch.feed(rows(), device="cuda", workers=4) as feed, torch.cuda.stream(stream):
        for batch in feed:
            torch.cuda._sleep(1_000_000)
            sums.append(batch["y"].sum())
            del batch
        found = torch.stack(sums).cpu().tolist()
    assert found == [sum(range(8 * i, 8 * i + 8)) for i in range(64)]


def test_a_graph_is_replayed_on_batches():
    fixed = torch.zeros(8, 1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with penstock.torch.feed(rows(), device="cuda", workers=4) as feed, torch.inference_mode():
        warm = torch.cuda.Stream()
        with torch.cuda.stream(warm):
            fixed.sum()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            total = fixed.sum()
        totals = []
        for batch in feed:
            fixed.copy_(batch["x"])
            graph.replay()
            totals.append(total.clone())
    assert len(totals) == 64
    expected = np.arange(8000, dtype=np.float32).sum(dtype=np.float64)
    np.testing.assert_allclose(float(totals[0]), expected, rtol=1e-4)


def test_all_batches_may_be_kept():
    with penstock.torch.feed(rows(), device="cuda", workers=4) as feed:
        kept = list(feed)
    assert [int(batch["y"][0]) for batch in kept] == list(range(0, 512, 8))


@pytest.mark.parametrize("length", [1, 200, 256, 257, 60_000])
def test_the_order_of_an_epoch_is_that_of_the_engine(length):
    order = torch_permuted(length, 7, 3, torch.arange(length, device="cuda"))
    wanted = penstock.Permutation(length, 7, 3).take(0, length)
    assert np.array_equal(order.cpu().numpy(), wanted.astype(np.int64))


@pytest.mark.parametrize("most", [None, 1 << 20], ids=["all fit", "some fit"])
def test_rows_that_stay_have_the_order_of_the_host(most):
    values = np.arange(1000 * 1000, dtype=np.float32).reshape(-1, 1000)
    dataset = penstock.Dataset.arrays({"x": values, "y": np.arange(1000)}).shuffle(seed=1).batch(64)
    with (
        penstock.device.resident(dataset, "cuda", max_bytes=most) as kept,
        dataset.build(workers=0) as host,
    ):
        for epoch in range(3):
            for batch, wanted in zip(kept, host, strict=True):
                assert batch["x"].device == torch.device("cuda", 0)
                assert batch["y"].tolist() == wanted["y"].tolist(), epoch
                assert np.array_equal(batch["x"].cpu().numpy(), wanted["x"])
            if epoch == 0:
                sent = kept.stats()["link_bytes"]
        if most is None:
            assert kept.stats()["link_bytes"] == sent == values.nbytes + 1000 * 8


def test_functions_of_a_device_run_on_a_stream_of_their_own():
    streams = set()

    def doubled(batch):
        streams.add(torch.cuda.current_stream())
        for _ in range(20):  # takes longer than the copy
            batch["x"] @ batch["x"].T
        return {"x": batch["x"] * 2, "y": batch["y"]}

    chain = rows().map(doubled, device="cuda:0")
    with penstock.torch.feed(chain, workers=2) as feed:
        for _ in range(3):
            for i, batch in enumerate(feed):
                first = torch.arange(8000, dtype=torch.float32, device="cuda") + 8000 * i
                assert torch.equal(batch["x"], 2 * first.view(8, 1000)), i
                assert batch["y"].tolist() == list(range(8 * i, 8 * i + 8))
    assert torch.cuda.current_stream() not in streams
    assert len(streams) == 1


def test_the_report_has_copies_and_steps_by_the_clock_of_the_device(tmp_path):
    """Steps of 20 ms, measured by torch's events, too."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    values = np.zeros((128, 100_000), np.float32)  # copies long enough not to be merged
    batches = penstock.Dataset.arrays({"x": values}).batch(8)
    with penstock.torch.feed(batches, device="cuda", workers=2) as feed:
        for number, batch in enumerate(feed):
            if number == 0:
                first.record()
            torch.cuda._sleep(30_000_000)
            batch["x"].sum()
        last.record()
        del batch
        torch.cuda.synchronize()
        (_, copies), (_, steps) = feed._place.lanes()
        feed.report(tmp_path / "run.html")
    names = "kind", "begin", "span", "active", "step", "count"
    copies, steps = ([dict(zip(names, e, strict=True)) for e in lane] for lane in (copies, steps))
    assert [event["step"] for event in copies] == list(range(16))
    assert all(event["span"] < 20e6 for event in copies)
    steps = [event for event in steps if event["kind"] == max(e["kind"] for e in steps)]
    assert [event["step"] for event in steps] == list(range(16))
    whole = first.elapsed_time(last) * 1e6
    assert 0.9 * whole < sum(event["active"] for event in steps) < 1.1 * whole
    for copy, step in zip(copies, steps, strict=True):
        assert copy["begin"] + copy["span"] <= step["begin"] + 1e5, "a step after its copy"
    assert "cuda:0 copies" in (tmp_path / "run.html").read_text()


def test_arrays_of_jax_are_published_by_one_copy(monkeypatch):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("needs a jax for CUDA")
    import penstock.jax
    from penstock import train
    from penstock.train import parameters

    def refused(*_):
        raise AssertionError("an array of NumPy was made")

    monkeypatch.setattr(parameters, "numbers", refused)
    values = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    tree = {"w": jax.numpy.asarray(values) * 2, "b": jax.numpy.ones(7)}
    penstock.jax.publish("gpu-tree", tree)
    try:
        with penstock.jax.attach("gpu-tree", like=tree) as model, model.read() as (_, found):
            assert np.array_equal(np.asarray(found["w"]), values * 2)
            assert np.array_equal(np.asarray(found["b"]), np.ones(7))
    finally:
        train.unpublish("gpu-tree")


@pytest.mark.parametrize("name", EVERY)
def test_images_are_those_of_the_workers(name):
    within = 1 / 57 if name == "all" else 1  # normalized; levels
    check_images(penstock.torch.feed, device_operations.rows(), name, "cuda:0", within)


@pytest.mark.parametrize("name", MOVES)
def test_pixels_of_float32_are_those_of_the_workers(name):
    check_images(
        penstock.torch.feed,
        device_operations.rows(np.float32),
        name,
        "cuda:0",
        within=1 / 255,
    )


def test_rows_that_stay_are_augmented_there():
    make = EVERY["all"]
    wanted = images_of_workers(device_operations.rows(), make(), seed=5)
    chain = mapped(device_operations.rows().batch(7), make(on="device"), "cuda:0")
    with penstock.device.resident(chain, "cuda:0", seed=5, workers=0) as kept:
        first = [batch["image"] for batch in kept]
        sent = kept.stats()["link_bytes"]
        second = [batch["image"] for batch in kept]
        assert kept.stats()["link_bytes"] == sent
    for one, other in zip([*first, *second], wanted, strict=True):
        assert np.abs(one.cpu().numpy() - other).max() <= 1 / 57


@pytest.mark.parametrize("name", EVERY)
def test_operations_do_not_wait_for_the_device(name):
    functions = EVERY[name](on="device")
    batch = {"image": torch.zeros(7, 29, 36, 3, dtype=torch.uint8, device="cuda")}
    for mode in ("default", "error"):  # constants are sent in the first call
        torch.cuda.set_sync_debug_mode(mode)
        try:
            made = batch
            for function in functions:
                made = function(made, Address(1, 2, 3))
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_jpegs_are_decoded_on_the_device():
    pytest.importorskip("torchvision")
    pixels = [picture(120 + 4 * i, 90 + 5 * i, i) for i in range(20)]
    files = penstock.Dataset.items(
        [{"image": encoded(each, quality=95, subsampling=0)} for each in pixels]
    )

    def operations(**on):
        return [image.decode(**on), image.random_resized_crop(64, 64, (0.5, 1), **on)]

    wanted = images_of_workers(files, operations(), seed=5)
    chain = mapped(files.batch(7), operations(on="device"), "cuda:0")
    with penstock.torch.feed(chain, workers=2, seed=5) as feed:
        got = [batch["image"] for _ in range(2) for batch in feed]
    for one, other in zip(got, wanted, strict=True):
        assert one.device == torch.device("cuda", 0)
        far = np.abs(one.cpu().numpy().astype(np.float64) - other)
        assert far.mean() < 1.5  # levels; colours are not halved, so nothing is upsampled
        assert far.max() < 12


def test_a_damaged_jpeg_is_named():
    pytest.importorskip("torchvision")
    files = [encoded(picture(64, 64, i)) for i in range(4)]
    files[2] = files[2][:40]
    source = penstock.Dataset.items([{"image": each} for each in files]).batch(4)
    operations = [image.decode(on="device"), image.resize(8, 8, on="device")]
    with (
        penstock.torch.feed(mapped(source, operations, "cuda:0"), workers=0) as feed,
        pytest.raises(penstock.DataLoss, match="row 2 of the batch"),
    ):
        next(iter(feed))

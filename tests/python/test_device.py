"""Feeding a device: through a driver for tests, whose device memory is memory of the host."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.device import place  # noqa: E402

HERE = Path(__file__).parent
CHECK_TORCH = place.check_torch  # the fixture replaces it


def numbers(n: int = 64, batch: int = 8, width: int = 5):
    rows = np.arange(n * width, dtype=np.float32).reshape(n, width)
    return penstock.Dataset.arrays({"x": rows, "y": np.arange(n)}).batch(batch)


def firsts(batches) -> list[int]:
    return [int(batch["y"].numpy()[0]) for batch in batches]


class Squares:
    """Samples of worker processes."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int):
        return np.full((64, 64), i, np.float32), i * i


# ---- the batches --------------------------------------------------------------------------------


def test_batches_are_on_the_device_in_order_with_one_copy_each(cuda):
    with penstock.torch.feed(numbers(), device="cuda:1", workers=2) as feed:
        for epoch in range(2):
            for i, batch in enumerate(feed):
                assert batch["x"].device == batch["y"].device == "cuda:1"
                assert batch["y"].numpy().tolist() == list(range(8 * i, 8 * i + 8))
                assert batch["x"].numpy()[0, 0] == 40 * i
            assert i == 7, epoch
        stats = feed.stats()["device"]
    assert stats["name"] == "cuda:1"
    assert stats["batches"] == stats["copies"] == 16
    assert stats["slots"] <= 4


def test_the_host_waits_for_nothing_and_orders_nothing_twice(cuda):
    waits = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize")
    with penstock.torch.feed(numbers(400), device="cuda:0", workers=2) as feed:
        firsts(feed)  # the ring
        before = [cuda.get(name) for name in waits]
        events = feed.stats()["device"]["events"]
        assert firsts(feed) == list(range(0, 400, 8))
        assert [cuda.get(name) for name in waits] == before
        stats = feed.stats()["device"]
    assert (stats["host_waits"], stats["synchronised"]) == (0, 0)
    assert stats["events"] - events == 100, "one for the copy, one for the use"


def test_the_first_batch_waits_for_its_own_memory_alone(cuda):
    cuda.set("alloc_us", 50_000)
    cuda.set("pin_us_per_mib", 10_000)
    cuda.set("copy_us", 500_000)
    rows = {"x": np.zeros((64, 1 << 18), np.float32), "y": np.arange(64)}  # a batch: 16 MiB
    with penstock.torch.feed(
        penstock.Dataset.arrays(rows).batch(16), device="cuda:0", workers=2
    ) as feed:
        batches = iter(feed)
        began = time.perf_counter()
        first = next(batches)
        later = time.perf_counter() - began - feed.stats()["first_wait_ns"] / 1e9
        device = feed.stats()["device"]
        assert (device["batches"], device["slots"]) == (1, 1)
        assert 0.2 < later < 0.6, later  # 0.16 s to pin, 0.05 s to allocate
        assert firsts([first]) == [0]


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_without_a_device_batches_are_tensors_of_the_host(device):
    with penstock.torch.feed(numbers(), device=device, workers=2) as feed:
        batches = list(feed)
        assert "device" not in feed.stats()
    assert all(isinstance(batch["x"], torch.Tensor) for batch in batches)
    assert [int(batch["y"][0]) for batch in batches] == list(range(0, 64, 8))


def test_other_devices_of_torch_are_reached_by_torch():
    with penstock.torch.feed(numbers(), device="meta", workers=2) as feed:
        assert [batch["x"].device.type for batch in feed] == ["meta"] * 8
        assert feed.stats()["device"]["copies"] == 16


def test_values_without_a_type_on_devices_stay_on_the_host(cuda):
    source = penstock.Dataset.items([{"x": float(i), "name": "abcd"[i]} for i in range(4)])
    with penstock.torch.feed(source.batch(2), device="cuda:0", workers=1) as feed:
        first = next(iter(feed))
    assert first["x"].numpy().tolist() == [0, 1]
    assert list(first["name"]) == list(next(iter(source.batch(2)))["name"])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "complex64"]
)
def test_types_and_shapes_are_kept(cuda, dtype):
    values = np.arange(24).reshape(4, 3, 2).astype(dtype)
    with penstock.torch.feed(values, batch_size=2, device="cuda:0", workers=1) as feed:
        got = [batch.numpy() for batch in feed]
    assert got[0].dtype == dtype
    np.testing.assert_array_equal(np.concatenate(got), values)


def test_memory_of_worker_processes_is_pinned_once_and_copied_from_where_it_lies(cuda):
    before = cuda.get("cuMemHostRegister")
    loader = penstock.torch.DataLoader(
        Squares(), batch_size=8, num_workers=1, device="cuda:0", ahead=1
    )
    with loader:
        for _ in range(2):
            for i, (x, y) in enumerate(loader):
                assert x.numpy()[:, 0, 0].tolist() == list(range(8 * i, 8 * i + 8))
                assert y.numpy().tolist() == [j * j for j in range(8 * i, 8 * i + 8)]
        stats = loader.stats()["device"]
    assert sum(stats["shares"].values()) == pytest.approx(1)
    assert stats["ahead"] == 1
    assert stats["batches"] == stats["copies"] == 10
    assert stats["gathered_bytes"] == 0
    assert 1 <= cuda.get("cuMemHostRegister") - before <= 3


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_of_worker_threads_is_copied_from_where_it_lies(cuda, workers):
    with penstock.torch.feed(numbers(4096, 1024), device="cuda:0", workers=workers) as feed:
        assert firsts(feed) == [0, 1024, 2048, 3072]
        stats = feed.stats()["device"]
    assert stats["copies"] == stats["batches"] == 4
    assert stats["gathered_bytes"] == 0


def test_memory_of_threads_of_a_torch_loader_is_copied_from_where_it_lies(cuda):
    loader = penstock.torch.DataLoader(
        Squares(), 8, num_workers=2, use_multiprocessing=False, device="cuda:0"
    )
    with loader:
        assert [int(y.numpy()[0]) for _, y in loader] == [(8 * i) ** 2 for i in range(5)]
        assert loader.stats()["device"]["gathered_bytes"] == 0


def test_torch_takes_a_batch_for_its_current_stream(monkeypatch):
    taken = []

    class Staged:
        device = 3

        def take(self, stream):
            taken.append(stream)
            return [np.arange(n).__dlpack__() for n in (2, 3)]

    for handle in (0, 0x7F00):
        stream = types.SimpleNamespace(cuda_stream=handle)
        monkeypatch.setattr(torch.cuda, "current_stream", {3: stream}.get)
        with torch.inference_mode():
            got = place.tensors_from(Staged())
        assert [tensor.tolist() for tensor in got] == [[0, 1], [0, 1, 2]]
    assert taken == [1, 0x7F00]


def test_a_slow_link_changes_nothing_but_the_wait(cuda):
    cuda.set("copy_us", 5000)
    with penstock.torch.feed(numbers(), device="cuda:0", workers=2) as feed:
        assert firsts(feed) == list(range(0, 64, 8))
        assert feed.stats()["device"]["late"] > 0


# ---- the position -------------------------------------------------------------------------------


def test_a_state_does_not_count_what_is_on_its_way(cuda):
    with penstock.torch.feed(numbers(), device="cuda:0", workers=2) as feed:
        for i, _ in enumerate(feed):
            state = feed.state()
            assert (state["epoch"], state["batches"]) == ((0, i + 1) if i < 7 else (1, 0))
            if i == 2:
                kept = state
        feed.restore(kept)
        assert firsts(feed) == list(range(24, 64, 8))
        for _ in feed:
            break
        assert firsts(feed.steps(3)) == [8, 16, 24]


@pytest.mark.parametrize("taken", [7, 8])  # of 8 batches in a round
def test_after_a_break_comes_the_epoch_after_the_last_delivered_batch(cuda, taken):
    endless = numbers().repeat()
    with penstock.torch.feed(endless, device="cuda:0", workers=1) as feed:
        for i, _ in enumerate(feed, 1):
            if i == taken:
                break
            while i == 5 and feed._core.ready() < 3:
                time.sleep(0.001)
        assert json.loads(feed._core.state())["epoch"] == 1, "the next round is in transfer"
        assert (feed.epoch, feed.state()["batches"]) == divmod(taken, 8)
        assert firsts([next(iter(feed))]) == [0]
        assert (feed.epoch, feed.state()["batches"]) == (1, 1)


def test_a_torch_loaders_state_does_not_count_what_is_on_its_way(cuda):
    options = {"batch_size": 8, "num_workers": 2, "use_multiprocessing": False}
    with penstock.torch.DataLoader(Squares(), device="cuda:0", **options) as loader:
        for i, _ in enumerate(loader):
            if i == 1:
                kept = loader.state()
                break
        assert kept["loader"]["batches"] == 2
        loader.restore(kept)
        assert [int(y.numpy()[0]) for _, y in loader] == [16**2, 24**2, 32**2]


def test_a_loader_with_a_device_can_be_pickled(cuda):
    loader = penstock.torch.DataLoader(Squares(), batch_size=8, device="cuda:0")
    with loader, pickle.loads(pickle.dumps(loader)) as again:
        assert len(list(again)) == 5


# ---- the consumer -------------------------------------------------------------------------------


def test_a_consumer_that_keeps_every_batch_gets_memory_for_each(cuda):
    with penstock.torch.feed(numbers(), device="cuda:0", workers=2) as feed:
        kept = list(feed)
        assert firsts(kept) == list(range(0, 64, 8))
        assert feed.stats()["device"]["slots"] >= 8
    assert firsts(kept) == list(range(0, 64, 8)), "batches outlive the feed"
    before = cuda.get("memory in use")
    del kept
    gc.collect()
    assert before > 0
    assert cuda.get("memory in use") == 0


def test_a_consumer_may_leave_in_the_middle(cuda):
    cuda.set("copy_us", 3000)
    with penstock.torch.feed(numbers(), device="cuda:0", workers=2) as feed:
        batches = iter(feed)
        for _ in range(3):
            next(batches)
        del batches
        assert firsts(feed) == list(range(0, 64, 8))
    gc.collect()
    assert cuda.get("memory in use") == 0


def test_full_device_memory_makes_the_ring_smaller_and_then_is_an_error(cuda):
    cuda.set("device_memory", cuda.get("memory in use") + 2 * 64 * 1024)  # two slots
    with penstock.torch.feed(numbers(), device="cuda:0", workers=2) as feed:
        assert firsts(feed) == list(range(0, 64, 8))
        assert feed.stats()["device"]["slots"] <= 2
        kept = []
        with pytest.raises(penstock.OutOfMemory, match=r"1 MiB are missing.*Drop batches"):
            kept.extend(feed)


def test_a_limit_on_pinned_memory_is_told(cuda):
    cuda.set("pinned_memory", 0)
    with penstock.torch.feed(numbers(), device="cuda:0", workers=2) as feed:
        assert firsts(feed) == list(range(0, 64, 8))
        assert feed.stats()["device"]["pageable"] == 8


def test_a_driver_that_vanishes_is_an_error_at_once_and_closing_still_works(cuda):
    with penstock.torch.feed(numbers(), device="cuda:0", workers=2) as feed:
        batches = iter(feed)
        next(batches)
        cuda.set("fail", 4)
        with pytest.raises(penstock.System, match=r"CUDA_ERROR_DEINITIALIZED.*checkpoint"):
            for _ in batches:
                pass


def test_closing_in_the_middle_of_a_copy_waits_for_it(cuda):
    cuda.set("copy_us", 20_000)
    feed = penstock.torch.feed(numbers(), device="cuda:0", workers=2)
    batch = next(iter(feed))
    feed.close()
    assert batch["y"].numpy().tolist() == list(range(8))
    with pytest.raises(penstock.Closed):
        next(iter(feed))


def test_a_worker_may_be_killed_while_its_batch_is_copied(cuda):
    cuda.set("copy_us", 20_000)
    with penstock.torch.DataLoader(
        Squares(), batch_size=4, num_workers=1, device="cuda:0", retries=0
    ) as loader:
        got = []
        for i, (x, y) in enumerate(loader):
            if i == 1:
                os.kill(loader.stats()["workers"][0]["pid"], signal.SIGKILL)
            got += y.numpy().tolist()
            assert (x.numpy() == np.sqrt(y.numpy())[:, None, None]).all()
        assert loader.stats()["restarts"] == 1
    assert got == [i * i for i in range(40)]


def test_an_exception_is_raised_at_its_place(cuda):
    def fails_at_30(x):
        if x == 30:
            raise ValueError("thirty")
        return x

    source = penstock.Dataset.range(64).map(fails_at_30).batch(8)
    options = {"workers": 2, "use_multiprocessing": False}
    with penstock.torch.feed(source, device="cuda:0", **options) as feed:
        got = []
        with pytest.raises(ValueError, match="thirty"):
            got.extend(int(batch.numpy()[0]) for batch in feed)
    assert got == [0, 8, 16]


def test_streams_are_given_as_dlpack_has_them(cuda):
    stage = penstock._engine.DeviceStage(0, cuda.library)
    (array,) = batch = stage.put([np.arange(3)])
    assert array.__dlpack_device__() == (2, 0)
    assert (array.shape, array.dtype, array.nbytes) == ((3,), "int64", 24)
    waits = cuda.get("cuStreamWaitEvent")
    assert array.__dlpack__(stream=-1) is not None
    assert cuda.get("cuStreamWaitEvent") == waits
    for stream in (None, 1, 2):
        assert "dltensor" in repr(array.__dlpack__(stream=stream))
    assert "dltensor_versioned" in repr(array.__dlpack__(max_version=(1, 0)))
    for wrong in (0, -2):
        with pytest.raises(penstock.InvalidArgument, match="stream"):
            array.__dlpack__(stream=wrong)
    assert [repr(each).count('"dltensor"') for each in batch.take(1)] == [1]
    with pytest.raises(BufferError):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(1, 0))
    stage.close()


# ---- several devices ----------------------------------------------------------------------------


def test_feeds_have_their_batches_each_on_its_device(cuda):
    with numbers().feeds(2, devices=["cuda:0", "cuda:1"], workers=2) as feeds:
        mine = [list(feed) for feed in feeds]
        stats = feeds.stats()["feeds"]
    assert [[b["y"].device for b in batches] for batches in mine] == [
        ["cuda:0"] * 4,
        ["cuda:1"] * 4,
    ]
    assert [firsts(batches) for batches in mine] == [[0, 16, 32, 48], [8, 24, 40, 56]]
    assert [each["device"]["copies"] for each in stats] == [4, 4]
    assert [each["device"]["gathered_bytes"] for each in stats] == [0, 0]


def test_feeds_need_a_device_for_each(cuda):
    with pytest.raises(penstock.InvalidArgument, match="1 devices for 2 consumers"):
        numbers().feeds(2, devices=["cuda:0"])


def test_feeds_go_to_devices_of_jax():
    """Run in a process of its own, with four devices."""
    pytest.importorskip("jax")
    code = """
    import jax, numpy as np, penstock
    rows = penstock.Dataset.arrays(np.arange(32)).batch(4)
    devices = jax.devices()
    assert len(devices) == 4
    with rows.feeds(4, devices=devices, workers=2) as feeds:
        for i, (device, feed) in enumerate(zip(devices, feeds)):
            got = list(feed)
            assert [batch.devices() for batch in got] == [{device}] * 2
            assert [int(batch[0]) for batch in got] == [4 * i, 16 + 4 * i]
    """
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    program = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(program, env=environment, check=True, timeout=100)


# ---- what is refused ----------------------------------------------------------------------------


def test_a_machine_without_a_driver_is_told_so(monkeypatch):
    monkeypatch.setattr(place, "library", "libno-such-driver.so.1")
    with pytest.raises(penstock.NotFound, match=r'no CUDA driver.*device="cpu"'):
        penstock.torch.feed(numbers(), device="cuda:0")
    assert place.cuda_devices() == []


def test_a_device_that_is_not_there_is_told_so(cuda):
    with pytest.raises(penstock.NotFound, match="there are 2 devices"):
        penstock.torch.feed(numbers(), device="cuda:5")
    with pytest.raises(penstock.InvalidArgument, match="device is 'gpu'"):
        penstock.torch.feed(numbers(), device="gpu")
    assert place.cuda_devices() == [("Fake 0", 1 << 32), ("Fake 1", 1 << 32)]


@pytest.mark.parametrize("feed", [penstock.torch.feed, penstock.device.resident])
def test_a_device_that_this_torch_cannot_use_is_an_error_at_once(feed):
    with pytest.raises(penstock.InvalidArgument, match=r"cannot use device 'xla' here.*\"cpu\""):
        feed(numbers(), device="xla")


def test_a_device_of_jax_is_an_error_that_names_its_feed():
    device = pytest.importorskip("jax").devices()[0]
    mapped = numbers().map(lambda batch: batch, device=device)
    for source, given in ((numbers(), device), (mapped, None), (mapped, "cpu")):
        with pytest.raises(penstock.InvalidArgument, match="jax's; use penstock"):
            penstock.torch.feed(source, device=given)
    with pytest.raises(penstock.InvalidArgument, match="device is 'gpu'"):
        penstock.torch.feed(numbers().map(lambda batch: batch, device="cpu"), device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a torch without CUDA")
def test_a_torch_without_cuda_is_told_so(library, monkeypatch):
    monkeypatch.setattr(place, "library", str(library))
    with pytest.raises(penstock.InvalidArgument, match="has no CUDA here"):
        penstock.torch.feed(numbers(), device="cuda:0")


def test_torch_initialises_cuda_before_there_is_a_batch(cuda, monkeypatch):
    begun = []
    monkeypatch.setattr(place, "check_torch", CHECK_TORCH)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: begun.append("torch"))
    with penstock.torch.feed(numbers(), device="cuda:0", workers=1) as feed:
        assert begun == ["torch"]
        assert firsts(feed) == list(range(0, 64, 8))


@pytest.mark.parametrize("way", ["feed", "loader", "feeds"])
def test_workers_are_not_forked_from_a_process_with_a_driver(cuda, way):
    with pytest.raises(penstock.InvalidArgument, match="spawn"):
        if way == "feed":
            penstock.torch.feed(numbers(), device="cuda:0", start_method="fork")
        elif way == "loader":
            penstock.torch.DataLoader(
                Squares(), num_workers=1, multiprocessing_context="fork", device="cuda:0"
            )
        else:
            numbers().feeds(1, devices=["cuda:0"], start_method="fork")


CHILD = """
import sys
sys.path.insert(0, {here!r})
import numpy as np, penstock, penstock.torch, fake_cuda
from pathlib import Path
from penstock.device import place
driver = fake_cuda.Driver(Path({library!r}))
place.library, place.check_torch = driver.library, lambda: None
place.tensors_from = fake_cuda.Tensor.all_of
fake_cuda.Tensor.driver = driver
rows = penstock.Dataset.arrays(np.arange(64)).batch(8)
"""


def run_child(library, code: str) -> subprocess.CompletedProcess[str]:
    program = CHILD.format(here=str(HERE), library=str(library)) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )


def test_a_program_may_end_with_copies_in_flight(library):
    done = run_child(
        library,
        """
        driver.set("copy_us", 50_000)
        feed = penstock.torch.feed(rows, device="cuda:0", workers=2)
        batches = iter(feed)
        kept = [next(batches), next(batches)]
        print("end")
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_forked_child_is_refused_with_the_remedy(library):
    done = run_child(
        library,
        """
        import os
        feed = penstock.torch.feed(rows, device="cuda:0", workers=2)
        first = next(iter(feed))
        pid = os.fork()
        if pid == 0:
            try:
                penstock.torch.feed(rows, device="cuda:0", workers=0)
            except penstock.InvalidArgument as error:
                os._exit(0 if "spawn" in str(error) else 1)
            os._exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(first.numpy().tolist())
        feed.close()
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n[0, 1, 2, 3, 4, 5, 6, 7]\n", "")

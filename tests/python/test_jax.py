"""penstock.jax.feed: batches as jax arrays, with no copy on the CPU."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax_datasets as data  # noqa: E402
import penstock  # noqa: E402
from device_operations import EVERY, MOVES, check_images, mapped, rows  # noqa: E402
from penstock.device.functions import Rows  # noqa: E402
from penstock.device.warps import RandomAffine  # noqa: E402
from penstock.jax import feed  # noqa: E402

WAYS = {
    "in line": {"workers": 0},
    "threads": {"workers": 2},
    "processes": {"workers": 2, "use_multiprocessing": True},
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


@pytest.fixture
def staged(monkeypatch):
    """Treat the CPU as if it were an accelerator."""
    monkeypatch.setattr(penstock.jax.loader, "_platform", lambda place: "accelerator")


@pytest.fixture(autouse=True)
def jax_lets_go():
    """jax releases memory at its next call."""
    yield
    gc.collect()
    jax.device_put(np.zeros(1)).block_until_ready()
    gc.collect()


def numbers(batches):
    return [int(y[0]) for _, y in batches]


def test_batches_are_jax_arrays_in_order(way):
    with feed(data.Images(), **way) as batches:
        assert len(batches) == 8
        for _ in range(2):
            for i, (x, y) in enumerate(batches):
                assert isinstance(x, jax.Array)
                assert isinstance(y, jax.Array)
                assert (x.dtype, y.dtype) == ("float32", "int32")
                assert np.array_equal(x, np.full((64, 32, 3), i))
            assert i == 7
        assert batches.epoch == 2


@pytest.mark.parametrize(
    ("source", "how"),
    [
        (data.Images(), WAYS["processes"]),  # whole batches, as the workers made them
        (data.Nest(), {**WAYS["threads"], "batch_size": 2}),  # rows that were written in place
        (np.ones((64, 3), "float32"), {"workers": 2, "batch_size": 16}),
    ],
)
def test_on_the_cpu_nothing_is_copied(source, how):
    with penstock.Loader(source, **how) as plain, feed(source, **how) as batches:
        for batch in plain:
            put = batches._put(batch)
            compared = 0
            for mine, theirs in zip(jax.tree.leaves(put), jax.tree.leaves(batch), strict=True):
                # Blocks have XLA's alignment; tiny arrays are sent inside their message.
                alike = isinstance(mine, jax.Array) and mine.dtype == theirs.dtype
                if alike and theirs.ctypes.data % 64 == 0:
                    assert mine.unsafe_buffer_pointer() == theirs.ctypes.data
                    compared += 1
            assert compared > 0
            del batch, put, mine, theirs


def test_held_arrays_stay_right(way):
    with feed(data.Images(40), max_queue_size=2, **way) as batches:
        held = [batch for _ in range(2) for batch in batches]
        lazily = [x.sum() for x, _ in held]
    gc.collect()
    for i, ((x, _), total) in enumerate(zip(held, lazily, strict=True)):
        assert float(x[-1, -1, -1]) == i % 40
        assert float(total) == i % 40 * 64 * 32 * 3


def test_what_is_computed_asynchronously_sees_its_own_batch():
    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 50, lambda _, t: t + x.mean(), 0.0)

    with feed(data.Images(30), max_queue_size=1, workers=2) as batches:
        results = [slow(x) for x, _ in batches]  # the arrays are dropped at once
    assert [round(float(r)) for r in results] == [50 * i for i in range(30)]


def test_memory_comes_back():
    with feed(data.Images(60, rows=2000), max_queue_size=2, workers=2) as batches:
        for x, _ in batches:
            x.block_until_ready()
        before = penstock._engine.resident_bytes()
        for _ in range(3):
            for x, _ in batches:
                x.block_until_ready()
        grown = penstock._engine.resident_bytes() - before
    assert grown < 60 * 2000 * 32 * 3 * 4  # an epoch


def test_samples_of_all_types_are_trees():
    with feed(data.Nest(), batch_size=4, workers=2) as batches:
        first, last = batches
    assert type(first["point"]) is data.Point
    assert first["point"].x.tolist() == [0, 1, 2, 3]
    assert first["point"].y.dtype == "int32"  # jax has no int64 by default
    assert first["list"][0].dtype == "float32"
    assert first["list"][1] == [f"name {i}" for i in range(4)]
    assert first["half"].dtype == "float16"
    assert first["big"].tolist() == [[i, i] for i in range(4)]
    assert first["yes"].tolist() == [True, False, True, False]
    assert first["complex"].dtype == "complex64"
    assert last["half"].shape == (2, 2, 2)


def test_what_jax_has_no_type_for_stays():
    with feed(data.Strings(), workers=0) as batches:
        strings, zeros, objects = next(iter(batches))
        assert type(strings) is type(objects) is np.ndarray
        assert isinstance(zeros, jax.Array)
    with feed([np.ones(3, np.longdouble)] * 2, workers=0) as batches:
        assert [batch.dtype for batch in batches] == [np.longdouble] * 2


def test_torch_tensors_become_jax_arrays():
    torch = pytest.importorskip("torch")

    class Tensors:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return torch.full((4,), index), torch.full((2,), index, dtype=torch.bfloat16)

    with feed(Tensors(), workers=1) as batches:
        for i, (a, b) in enumerate(batches):
            assert a.tolist() == [i] * 4
            assert b.dtype == "bfloat16"


def test_arrays_are_columns():
    x = np.arange(1000, dtype="float32").reshape(500, 2)
    with feed((x, x[:, 0]), batch_size=100, shuffle=True, seed=2, workers=2) as batches:
        seen = np.concatenate([np.asarray(b) for _, b in batches])
        assert sorted(seen.tolist()) == x[:, 0].tolist()


def test_a_device_or_a_sharding_is_used():
    device = jax.devices()[0]
    with feed(data.Images(2), device=device, workers=0) as batches:
        assert all(x.devices() == {device} for x, _ in batches)
    mesh = jax.sharding.Mesh(np.array([device]), ("rows",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    with feed(data.Images(2), sharding=rows, workers=0) as batches:
        assert all(x.sharding == y.sharding == rows for x, y in batches)
    with feed(data.Images(2), sharding=(rows, whole), workers=0) as batches:
        assert [(x.sharding, y.sharding) for x, y in batches] == [(rows, whole)] * 2
    with pytest.raises(penstock.InvalidArgument, match="not both"):
        feed(data.Images(2), sharding=rows, device=device)


@pytest.mark.parametrize("place", ["device", "sharding"])
@pytest.mark.parametrize("wrong", ["cpu", 0])
def test_what_is_no_place_is_refused(place, wrong):
    with pytest.raises(penstock.InvalidArgument, match=f"{place} is .*give a jax"):
        feed(data.Images(2), **{place: wrong})


def test_rows_go_to_several_devices():
    """Run in a process of its own, with four devices."""
    code = """
import jax, numpy as np, penstock.jax
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
x = np.arange(32, dtype="float32")
with penstock.jax.feed(x, batch_size=8, sharding=rows, workers=2) as batches:
    got = list(batches)
assert len(jax.devices()) == 4
assert [len(b.addressable_shards) for b in got] == [4] * 4
assert [b.addressable_shards[0].data.shape for b in got] == [(2,)] * 4
assert np.concatenate([np.asarray(b) for b in got]).tolist() == x.tolist()
"""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=50)


# ---- the next batch on its way -----------------------------------------------------------------


def test_staging_changes_nothing(staged, way):
    with feed(data.Images(), **way) as batches:
        assert batches._stages
        assert numbers(batches) == list(range(8))
        assert numbers(batches.steps(12)) == [*range(8), *range(4)]
        assert numbers(batches) == [4, 5, 6, 7]
        for _ in batches:
            break
        assert numbers(batches) == list(range(8))
        assert batches.epoch == 5


def test_a_state_does_not_count_what_is_staged(staged):
    with feed(data.Images(), workers=2) as batches:
        for i, _ in enumerate(batches):
            state = batches.state()
            assert (state["epoch"], state["batches"]) == ((0, i + 1) if i < 7 else (1, 0))
            if i == 2:
                kept = state
    with feed(data.Images(), workers=0) as batches:
        batches.restore(kept)
        assert numbers(batches) == [3, 4, 5, 6, 7]
        assert numbers(batches) == list(range(8))


def test_arrays_of_jax_are_sent_to_the_device():
    """Run in a process of its own, with two devices."""
    code = """
    import jax, penstock, penstock.jax

    class Items:
        def __len__(self):
            return 2
        def __getitem__(self, i):
            return {"x": jax.numpy.full(3, i)}

    place = jax.devices()[1]
    with penstock.jax.feed(Items(), device=place, workers=0) as batches:
        got = list(batches)
    assert [batch["x"].devices() for batch in got] == [{place}] * 2
    assert [batch["x"].tolist() for batch in got] == [[0] * 3, [1] * 3]
    """
    flags = "--xla_force_host_platform_device_count=2"
    program = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(program, env={**os.environ, "XLA_FLAGS": flags}, check=True, timeout=100)


def test_what_is_sent_is_counted(staged):
    with feed(data.Images(), workers=2) as batches:
        assert numbers(batches) == list(range(8))
        device = batches.stats()["device"]
    nbytes = sum(x.nbytes + y.nbytes for x, y in (data.Images()[i] for i in range(8)))
    assert device == {"batches": 8, "copies": 16, "bytes": nbytes, "ahead": 1}


def test_all_rounds_of_a_repeat_are_staged(staged):
    rounds = penstock.Dataset.range(4).batch(1).repeat(3)
    with feed(rounds, workers=0) as batches:
        staged_now = [batches._ahead.position is not None for _ in batches]
        # The first batch does not wait for the second one, and no batch follows the last one.
        assert staged_now == [False] + [True] * 10 + [False]


def test_hooks_wait_for_the_last_batch(staged):
    source = data.Counting(4)
    with feed(source, workers=2) as batches:
        for epoch in range(3):
            for x, _ in batches:
                assert int(x[0, 0, 0]) == source.ended == epoch
            assert source.ended == epoch + 1


@pytest.mark.parametrize("stages", [False, True])
def test_an_exception_comes_out_at_its_place(stages, request):
    if stages:
        request.getfixturevalue("staged")
    with feed(data.Broken(), workers=2) as batches:
        seen = iter(batches)
        assert [int(next(seen)[1][0]) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(KeyError, match="number three"):
            next(seen)
        assert batches.state()["batches"] == 3


def test_streams_end(staged):
    def stream():
        for i in range(5):
            yield np.full(3, i, "float32")

    with feed(stream, workers=1) as batches:
        for _ in range(2):
            assert [int(x[0]) for x in batches] == list(range(5))


@pytest.mark.parametrize("accelerator", [False, True])
def test_functions_of_a_device_run_in_order(accelerator, request):
    if accelerator:
        request.getfixturevalue("staged")
    device = jax.devices()[0]

    def negative(x):
        assert isinstance(x, jax.Array)
        if int(x[0]) == 12:
            raise OverflowError("twelve")
        return -x

    chain = penstock.Dataset.range(40).batch(4).map(negative, device=device)
    with feed(chain, workers=0) as batches:
        seen = []
        with pytest.raises(OverflowError, match="twelve"):
            for batch in batches:
                seen.append(int(batch[0]))
        assert seen == [0, -4, -8]
        assert batches.state()["batches"] == 3
        batches.restore({**batches.state(), "batches": 8})
        assert [int(batch[0]) for batch in batches] == [-32, -36]


def test_images_are_normalized_on_the_device():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 5, 7, 3), np.uint8)
    mean, std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    data = penstock.Dataset.arrays({"image": pixels}).batch(8)
    operations = (
        penstock.image.normalize(mean, std, on="device"),
        penstock.image.to_chw(on="device"),
    )
    for operation in operations:
        data = data.map(operation, device=jax.devices()[0])
    with feed(data, workers=0) as batches:
        (batch,) = batches
    wanted = (pixels - np.float32(mean)) / np.float32(std)
    assert np.allclose(batch["image"], wanted.transpose(0, 3, 1, 2), rtol=1e-6, atol=1e-6)


def test_functions_of_another_device_are_refused():
    chain = penstock.Dataset.range(40).batch(4).map(abs, device="cuda:0")
    with pytest.raises(penstock.InvalidArgument, match="functions of the Dataset run on 'cuda:0'"):
        feed(chain, device=jax.devices()[0])


FAST = ("brightness", "affine wrap", "resize")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in EVERY]
)
def test_operations_on_the_device_make_the_images_of_the_workers(name):
    within = 1 / 57 if name == "all" else 1  # a level
    check_images(feed, rows(), name, jax.devices()[0], within)


def test_an_operation_is_traced_once_for_each_shape(monkeypatch):
    traced = []
    compute = RandomAffine._pixels

    def pixels(self, xp, images, *numbers):
        traced.append(images.shape)
        return compute(self, xp, images, *numbers)

    monkeypatch.setattr(RandomAffine, "_pixels", pixels)
    turn = penstock.image.random_affine(10, fields="", on="device")
    for count in (3, 3, 2, 3, 2):
        turn(jax.numpy.zeros((count, 8, 8, 3), "uint8"), Rows(0, 0, len(traced)))
    assert traced == [(3, 8, 8, 3), (2, 8, 8, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MOVES)
def test_pixels_of_float32_are_moved(name):
    check_images(feed, rows(np.float32), name, jax.devices()[0], within=1 / 255)


def test_the_schema_is_that_of_the_results():
    chain = mapped(rows().batch(6), EVERY["resize"](on="device"), jax.devices()[0])
    with feed(chain, workers=0) as batches:
        assert batches.element_spec["image"].shape == (None, 20, 55, 3)
        assert batches.element_spec["image"].dtype == np.uint8


@pytest.mark.parametrize("resident", [False, True])
def test_random_images_are_those_of_the_workers(resident):
    pixels = np.random.default_rng(0).integers(0, 256, (24, 5, 7, 3), np.uint8)
    rows = penstock.Dataset.arrays({"image": pixels}).shuffle(seed=1)
    image, device = penstock.image, jax.devices()[0]
    host = rows.map(image.random_crop(4, 5)).map(image.random_flip(0.5, 0.5)).batch(8)
    there = rows.batch(8).map(image.random_crop(4, 5, on="device"), device=device)
    there = there.map(image.random_flip(0.5, 0.5, on="device"), device=device)
    options = {"workers": 0, "seed": 2**62 + 5}
    way = penstock.device.resident(there, device, **options) if resident else feed(there, **options)
    with way as batches, host.build(**options) as wanted:
        for _ in range(2):
            for batch, other in zip(batches, wanted, strict=True):
                assert np.array_equal(batch["image"], other["image"])

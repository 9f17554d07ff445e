"""Operations of penstock.image on a device, with torch: the same images as in the workers."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import contract
from device_operations import EVERY, MOVES, SIZES, check_images, mapped, rows

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock import image  # noqa: E402
from penstock.device.arrays import TorchArrays  # noqa: E402
from penstock.device.functions import ON_DEVICE, Rows  # noqa: E402

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
INLINE = {"workers": 0}


def pictures(dtype=np.uint8):
    pixels = np.random.default_rng(0).integers(0, 256, (24, 5, 7, 3)).astype(dtype)
    return penstock.Dataset.arrays({"image": pixels, "label": np.arange(24)}).shuffle(seed=1)


def by(dataset, *operations):
    for operation in operations:
        dataset = dataset.map(operation, device="cpu")
    return dataset


def arrays(batches):
    return [penstock.base.nests.mapped(lambda leaf: leaf.numpy(), batch) for batch in batches]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), (33.3, 78.6)])
def test_images_are_those_of_the_workers(mean, std, dtype):
    there = by(
        pictures(dtype).batch(8),
        image.normalize(mean, std, on="device"),
        image.to_chw(on="device"),
    )
    host = pictures(dtype).map(image.normalize(mean, std)).map(image.to_chw()).batch(8)
    with host.build(**INLINE) as feed:
        wanted = [list(feed) for _ in range(2)]
    with penstock.torch.feed(there, **INLINE) as feed:
        contract.assert_same([arrays(feed) for _ in range(2)], wanted)
    with penstock.device.resident(there, "cpu", **INLINE) as kept:
        contract.assert_same([arrays(kept) for _ in range(2)], wanted)
        assert kept.stats()["resident_bytes"] == 24 * (105 * np.dtype(dtype).itemsize + 8)


RANDOM = {
    "crop": lambda **on: [image.random_crop(3, 4, **on)],
    "flip": lambda **on: [image.random_flip(0.4, 0.7, **on)],
    "always and never": lambda **on: [image.random_flip(1, 0, **on)],
    "both, twice": lambda **on: [
        image.random_flip(0.5, **on),
        image.random_crop(4, 5, **on),
        image.random_crop(2, 5, **on),
        image.normalize(MEAN, STD, **on),
        image.to_chw(**on),
    ],
}


@pytest.mark.parametrize("seed", [0, 2**62 + 5])
@pytest.mark.parametrize("name", RANDOM)
def test_random_images_are_those_of_the_workers(name, seed):
    rows = pictures().map(lambda row: row)  # a stage with a number before them
    host = rows
    for operation in RANDOM[name]():
        host = host.map(operation)
    there = by(rows.batch(7), *RANDOM[name](on="device"))
    options = {"workers": 0, "seed": seed}
    with host.batch(7).build(**options) as feed:
        wanted = [list(feed) for _ in range(3)]
    with penstock.torch.feed(there, **options) as feed:
        contract.assert_same([arrays(feed) for _ in range(3)], wanted)
        feed.restore({**feed.state(), "epoch": 1, "batches": 2})
        contract.assert_same(arrays(feed), wanted[1][2:])
    with penstock.device.resident(there, "cpu", **options) as kept:
        contract.assert_same([arrays(kept) for _ in range(3)], wanted)
        kept.restore({**kept.state(), "epoch": 1, "batches": 2})
        contract.assert_same(arrays(kept), wanted[1][2:])


@pytest.mark.parametrize("name", EVERY)
def test_every_operation_makes_the_images_of_the_workers(name):
    check_images(penstock.torch.feed, rows(), name, "cpu")


@pytest.mark.parametrize("channels", [0, 1, 4])
def test_images_may_have_other_channels(channels):
    for name in ("jitter", "grey", "resized crop", *MOVES):
        check_images(penstock.torch.feed, rows(channels=channels), name, "cpu")


@pytest.mark.parametrize("name", MOVES)
def test_pixels_of_float32_are_moved(name):
    check_images(penstock.torch.feed, rows(np.float32), name, "cpu", within=1 / 255)


def test_large_batches_are_computed_in_parts(monkeypatch):
    monkeypatch.setattr(TorchArrays, "part_values", 3 * 29 * 36 * 3)
    for name in ("all", "resize", "affine nearest"):
        check_images(penstock.torch.feed, rows(), name, "cpu")


def test_an_edge_of_one_pixel():
    pixels = np.random.default_rng(0).integers(0, 256, (18, 1, 5, 3), np.uint8)
    thin = penstock.Dataset.arrays({"image": pixels})
    for name in (*SIZES, *(name for name in MOVES if "affine" in name)):
        check_images(penstock.torch.feed, thin, name, "cpu")


def turned(pixels, degrees, fill, interpolation):
    """An image in a worker, and on a device."""
    how = {"degrees": (degrees, degrees), "fill": fill, "interpolation": interpolation}
    device = image.random_affine(**how, fields="", on="device")
    made = device(torch.from_numpy(pixels)[None], Rows(0, 0, 0))
    return image.compose([image.random_affine(**how)])(pixels), made[0].numpy()


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("fill", ["constant", "nearest", "reflect", "wrap"])
@pytest.mark.parametrize("degrees", [0, 90, 180, -45, 33.3])
def test_borders_are_those_of_the_workers(degrees, fill, interpolation):
    """Neighbours differ much, so a pixel of another place would show."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    worker, device = turned(pixels, degrees, fill, interpolation)
    far = np.abs(worker.astype(int) - device)
    assert far.max() <= (interpolation == "bilinear")
    assert far.mean() < 0.01


class Kernels(TorchDispatchMode):
    """Counts the operations that compute or copy, and the bytes that they read and write."""

    count = bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            self.count += 1
            tensors = [each for each in (*args, made) if isinstance(each, torch.Tensor)]
            self.bytes += sum(each.numel() * each.element_size() for each in tensors)
        return made


def kernels(name, size, batch):
    functions = EVERY[name](on="device")
    images = {"image": torch.zeros(batch, *size, 3, dtype=torch.uint8)}
    with Kernels() as counted:
        for function in functions:
            images = function(images, Rows(1, 2, 3))
    return counted


MOST_KERNELS = {
    **{"jitter": 125, "hue": 35, "contrast": 20, "resize lanczos": 25, "resized crop": 28},
    **{"affine nearest": 10, "affine reflect": 10, "affine value": 16, "affine wrap": 42},
    **{"affine without new values": 24, "flip": 8, "erase": 18, "crop": 14, "all": 190},
}


@pytest.mark.parametrize("name", MOST_KERNELS)
def test_a_batch_takes_few_kernels_whatever_its_size(name):
    small = kernels(name, (40, 33), 2).count
    assert 0 < small <= MOST_KERNELS[name]
    assert small == kernels(name, (40, 33), 33).count
    assert small == kernels(name, (150, 170), 2).count


# Read and written for each value of the images that an operation gets.
MOST_BYTES = {
    **{"jitter": 520, "hue": 150, "contrast": 70, "resize lanczos": 100, "resized crop": 36},
    **{"affine nearest": 25, "affine value": 28, "affine wrap": 155, "flip": 11, "crop": 3},
    **{"affine without new values": 70, "erase": 5, "grey": 32},
}


@pytest.mark.parametrize("name", MOST_BYTES)
def test_a_batch_takes_few_passes_over_memory(name):
    size, batch = (150, 170), 3
    assert 0 < kernels(name, size, batch).bytes <= MOST_BYTES[name] * 3 * size[0] * size[1] * batch


@pytest.mark.parametrize("name", ["all", "affine wrap", "affine value"])
def test_the_default_dtype_does_not_matter(name):
    torch.set_default_dtype(torch.float64)
    try:
        check_images(penstock.torch.feed, rows(), name, "cpu")
    finally:
        torch.set_default_dtype(torch.float32)


def test_all_numbers_of_a_batch_are_sent_by_one_copy():
    numbers = [
        np.array([[True], [False], [True]]),
        np.arange(7, dtype=np.int32)[::2],
        np.zeros((0, 4), np.float32),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
    ]
    sent = TorchArrays(torch.device("cpu")).run(lambda xp, images, *each: each, None, numbers)
    for one, other in zip(sent, numbers, strict=True):
        assert np.array_equal(one.numpy(), other)
        assert one.numpy().dtype == other.dtype
    assert len({each.untyped_storage().data_ptr() for each in sent}) == 1


def test_operations_that_run_on_a_device_are_listed():
    takes_place = {
        name for name in image.__all__ if "on" in inspect.signature(getattr(image, name)).parameters
    }
    assert takes_place == set(ON_DEVICE)
    with pytest.raises(penstock.InvalidArgument, match=r'with on="device": center_crop, color_jit'):
        pictures().batch(4).map(image.perspective(), device="cpu")


@pytest.mark.parametrize("name", ["all", "resize", "grey", "crop"])
def test_the_schema_is_that_of_the_batches(name):
    chain = mapped(rows().batch(6), EVERY[name](on="device"), "cpu")
    with (
        penstock.torch.feed(chain, **INLINE) as feed,
        penstock.device.resident(chain, "cpu", **INLINE) as kept,
    ):
        batch = next(iter(feed))["image"]
        wanted = penstock.TensorSpec((None, *batch.shape[1:]), batch.dtype, "image")
        assert feed.element_spec["image"] == kept.element_spec["image"] == wanted


@pytest.mark.parametrize("rank", range(2))
def test_each_rank_has_the_random_images_of_its_workers(rank):
    rows = pictures().shard(rank, 2)
    host = rows.map(image.random_flip(0.5, 0.5)).batch(5)
    there = by(rows.batch(5), image.random_flip(0.5, 0.5, on="device"))
    with host.build(**INLINE) as feed:
        wanted = list(feed)
    with penstock.torch.feed(there, **INLINE) as feed:
        contract.assert_same(arrays(feed), wanted)
    with penstock.device.resident(there, "cpu", **INLINE) as kept:
        contract.assert_same(arrays(kept), wanted)


def test_fields_are_named_as_in_workers():
    pixels = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2)
    pair = penstock.Dataset.arrays((pixels, np.arange(4))).batch(2)
    with penstock.torch.feed(by(pair, image.normalize(1, 2, fields="0", on="device"))) as feed:
        for i, (x, y) in enumerate(feed):
            assert np.array_equal(x.numpy(), (pixels[2 * i : 2 * i + 2] - np.float32(1)) / 2)
            assert y.tolist() == [2 * i, 2 * i + 1]
    alone = penstock.Dataset.arrays(pixels).batch(4)
    with penstock.torch.feed(by(alone, image.normalize(1, 2, fields="", on="device"))) as feed:
        (x,) = feed
        assert np.array_equal(x.numpy(), (pixels - np.float32(1)) / 2)


@pytest.mark.parametrize(
    ("operations", "text"),
    [
        ([image.normalize(1, 2, fields="picture", on="device")], "no field 'picture', only"),
        ([image.normalize(1, 2, fields="label", on="device")], "images are int64"),
        ([image.normalize((1, 2), (3, 4), on="device")], "do not have 2 channels"),
        (
            [image.to_chw(on="device"), image.normalize(MEAN, STD, on="device")],
            "normalize before to_chw",
        ),
        ([image.resize(4, 4, fields="label", on="device")], "images are int64; give uint8"),
        (
            [image.normalize(1, 2, on="device"), image.color_jitter(0.1, on="device")],
            "images are float32; give uint8",
        ),
        ([image.center_crop(6, 2, on="device")], "smaller than"),
        ([image.random_crop(6, 2, on="device")], "smaller than the crop of 6 x 2"),
        ([lambda batch: batch["image"], image.to_chw(on="device")], "is one array"),
        (
            [lambda batch: {"image": batch["image"][0]}, image.to_chw(on="device")],
            r"has shape \(5, 7, 3\)",
        ),
    ],
)
def test_other_batches_are_refused(operations, text):
    with (
        penstock.torch.feed(by(pictures().batch(8), *operations), **INLINE) as feed,
        pytest.raises(penstock.InvalidArgument, match=text),
    ):
        next(iter(feed))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: image.normalize(1, 2, on="moon"), "moon"),
        (lambda: image.normalize((1, 2), 3, on="device"), "2 numbers of mean and 1 of std"),
        (lambda: image.normalize(1, 0, on="device"), "std is 0"),
        (lambda: image.random_flip(1.5, on="device"), "a probability is 1.5"),
        (lambda: image.random_crop(2, 2, boxes="b", on="device"), "use on=.workers."),
        (lambda: image.resize(2, 2, masks="m", on="device"), "use on=.workers."),
        (lambda: image.pad(1, mask_fill=3, on="device"), "use on=.workers."),
        (lambda: image.random_affine(scale=(0, 1), on="device"), "scale is"),
        (lambda: image.color_jitter(hue=0.7, on="device"), "hue is"),
        (lambda: image.erase(on="moon"), "moon"),
        (
            lambda: penstock.torch.feed(
                by(pictures().batch(8).take(1), image.random_flip(on="device"))
            ),
            r"take\(1\) is before random functions",
        ),
        (lambda: pictures().map(image.to_chw(on="device")), "runs on a device: give it"),
    ],
)
def test_arguments_are_checked(make, text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        make()

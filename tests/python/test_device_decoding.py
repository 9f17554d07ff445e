"""image.decode on a device, with torch, by a stand-in for torchvision's decoder."""

from __future__ import annotations

import io
import sys
import types

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from image_files import encoded, picture  # noqa: E402
from penstock import image  # noqa: E402
from penstock.device import resizing  # noqa: E402
from penstock.device.place import TorchDevice  # noqa: E402
from penstock.torch import tensor_loader  # noqa: E402

INLINE = {"workers": 0, "seed": 3}


class Decoder:
    """`torchvision.io` with Pillow's decoder, which workers' pixels agree with."""

    class ImageReadMode:
        RGB, GRAY = "RGB", "L"

    def __init__(self) -> None:
        self.calls: list[int] = []

    def decode_jpeg(self, files, mode, device):
        assert isinstance(files, list)
        assert device == torch.device("cpu")
        self.calls.append(len(files))
        try:
            opened = [Image.open(io.BytesIO(file.numpy().tobytes())) for file in files]
            arrays = [np.array(each.convert(mode)) for each in opened]
        except OSError as error:
            raise RuntimeError(f"nvJPEG: {error}\nmore") from None
        return [torch.from_numpy(np.atleast_3d(each).transpose(2, 0, 1).copy()) for each in arrays]


@pytest.fixture
def decoder(monkeypatch):
    module = types.ModuleType("torchvision")
    module.io = Decoder()
    monkeypatch.setitem(sys.modules, "torchvision", module)
    return module.io


def with_orientation(pixels, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(pixels, exif=exif)


def photos(count: int = 16):
    files = [with_orientation(picture(20 + 3 * i, 40 - i, i), i % 9) for i in range(count)]
    return penstock.Dataset.items([{"image": each, "label": i} for i, each in enumerate(files)])


def there(*operations, source=None, device="cpu"):
    chain = (source or photos()).batch(6)
    for operation in operations:
        chain = chain.map(operation, device=device)
    return chain


def check(operations, decoder):
    host = photos()
    for operation in operations():
        host = host.map(operation)
    with host.batch(6).build(**INLINE) as feed:
        wanted = [np.array(batch["image"]) for _ in range(2) for batch in feed]
    with penstock.torch.feed(there(*operations(on="device")), **INLINE) as feed:
        got = [batch["image"].numpy() for _ in range(2) for batch in feed]
    assert decoder.calls == [6, 6, 4] * 2
    # The host resizes planes (docs/images.md), the device pixels.
    one, other = np.concatenate(got), np.concatenate(wanted)
    differs = np.abs(one.astype(np.int16) - other)
    assert differs.max() <= 2
    assert (differs > 1).mean() < 1e-3


CHAINS = {
    "resize": lambda **on: [image.decode(**on), image.resize(24, 30, **on)],
    "grey": lambda **on: [image.decode(1, **on), image.resize(24, 30, **on)],
    "as it lies": lambda **on: [image.decode(exif=False, **on), image.resize(24, 30, **on)],
    "crop": lambda **on: [
        image.decode(**on),
        image.random_resized_crop(16, 16, **on),
        image.random_flip(**on),
    ],
}


@pytest.mark.parametrize("name", CHAINS)
def test_images_are_decoded_and_resized_on_the_device(name, decoder):
    check(CHAINS[name], decoder)


def test_images_of_very_different_sizes_are_resized_in_groups(decoder, monkeypatch):
    monkeypatch.setattr(resizing, "_CANVAS_BYTES", 2 * 40 * 60 * 3)
    check(CHAINS["crop"], decoder)


def test_batches_are_sent_ahead(decoder, monkeypatch):
    monkeypatch.setattr(tensor_loader, "torch_place", lambda _: TorchDevice("cpu"))
    check(CHAINS["resize"], decoder)


def test_images_without_a_resize_are_a_list(decoder):
    with penstock.torch.feed(there(image.decode(on="device")), **INLINE) as feed:
        batch = next(iter(feed))
    assert [tuple(each.shape) for each in batch["image"]][:2] == [(40, 20, 3), (39, 23, 3)]
    assert batch["label"].tolist() == list(range(6))


def test_the_schema_is_known_without_a_file(decoder):
    chain = there(*CHAINS["resize"](on="device"))
    with penstock.torch.feed(chain, **INLINE) as feed:
        assert feed.element_spec["image"].shape == (None, 24, 30, 3)
        assert feed.element_spec["image"].dtype == torch.uint8
    assert decoder.calls == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (encoded(picture(9, 9), "PNG"), "row 2 of the batch: it is no JPEG"),
        (encoded(picture(99, 99))[:300], "row 2 of the batch: nvJPEG: "),
    ],
    ids=["png", "cut off"],
)
def test_a_damaged_file_is_named(file, text, decoder):
    files = [encoded(picture(9, 9)) for _ in range(12)]
    files[8] = file
    source = penstock.Dataset.items([{"image": each} for each in files])
    chain = there(*CHAINS["resize"](on="device"), source=source)
    with penstock.torch.feed(chain, **INLINE) as feed:
        batches = iter(feed)
        next(batches)
        with pytest.raises(penstock.DataLoss, match=text):
            next(batches)
        assert feed.state()["batches"] == 1


def test_a_decoder_that_fails_for_no_single_file_is_reported(decoder, monkeypatch):
    def fails(files, mode, device):
        if len(files) > 1:
            raise RuntimeError("not compiled with nvJPEG\nstack")
        return files

    monkeypatch.setattr(decoder, "decode_jpeg", fails)
    with (
        penstock.torch.feed(there(*CHAINS["resize"](on="device")), **INLINE) as feed,
        pytest.raises(
            penstock.InvalidArgument,
            match=r"torchvision cannot decode on cpu: not compiled with nvJPEG; decode in workers",
        ),
    ):
        next(iter(feed))


def test_other_images_are_refused(decoder):
    pixels = penstock.Dataset.arrays({"image": np.zeros((6, 4, 4, 3), np.uint8)})
    for source, operations, text in (
        (pixels, [image.decode(on="device")], "a field is Tensor; give a batch of encoded images"),
        (
            None,
            [image.random_flip(on="device")],
            "images are Ragged.* resize them before",
        ),
        (
            None,
            [image.decode(on="device"), image.random_flip(on="device")],
            "images have different sizes; resize them before",
        ),
    ):
        with (
            penstock.torch.feed(there(*operations, source=source), **INLINE) as feed,
            pytest.raises(penstock.InvalidArgument, match=text),
        ):
            next(iter(feed))


def test_a_missing_torchvision_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(penstock.NotFound, match=r"torchvision cannot be imported.*install the ver"):
        there(image.decode(on="device"))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: image.decode(4, on="device"), "channels is 4"),
        (lambda: image.decode(fast=True, on="device"), "fast=True is of on=.workers."),
        (lambda: image.decode(partial=True, on="device"), "partial=True is of on=.workers."),
        (lambda: image.decode(on="moon"), "moon"),
    ],
)
def test_arguments_are_checked(make, text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        make()


def test_a_device_of_jax_is_refused(decoder):
    jax = pytest.importorskip("jax")
    with pytest.raises(penstock.InvalidArgument, match="is a device of jax's; decode in workers"):
        there(image.decode(on="device"), device=jax.devices()[0])

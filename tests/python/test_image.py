"""Each operation on images, against Pillow and NumPy."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

import penstock
from image_files import by_pillow, chunk, encoded, mapped, one, picture, png, resized
from penstock import image

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
SIZES = [(1, 1), (7, 5), (64, 64), (65, 33), (101, 75), (500, 375)]

# ---- decoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("sampling", [0, 1, 2], ids=["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_of_a_jpeg_are_pillows(size, sampling, progressive):
    data = encoded(picture(*size), subsampling=sampling, progressive=progressive, quality=90)
    assert np.array_equal(one(data, image.decode()), by_pillow(data))


def test_grey_and_colours_are_made_of_each_other():
    grey = encoded(picture(50, 40, channels=1))
    assert np.array_equal(one(grey, image.decode()), by_pillow(grey))
    assert np.array_equal(one(grey, image.decode(channels=1))[..., 0], by_pillow(grey, "L"))
    colours = encoded(picture(50, 40), subsampling=0)
    light = one(colours, image.decode(channels=1))[..., 0].astype(int)
    assert np.abs(light - by_pillow(colours, "L")).max() <= 2  # Y itself, not that of the colours
    alpha = one(colours, image.decode(channels=4))
    assert np.array_equal(alpha[..., :3], by_pillow(colours))
    assert (alpha[..., 3] == 255).all()


def test_cmyk_is_what_pillow_takes_it_for():
    inks = Image.fromarray(picture(60, 44, channels=4), "CMYK")
    data = encoded(inks, quality=95)
    got = one(data, image.decode()).astype(int)
    assert np.abs(got - by_pillow(data)).max() <= 1
    grey = one(data, image.decode(channels=1))[..., 0].astype(int)
    assert np.abs(grey - by_pillow(data, "RGB") @ [0.299, 0.587, 0.114]).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_jpegs_are_turned_as_their_orientation_says(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(53, 37), exif=exif, quality=90)
    turned = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(one(data, image.decode()), turned)
    assert np.array_equal(one(data, image.decode(exif=False)), by_pillow(data))
    # And with operations behind.
    small = one(data, image.decode(), image.resize(24, 20, filter="bicubic"))
    assert np.array_equal(small, resized(turned, 20, 24, FILTERS["bicubic"]))
    cut = turned[2:-3, 1:-4]
    height, width = cut.shape[:2]
    middle = turned[round(5 / 2) :, round(5 / 2) :][:height, :width]
    assert np.array_equal(one(data, image.decode(), image.center_crop(height, width)), middle)


def test_orientations_that_are_none_are_passed_over():
    plain = encoded(picture(20, 10))
    for body in (
        b"Exif\0\0",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0",  # 9
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        b"http://ns.adobe.com/xap/1.0/\0",
    ):
        segment = b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body
        data = plain[:2] + segment + plain[2:]
        assert np.array_equal(one(data, image.decode()), by_pillow(plain))
    big = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0"
    data = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(big) + 2) + big + plain[2:]
    assert np.array_equal(one(data, image.decode()), by_pillow(plain)[::-1, ::-1])


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1"])
@pytest.mark.parametrize("size", [(1, 1), (33, 21)], ids=str)
def test_pngs_of_every_kind(mode, size):
    data = encoded(Image.fromarray(picture(*size)).convert(mode), "PNG")
    assert np.array_equal(one(data, image.decode()), by_pillow(data))
    assert np.array_equal(one(data, image.decode(channels=4)), by_pillow(data, "RGBA"))
    if mode != "P":
        wanted = by_pillow(data, "L")
        assert np.array_equal(one(data, image.decode(channels=1))[..., 0], wanted)


@pytest.mark.parametrize(("colour", "values"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_of_16_bits_the_upper_8_count(colour, values):
    random = np.random.default_rng(colour)
    wide = random.integers(0, 1 << 16, (9, 13, values), np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in wide)
    data = png(13, 9, 16, colour, rows)
    upper = (wide >> 8).astype(np.uint8)
    colours = upper[..., : values - (values % 2 == 0)]
    assert np.array_equal(one(data, image.decode()), np.broadcast_to(colours, (9, 13, 3)))
    alpha = one(data, image.decode(channels=4))[..., 3]
    assert np.array_equal(alpha, upper[..., -1] if values % 2 == 0 else np.full((9, 13), 255))


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_palettes_of_every_depth_with_and_without_transparency(depth):
    random = np.random.default_rng(depth)
    places = random.integers(0, 1 << depth, (6, 16), np.uint8)
    bits = np.unpackbits(places[..., None], axis=-1)[..., 8 - depth :].reshape(6, -1)
    rows = b"".join(b"\0" + np.packbits(row).tobytes() for row in bits)
    palette = random.integers(0, 256, (1 << depth, 3), np.uint8)
    opaque = random.integers(0, 256, (1 << depth) // 2, np.uint8)
    before = [chunk(b"PLTE", palette.tobytes()), chunk(b"tRNS", opaque.tobytes())]
    for chunks in (before[:1], before):
        data = png(16, 6, depth, 3, rows, *chunks)
        assert np.array_equal(one(data, image.decode()), palette[places])
        alpha = np.full(1 << depth, 255, np.uint8)
        if len(chunks) == 2:
            alpha[: len(opaque)] = opaque
        assert np.array_equal(one(data, image.decode(channels=4))[..., 3], alpha[places])


def interlaced(pixels: np.ndarray) -> bytes:
    """An RGB PNG in Adam7's seven passes."""
    rows = b""
    for y, x, down, right in (
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ):
        part = pixels[y::down, x::right]
        if part.size:
            rows += b"".join(b"\0" + row.tobytes() for row in part)
    height, width = pixels.shape[:2]
    data = png(width, height, 8, 2, rows)
    head = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 1))
    return data[:8] + head + data[8 + len(head) :]


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (8, 8), (29, 23)], ids=str)
def test_interlaced_pngs(size):
    pixels = picture(*size)
    data = interlaced(pixels)
    assert np.array_equal(by_pillow(data), pixels)
    assert np.array_equal(one(data, image.decode()), pixels)
    if size == (29, 23):
        cut = one(data, image.decode(), image.center_crop(10, 12))
        assert np.array_equal(cut, pixels[6:16, 8:20])


# ---- resizing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_resizing_is_pillows_to_the_bit(filter, channels):
    random = np.random.default_rng(channels)
    sizes = [(7, 5), (224, 224), (500, 375), (1, 9), (33, 1), (64, 200)]
    for width, height in sizes:
        pixels = picture(width, height, seed=width, channels=channels)
        pixels[: height // 2] = random.integers(0, 256, pixels[: height // 2].shape)
        for to_width, to_height in [*sizes, (width, 50), (50, height), (1, 1)]:
            wanted = resized(pixels, to_width, to_height, FILTERS[filter])
            got = one(pixels, image.resize(to_height, to_width, filter=filter))
            assert np.array_equal(got, wanted), f"{(width, height)} to {(to_width, to_height)}"


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_a_resize_that_is_mirrored_is_the_mirror_image_of_the_resize(channels):
    pixels = np.random.default_rng(2).integers(0, 256, (9, 83, channels), np.uint8)
    for width in [*range(1, 10), 37, 83, 200]:
        for cut in {0, width // 5, width // 3}:  # the wanted columns begin and end anywhere
            chain = [image.resize(7, width), image.center_crop(7, width - cut)]
            whole = one(pixels, *chain)
            got = one(pixels, *chain, image.random_flip(1.0, 1.0))
            assert np.array_equal(got, whole[::-1, ::-1]), f"{width} without {cut}"
    planes = [
        one(np.ascontiguousarray(pixels[..., c : c + 1]), image.resize(7, 37))
        for c in range(channels)
    ]
    assert np.array_equal(one(pixels, image.resize(7, 37)), np.concatenate(planes, axis=-1))


def test_extremes_are_cut_off_as_pillow_does():
    stripes = np.zeros((40, 40, 3), np.uint8)
    stripes[::2] = stripes[:, ::3] = 255
    for filter in ("bicubic", "lanczos"):
        for size in (13, 40, 97):
            wanted = resized(stripes, size, size, FILTERS[filter])
            assert np.array_equal(one(stripes, image.resize(size, size, filter=filter)), wanted)


def test_without_antialias_the_filter_looks_at_its_neighbours_only():
    pixels = picture(64, 48)
    got = one(pixels, image.resize(12, 16, antialias=False)).astype(float)
    # Halves between pixels 1 and 2 of each 4, in both directions.
    part = pixels.astype(float)
    wanted = (part[1::4] + part[2::4]) / 2
    wanted = (wanted[:, 1::4] + wanted[:, 2::4]) / 2
    assert np.abs(got - wanted).max() <= 1
    assert not np.array_equal(got, one(pixels, image.resize(12, 16)))
    up = one(pixels, image.resize(100, 200, antialias=False))
    assert np.array_equal(up, one(pixels, image.resize(100, 200)))


def test_a_crop_of_a_resized_image_is_made_of_what_it_needs_alone():
    data = encoded(picture(500, 375))
    whole = resized(by_pillow(data), 300, 256, FILTERS["bicubic"])
    got = one(
        data, image.decode(), image.resize(256, 300, filter="bicubic"), image.center_crop(224, 224)
    )
    assert np.array_equal(got, whole[16:240, 38:262])


@pytest.mark.parametrize("kind", ["picture", "saturated"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_a_jpeg_that_is_decoded_and_resized_at_once_is_within_1_of_pillow(kind, subsampling):
    pixels = picture(500, 375)
    if kind == "saturated":  # many pixels of its JPEG are beyond black or a full colour
        pixels = np.where(pixels > 110, 255, 0).astype(np.uint8)
    # Pillow's encoder has no space for a saturated progressive one.
    for options in ({}, {"progressive": True})[: 2 if kind == "picture" else 1]:
        data = encoded(pixels, quality=90, subsampling=subsampling, **options)
        wanted = resized(by_pillow(data), 224, 224, FILTERS["bilinear"]).astype(int)
        for channels in (3, 4):
            got = one(data, image.decode(channels=channels), image.resize(224, 224)).astype(int)
            off = np.abs(got[..., :3] - wanted)
            assert off.max() <= 2
            assert (off > 1).mean() < 1e-4
            assert abs((got[..., :3] - wanted).mean()) < 0.05
        grey = one(data, image.decode(channels=1), image.resize(224, 224)).astype(int)
        whole = one(data, image.decode(channels=1))[..., 0]
        wanted = resized(whole, 224, 224, FILTERS["bilinear"])
        assert np.abs(grey[..., 0] - wanted).max() <= 1


def test_fast_decoding_is_nearly_the_same_picture():
    data = encoded(picture(640, 480), quality=95)
    for size in (300, 120, 60):  # decoded whole, at a half or quarter, at an eighth
        good = one(data, image.decode(), image.resize(size, size)).astype(int)
        fast = one(data, image.decode(fast=True), image.resize(size, size)).astype(int)
        assert fast.shape == good.shape
        assert np.abs(fast - good).mean() < 3
    window = one(data, image.decode(fast=True), image.resize(60, 80), image.center_crop(40, 40))
    whole = one(data, image.decode(fast=True), image.resize(60, 80))
    assert np.array_equal(window, whole[10:50, 20:60])


# ---- the others ----------------------------------------------------------------------------------


def test_pad_turns_and_grey():
    pixels = picture(31, 17)
    assert np.array_equal(one(pixels, image.pad(0)), pixels)
    wanted = np.pad(pixels, ((2, 4), (1, 3), (0, 0)), constant_values=9)
    assert np.array_equal(one(pixels, image.pad((1, 2, 3, 4), 9)), wanted)
    wanted = np.pad(pixels, ((5, 5), (4, 4), (0, 0)))
    assert np.array_equal(one(pixels, image.pad((4, 5))), wanted)
    for k in range(-5, 6):
        assert np.array_equal(one(pixels, image.rot90(k)), np.rot90(pixels, k))
    grey = np.asarray(Image.fromarray(pixels).convert("L"))
    assert np.array_equal(one(pixels, image.grayscale())[..., 0], grey)
    assert np.array_equal(one(pixels, image.grayscale(3)), np.stack([grey] * 3, -1))


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_any_number_of_channels(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, channels), np.uint8)
    got = one(pixels, image.resize(11, 13), image.rot90(), image.random_flip(1.0))
    planes = [resized(pixels[..., c], 13, 11, FILTERS["bilinear"]) for c in range(channels)]
    assert np.array_equal(got, np.rot90(np.stack(planes, -1))[:, ::-1])


def test_images_without_an_axis_of_channels():
    pixels = picture(28, 28, channels=1)
    assert pixels.ndim == 2
    got = one(pixels, image.pad(2), image.center_crop(28, 28), image.normalize(10, 2))
    assert np.array_equal(got, (pixels.astype(np.float32) - 10) / 2)
    with pytest.raises(penstock.InvalidArgument, match="no axis of channels"):
        one(pixels, image.to_chw())


def test_normalize_is_that_of_penstock_to_the_bit_in_either_layout():
    pixels = picture(37, 29)
    mean, std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    wanted = one(pixels, penstock.normalize(mean, std, fields="image"))
    assert wanted.dtype == np.float32
    assert np.array_equal(wanted, (pixels - np.float32(mean)) / np.float32(std))
    assert np.array_equal(one(pixels, image.normalize(mean, std)), wanted)
    planes = np.moveaxis(wanted, -1, 0)
    assert np.array_equal(one(pixels, image.normalize(mean, std), image.to_chw()), planes)
    assert np.array_equal(one(pixels, image.to_chw(), image.normalize(mean, std)), planes)
    assert np.array_equal(one(pixels, image.to_chw()), np.moveaxis(pixels, -1, 0))
    single = one(pixels, image.normalize(33.3, 78.6), image.to_chw())
    assert np.array_equal(
        single, np.moveaxis((pixels - np.float32(33.3)) / np.float32(78.6), -1, 0)
    )


def test_crops_cut_the_middle_or_anywhere():
    pixels = picture(30, 20)
    assert np.array_equal(one(pixels, image.center_crop(10, 12)), pixels[5:15, 9:21])
    numbers = np.arange(20 * 30, dtype=np.uint16).reshape(20, 30)
    places = np.stack([numbers >> 8, numbers & 255, numbers * 0], -1).astype(np.uint8)
    seen = set()
    for cut in mapped([places] * 400, image.random_crop(18, 28)):
        first = int(cut[0, 0, 0]) << 8 | int(cut[0, 0, 1])
        y, x = divmod(first, 30)
        assert np.array_equal(cut, places[y : y + 18, x : x + 28])
        seen.add((y, x))
    assert seen == {(y, x) for y in range(3) for x in range(3)}


def test_flips_come_as_often_as_asked():
    pixels = picture(9, 7)
    got = mapped([pixels] * 1000, image.random_flip(0.3, 0.6))
    counts = np.zeros((2, 2))
    for each in got:
        for x in (0, 1):
            for y in (0, 1):
                counts[x, y] += np.array_equal(each, pixels[:: 1 - 2 * y, :: 1 - 2 * x])
    assert counts.sum() == 1000
    assert np.abs(counts / 1000 - [[0.28, 0.42], [0.12, 0.18]]).max() < 0.06
    for each in mapped([pixels] * 20, image.random_flip(0)):
        assert np.array_equal(each, pixels)
    for each in mapped([pixels] * 20, image.random_flip(1)):
        assert np.array_equal(each, pixels[:, ::-1])


def test_random_resized_crops_are_parts_of_the_image():
    # A part of a slope is one: its ends tell which.
    slope = np.zeros((100, 200, 3), np.uint8)
    slope[..., 0] = np.arange(200)
    slope[..., 1] = np.arange(100)[:, None] * 2
    areas, ratios = [], []
    got = mapped([slope] * 600, image.random_resized_crop(64, 64, (0.1, 0.5), (0.5, 2.0)))
    for part in got:
        steps = np.diff(part.astype(float)[8:56, 8:56], axis=1).mean((0, 1))
        width = steps[0] * 64
        height = np.diff(part.astype(float)[8:56, 8:56], axis=0).mean((0, 1))[1] / 2 * 64
        areas.append(width * height / 20000)
        ratios.append(width / height)
    areas, ratios = np.array(areas), np.array(ratios)
    assert areas.min() > 0.07
    assert areas.max() < 0.56
    assert 0.27 < areas.mean() < 0.33
    assert ratios.min() > 0.42
    assert ratios.max() < 2.4
    assert abs(np.log(ratios).mean()) < 0.2  # tall boxes fit less often


def test_a_random_crop_of_a_jpeg_is_the_crop_of_the_whole():
    for sampling in (0, 1, 2):
        for progressive in (False, True):
            data = encoded(picture(333, 251), subsampling=sampling, progressive=progressive)
            whole = by_pillow(data)
            cuts = mapped([data] * 60, image.decode(), image.random_crop(70, 83))
            uncut = mapped([whole] * 60, image.random_flip(0), image.random_crop(70, 83))
            for cut, wanted in zip(cuts, uncut, strict=True):
                assert np.array_equal(cut, wanted)


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: image.decode(2), "channels is 2"),
        (lambda: image.decode(fast=1), "fast is 1"),
        (lambda: image.resize(0, 5), "height is 0"),
        (lambda: image.resize(5, 70000), "width is 70000"),
        (lambda: image.resize(5, 5, filter="cubic"), "there are nearest, box, bilinear"),
        (lambda: image.random_resized_crop(5, 5, (0.5, 0.1)), r"scale is \(0.5, 0.1\)"),
        (lambda: image.random_resized_crop(5, 5, (0.5, 1.5)), "at most 1"),
        (lambda: image.random_resized_crop(5, 5, ratio=(0, 1)), r"ratio is \(0, 1\)"),
        (lambda: image.random_resized_crop(5, 5, 0.5), "give a list of two numbers"),
        (lambda: image.random_resized_crop(5, 5, (0.1, 0.2, 0.3)), "the least and the greatest"),
        (lambda: image.random_flip(1.5), "a probability is 1.5"),
        (lambda: image.random_flip(float("nan")), "a probability is nan"),
        (lambda: image.pad((1, 2, 3)), "give an integer"),
        (lambda: image.pad(-1), "padding is -1"),
        (lambda: image.pad(1, 256), "value is 256"),
        (lambda: image.rot90(0.5), "k is 0.5"),
        (lambda: image.grayscale(2), "channels is 2"),
        (lambda: image.normalize((1, 2), 3), "2 numbers of mean and 1 of std"),
        (lambda: image.normalize(1, 0), "std is 0"),
        (lambda: image.to_chw(fields=3), "fields is 3"),
        (lambda: image.to_chw(fields=[]), "fields is empty"),
    ],
)
def test_arguments_that_cannot_be(make, says):
    with pytest.raises(penstock.InvalidArgument, match=says):
        make()


@pytest.mark.parametrize(
    ("chain", "says"),
    [
        ([image.resize(5, 5)], r"map image.decode\(\) before"),
        ([image.decode(), image.decode()], "decoded already"),
        ([image.decode(fields="picture")], "no field 'picture'"),
        ([image.decode(), image.normalize(1, 1), image.resize(5, 5)], "before image.normalize"),
        ([image.decode(), image.normalize(1, 1), image.normalize(1, 1)], "before image.normalize"),
        ([image.decode(), image.to_chw(), image.random_flip()], "before image.to_chw"),
        ([image.decode(), image.to_chw(), image.to_chw()], "first already"),
        ([image.decode(1), image.normalize((1, 2, 3), (1, 2, 3))], "has 1 channels, and mean 3"),
        ([image.decode(), image.resize(5, 5), image.random_crop(6, 5)], "smaller than the crop"),
    ],
)
def test_chains_that_cannot_be(chain, says):
    dataset = penstock.Dataset.items([{"image": encoded(picture(9, 9))}])
    for operation in chain:
        dataset = dataset.map(operation)
    with pytest.raises(penstock.InvalidArgument, match=says):
        list(dataset)


def test_a_small_image_fails_alone():
    elements = [{"image": encoded(picture(40 - 10 * (i == 2), 40))} for i in range(5)]
    dataset = penstock.Dataset.items(elements).map(image.decode()).map(image.random_crop(35, 35))
    with pytest.raises(penstock.InvalidArgument, match="the image is 40 x 30, smaller than"):
        list(dataset)
    with dataset.on_error("skip").build(workers=0) as feed:
        assert len(list(feed)) == 4
        (loss,) = feed.stats()["losses"]
        assert "random_crop" in loss[2]

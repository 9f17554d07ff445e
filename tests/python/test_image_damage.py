"""Damaged pictures: each is a typed error that names the file, and costs one sample."""

from __future__ import annotations

import io
import struct
import time
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock
from contract import INLINE, PROCESSES, THREADS, each, options
from image_files import by_pillow, chunk, encoded, one, picture, png
from penstock import Dataset, image

SMALL = 24, 20


CHAINS = (
    [image.decode()],
    [image.decode(), image.center_crop(1, 1)],
    [image.decode(channels=1, fast=True), image.resize(3, 3)],
)


def losses_of(data: list[bytes], operations: list[Any]) -> list[str]:
    """Why each is lost. REQUIRED: all are."""
    dataset = Dataset.items([{"image": each} for each in data])
    for operation in operations:
        dataset = dataset.map(operation)
    with dataset.on_error("skip").build(workers=0) as feed:
        assert list(feed) == []
        losses = feed.stats()["losses"]
    assert feed.stats()["skipped"] == len(data)
    return [reason for _, _, reason in losses]


def all_refused(data: list[bytes]) -> None:
    for operations in CHAINS:
        for reason in losses_of(data, operations):
            assert "image.decode: " in reason


def refused(data: bytes, *says: str) -> None:
    for operations in CHAINS:
        (reason,) = losses_of([data], operations)
        for text in ("image.decode: ", *says):
            assert text in reason
    with pytest.raises(penstock.DataLoss):
        one(data, image.decode())


def jpegs():
    for progressive in (False, True):
        yield encoded(picture(*SMALL), progressive=progressive, quality=70)
    exif = Image.Exif()
    exif[0x0112] = 6
    yield encoded(picture(*SMALL), exif=exif)


def others():
    """Formats without a checksum, and the bytes at their ends that hold no pixel."""
    pixels = picture(*SMALL)
    yield encoded(pixels, "BMP"), 0
    yield encoded(pixels, "GIF"), 4  # the end's code, no further block, the end
    yield encoded(pixels, "PPM"), 0
    yield encoded(pixels[..., 0], "PPM"), 0
    yield b"P3 4 3 255 " + b" ".join(b"%d" % (i * 7 + 10) for i in range(36)), 3
    for lossless in (False, True):
        yield encoded(pixels, "WEBP", lossless=lossless), 1
    yield encoded(picture(*SMALL, channels=4), "WEBP"), 1


def test_what_is_no_picture():
    refused(b"", "no bytes")
    refused(b"\xff", "PPM nor WebP: 1 bytes that begin with ff")
    refused(b"MM\0*TIFF", "begin with 4d 4d 00 2a")
    refused(b"BM", "a damaged BMP", "its header is cut off")
    refused(b"GIF89a", "a damaged GIF", "cut off")
    refused(b"P6", "a damaged PPM", "cut off")
    refused(b"RIFF\0\0\0\0WEBP", "a damaged WebP")
    refused(b"\xff\xd8", "a damaged JPEG")
    refused(b"\xff\xd8\xff\xd9", "a damaged JPEG")
    refused(b"\x89PNG", "a damaged PNG", "no signature")
    refused(b"\x89PNG\r\n\x1a\n", "a damaged PNG", "cut off")
    refused(bytes(1000), "begin with 00 00 00 00")
    refused(next(jpegs())[2:])


def test_cut_anywhere():
    for data, rest in (
        *((data, 1) for data in jpegs()),
        (encoded(picture(*SMALL), "PNG"), 1),
        *others(),
    ):
        all_refused([data[:end] for end in range(len(data) - rest)])
        assert one(data, image.decode()).size


def test_cut_at_every_hundredth_byte_of_a_large_one():
    for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP"):
        data = encoded(picture(300, 225), kind)
        all_refused([data[:end] for end in range(0, len(data) - 5, len(data) // 100)])


def test_any_flipped_byte_is_an_error_or_a_picture():
    """A scan has no checksum: what can be detected is reported, and nothing else happens."""
    random = np.random.default_rng(0)
    for data in jpegs():
        damaged = []
        for at in range(len(data)):
            flipped = bytearray(data)
            flipped[at] ^= int(random.integers(1, 256))
            damaged.append({"image": bytes(flipped)})
        dataset = Dataset.items(damaged).map(image.decode()).map(image.resize(8, 8))
        with dataset.on_error("skip").build(workers=0) as feed:
            whole = list(feed)
            assert len(whole) + feed.stats()["skipped"] == len(damaged)
            assert feed.stats()["skipped"] > 50
        assert all(element["image"].shape == (8, 8, 3) for element in whole)


def test_any_flipped_byte_of_the_others_is_an_error_or_a_picture():
    random = np.random.default_rng(1)
    for data, _ in others():
        damaged = []
        for at in range(min(len(data), 500)):
            flipped = bytearray(data)
            flipped[at] ^= int(random.integers(1, 256))
            damaged.append({"image": bytes(flipped)})
        dataset = Dataset.items(damaged).map(image.decode()).map(image.resize(8, 8))
        with dataset.on_error("skip").build(workers=0) as feed:
            whole = list(feed)
            assert len(whole) + feed.stats()["skipped"] == len(damaged)
            assert feed.stats()["skipped"] > 5
        assert all(element["image"].shape == (8, 8, 3) for element in whole)


def test_headers_of_the_others_that_lie_cost_no_memory():
    for fields, says in (
        ((10, "<I", 1 << 31), "it is cut off, or its header lies"),
        ((10, "<I", 20), "its pixels begin within its header"),
        ((14, "<I", 39), "its header claims to have 39 bytes"),
        ((14, "<I", 1 << 31), "its header claims to have 2147483648 bytes"),
        ((18, "<I", 0), "at least 1"),
        ((18, "<2I", 1 << 31, 1), "at most 178956970"),
        ((18, "<2i", 24, -(1 << 31)), "at most 178956970"),
        ((18, "<2I", 13000, 13000), "it is cut off, or its header lies"),
        ((28, "<H", 7), "it has pixels of 7 bits"),
        ((28, "<HI", 24, 4), "it is of compression 4"),
        ((28, "<HI", 24, 1), "it has pixels of 24 bits"),
        ((28, "<H16xI", 8, 257), "its palette has 257 colours"),
    ):
        data = bytearray(encoded(picture(*SMALL), "BMP"))
        at, form, *values = fields
        struct.pack_into(form, data, at, *values)
        refused(bytes(data), "a damaged BMP", says)
    for text, says in (
        (b"P6 0 5 255 ", "at least 1"),
        (b"P6 20000 20000 255 ", "at most 178956970"),
        (b"P6 99999999999 1 255 ", "a number is too large"),
        (b"P6 13000 13000 255 ", "13000 x 13000 pixels are 507000000 bytes"),
        (b"P3 13000 13000 255 ", "are at least 1013999999 bytes"),
        (b"P6 1 1 0 ", "its greatest value is 0"),
        (b"P6 1 1 65536 ", "its greatest value is 65536"),
        (b"P6 1 1 255#", "does not end with a blank"),
        (b"P6 1 x 255 ", "there is no number"),
        (b"P5 1 1 9 \x0a", "a value of 10 above the greatest one, 9"),
        (b"P2 2 1 9 1 10 ", "a value of 10 above the greatest one, 9"),
    ):
        refused(text, "a damaged PGM" if text[1:2] in b"25" else "a damaged PPM", says)


def test_every_flipped_byte_of_a_png_is_an_error():
    for data in (
        encoded(picture(*SMALL), "PNG"),
        encoded(Image.fromarray(picture(9, 9)).convert("P"), "PNG"),
    ):
        damaged = []
        for at in range(len(data)):
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            damaged.append(bytes(flipped))
        all_refused(damaged)


def test_headers_that_lie_cost_no_memory():
    data = bytearray(encoded(picture(*SMALL), quality=80))
    frame = data.index(b"\xff\xc0")
    for height, width, says in (
        (65500, 65500, "at most 178956970"),
        (13000, 13000, "more than its bytes can hold"),
        (0, 20, "a damaged JPEG"),
        (20, 0, "a damaged JPEG"),
        (200, 24, "a damaged JPEG"),  # more rows than there are
    ):
        data[frame + 5 : frame + 9] = struct.pack(">2H", height, width)
        refused(bytes(data), says)
    for width, height, says in (
        (1 << 31, 1, "its header claims 2147483648 x 1"),
        ((1 << 31) - 1, (1 << 31) - 1, "its header claims"),
        (0, 5, "its header claims 0 x 5"),
        (100000, 1700, "more than its bytes can hold"),
        (13, 14, "a damaged PNG"),  # more rows than there are
    ):
        rows = b"".join(b"\0" + bytes(39) for _ in range(13))
        refused(png(width, height, 8, 2, rows), says)


def test_tables_are_not_those_of_the_file_before():
    data = encoded(picture(*SMALL), quality=90)
    at = data.index(b"\xff\xdb")
    end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    bare = data[:at] + data[end:]
    dataset = Dataset.items([{"image": data}, {"image": bare}] * 2).map(image.decode())
    with dataset.on_error("skip").build(workers=0) as feed:
        assert len(list(feed)) == 2
        assert feed.stats()["skipped"] == 2


def test_too_many_scans():
    data = encoded(picture(8, 8, channels=1), progressive=True)
    start = data.index(b"\xff\xda")
    end = data.index(b"\xff\xda", start + 2)
    scan = data[start : data.index(b"\xff\xc4", start) if b"\xff\xc4" in data[start:end] else end]
    refused(data[:start] + scan * 400 + data[start:])


@pytest.mark.parametrize("name", [b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tEXt"])
def test_a_wrong_checksum_of_any_chunk(name):
    palette = [chunk(b"PLTE", bytes(6)), chunk(b"tEXt", b"Title\0x")]
    data = png(4, 1, 1, 3, b"\0\x50", *palette)
    assert one(data, image.decode()).shape == (1, 4, 3)
    at = data.index(name)
    length = struct.unpack(">I", data[at - 4 : at])[0]
    place = at + 4 + length
    damaged = data[:place] + bytes(b ^ 255 for b in data[place : place + 4]) + data[place + 4 :]
    refused(damaged, "a damaged PNG")


def test_chunks_that_do_not_belong():
    good = png(4, 1, 1, 3, b"\0\x50", chunk(b"PLTE", bytes(6)))
    refused(png(4, 1, 1, 3, b"\0\x50"), "a damaged PNG")  # no palette
    refused(good[:8] + chunk(b"IDAT", b"") + good[8:], "header is not where it belongs")
    refused(good.replace(b"IHDR", b"XXXX"), "header is not where it belongs")
    refused(png(4, 1, 9, 3, b"\0\x50"), "a damaged PNG")
    refused(good[:8] + struct.pack(">I", 1 << 30) + good[12:], "longer than the file")


@pytest.mark.parametrize("interlaced", [False, True])
def test_no_more_of_a_png_is_inflated_than_its_pixels_need(interlaced):
    head = struct.pack(">2I5B", 40, 40, 8, 0, 0, 0, interlaced)
    rows = bytes(1 + 40) * 40 if not interlaced else bytes(2000)  # all zeros

    def made(data: bytes, *others: bytes) -> bytes:
        chunks = [chunk(b"IHDR", head), *others, chunk(b"IDAT", data), chunk(b"IEND")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

    little = zlib.compress(rows + bytes(100_000))  # accepted, as by Pillow
    assert not one(made(little), image.decode()).any()
    refused(made(zlib.compress(rows + bytes(400 << 20), 1)), "data goes on behind the last row")
    # 2.5 GB of texts in 2.5 MB.
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(8 << 20)))
    began = time.process_time()
    assert not one(made(zlib.compress(rows), *[text] * 300), image.decode()).any()
    assert time.process_time() - began < 1


def test_bytes_in_front_of_a_marker_and_behind_the_end_are_no_damage():
    data = encoded(picture(*SMALL))
    assert np.array_equal(one(data + b"trailing", image.decode()), by_pillow(data))
    odd = data[:-2] + b"\0\0" + data[-2:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.array_equal(one(odd, image.decode()), by_pillow(data))


@each((INLINE, THREADS, PROCESSES), ())
def test_a_damaged_file_costs_its_sample_alone(tmp_path, mode):
    (tmp_path / "a").mkdir()
    kinds = {
        "00.jpg": b"",
        "03.jpg": encoded(picture(90, 70))[:900],
        "05.png": encoded(picture(40, 40), "PNG").replace(b"IDAT", b"IDAU"),
        "11.jpg": b"GIF89a not at all",
    }
    for i in range(20):
        for kind in (".jpg", ".png"):
            name = f"{i:02}{kind}"
            if kind == ".png" and name not in kinds:
                continue
            data = kinds.get(name, encoded(picture(50, 40, seed=i)))
            (tmp_path / "a" / name).write_bytes(data)
    chain = (
        Dataset.image_folder(tmp_path)
        .map(image.decode())
        .map(image.random_resized_crop(16, 16))
        .map(image.normalize(0, 255))
    )
    names = sorted(kinds)
    with chain.on_error("skip").batch(4).build(**options(mode)) as feed:
        for epoch in range(2):
            good = [str(path)[-6:] for batch in feed for path in batch["path"]]
            assert good == sorted({f"{i:02}.jpg" for i in range(20)} - set(names))
            losses = [reason for e, _, reason in feed.stats()["losses"] if e == epoch]
            assert len(losses) == len(names)
            for name in names:
                (reason,) = [reason for reason in losses if name in reason]
                assert "map(image.decode(3))" in reason
                assert "DataLoss" in reason or "image.decode: " in reason
    with chain.build(**options(mode)) as feed, pytest.raises(penstock.DataLoss, match=r"00\.jpg"):
        list(feed)


def test_decoding_goes_on_after_damage():
    """One reader after the other of good and bad files: nothing is left of the bad."""
    good = [encoded(picture(30, 20, seed=i), kind) for i in range(4) for kind in ("JPEG", "PNG")]
    elements = []
    for i, data in enumerate(good):
        elements += [{"image": data[: 50 + 30 * i]}, {"image": data}]
    dataset = Dataset.items(elements).map(image.decode()).on_error("skip")
    got = [element["image"] for element in dataset]
    for pixels, data in zip(got, good, strict=True):
        assert np.array_equal(pixels, by_pillow(data))
    assert io.BytesIO(good[0]).read(2) == b"\xff\xd8"

"""BMP, GIF, PGM, PPM and WebP against Pillow, parts of cut files, and encoding."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

import penstock
from image_files import by_pillow, chunk, encoded, one, picture
from penstock import Dataset, image

SIZES = [(1, 1), (7, 5), (33, 21), (64, 48)]


def as_pillow(data: bytes) -> None:
    """The same pixels as Pillow's, in every number of channels, and in a crop."""
    colours = by_pillow(data)
    assert np.array_equal(one(data, image.decode()), colours)
    assert np.array_equal(one(data, image.decode(channels=4)), by_pillow(data, "RGBA"))
    grey = np.asarray(Image.fromarray(colours).convert("L"))
    assert np.array_equal(one(data, image.decode(channels=1))[..., 0], grey)
    height, width = colours.shape[:2]
    cut = one(data, image.decode(), image.center_crop((height + 1) // 2, (width + 1) // 2))
    top, left = (round((n - (n + 1) // 2) / 2) for n in (height, width))
    assert np.array_equal(cut, colours[top:, left:][: (height + 1) // 2, : (width + 1) // 2])


# ---- BMP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bmps_of_pillow(mode, size):
    pixels = picture(*size, channels=4) if mode == "RGBA" else picture(*size)
    as_pillow(encoded(Image.fromarray(pixels).convert(mode), "BMP"))


def bmp(
    width: int,
    height: int,
    bits: int,
    rows: bytes,
    *,
    compression=0,
    masks=(),
    palette=(),
    v4=False,
) -> bytes:
    """A BMP by its description; `height` below 0: from the top down."""
    header = struct.pack(
        "<I2i2H6I", 108 if v4 else 40, width, height, 1, bits, compression, 0, 0, 0, len(palette), 0
    )
    if v4:
        header += struct.pack("<4I", *masks) + bytes(108 - 56)
    elif masks:
        header += struct.pack(f"<{len(masks)}I", *masks)
    header += b"".join(bytes([*colour, 0]) for colour in palette)
    begin = 14 + len(header)
    return b"BM" + struct.pack("<I2HI", begin + len(rows), 0, 0, begin) + header + rows


def padded(row: bytes) -> bytes:
    return row + bytes(-len(row) % 4)


@pytest.mark.parametrize("down", [False, True])
def test_bmps_of_4_and_16_bits(down):
    random = np.random.default_rng(0)
    width, height = 13, 6
    palette = random.integers(0, 256, (11, 3)).tolist()
    places = random.integers(0, 11, (height, width + 1), np.uint8)
    rows = b"".join(padded((row[::2] << 4 | row[1::2]).tobytes()) for row in places)
    data = bmp(width, -height if down else height, 4, rows, palette=palette)
    as_pillow(data)
    colours = np.array(palette, np.uint8)[places[:, :width], ::-1]
    assert np.array_equal(one(data, image.decode()), colours if down else colours[::-1])

    values = random.integers(0, 1 << 16, (height, width), np.uint16)
    rows = b"".join(padded(row.astype("<u2").tobytes()) for row in values)
    signed = -height if down else height
    as_pillow(bmp(width, signed, 16, rows))
    as_pillow(bmp(width, signed, 16, rows, compression=3, masks=(0xF800, 0x7E0, 0x1F)))
    as_pillow(bmp(width, signed, 16, rows, compression=3, masks=(0x7C00, 0x3E0, 0x1F)))


class Runs:
    """Writes the codes of a BMP's run lengths beside the places that they stand for."""

    def __init__(self, width: int, height: int, bits: int) -> None:
        self.places = np.zeros((height, width), np.uint8)
        self.bits = bits
        self.x = self.y = 0
        self.codes = b""

    def _put(self, places) -> None:
        end = min(self.x + len(places), self.places.shape[1])
        self.places[self.y, self.x : end] = places[: end - self.x]
        self.x = end

    def run(self, count: int, value: int) -> None:
        pair = [value, value] if self.bits == 8 else [value >> 4, value & 15]
        self._put((pair * count)[:count])
        self.codes += bytes([count, value])

    def absolute(self, places: list[int]) -> None:
        self._put(places)
        data = bytes(places)
        if self.bits == 4:
            even = [*places, 0]
            data = bytes(even[i] << 4 | even[i + 1] for i in range(0, len(places), 2))
        self.codes += bytes([0, len(places)]) + data + bytes(len(data) % 2)

    def end_row(self) -> None:
        self.codes += b"\0\0"
        self.x, self.y = 0, self.y + 1

    def move(self, right: int, up: int) -> None:
        self.codes += bytes([0, 2, right, up])
        self.x, self.y = self.x + right, self.y + up


@pytest.mark.parametrize("bits", [4, 8])
def test_bmps_of_run_lengths(bits):
    random = np.random.default_rng(bits)
    colours = 1 << bits
    palette = random.integers(0, 256, (colours, 3)).tolist()

    def written(runs, width, height, moves):
        for _ in range(height):
            while runs.x < width:
                what = random.integers(0, 3 if moves else 2)
                count = int(random.integers(3, 12))
                # Pillow knows no moves, odd numbers of 4 bits, and pixels beyond the row.
                strange = (bits == 4 and count % 2 == 1) or count > width - runs.x
                if what == 0 or (what == 1 and strange and not moves):
                    runs.run(count, int(random.integers(0, 256)))
                elif what == 1:
                    runs.absolute(random.integers(0, colours, count).tolist())
                else:
                    runs.move(int(random.integers(0, 4)), 0)
            runs.end_row()
        return bmp(
            width,
            height,
            bits,
            runs.codes + b"\0\1",
            compression={8: 1, 4: 2}[bits],
            palette=palette,
        )

    for width, height in ((1, 1), (7, 5), (40, 31)):
        runs = Runs(width, height, bits)
        data = written(runs, width, height, False)
        as_pillow(data)
        colour = np.array(palette, np.uint8)[:, ::-1]
        assert np.array_equal(one(data, image.decode()), colour[runs.places[::-1]])
        runs = Runs(width, height, bits)
        data = written(runs, width, height, True)
        whole = colour[runs.places[::-1]]
        assert np.array_equal(one(data, image.decode()), whole)
        if min(width, height) > 4:
            cut = one(data, image.decode(), image.center_crop(3, 3))
            top, left = round((height - 3) / 2), round((width - 3) / 2)
            assert np.array_equal(cut, whole[top : top + 3, left : left + 3])


def test_bmps_of_run_lengths_end_early_or_are_cut():
    palette = [[i, 2 * i, 3 * i] for i in range(40)]
    runs = Runs(9, 4, 8)
    runs.run(5, 7)
    runs.move(1, 2)
    runs.absolute([1, 2, 3])
    data = bmp(9, 4, 8, runs.codes + b"\0\1", compression=1, palette=palette)
    wanted = np.array(palette, np.uint8)[runs.places[::-1], ::-1]
    assert np.array_equal(one(data, image.decode()), wanted)
    for end in range(2, len(data) - 1):
        with pytest.raises(penstock.DataLoss, match="a damaged BMP"):
            one(data[:end], image.decode())
    assert np.array_equal(one(data[:-2], image.decode(partial=True)), wanted)
    # The last row may end without a sign.
    runs = Runs(300, 1, 8)
    runs.run(255, 3)
    runs.run(45, 4)
    data = bmp(300, 1, 8, runs.codes, compression=1, palette=palette)
    assert np.array_equal(one(data, image.decode())[0, [0, 299]], [[9, 6, 3], [12, 8, 4]])
    for width in (20_000, 10_000):
        claims = bmp(width, 2000, 8, b"\0\1", compression=1, palette=palette)
        with pytest.raises(penstock.DataLoss, match="hold"):
            one(claims, image.decode())
    moves = bmp(9, 4, 8, b"\0\2\xff\xff\5\1\0\1", compression=1, palette=palette)
    assert not one(moves, image.decode()).any()


def test_bmps_with_masks_of_32_bits():
    random = np.random.default_rng(1)
    values = random.integers(0, 1 << 32, (5, 9), np.uint32)
    rows = values.astype("<u4").tobytes()
    usual = 0xFF0000, 0xFF00, 0xFF, 0xFF000000
    as_pillow(bmp(9, 5, 32, rows))
    as_pillow(bmp(9, 5, 32, rows, compression=3, masks=usual, v4=True))
    as_pillow(bmp(9, 5, 32, rows, compression=3, masks=(*usual[2::-1], usual[3]), v4=True))
    # Pillow knows no others: three masks, and 10 bits a colour.
    plain = bmp(9, 5, 32, rows, compression=3, masks=usual[:3])
    assert np.array_equal(one(plain, image.decode()), by_pillow(bmp(9, 5, 32, rows)))
    wide = bmp(9, 5, 32, rows, compression=3, masks=(0x3FF00000, 0xFFC00, 0x3FF))
    wanted = np.stack([(values >> shift & 0x3FF) * 255 // 0x3FF for shift in (20, 10, 0)], -1)
    assert np.array_equal(one(wide, image.decode()), wanted[::-1])


def test_bmps_of_os2():
    palette = bytes(range(6))
    header = struct.pack("<I4H", 12, 10, 2, 1, 1) + palette
    rows = padded(b"\xaa\x80") + padded(b"\x0f\x00")
    begin = 14 + len(header)
    data = b"BM" + struct.pack("<I2HI", begin + len(rows), 0, 0, begin) + header + rows
    as_pillow(data)


# ---- PGM and PPM ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pgms_and_ppms_of_pillow(mode, size):
    as_pillow(encoded(Image.fromarray(picture(*size)).convert(mode), "PPM"))


@pytest.mark.parametrize("most", [1, 2, 100, 255, 256, 1000, 65535])
def test_ppms_of_every_range_as_text_and_in_binary(most):
    random = np.random.default_rng(most)
    values = random.integers(0, most + 1, (5, 8, 3))
    header = f"P6 # a comment\n8\t5\n# another\n{most}\n".encode()
    binary = header + values.astype(">u2" if most > 255 else "u1").tobytes()
    text = (
        header.replace(b"P6", b"P3")
        + "\n".join(" ".join(map(str, row)) for row in values.reshape(5, -1).tolist())
        .replace(" ", " # of a row\n", 1)
        .encode()
    )
    wanted = np.round(values / most * 255).astype(np.uint8)
    for data in (binary, binary + b"more", text, text + b"\n"):
        assert np.array_equal(one(data, image.decode()), wanted)
        assert np.array_equal(by_pillow(data), wanted)
        cut = one(data, image.decode(), image.center_crop(3, 4))
        assert np.array_equal(cut, wanted[1:4, 2:6])
    grey = values[..., 0]
    as_text = f"P2 8 5 {most} ".encode() + " ".join(map(str, grey.reshape(-1))).encode()
    as_binary = f"P5 8 5 {most} ".encode() + grey.astype(">u2" if most > 255 else "u1").tobytes()
    for data in (as_text, as_binary):
        assert np.array_equal(one(data, image.decode(channels=1))[..., 0], wanted[..., 0])


# ---- GIF -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
@pytest.mark.parametrize("size", [*SIZES, (300, 200)], ids=str)
@pytest.mark.parametrize("interlace", [0, 1])
def test_gifs_of_pillow(mode, size, interlace):
    as_pillow(encoded(Image.fromarray(picture(*size)).convert(mode), "GIF", interlace=interlace))


def test_noise_fills_the_table_of_codes():
    noise = np.random.default_rng(0).integers(0, 256, (200, 200), np.uint8)
    as_pillow(encoded(noise, "GIF"))
    as_pillow(encoded(np.zeros((200, 3000), np.uint8), "GIF"))


def test_of_an_animated_gif_the_first_frame():
    frames = [Image.fromarray(picture(30, 20, seed=i)) for i in range(3)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    as_pillow(data)
    assert np.array_equal(one(data[: len(data) // 2], image.decode()), by_pillow(data))


def gif(
    codes: bytes, *, size=(4, 2), frame=(0, 0, 4, 2), transparent=None, palette=True, least=2
) -> bytes:
    """A GIF of one frame, a palette of four colours."""
    colours = bytes([10, 20, 30, 200, 100, 50, 0, 255, 0, 9, 8, 7])
    data = b"GIF89a" + struct.pack("<2H3B", *size, 0x81 if palette else 0x11, 0, 0)
    data += colours if palette else b""
    if transparent is not None:
        data += b"\x21\xf9\x04\x01\0\0" + bytes([transparent, 0])
    data += b"\x21\xfe\x07comment\0" + b"\x2c" + struct.pack("<4HB", *frame, 0)
    return data + bytes([least, len(codes)]) + codes + b"\0\x3b"


def packed(codes: list[int], bits: int = 3) -> bytes:
    """Codes of one size, lowest bits first."""
    number = sum(code << bits * i for i, code in enumerate(codes))
    return number.to_bytes((bits * len(codes) + 7) // 8, "little")


def cleared(places: list[int]) -> bytes:
    """Codes that are cleared before they become longer: 4 clears, 5 ends."""
    codes = []
    for i in range(0, len(places), 2):
        codes += [4, *places[i : i + 2]]
    return packed([*codes, 5])


def test_frames_within_a_larger_gif():
    codes = cleared([0, 1, 2, 3, 3, 2, 1, 0])
    as_pillow(gif(codes))
    as_pillow(gif(codes, palette=False))
    for transparent in (None, 2):
        as_pillow(gif(codes, size=(9, 7), frame=(3, 2, 4, 2), transparent=transparent))
    as_pillow(gif(codes, size=(2, 1), frame=(1, 1, 4, 2)))  # beyond it


def test_damaged_gifs():
    good = cleared([0, 1, 2, 3, 3, 2, 1, 0])
    for data, says in (
        (gif(packed([4, 6])), "a code that stands for nothing"),
        (gif(packed([4, 1, 5])), "ends after 1 of 8 pixels"),
        (gif(good, least=9), "its codes begin with 9 bits"),
        (gif(good, frame=(0, 0, 0, 2)), "its frame has no pixels"),
        (gif(good, size=(65535, 65535)), "at most 178956970 are decoded"),
        (gif(good, size=(13000, 13000)), "13000 x 13000 pixels, more than its bytes can hold"),
        (gif(good, frame=(0, 0, 13000, 13000)), "more than its bytes can hold"),
        (gif(good)[:25] + b"\x3b", "it has no image"),
        (gif(good).replace(b"\x21\xfe", b"\x22\xfe"), "a block of no known kind"),
        (b"GIF88a" + gif(good)[6:], "it is of no known version"),
    ):
        with pytest.raises(penstock.DataLoss, match=f"a damaged GIF: .*{says}"):
            one(data, image.decode())


# ---- WebP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [*SIZES, (210, 150)], ids=str)
@pytest.mark.parametrize("lossless", [True, False])
def test_webps_of_pillow(mode, size, lossless):
    pixels = picture(*size, channels=4) if mode == "RGBA" else picture(*size)
    as_pillow(encoded(Image.fromarray(pixels).convert(mode), "WEBP", lossless=lossless))


def test_a_crop_of_a_webp_is_that_of_the_whole():
    for lossless in (False, True):
        data = encoded(picture(211, 167), "WEBP", lossless=lossless, quality=70)
        whole = by_pillow(data)
        for height, width in zip(range(1, 167, 9), range(4, 211, 11), strict=False):
            cut = one(data, image.decode(), image.center_crop(height, width))
            top, left = round((167 - height) / 2), round((211 - width) / 2)
            assert np.array_equal(cut, whole[top : top + height, left : left + width])


def test_of_an_animated_webp_the_first_frame():
    frames = [Image.fromarray(picture(30, 20, seed=i)) for i in range(3)]
    data = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert np.array_equal(one(data, image.decode()), picture(30, 20))
    # A frame that begins at (4, 2) of a larger image.
    at = data.index(b"ANMF") + 8
    moved = bytearray(data)
    moved[at : at + 6] = bytes([2, 0, 0, 1, 0, 0])
    canvas = data.index(b"VP8X") + 12
    moved[canvas : canvas + 6] = bytes([39, 0, 0, 29, 0, 0])
    wanted = np.zeros((30, 40, 3), np.uint8)
    wanted[2:22, 4:34] = picture(30, 20)
    assert np.array_equal(one(bytes(moved), image.decode()), wanted)
    cut = one(bytes(moved), image.decode(), image.center_crop(30, 8))
    assert np.array_equal(cut, wanted[:, 16:24])


def test_webps_that_lie_cost_no_memory():
    # 14 bits each way, in a file of a single colour.
    plain = bytearray(encoded(np.zeros((64, 64, 3), np.uint8), "WEBP", lossless=True))
    at = plain.index(b"VP8L") + 9
    header = struct.unpack("<I", plain[at : at + 4])[0] & ~0xFFFFFFF
    for side, says in ((16384, "at most 178956970"), (8000, "more than its bytes can hold")):
        plain[at : at + 4] = struct.pack("<I", header | (side - 1) << 14 | side - 1)
        with pytest.raises(penstock.DataLoss, match=f"a damaged WebP: .*{says}"):
            one(bytes(plain), image.decode())


# ---- orientation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pngs_and_webps_are_turned_as_their_orientation_says(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(picture(23, 17), kind, exif=exif, **options)
    turned = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(one(data, image.decode()), turned)
    assert np.array_equal(one(data, image.decode(exif=False)), picture(23, 17))


# ---- the readable part ---------------------------------------------------------------------------


@pytest.fixture
def truncated_by_pillow(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)


def test_of_a_cut_jpeg_what_pillow_reads(truncated_by_pillow):
    for options in ({}, {"progressive": True}, {"subsampling": 0}):
        data = encoded(picture(200, 150), quality=90, **options)
        assert np.array_equal(one(data, image.decode(partial=True)), by_pillow(data))
        scan = data.index(b"\xff\xda") + 14
        for end in range(scan, len(data), len(data) // 20):
            got = one(data[:end], image.decode(partial=True))
            assert got.shape == (150, 200, 3)
            if "progressive" not in options:
                assert np.array_equal(got, by_pillow(data[:end]))
        with pytest.raises(penstock.DataLoss):
            one(data[:end], image.decode())
    # Of a half, the upper rows are whole; the last ones are grey.
    data = encoded(picture(200, 150), quality=90)
    got = one(data[: len(data) // 2], image.decode(partial=True))
    assert np.array_equal(got[:48], by_pillow(data)[:48])
    assert np.ptp(got[-8:].astype(int)) == 0


def test_a_cut_progressive_jpeg_is_a_blurred_one():
    data = encoded(picture(200, 150), quality=90, progressive=True)
    whole = by_pillow(data).astype(int)
    errors = []
    starts = [i for i in range(len(data)) if data[i : i + 2] == b"\xff\xda"]
    for end in (*starts[1:], *(i - 5 for i in starts[1:])):  # between scans, and in a table
        got = one(data[:end], image.decode(partial=True))
        errors.append((end, np.abs(got - whole).mean()))
    errors.sort()
    assert errors[0][1] > errors[-1][1] > 0
    assert errors[-1][1] < 3


def test_of_a_cut_png_the_rows_that_are_there():
    for channels in (1, 3, 4):
        pixels = picture(80, 60, channels=channels)
        data = encoded(pixels, "PNG")
        pixels = pixels.reshape(60, 80, -1)
        counts = []
        for end in range(data.index(b"IDAT") + 12, len(data), len(data) // 50):
            got = one(data[:end], image.decode(channels=channels, partial=True))
            (filled,) = np.nonzero(got.any((1, 2)))
            rows = len(filled)
            assert np.array_equal(got[:rows], pixels[:rows])
            assert not got[rows:].any()
            counts.append(rows)
            with pytest.raises(penstock.DataLoss):
                one(data[:end], image.decode())
        assert counts == sorted(counts)
        # The rows follow the bytes: none is lost to a buffer.
        assert abs(np.array(counts) - np.linspace(0, 60, len(counts))).max() < 12
    header = data[: data.index(b"IDAT") - 4]
    with pytest.raises(penstock.DataLoss, match="a damaged PNG"):
        one(header, image.decode(partial=True))
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    with pytest.raises(penstock.DataLoss):
        one(bytes(flipped), image.decode(partial=True))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("BMP", {}),
        ("GIF", {}),
        ("PPM", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": False}),
    ],
    ids=str,
)
def test_of_other_cut_files_the_pixels_that_are_there(kind, options):
    data = encoded(picture(160, 120), kind, **options)
    whole = by_pillow(data)
    assert np.array_equal(one(data, image.decode(partial=True)), whole)
    for part in (0.3, 0.6, 0.9):
        got = one(data[: int(len(data) * part)], image.decode(partial=True))
        same = (got == whole).all(-1)
        assert part - 0.3 < same.mean() < part + 0.1, part
        assert (same | ~got.any(-1)).mean() > 0.9
        with pytest.raises(penstock.DataLoss):
            one(data[: int(len(data) * part)], image.decode())


# ---- encoding ------------------------------------------------------------------------------------


def decoded(dataset: Dataset) -> list[np.ndarray]:
    return [np.asarray(Image.open(io.BytesIO(bytes(e["image"])))) for e in dataset]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pngs_are_what_was_encoded(channels, size):
    pixels = picture(*size, channels=channels)
    (got,) = decoded(Dataset.items([{"image": pixels}]).map(image.encode("png")))
    assert np.array_equal(got, pixels)


@pytest.mark.parametrize("quality", [None, 30, 75, 100])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_are_those_of_pillow(quality, channels):
    pixels = picture(101, 75, channels=channels)
    (got,) = decoded(Dataset.items([{"image": pixels}]).map(image.encode("jpeg", quality)))
    wanted = np.asarray(Image.open(io.BytesIO(encoded(pixels, quality=quality or 90))))
    assert np.array_equal(got, wanted)


def test_encoding_ends_a_pass_and_decoding_begins_another(tmp_path):
    files = [{"image": encoded(picture(90, 70, seed=i)), "label": i} for i in range(9)]
    small = (
        Dataset.items(files)
        .map(image.decode())
        .map(image.resize(20, 30))
        .map(image.rot90())
        .map(image.random_flip(1))
        .map(image.encode("png"))
    )
    again = small.map(image.decode()).batch(3).build(workers=0)
    got = np.concatenate([batch["image"] for batch in again])
    for i, element in enumerate(small):
        pixels = by_pillow(bytes(element["image"]))
        assert np.array_equal(got[i], pixels)
        assert element["label"] == i
    assert got.shape == (9, 30, 20, 3)


@pytest.mark.parametrize(
    ("format", "quality", "says"),
    [
        ("gif", None, "format is 'gif'; give 'jpeg' or 'png'"),
        ("png", 90, "a PNG has no quality"),
        ("jpeg", 0, "quality is 0"),
        ("jpeg", 101, "quality is 101"),
        ("jpeg", "high", "quality is 'high'"),
    ],
)
def test_what_cannot_be_asked_of_encode(format, quality, says):
    with pytest.raises(penstock.InvalidArgument, match=says):
        image.encode(format, quality)


def test_what_cannot_be_encoded():
    for pixels, format, says in (
        (picture(8, 8, channels=4), "jpeg", "has 4 channels, and a JPEG has 1 or 3"),
        (np.zeros((4, 4, 5), np.uint8), "png", "has 5 channels, and a PNG has 1 to 4"),
        (np.zeros((1, 65501, 1), np.uint8), "jpeg", "is 1 x 65501, and a JPEG has at most 65500"),
        (b"bytes", "png", "encoded bytes; map image.decode"),
        (np.zeros((4, 4, 3), np.float32), "png", "float32"),
    ):
        with pytest.raises(penstock.InvalidArgument, match=says):
            one(pixels, image.encode(format))
    with pytest.raises(penstock.InvalidArgument, match=r"map it before image\.normalize"):
        one(picture(4, 4), image.normalize(0, 1), image.encode("png"))
    with pytest.raises(penstock.InvalidArgument, match="encoded bytes"):
        one(picture(4, 4), image.encode("png"), image.resize(2, 2))


def test_unused_chunks_of_a_png_do_not_turn_it():
    plain = encoded(picture(9, 6), "PNG")
    at = plain.index(b"IDAT") - 4
    for body in (b"", b"II*\0", b"MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0"):
        data = plain[:at] + chunk(b"eXIf", body) + plain[at:]
        assert np.array_equal(one(data, image.decode()), picture(9, 6))

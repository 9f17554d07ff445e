"""Operations that change pixels where they are, against Pillow, SciPy and colorsys."""

from __future__ import annotations

import colorsys
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage

import penstock
from contract import FAST, SLOW, assert_same, check_checkpoints, each, epochs, options
from image_files import mapped, one, picture
from penstock import image

FACTORS = [0.0, 0.35, 1.0, 1.7, 4.0]


def enhanced(pixels, kind, factor) -> np.ndarray:
    return np.asarray(kind(Image.fromarray(pixels)).enhance(factor))


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_brightness_contrast_and_saturation_are_pillows(factor, channels):
    pixels = picture(67, 43, seed=channels, channels=channels)
    both = (factor, factor)
    for option, kind in (
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ):
        got = one(pixels, image.color_jitter(**{option: both}))
        assert np.array_equal(got, enhanced(pixels, kind, factor)), option


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("size", [(1, 1), (2, 7), (3, 3), (67, 43)], ids=str)
def test_sharpness_is_pillows(factor, size):
    for channels in (1, 3):
        pixels = picture(*size, channels=channels).reshape(*size[::-1], channels)
        planes = pixels[..., 0] if channels == 1 else pixels
        got = one(pixels, image.sharpness(factor)).reshape(planes.shape)
        wanted = enhanced(planes, ImageEnhance.Sharpness, factor)
        if min(size) < 3:  # torchvision leaves such images as they are
            wanted = planes
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize("turn", [-0.5, -0.21, 0.0, 0.1, 0.333, 0.5])
def test_hue_is_turned_as_colorsys_says(turn):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (20, 20, 3), np.uint8)
    pixels[0, :5] = 77  # grey has no hue
    pixels[1, :3] = np.eye(3) * 255
    got = one(pixels, image.color_jitter(hue=(turn, turn)))
    for place in np.ndindex(20, 20):
        h, s, v = colorsys.rgb_to_hsv(*(pixels[place] / 255))
        wanted = np.array(colorsys.hsv_to_rgb((h + turn) % 1, s, v)) * 255
        assert np.abs(got[place] - wanted).max() <= 0.51
    assert np.array_equal(
        one(picture(9, 9, channels=1), image.color_jitter(hue=0.5)), picture(9, 9, channels=1)
    )


def test_tables_are_pillows():
    for channels in (1, 3):
        pixels = picture(61, 47, channels=channels) // 2 + 40
        shown = Image.fromarray(pixels)
        for operation, wanted in (
            (image.invert(), ImageOps.invert(shown)),
            (image.posterize(3), ImageOps.posterize(shown, 3)),
            (image.posterize(8), shown),
            (image.solarize(), ImageOps.solarize(shown)),
            (image.solarize(100), ImageOps.solarize(shown, 100)),
            (image.solarize(256), shown),
            (image.autocontrast(), ImageOps.autocontrast(shown)),
            (image.equalize(), ImageOps.equalize(shown)),
        ):
            assert np.array_equal(one(pixels, operation), np.asarray(wanted)), operation
    for value in (0, 7, 255):
        flat = np.full((5, 6, 3), value, np.uint8)
        assert np.array_equal(one(flat, image.autocontrast(), image.equalize()), flat)
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for gamma in (0.4, 1.0, 2.2):
        wanted = np.floor((255 + 1 - 1e-3) * (ramp / 255) ** gamma)
        assert np.array_equal(one(ramp, image.gamma(gamma)), wanted)
    alpha = picture(20, 20, channels=4)
    assert np.array_equal(one(alpha, image.invert())[..., 3], alpha[..., 3])


def shifted(pixels, by):
    """Keras' apply_channel_shift, with the result rounded."""
    moved = np.floor(pixels.astype(np.float64) + by + 0.5)
    return np.clip(moved, pixels.min(), pixels.max()).astype(np.uint8)


@pytest.mark.parametrize("by", [0, 13.4, -13.5, 255, -255])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_channel_shift_is_keras(by, channels):
    pixels = picture(31, 17, channels=channels) // 2 + 40
    assert np.array_equal(one(pixels, image.channel_shift((by, by))), shifted(pixels, by))


def test_a_channel_shift_leaves_alpha_and_draws_its_range_evenly():
    pixels = np.full((4, 4, 4), 128, np.uint8)
    pixels[0, 0] = 0
    pixels[0, 1, :3] = 255
    shift = image.compose([image.channel_shift(60)])
    drawn = np.array([shift(pixels, index=i)[2, 2, 0] for i in range(400)]) - 128.0
    assert np.array_equal(shift(pixels)[..., 3], pixels[..., 3])
    assert -60 <= drawn.min() < -50
    assert 50 < drawn.max() <= 60
    assert abs(drawn.mean()) < 8


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (64, 48)], ids=str)
@pytest.mark.parametrize(("kernel", "sigma"), [(1, 1.0), (3, 0.7), (5, 0.1), (9, 2.5), (23, 9.0)])
def test_a_blur_is_scipys_within_one(size, kernel, sigma):
    pixels = picture(*size, channels=3)
    got = one(pixels, image.gaussian_blur(kernel, sigma))
    weights = np.exp(-0.5 * (np.arange(-(kernel // 2), kernel // 2 + 1) / sigma) ** 2)
    weights /= weights.sum()
    wanted = pixels.astype(np.float64)
    for axis in (0, 1):
        wanted = ndimage.correlate1d(wanted, weights, axis, mode="mirror")
    assert np.abs(got - wanted).max() <= 1


def test_a_jitter_draws_each_factor_and_order_evenly():
    pixels = np.full((2, 2, 3), 100, np.uint8)
    pixels[0, 0] = 0
    bright = [int(g[1, 1, 0]) for g in mapped([pixels] * 500, image.color_jitter(brightness=0.3))]
    assert min(bright) in (70, 71)
    assert max(bright) in (129, 128, 130)
    assert abs(np.mean(bright) - 99.5) < 3
    # Brightness and contrast do not commute: both orders come equally often.
    both = image.color_jitter(brightness=(2, 2), contrast=(0.5, 0.5))
    made = [g.tobytes() for g in mapped([pixels] * 400, both)]
    first = enhanced(enhanced(pixels, ImageEnhance.Brightness, 2), ImageEnhance.Contrast, 0.5)
    second = enhanced(enhanced(pixels, ImageEnhance.Contrast, 0.5), ImageEnhance.Brightness, 2)
    assert set(made) == {first.tobytes(), second.tobytes()}
    assert 140 < made.count(first.tobytes()) < 260


def test_probabilities():
    pixels = picture(8, 8)
    for operation in (image.invert(0.25), image.solarize(0, p=0.25), image.posterize(1, p=0.25)):
        changed = [not np.array_equal(g, pixels) for g in mapped([pixels] * 600, operation)]
        assert 0.17 < np.mean(changed) < 0.33


def test_an_erased_box_has_the_area_and_the_ratio():
    pixels = np.full((60, 90, 3), 9, np.uint8)
    areas, ratios, kept = [], [], 0
    for made in mapped([pixels] * 500, image.erase(0.8, (0.05, 0.2), (0.5, 2), 200)):
        rows = np.flatnonzero((made == 200).all(2).any(1))
        columns = np.flatnonzero((made == 200).all(2).any(0))
        if len(rows) == 0:
            kept += 1
            continue
        wanted = pixels.copy()
        wanted[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = 200
        assert np.array_equal(made, wanted)
        areas.append(len(rows) * len(columns) / 5400)
        ratios.append(len(rows) / len(columns))
    assert 60 < kept < 140
    assert 0.04 < min(areas) < 0.07
    assert 0.18 < max(areas) < 0.22
    assert abs(np.mean(areas) - 0.125) < 0.01
    assert 0.45 < min(ratios) < 0.6
    assert 1.7 < max(ratios) < 2.2
    assert abs(np.log(ratios).mean()) < 0.1
    small = picture(1, 1)  # no box fits
    assert np.array_equal(one(small, image.erase(1)), small)


def test_rand_augment_draws_each_operation():
    pixels = np.ascontiguousarray(picture(64, 64) // 3 + 60)
    shown = Image.fromarray(pixels)
    seen = {g.tobytes() for g in mapped([pixels] * 500, image.rand_augment(1, 9))}
    strength = 0.3

    def affine(*data):
        return shown.transform((64, 64), Image.Transform.AFFINE, data)

    move = int(150 / 331 * 64 * strength)
    known = [shown, ImageOps.autocontrast(shown), ImageOps.equalize(shown)]
    known += [ImageOps.posterize(shown, 7), ImageOps.solarize(shown, 179)]
    for sign in (-1, 1):
        for kind in ("Brightness", "Color", "Contrast", "Sharpness"):
            known.append(getattr(ImageEnhance, kind)(shown).enhance(1 + sign * 0.9 * strength))
        known.append(affine(1, 0, sign * move, 0, 1, 0))
        known.append(affine(1, 0, 0, 0, 1, sign * move))
    missing = [i for i, made in enumerate(known) if np.asarray(made).tobytes() not in seen]
    assert missing == []
    # The others: shears and turns of both signs.
    assert len(seen) == len({np.asarray(made).tobytes() for made in known}) + 6


def test_a_stronger_rand_augment_changes_more():
    pixels = picture(64, 64)
    changes = [
        np.mean([np.abs(g.astype(int) - pixels).mean() for g in mapped([pixels] * 200, each)])
        for each in (image.rand_augment(2, 0), image.rand_augment(2, 9), image.rand_augment(2, 30))
    ]
    assert changes[0] < changes[1] < changes[2]


# ---- batches -------------------------------------------------------------------------------------


def batches(count, of, operation, labels=None, channels=3):
    pixels = np.stack([picture(12, 10, seed=i, channels=channels) for i in range(count)])
    labels = np.arange(count) % 5 if labels is None else labels
    data = {"image": of(pixels), "label": labels, "n": np.arange(count)}
    return data, next(iter(penstock.Dataset.arrays(data).batch(count).map(operation)))


@pytest.mark.parametrize("of", [np.asarray, np.float32], ids=["uint8", "float32"])
def test_mixup_mixes_images_and_labels_in_one_proportion(of):
    data, got = batches(7, of, image.mixup(0.8, num_classes=5))
    share = got["label"][0, 0]
    assert 0 < share < 1
    hot = np.eye(5, dtype=np.float32)[data["label"]]
    assert np.allclose(got["label"], hot * share + np.roll(hot, 1, 0) * (1 - share), atol=1e-6)
    before = np.roll(data["image"], 1, 0).astype(np.float64)
    wanted = data["image"] * np.float64(share) + before * (1 - np.float64(share))
    assert got["image"].dtype == data["image"].dtype
    assert np.abs(got["image"] - wanted).max() <= (0.51 if got["image"].dtype == np.uint8 else 1e-3)
    assert np.array_equal(got["n"], np.arange(7))


@pytest.mark.parametrize("first", [False, True], ids=["hwc", "chw"])
def test_cutmix_puts_a_box_of_the_image_before(first):
    def of(pixels):
        return np.ascontiguousarray(np.moveaxis(pixels, -1, 1)) if first else pixels

    boxes = 0
    pixels = np.stack([picture(12, 10, seed=i) for i in range(40)])
    hot = np.random.default_rng(0).random((40, 3), np.float32)
    data = {"image": of(pixels), "label": hot}
    operation = image.cutmix(channels_first=first)
    for batch in penstock.Dataset.arrays(data).batch(4).map(operation).repeat(5):
        made = np.moveaxis(batch["image"], 1, -1) if first else batch["image"]
        found = [
            i for i in range(0, 40, 4) if np.array_equal(made[:, 0, 0], pixels[i : i + 4, 0, 0])
        ]
        start = found[0] if found else None
        if start is None:
            continue  # the corner is of the other image
        own = pixels[start : start + 4]
        other = np.roll(own, 1, 0)
        inside = (made != own).any((0, 3))
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        wanted = own.copy()
        if len(rows):
            box = np.s_[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            wanted[box] = other[box]
            boxes += 1
        assert np.array_equal(made, wanted)
        share = 1 - len(rows) * len(columns) / 120
        mine = hot[start : start + 4]
        assert np.allclose(
            batch["label"], mine * share + np.roll(mine, 1, 0) * (1 - share), atol=1e-6
        )
    assert boxes > 10


@pytest.mark.parametrize("alpha", [0.05, 0.4, 1.0, 5.0])
def test_proportions_are_of_a_beta_distribution(alpha):
    count = 1500
    data = {"image": np.zeros((2 * count, 1, 1), np.uint8), "label": np.tile([0, 1], count)}
    mixed = penstock.Dataset.arrays(data).batch(2).map(image.mixup(alpha, num_classes=2))
    shares = np.array([batch["label"][0, 0] for batch in mixed])
    assert abs(shares.mean() - 0.5) < 0.04
    assert abs(shares.var() / (0.25 / (2 * alpha + 1)) - 1) < 0.1


def test_one_image_is_mixed_with_itself():
    data, got = batches(1, np.asarray, image.mixup(num_classes=5))
    assert np.array_equal(got["image"], data["image"])
    assert np.allclose(got["label"], [[1, 0, 0, 0, 0]])
    _, got = batches(3, np.asarray, image.cutmix(num_classes=5), channels=1)
    assert got["image"].shape == (3, 10, 12)


# ---- chains --------------------------------------------------------------------------------------


def augmented():
    pixels = np.stack([picture(40, 32, seed=i) for i in range(30)])
    return (
        penstock.Dataset.arrays({"image": pixels, "label": np.arange(30) % 7})
        .shuffle(seed=3)
        .map(image.perspective(0.4))
        .map(image.color_jitter(0.3, 0.3, 0.3, 0.1))
        .map(image.rand_augment(2, 12))
        .map(image.gaussian_blur(5))
        .map(image.equalize(0.3))
        .map(image.channel_shift(20))
        .map(image.erase())
        .map(image.normalize(100, 50))
        .batch(7)
        .map(image.mixup(0.5, num_classes=7))
        .map(image.cutmix(0.5))
    )


@each(FAST, SLOW)
def test_the_same_bits_for_any_workers(mode):
    with augmented().build(workers=0) as feed:
        wanted = epochs(feed, 2)
    with augmented().build(**options(mode)) as feed:
        assert_same(epochs(feed, 2), wanted)


def test_it_restarts_anywhere():
    check_checkpoints(lambda **more: augmented().build(**more))


def test_pixels_are_edited_where_they_are_and_never_the_users():
    pixels = picture(30, 20)
    kept = pixels.copy()
    got = one(pixels, image.invert(), image.invert())
    assert np.array_equal(got, pixels)
    cut = one(pixels, image.invert(), image.center_crop(10, 12), image.invert(), image.rot90())
    assert np.array_equal(cut, np.rot90(pixels[5:15, 9:21]))
    moved = one(pixels, image.random_affine((180, 180)), image.invert())
    assert np.array_equal(moved, 255 - pixels[::-1, ::-1])
    assert np.array_equal(pixels, kept)
    flat = penstock.Dataset.arrays({"image": pixels[None]}).map(image.solarize(0))
    assert np.array_equal(next(iter(flat))["image"], 255 - pixels)
    assert np.array_equal(pixels, kept)


def test_operations_travel():
    import pickle

    for operation in (
        image.color_jitter(0.1, (0.2, 0.3), hue=0.1),
        image.posterize(3, 0.5),
        image.channel_shift((-3, 4)),
        image.rand_augment(3, 4, "reflect"),
        image.gaussian_blur(3, 0.5, fields="x"),
        image.erase(value=3),
        image.mixup(0.3, num_classes=4, labels="y"),
        image.cutmix(channels_first=True),
        image.perspective(),
    ):
        assert repr(pickle.loads(pickle.dumps(operation))) == repr(operation)
    assert repr(image.invert()) == "image.invert()"
    assert repr(image.invert(0.5)) == "image.invert(p=0.5)"


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: image.color_jitter(-1), "brightness is -1"),
        (lambda: image.color_jitter(contrast=(2, 1)), r"contrast is \(2, 1\)"),
        (lambda: image.color_jitter(saturation=(-1, 1)), r"saturation is \(-1, 1\)"),
        (lambda: image.color_jitter(hue=0.6), r"hue is \(-0.6, 0.6\)"),
        (lambda: image.color_jitter(hue="x"), "hue is 'x'"),
        (lambda: image.invert(2), "p is 2"),
        (lambda: image.posterize(9), "bits is 9"),
        (lambda: image.solarize(300), "threshold is 300"),
        (lambda: image.equalize(float("nan")), "p is nan"),
        (lambda: image.sharpness(-1), "factor is -1"),
        (lambda: image.gamma(-0.1), "gamma is -0.1"),
        (lambda: image.channel_shift(-1), "shift is -1"),
        (lambda: image.channel_shift(300), r"shift is \(-300, 300\)"),
        (lambda: image.gaussian_blur(4), "kernel_size is 4; give an odd number"),
        (lambda: image.gaussian_blur(3, 0), r"sigma is \(0, 0\)"),
        (lambda: image.gaussian_blur(3, (2, 1)), r"sigma is \(2, 1\)"),
        (lambda: image.rand_augment(0), "n is 0"),
        (lambda: image.rand_augment(2, 31), "m is 31"),
        (lambda: image.rand_augment(fill="edge"), "fill is 'edge'"),
        (lambda: image.erase(scale=(0, 1)), r"scale is \(0, 1\)"),
        (lambda: image.erase(scale=(0.5, 2)), "at most 1"),
        (lambda: image.erase(ratio=(2, 1)), r"ratio is \(2, 1\)"),
        (lambda: image.perspective(1.5), "distortion is 1.5"),
        (lambda: image.perspective(p=-1), "p is -1"),
        (lambda: image.mixup(0), "alpha is 0"),
        (lambda: image.mixup(num_classes=0), "num_classes is 0"),
        (lambda: image.cutmix(labels=3), "labels is 3"),
        (lambda: image.cutmix(channels_first=1), "channels_first is 1"),
    ],
)
def test_arguments_that_cannot_be(make, says):
    with pytest.raises(penstock.InvalidArgument, match=says):
        make()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: image.mixup(), "are integers; give num_classes"),
        (lambda: image.mixup(num_classes=3), "label 3 of image 3 is not in 0 to 2"),
        (lambda: image.mixup(num_classes=9, labels="y"), "no field 'y'"),
        (lambda: image.cutmix(num_classes=9, fields="picture"), "no field 'picture'"),
        (lambda: image.cutmix(labels="image"), "the labels 'image' are uint8"),
    ],
)
def test_batches_that_cannot_be_mixed(make, says):
    with pytest.raises(penstock.InvalidArgument, match=says):
        batches(7, np.asarray, make())


def test_images_that_are_refused():
    floats = picture(9, 9).astype(np.float32)
    for operation in (
        image.invert(),
        image.gaussian_blur(3),
        image.resize(4, 4),
        image.grayscale(),
    ):
        with pytest.raises(penstock.InvalidArgument, match="float32; it is for uint8"):
            one(floats, operation)
    five = np.zeros((4, 4, 5), np.uint8)
    with pytest.raises(penstock.InvalidArgument, match="has 5 channels; give 1 to 4"):
        one(five, image.color_jitter(0.1))
    with pytest.raises(penstock.InvalidArgument, match=r"map it behind batch\(\)"):
        data = {"image": floats[None], "label": np.zeros((1, 3), np.float32)}
        list(penstock.Dataset.arrays(data).map(image.mixup()))


def test_the_contact_sheet_has_a_row_for_each_operation(tmp_path):
    Image.fromarray(picture(160, 140)).save(tmp_path / "photograph.jpg")
    program = Path(__file__).resolve().parents[2] / "examples" / "contact_sheet.py"
    subprocess.run(
        [sys.executable, program, tmp_path / "sheet.png", tmp_path / "photograph.jpg"],
        check=True,
        timeout=120,
    )
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape[2] == 3
    text = program.read_text()
    undrawn = [name for name in image.__all__ if f"image.{name}(" not in text]
    assert undrawn == ["encode", "normalize", "parameters", "sanitize_boxes", "to_chw"]

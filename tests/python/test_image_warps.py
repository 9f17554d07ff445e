"""Operations that move pixels, against SciPy and Pillow."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

import penstock
from contract import FAST, SLOW, assert_same, check_checkpoints, each, epochs, options
from image_files import encoded, mapped, one, picture
from penstock import image

SIZES = [(1, 1), (2, 9), (9, 1), (28, 28), (61, 40), (224, 224)]
FILLS = ["nearest", "constant", "reflect", "wrap", 77]


def turned(degrees=0.0, scale=1.0, shear=(0.0, 0.0)) -> np.ndarray:
    """Where a pixel (x, y) of the result is in the image, relative to the centre.

    The forward map of torchvision shears along x, along y, turns and magnifies; this is its
    inverse.
    """
    angle, x, y = np.deg2rad([degrees, *shear])
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    along_x = np.array([[1, -np.tan(x)], [0, 1]])
    along_y = np.array([[1, 0], [-np.tan(y), 1]])
    return np.linalg.inv(turn @ along_y @ along_x @ np.diag(np.broadcast_to(scale, 2)))


def by_scipy(pixels, inverse, fill, order=1, move=(0, 0)) -> np.ndarray:
    """`inverse` maps (x, y) around the centre; SciPy counts (row, column) from the corner."""
    matrix = inverse[::-1, ::-1]
    centre = (np.array(pixels.shape[:2]) - 1) / 2
    offset = centre - matrix @ (centre + np.array(move)[::-1])
    mode, value = (fill, 0) if isinstance(fill, str) else ("constant", fill)
    planes = [
        ndimage.affine_transform(
            pixels[..., c].astype(np.float64), matrix, offset, order=order, mode=mode, cval=value
        )
        for c in range(pixels.shape[2])
    ]
    return np.stack(planes, -1)


def exactly(degrees=0.0, scale=1.0, shear=(0.0, 0.0), **more):
    """The operation whose ranges have one value."""
    both = [shear[0], shear[0], shear[1], shear[1]]
    sizes = np.repeat(scale, 2)  # of one number, or of x and y
    return image.random_affine((degrees, degrees), (0, 0), sizes, both, **more)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_an_affine_map_is_scipys_within_one(fill, size):
    for channels in (1, 3, 4, 5):
        pixels = picture(*size, seed=channels, channels=channels).reshape(*size[::-1], channels)
        for arguments in (
            {"degrees": 17.3},
            {"degrees": -130, "scale": 0.41},
            {"degrees": 4, "scale": 3.7, "shear": (13, 0)},
            {"degrees": 211, "scale": (0.6, 1.4), "shear": (-31, 22)},
        ):
            got = one(pixels, exactly(**arguments, fill=fill))
            wanted = by_scipy(pixels, turned(**arguments), fill)
            assert np.abs(got - wanted).max() <= 1


@pytest.mark.parametrize("fill", FILLS)
def test_the_nearest_pixel_is_scipys(fill):
    pixels = picture(61, 40)
    arguments = {"degrees": 33.1, "scale": 0.53, "shear": (7, -5)}
    got = one(pixels, exactly(**arguments, fill=fill, interpolation="nearest"))
    wanted = by_scipy(pixels, turned(**arguments), fill, order=0)
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("fill", [*FILLS, -0.5])
def test_float32_is_scipys(fill, channels):
    pixels = picture(61, 40, channels=channels).reshape(40, 61, channels).astype(np.float32) / 255
    arguments = {"degrees": 33.1, "scale": 0.53, "shear": (7, -5)}
    got = one(pixels, exactly(**arguments, fill=fill))
    assert got.dtype == np.float32
    assert np.abs(got - by_scipy(pixels, turned(**arguments), fill)).max() < 1e-5
    nearest = one(pixels, exactly(**arguments, fill=fill, interpolation="nearest"))
    assert np.array_equal(nearest, by_scipy(pixels, turned(**arguments), fill, 0).astype("f4"))


def test_float32_goes_through_every_operation_that_moves_pixels():
    pixels = picture(61, 40)
    operations = [
        image.random_flip(1.0),
        image.pad(3, 7),
        image.rot90(),
        image.random_crop(40, 30),
        image.erase(1.0, value=5),
        image.center_crop(33, 21),
        image.random_flip(0.0, 1.0),
    ]
    wanted = one(pixels, *operations)
    got = one(pixels.astype(np.float32), *operations)
    assert got.dtype == np.float32
    assert np.array_equal(got, wanted)
    last = [image.normalize((1, 2, 3), (4, 5, 6)), image.to_chw()]
    assert np.array_equal(
        one(pixels.astype(np.float32), *operations, *last), one(pixels, *operations, *last)
    )
    assert np.array_equal(one(pixels / np.float32(2), last[1])[2], pixels[..., 2] / np.float32(2))
    grey = picture(20, 10, channels=1).astype(np.float32)
    assert np.array_equal(one(grey, image.rot90()), np.rot90(grey))


def by_pillow_perspective(pixels, corners) -> np.ndarray:
    """The image whose corners lie at these pixels (x, y), clockwise from the upper left."""
    height, width = pixels.shape[:2]
    right, bottom = width - 1, height - 1
    rows, values = [], []
    for (u, v), (x, y) in zip(
        corners, [(0, 0), (right, 0), (right, bottom), (0, bottom)], strict=True
    ):
        # Pillow counts from the corner of a pixel, and not from its centre.
        u, v, x, y = (each + 0.5 for each in (u, v, x, y))
        rows += [[u, v, 1, 0, 0, 0, -x * u, -x * v], [0, 0, 0, u, v, 1, -y * u, -y * v]]
        values += [x, y]
    data = np.linalg.solve(np.array(rows, float), np.array(values, float))
    return np.asarray(
        Image.fromarray(pixels).transform(
            (width, height), Image.Transform.PERSPECTIVE, data, Image.Resampling.BILINEAR
        )
    )


def test_a_perspective_is_pillows_within_one():
    # Slopes tell where a corner was moved: an edge pixel is 1 or more, and what is beyond is 0.
    pixels = np.maximum(picture(64, 48), 20)
    moved = 0
    seen = set()
    for made in mapped([pixels] * 60, image.perspective(0.4, 1.0)):
        found = []
        for x, y in ((0, 0), (63, 0), (63, 47), (0, 47)):
            places = [
                (u, v)
                for u in range(64)
                for v in range(48)
                if abs(u - x) <= 12 and abs(v - y) <= 9 and np.array_equal(made[v, u], pixels[y, x])
            ]
            found.append(places)
        if not all(len(places) == 1 for places in found):
            continue  # another pixel has the corner's colour, or it was blended
        moved += 1
        corners = [places[0] for places in found]
        seen.update(corners[0:1])
        wanted = by_pillow_perspective(pixels, corners).astype(int)
        inside = (by_pillow_perspective(np.full_like(pixels, 255), corners) == 255).all(2)
        inner = ndimage.binary_erosion(inside, iterations=2)
        assert np.abs(made.astype(int) - wanted)[inner].max() <= 1
        assert (made[~ndimage.binary_dilation(inside, iterations=1)] == 0).all()
    assert moved >= 10
    assert len(seen) >= 8


def test_a_perspective_comes_as_often_as_asked():
    pixels = picture(20, 20)
    same = [np.array_equal(g, pixels) for g in mapped([pixels] * 400, image.perspective(0.8, 0.3))]
    assert 0.6 < np.mean(same) < 0.8
    assert np.array_equal(one(pixels, image.perspective(0, 1.0)), pixels)
    for size in [(1, 1), (2, 2), (1, 9), (3, 3)]:  # the corners may meet
        for fill in (9, "wrap"):
            made = mapped([picture(*size)] * 50, image.perspective(1.0, 1.0, fill))
            assert all(each.shape == (*size[::-1], 3) for each in made)


@pytest.mark.parametrize("degrees", [-33, 12.5, 90, 180])
def test_the_inside_is_pillows_within_one(degrees):
    pixels = picture(224, 160)
    inverse = turned(degrees, 1.2)
    centre = np.array([112, 80])
    offset = centre - inverse @ centre
    data = [*inverse[0], offset[0], *inverse[1], offset[1]]
    wanted = Image.fromarray(pixels).transform(
        (224, 160), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR
    )
    inside = by_scipy(np.full((160, 224, 1), 200), inverse, "constant")[..., 0] == 200
    got = one(pixels, exactly(degrees, 1.2))
    # Pillow cuts fractions off.
    assert np.abs(got.astype(int) - np.asarray(wanted))[inside].max() <= 1
    assert inside.mean() > 0.4


def test_quarters_and_nothing_are_exact():
    pixels = picture(41, 41)
    for quarters in range(-4, 5):
        got = one(pixels, exactly(90.0 * quarters, fill=0))
        assert np.array_equal(got, np.rot90(pixels, -quarters))  # clockwise
    wide = picture(50, 31)
    assert np.array_equal(one(wide, image.random_affine()), wide)
    assert np.array_equal(one(wide, exactly(180, fill="constant")), wide[::-1, ::-1])


def test_ranges_are_covered_evenly_and_moves_are_whole_pixels():
    height, width = 31, 61
    slope = np.zeros((height, width, 3), np.uint8)
    slope[..., 0] = np.arange(width) * 4
    slope[..., 1] = np.arange(height)[:, None] * 8
    middle = (height // 2, width // 2)
    moves = np.array(
        [
            (each[middle][:2] / [4, 8]).tolist()
            for each in mapped([slope] * 600, image.random_affine(translate=(0.2, 0.1)))
        ]
    )
    moves -= middle[::-1]
    assert np.array_equal(moves, np.round(moves))
    assert set(moves[:, 0]) == set(range(-12, 13))
    assert set(moves[:, 1]) == set(range(-3, 4))
    assert abs(np.corrcoef(moves.T)[0, 1]) < 0.15

    scales, angles, shears = [], [], []
    for made in mapped(
        [slope] * 600, image.random_affine((10, 20), scale=(1.5, 2.5), shear=(-8, 4))
    ):
        part = made[10:20, 20:40].astype(float) / [4, 8, 1]
        right = np.diff(part, axis=1).mean((0, 1))[:2]
        down = np.diff(part, axis=0).mean((0, 1))[:2]
        forward = np.linalg.inv(np.stack([right, down], 1))
        angle = np.arctan2(forward[1, 0], forward[0, 0])
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        rest = np.linalg.inv(turn) @ forward
        angles.append(np.rad2deg(angle))
        scales.append(rest[1, 1])
        shears.append(np.rad2deg(np.arctan(-rest[0, 1] / rest[1, 1])))
    both = mapped([slope] * 200, image.random_affine(scale=(1.5, 2.5, 3, 4)))
    across = [20 / (np.diff(g[15, 20:41, 0].astype(float)).sum() / 4) for g in both]
    down = [10 / (np.diff(g[10:21, 30, 1].astype(float)).sum() / 8) for g in both]
    assert 1.4 < min(across) < 1.6
    assert 2.4 < max(across) < 2.7
    assert 2.6 < min(down) < 3.2
    assert 3.7 < max(down) < 4.6
    assert abs(np.corrcoef(across, down)[0, 1]) < 0.3
    for values, least, most in ((angles, 10, 20), (scales, 1.5, 2.5), (shears, -8, 4)):
        spread = (most - least) / 10
        assert least - spread < min(values) < least + spread
        assert most - spread < max(values) < most + spread
        assert abs(np.mean(values) - (least + most) / 2) < spread


def test_operations_behind_a_map_are_one_pass_with_it():
    pixels = picture(90, 70)
    affine = exactly(20, 0.8, fill="reflect")
    whole = one(pixels, affine)
    cut = one(pixels, affine, image.center_crop(40, 50), image.random_flip(1.0, 1.0))
    assert np.array_equal(cut, whole[15:55, 20:70][::-1, ::-1])
    floats = one(pixels, affine, image.normalize((1, 2, 3), (4, 5, 6)), image.to_chw())
    wanted = (whole - np.float32([1, 2, 3])) / np.float32([4, 5, 6])
    assert np.array_equal(floats, np.moveaxis(wanted, -1, 0))
    for before in (image.random_flip(1.0), image.resize(33, 44), image.center_crop(21, 22)):
        assert np.array_equal(one(pixels, before, affine), one(one(pixels, before), affine))
    assert np.array_equal(one(pixels, affine, affine), one(whole, affine))
    assert np.array_equal(one(pixels, affine, image.rot90()), np.rot90(whole))
    data = encoded(pixels, "PNG")
    assert np.array_equal(one(data, image.decode(), affine), whole)


# ---- chains --------------------------------------------------------------------------------------


def augmented():
    pixels = np.stack([picture(40, 32, seed=i) for i in range(30)])
    return (
        penstock.Dataset.arrays({"image": pixels, "n": np.arange(30)})
        .shuffle(seed=3)
        .map(image.random_affine(20, (0.1, 0.1), (0.8, 1.2), 10, fill="reflect"))
        .map(image.random_flip())
        .map(image.normalize(100, 50))
        .batch(7)
    )


@each(FAST, SLOW)
def test_the_same_bits_for_any_workers(mode):
    with augmented().build(workers=0) as feed:
        wanted = epochs(feed, 2)
    with augmented().build(**options(mode)) as feed:
        assert_same(epochs(feed, 2), wanted)
    assert not np.array_equal(wanted[0][0]["image"], wanted[1][0]["image"])


def test_it_restarts_anywhere():
    check_checkpoints(lambda **more: augmented().build(**more))


def test_a_composition_gives_what_a_dataset_gives():
    operations = [image.random_affine(30), image.random_crop(20, 20), image.random_flip()]
    pixels = picture(30, 30)
    dataset = penstock.Dataset.source([{"image": pixels}] * 5)
    for operation in operations:
        dataset = dataset.map(operation)
    together = image.compose(operations)
    with dataset.build(workers=0, seed=5) as feed:
        for epoch in range(3):
            for index, element in enumerate(feed):
                got = together(pixels, seed=5, epoch=epoch, index=index)
                assert np.array_equal(got, element["image"])
    assert together(pixels, index=1 << 40).shape == (20, 20, 3)
    assert np.array_equal(image.compose([image.decode()])(encoded(pixels, "PNG")), pixels)
    both = image.compose([image.rot90(fields=["image", "mask"])])(
        {"image": pixels, "mask": pixels[..., 0], "n": 3}
    )
    assert np.array_equal(both["mask"], np.rot90(pixels[..., 0]))
    assert both["n"] == 3
    assert repr(together).startswith("image.compose([image.random_affine(")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: image.random_affine("20"), "degrees is '20'"),
        (lambda: image.random_affine(-3), "degrees is -3; give 0 or more"),
        (lambda: image.random_affine((20, 10)), r"degrees is \(20, 10\); give two ascending"),
        (lambda: image.random_affine((0, 1, 2)), "give 1 or 2 numbers"),
        (lambda: image.random_affine(float("nan")), "degrees is"),
        (lambda: image.random_affine(400), "from -360 to 360"),
        (lambda: image.random_affine(translate=(0.5, 1.5)), r"translate is \(0.5, 1.5\)"),
        (lambda: image.random_affine(translate=0.5), "translate is 0.5"),
        (lambda: image.random_affine(scale=(0, 1)), r"scale is \(0, 1\)"),
        (lambda: image.random_affine(scale=(1, 1, 1)), "give 2 or 4 numbers"),
        (lambda: image.random_affine(scale=(1, 1, 2, 1)), r"scale is \(2, 1\)"),
        (lambda: image.random_affine(scale=(2, 1)), r"scale is \(2, 1\)"),
        (lambda: image.random_affine(shear=(1, 2, 3)), "give 1 or 2 or 4 numbers"),
        (lambda: image.random_affine(shear=85), r"shear is \(-85, 85\)"),
        (lambda: image.random_affine(fill="mirror"), "fill is 'mirror'; there are nearest"),
        (lambda: image.random_affine(fill=None), "fill is None"),
        (lambda: image.random_affine(fill=float("inf")), "fill is inf"),
        (lambda: image.random_affine(interpolation="cubic"), "interpolation is 'cubic'"),
        (lambda: image.compose(3), "operations is 3"),
        (lambda: image.compose([len]), "is no operation"),
        (lambda: image.compose([])(picture(3, 3), index=-1), "index is -1"),
        (lambda: image.compose([])(picture(3, 3), epoch=0.5), "epoch is 0.5"),
    ],
)
def test_arguments_that_cannot_be(make, says):
    with pytest.raises(penstock.InvalidArgument, match=says):
        make()


def test_a_map_comes_before_normalize():
    with pytest.raises(penstock.InvalidArgument, match=r"before image.normalize"):
        one(picture(9, 9), image.normalize(1, 1), image.random_affine(3))

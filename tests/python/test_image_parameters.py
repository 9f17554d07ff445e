"""penstock.image.parameters: the numbers that an operation draws, for the device to apply."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, check_checkpoints, each
from image_files import encoded, picture
from penstock import Dataset, image

COUNT, HEIGHT, WIDTH = 40, 30, 36
PIXELS = [picture(WIDTH, HEIGHT, seed=i) for i in range(COUNT)]


def elements() -> Dataset:
    return Dataset.items([{"image": each, "label": i} for i, each in enumerate(PIXELS)])


def both(operation, mode=INLINE):
    """Elements with the images as they were, their parameters, and what the operation makes."""
    options = {**mode.options, "seed": 3}
    with elements().map(image.parameters(operation, "drawn")).build(**options) as feed:
        given = [(np.array(each["image"]), np.array(each["drawn"])) for each in feed]
    with elements().map(operation).build(**options) as feed:
        made = [np.array(each["image"]) for each in feed]
    for (pixels, drawn), original in zip(given, PIXELS, strict=True):
        assert np.array_equal(pixels, original)
        assert drawn.dtype == np.float32
    return [(pixels, drawn, result) for (pixels, drawn), result in zip(given, made, strict=True)]


@each(KINDS, ())
def test_flips_are_those_of_the_operation(mode):
    seen = set()
    for pixels, (horizontal, vertical), made in both(image.random_flip(0.5, 0.3), mode):
        pixels = pixels[:, ::-1] if horizontal else pixels
        pixels = pixels[::-1] if vertical else pixels
        assert np.array_equal(made, pixels)
        seen.add((float(horizontal), float(vertical)))
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_boxes_of_crops_and_of_erase():
    boxes = set()
    for pixels, box, made in both(image.random_crop(20, 25)):
        x, y, width, height = map(int, box)
        assert np.array_equal(made, pixels[y : y + height, x : x + width])
        boxes.add((x, y))
    assert len(boxes) > 20
    for pixels, box, made in both(image.random_resized_crop(12, 14)):
        x, y, width, height = map(int, box)
        cut = np.ascontiguousarray(pixels[y : y + height, x : x + width])
        assert np.array_equal(made, image.compose([image.resize(12, 14)])(cut))
    erased = 0
    for pixels, box, made in both(image.erase(p=0.5, value=7)):
        x, y, width, height = map(int, box)
        wanted = pixels.copy()
        wanted[y : y + height, x : x + width] = 7
        assert np.array_equal(made, wanted)
        erased += width > 0
    assert 5 < erased < COUNT - 5


def test_maps_tell_where_each_pixel_comes_from():
    affine = image.random_affine(25, (0.2, 0.1), (0.8, 1.3), 10, fill=0, interpolation="nearest")
    perspective = image.perspective(0.4, 0.7, fill=0, interpolation="nearest")
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    for operation in (affine, perspective):
        unmoved = 0
        for pixels, drawn, made in both(operation):
            a, b, c, d, e, f, g, h = [*drawn.astype(np.float64), 0, 0][:8]
            below = g * x + h * y + 1
            u, v = (a * x + b * y + c) / below, (d * x + e * y + f) / below
            inside = (u > 0) & (u < WIDTH - 1) & (v > 0) & (v < HEIGHT - 1)
            at = np.rint(v[inside]).astype(int), np.rint(u[inside]).astype(int)
            # Rounding of float32 chooses another pixel now and then.
            assert (made[inside] == pixels[at]).all(-1).mean() > 0.99
            unmoved += np.array_equal(made, pixels)
        assert unmoved < COUNT / 2


def test_factors_of_colours_and_sigma():
    chains = {
        0: lambda factor: image.color_jitter(brightness=(factor, factor)),
        1: lambda factor: image.color_jitter(contrast=(factor, factor)),
        2: lambda factor: image.color_jitter(saturation=(factor, factor)),
        3: lambda turn: image.color_jitter(hue=(turn, turn)),
    }
    orders = set()
    for pixels, drawn, made in both(image.color_jitter(0.4, 0.4, 0.4, 0.2)):
        order = drawn[4:].astype(int).tolist()
        assert sorted(order) == [0, 1, 2, 3]
        orders.add(tuple(order))
        wanted = image.compose([chains[each](float(drawn[each])) for each in order])(pixels)
        assert np.abs(made.astype(int) - wanted).max() <= 1  # float32 of the factors
    assert len(orders) > 10
    for pixels, (sigma,), made in both(image.gaussian_blur(5, (0.5, 2))):
        wanted = image.compose([image.gaussian_blur(5, (float(sigma), float(sigma)))])(pixels)
        assert np.abs(made.astype(int) - wanted).max() <= 1
        assert 0.5 <= sigma <= 2
    for pixels, (by,), made in both(image.channel_shift(30)):
        wanted = image.compose([image.channel_shift((float(by), float(by)))])(pixels)
        assert np.array_equal(made, wanted)


def test_a_batch_has_an_array_and_states_are_exact():
    def chain() -> Dataset:
        flips = image.parameters(image.random_flip(), "flip")
        boxes = image.parameters(image.random_crop(8, 8))
        return elements().map(flips).map(boxes).batch(8)

    with chain().build(workers=0) as feed:
        batches = [{name: np.array(value) for name, value in batch.items()} for batch in feed]
    assert [list(batch) for batch in batches] == [["image", "label", "flip", "parameters"]] * 5
    assert {batch["flip"].shape for batch in batches} == {(8, 2)}
    assert {batch["parameters"].shape for batch in batches} == {(8, 4)}
    check_checkpoints(lambda **more: chain().build(**more))


def test_elements_of_any_dict_and_of_files():
    flip = image.parameters(image.random_flip(1.0, fields="a/image"))
    nested = Dataset.items([{"a": {"image": PIXELS[0]}, "b": (1, 2)}]).map(flip)
    (element,) = nested.build(workers=0)
    assert np.array(element["parameters"]).tolist() == [1, 0]
    assert np.array_equal(element["a"]["image"], PIXELS[0])
    assert [int(each) for each in element["b"]] == [1, 2]
    file = Dataset.items([{"image": encoded(PIXELS[0])}]).map(image.decode())
    (element,) = file.map(image.parameters(image.random_flip(0.0))).build(workers=0)
    assert np.array(element["parameters"]).tolist() == [0, 0]
    again = pickle.loads(pickle.dumps(flip))
    title = "image.parameters(image.random_flip(1, a/image), parameters)"
    assert repr(again) == repr(flip) == title


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: image.parameters(image.rand_augment()), "are not a few numbers; there are"),
        (lambda: image.parameters(image.resize(3, 3)), "are not a few numbers; there are"),
        (lambda: image.parameters(image.mixup(num_classes=3)), "are not a few numbers"),
        (lambda: image.parameters(image.random_flip(masks="mask")), "of one image, without masks"),
        (lambda: image.parameters(len), "give an operation of penstock.image"),
        (lambda: elements().map(image.parameters(image.random_flip(), "label")), "label"),
        (lambda: elements().map(image.parameters(image.random_flip(fields="x"))), "no field 'x'"),
        (lambda: elements().map(image.parameters(image.random_crop(50, 50))), "smaller than"),
        (
            lambda: Dataset.items([{"image": b"x"}]).map(image.parameters(image.random_flip())),
            "map image.decode",
        ),
        (
            lambda: Dataset.items([(PIXELS[0], 1)]).map(
                image.parameters(image.random_flip(fields="0"))
            ),
            "adds a field to a dict",
        ),
    ],
)
def test_what_cannot_be(make, says):
    with pytest.raises(penstock.InvalidArgument, match=says):
        made = make()
        list(made.build(workers=0))

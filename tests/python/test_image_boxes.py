"""Masks, boxes and keypoints that follow their image: by its pixels and torchvision's formulas.

An image whose pixels are their own coordinates tells where each pixel of a result came from.
"""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import penstock
from contract import INLINE, PROCESSES, THREADS, check_checkpoints, each, options
from image_files import encoded, picture
from penstock import Dataset, image

WIDTH, HEIGHT = 61, 40
TRAVELS = {"masks": "mask", "boxes": "boxes", "keypoints": "points"}


def moving(**travels):
    """Operations that move pixels, without new pixels that a place could be lost in."""
    return {
        "center_crop": image.center_crop(30, 40, **travels),
        "random_crop": image.random_crop(30, 40, **travels),
        "random_flip": image.random_flip(0.5, 0.5, **travels),
        "pad": image.pad((3, 5, 2, 7), **travels),
        "rot90": image.rot90(1, **travels),
        "rot270": image.rot90(3, **travels),
        "random_affine": image.random_affine(
            25, (0.1, 0.1), (0.7, 1.3, 0.8, 1.2), 10, **travels, fill=0
        ),
        "perspective": image.perspective(0.4, 1, **travels),
    }


def coordinates(width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x, y], -1).astype(np.float32)


def labels(width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    return np.random.default_rng(3).integers(1, 255, (height, width), np.uint8)


def places(count: int = 50, seed: int = 0) -> np.ndarray:
    """Keypoints within the image, and a third number."""
    random = np.random.default_rng(seed)
    points = random.uniform(0, (WIDTH - 1, HEIGHT - 1), (count, 2))
    return np.c_[points, random.integers(0, 3, count)].astype(np.float32)


def some_boxes(count: int = 20, seed: int = 1) -> np.ndarray:
    corners = np.sort(
        np.random.default_rng(seed).uniform(0, (WIDTH, HEIGHT), (count, 2, 2)), axis=1
    )
    return corners.reshape(count, 4).astype(np.float32)


def element(pixels: np.ndarray | None = None) -> dict[str, np.ndarray]:
    pixels = coordinates() if pixels is None else pixels
    return {"image": pixels, "mask": labels(), "boxes": some_boxes(), "points": places()}


def at(pixels: np.ndarray, x: float, y: float) -> np.ndarray:
    """The value between four pixels."""
    left, top = int(x), int(y)
    wx, wy = x - left, y - top
    upper = pixels[top, left] * (1 - wx) + pixels[top, left + 1] * wx
    lower = pixels[top + 1, left] * (1 - wx) + pixels[top + 1, left + 1] * wx
    return upper * (1 - wy) + lower * wy


@pytest.mark.parametrize("name", moving())
def test_a_keypoint_stays_at_its_pixel(name):
    apply = image.compose([moving(**TRAVELS)[name]])
    checked = 0
    for index in range(6):
        given = element()
        made = apply(given, seed=5, index=index)
        height, width = made["image"].shape[:2]
        assert np.array_equal(made["points"][:, 2], given["points"][:, 2])
        for (x, y, _), (to_x, to_y, _) in zip(given["points"], made["points"], strict=True):
            if not (0 <= to_x < width - 1 and 0 <= to_y < height - 1):
                continue
            around = made["image"][int(to_y) : int(to_y) + 2, int(to_x) : int(to_x) + 2]
            if name != "pad" and (around == 0).all(-1).any():
                continue  # next to the border
            near = 1e-3 if name != "perspective" else 0.15  # not linear between pixels
            if np.abs(at(made["image"], to_x, to_y) - (x, y)).max() > near:
                assert name == "pad"
                assert (around == 0).all(-1).any()
            else:
                checked += 1
    assert checked > 60


@pytest.mark.parametrize("name", moving())
def test_a_box_encloses_its_corners(name):
    """Corners are keypoints half a pixel further out; what is beyond is cut off."""
    apply = image.compose([moving(**TRAVELS)[name]])
    for index in range(6):
        boxes = some_boxes()
        corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2) - 0.5
        made = apply({**element(), "points": corners}, seed=5, index=index)
        height, width = made["image"].shape[:2]
        moved = made["points"].reshape(-1, 4, 2) + 0.5
        ends = np.concatenate([moved.min(1), moved.max(1)], 1)
        expected = np.clip(ends, 0, (width, height) * 2)
        assert np.abs(made["boxes"] - expected).max() < 1e-3


def test_boxes_move_as_torchvisions():
    """The formulas of torchvision.transforms.v2.functional, `_geometry.py`."""
    boxes = some_boxes()

    def moved(operation):
        return image.compose([operation])(element(picture(WIDTH, HEIGHT)))["boxes"]

    across = boxes.copy()
    across[:, [2, 0]] = WIDTH - boxes[:, [0, 2]]
    assert np.abs(moved(image.random_flip(1, 0, **TRAVELS)) - across).max() < 1e-4
    down = boxes.copy()
    down[:, [3, 1]] = HEIGHT - boxes[:, [1, 3]]
    assert np.abs(moved(image.random_flip(0, 1, **TRAVELS)) - down).max() < 1e-4
    ratios = np.array([100 / WIDTH, 80 / HEIGHT] * 2)
    assert np.abs(moved(image.resize(80, 100, **TRAVELS)) - boxes * ratios).max() < 1e-4
    cut = np.clip(boxes - [10, 5, 10, 5], 0, [40, 30, 40, 30])
    assert np.abs(moved(image.center_crop(30, 40, **TRAVELS)) - cut).max() < 1e-4
    framed = moved(image.pad((3, 5, 2, 7), **TRAVELS))
    assert np.abs(framed - (boxes + np.array([3, 5, 3, 5]))).max() < 1e-4


@pytest.mark.parametrize(
    "operation",
    [
        image.resize(55, 90, filter="nearest", **TRAVELS),
        image.resize(17, 23, filter="nearest", **TRAVELS),
        image.random_resized_crop(20, 30, filter="nearest", **TRAVELS),
        image.random_flip(0.5, 0.5, **TRAVELS),
        image.random_affine(30, (0.1, 0.2), shear=9, interpolation="nearest", **TRAVELS),
        image.random_affine(30, fill=9, interpolation="nearest", mask_fill=9, **TRAVELS),
        image.random_affine(30, scale=(0.3, 0.5), fill="wrap", interpolation="nearest", **TRAVELS),
        image.perspective(0.5, 1, "reflect", interpolation="nearest", **TRAVELS),
        image.pad(4, 7, mask_fill=7, **TRAVELS),
        image.rot90(-1, **TRAVELS),
    ],
    ids=str,
)
def test_a_mask_that_equals_its_image_still_does(operation):
    apply = image.compose([operation])
    for index in range(8):
        made = apply(element(labels()), seed=2, index=index)
        assert np.array_equal(made["image"], made["mask"])


def test_a_mask_gets_no_new_classes():
    mask = np.where(labels() > 128, 200, 3).astype(np.uint8)
    travels = {**TRAVELS, "mask_fill": 255}
    apply = image.compose(
        [
            image.random_affine(40, scale=(0.5, 2), fill=0, **travels),
            image.resize(64, 64, **TRAVELS),
        ]
    )
    seen = set()
    for index in range(10):
        made = apply({**element(picture(WIDTH, HEIGHT)), "mask": mask}, index=index)
        seen |= set(np.unique(made["mask"]).tolist())
    assert seen == {3, 200, 255}


def chain(*operations):
    data = Dataset.items([element(picture(WIDTH, HEIGHT, seed)) for seed in range(5)])
    for operation in operations:
        data = data.map(operation)
    return data


STEPS = (
    image.random_affine(20, (0.1, 0.1), (0.8, 1.2), **TRAVELS),
    image.color_jitter(0.3, 0.3),
    image.random_resized_crop(32, 48, **TRAVELS),
    image.random_flip(0.5, 0.5, **TRAVELS),
    image.rand_augment(2, 20, **TRAVELS),
    image.rot90(1, **TRAVELS),
    image.normalize(120, 60),
    image.to_chw(),
)


def check_alike(one, two):
    for a, b in zip(one, two, strict=True):
        assert set(a) == set(b) == {"image", "mask", "boxes", "points"}
        for field in a:
            assert np.array_equal(a[field], b[field])


@each((THREADS, PROCESSES))
def test_results_do_not_depend_on_the_workers(mode):
    with chain(*STEPS).build(workers=0, seed=9) as one:
        first, second = [dict(e) for e in one], [dict(e) for e in one]
    assert not np.array_equal(first[0]["boxes"], second[0]["boxes"])
    with chain(*STEPS).build(**mode.options, seed=9) as two:
        check_alike(first, two)
        check_alike(second, two)


def test_it_restarts_anywhere():
    check_checkpoints(lambda **more: chain(*STEPS).batch(1).build(**more))


def same(element):
    return element


def test_one_pass_gives_what_several_give():
    steps = (
        image.random_affine((20, 20), scale=(1.2, 1.2), **TRAVELS),
        image.random_flip(1, 1, **TRAVELS),
        image.solarize(),
        image.resize(50, 70, **TRAVELS),
        image.random_affine((-9, -9), shear=(5, 5), **TRAVELS),
        image.center_crop(30, 40, **TRAVELS),
        image.rot90(1, **TRAVELS),
        image.to_chw(),
    )
    apart = [each for step in steps for each in (step, same)]
    check_alike(list(chain(*steps)), list(chain(*apart)))
    # A step that moves the image alone is no part of a pass in which others follow.
    alone = image.random_flip(1)
    check_alike(list(chain(steps[0], alone, *steps[1:])), list(chain(steps[0], alone, *apart[1:])))


def test_boxes_of_a_jpeg_follow_its_decoded_pixels():
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter when it is decoded
    data = encoded(picture(HEIGHT, WIDTH), exif=exif, quality=95)
    plain = image.compose([image.decode()])(data)
    assert plain.shape == (HEIGHT, WIDTH, 3)
    fields = {"image": data, "boxes": some_boxes(), "label": np.int64(3)}
    cut = image.random_resized_crop(20, 20, boxes="boxes")
    one = image.compose([image.decode(), cut])(fields, index=4)
    # Random numbers are keyed by the place of the operation, too.
    two = image.compose([image.gamma(1), cut])({**fields, "image": plain}, index=4)
    assert np.array_equal(one["image"], two["image"])
    assert np.array_equal(one["boxes"], two["boxes"])
    assert not np.array_equal(one["boxes"], some_boxes())
    assert one["label"] == 3


def test_any_number_of_boxes_and_what_has_no_place():
    counts = (0, 1, 7)
    elements = [
        {"image": picture(WIDTH, HEIGHT), "boxes": some_boxes(count), "points": places(count)}
        for count in counts
    ]
    elements[1]["points"][0] = (np.nan, 4, 2)  # one that is not there
    elements[1]["boxes"][0] = (50, 30, 61, 40)
    data = Dataset.items(elements).map(image.center_crop(20, 20, boxes="boxes", keypoints="points"))
    made = list(data)
    assert [len(e["boxes"]) for e in made] == list(counts)
    assert np.isnan(made[1]["points"][0, 0])
    assert made[1]["points"][0, 1:].tolist() == [4, 2]
    assert made[1]["boxes"][0].tolist() == [20, 20, 20, 20]  # beyond: no area
    batch = next(iter(data.padded_batch(3)))
    assert batch["boxes"].shape == (3, 7, 4)


SIZES = [(0, 0), (30, 0), (0.5, 30), (1, 1), (0.9, 0.9), (2, 8), (5, 3), (40, 30)]


@pytest.mark.parametrize("least", [{}, {"min_size": 0}, {"min_size": 4}, {"min_area": 16}])
def test_boxes_without_an_area_are_removed(least):
    """The rule of torchvision.transforms.v2.functional.sanitize_bounding_boxes."""
    boxes = np.array([[2, 3, 2 + width, 3 + height] for width, height in SIZES], np.float32)
    classes = np.arange(len(SIZES))
    one = {"image": picture(WIDTH, HEIGHT), "boxes": boxes, "classes": classes, "id": 7}
    (made,) = Dataset.items([one]).map(image.sanitize_boxes(labels="classes", **least))
    sizes = np.array(SIZES)
    kept = (sizes >= max(least.get("min_size", 1), 1e-9)).all(1)
    kept &= sizes.prod(1) >= least.get("min_area", 1)
    assert np.array_equal(made["boxes"], boxes[kept])
    assert np.array_equal(made["classes"], classes[kept])
    assert made["id"] == 7


@each((INLINE, THREADS, PROCESSES), ())
def test_boxes_that_a_crop_leaves_out_are_removed_in_batches(mode):
    random = np.random.default_rng(3)
    elements = []
    for count in (0, 1, 7, 4, 9, 2):
        boxes = some_boxes(count)[:, :4].astype(np.float32)
        extra = np.concatenate([boxes, np.arange(count, dtype=np.float32)[:, None]], 1)
        elements.append(
            {
                "image": picture(WIDTH, HEIGHT),
                "boxes": extra,
                "classes": random.integers(0, 9, count).astype(np.int32),
                "weights": random.random((count, 2)),
            }
        )
    cut = Dataset.items(elements).map(image.random_crop(12, 12, boxes="boxes"))
    sane = cut.map(image.sanitize_boxes(labels=["classes", "weights"]))
    plain = list(cut)
    assert any(len(e["boxes"]) != len(s["boxes"]) for e, s in zip(plain, sane, strict=True))
    with sane.batch(4).build(**options(mode)) as feed:
        batches = list(feed)
    rows = [
        {field: batch[field][i] for field in ("boxes", "classes", "weights")}
        for batch in batches
        for i in range(len(batch["image"]))
    ]
    for before, after in zip(plain, rows, strict=True):
        sides = before["boxes"][:, 2:4] - before["boxes"][:, :2]
        kept = (sides >= 1).all(1)
        for field in after:
            assert np.array_equal(after[field], before[field][kept])
    padded = next(iter(sane.padded_batch(6)))
    most = max(len(row["boxes"]) for row in rows)
    assert padded["boxes"].shape == (6, most, 5)
    assert padded["classes"].shape == (6, most)


def test_moves_may_follow_what_was_removed():
    one = {"image": picture(WIDTH, HEIGHT), "boxes": np.array([[0, 0, 9, 9], [5, 5, 5, 9]], "f4")}
    chain = Dataset.items([one]).map(image.sanitize_boxes())
    (made,) = chain.map(image.random_flip(1, 0, boxes="boxes"))
    assert np.asarray(made["boxes"]).tolist() == [[WIDTH - 9, 0, WIDTH, 9]]
    nan = {**one, "boxes": np.array([[0, 0, np.nan, 9]], "f4")}
    assert [len(e["boxes"]) for e in Dataset.items([nan]).map(image.sanitize_boxes())] == [0]


@pytest.mark.parametrize(
    ("changed", "arguments", "why"),
    [
        ({}, {"labels": "class"}, "there is no field 'class'"),
        ({}, {"boxes": "classes"}, r"'classes' is int64 \(2,\); boxes are float32"),
        ({}, {"labels": "boxes"}, "'boxes' is named twice"),
        ({"classes": np.arange(3)}, {"labels": "classes"}, "with a row for each box"),
        ({"classes": b"ab"}, {"labels": "classes"}, "with a row for each box"),
        ({"classes": 5}, {"labels": "classes"}, "with a row for each box"),
        ({}, {"min_size": -1}, "min_size and min_area are numbers from 0 on"),
        ({}, {"min_area": float("nan")}, "min_area"),
    ],
)
def test_boxes_that_cannot_be_sanitized_are_refused(changed, arguments, why):
    one = {"boxes": np.array([[0, 0, 9, 9], [5, 5, 5, 9]], "f4"), "classes": np.arange(2)}
    with pytest.raises(penstock.InvalidArgument, match=why):
        list(Dataset.items([{**one, **changed}]).map(image.sanitize_boxes(**arguments)))


def test_another_number_of_labels_costs_its_element():
    boxes = [np.zeros((n, 4), "f4") for n in (1, 2, 3)]
    elements = [{"boxes": b, "classes": np.arange(2)} for b in boxes]
    chain = Dataset.items(elements).map(image.sanitize_boxes(labels="classes"))
    with chain.on_error("skip").build(workers=0) as feed:
        assert len(list(feed)) == 1
        reasons = [reason for _, _, reason in feed.stats()["losses"]]
    assert ["'classes' has 2 rows for 1 boxes" in reasons[0], len(reasons)] == [True, 2]


@pytest.mark.parametrize(
    ("changed", "travels", "why"),
    [
        ({"mask": labels(WIDTH, 9)}, {"masks": "mask"}, r"mask 'mask' is 9 x 61, and its image 40"),
        ({"mask": np.zeros((HEIGHT, WIDTH), np.int64)}, {"masks": "mask"}, "'mask' is int64"),
        ({"mask": b"png"}, {"masks": "mask"}, "encoded bytes; map image.decode"),
        ({"boxes": np.zeros((3, 4))}, {"boxes": "boxes"}, r"boxes are float32 \(n, 4\)"),
        ({"boxes": np.zeros((3, 3), "f4")}, {"boxes": "boxes"}, r"float32 \(3, 3\); boxes are"),
        ({"points": np.zeros(1, "f4")}, {"keypoints": "points"}, r"keypoints are float32 \(n, 2\)"),
        ({}, {"boxes": "box"}, "there is no field 'box'"),
        ({}, {"masks": "image"}, "'image' is named as two"),
        ({}, {"masks": "mask", "boxes": "mask"}, "'mask' is named as two"),
    ],
)
def test_what_cannot_follow_is_refused(changed, travels, why):
    apply = image.compose([image.random_flip(**travels)])
    with pytest.raises(penstock.InvalidArgument, match=why):
        apply({**element(picture(WIDTH, HEIGHT)), **changed})


def test_arguments_are_checked():
    with pytest.raises(penstock.InvalidArgument, match="mask_fill is 256"):
        image.pad(1, masks="mask", mask_fill=256)
    with pytest.raises(penstock.InvalidArgument, match="fields is 3"):
        image.random_flip(boxes=3)
    floats = {**element(picture(WIDTH, HEIGHT)), "mask": labels().astype(np.float32)}
    with pytest.raises(penstock.InvalidArgument, match="float32; it is for uint8"):
        image.compose([image.resize(9, 9, masks="mask")])(floats)


def test_titles_name_what_follows():
    operation = image.pad(1, masks=["a", "b"], boxes="c", mask_fill=9)
    assert repr(operation) == ("image.pad((1, 1, 1, 1), 0, masks=a, masks=b, mask_fill=9, boxes=c)")

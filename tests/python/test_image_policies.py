"""AutoAugment and TrivialAugment against torchvision's definitions, made by Pillow and NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

import penstock
from contract import PROCESSES, THREADS, check_checkpoints, each
from image_files import mapped, picture
from penstock import image

SIDE = 40
# torchvision.transforms.AutoAugment._get_policies: pairs of operation, probability, magnitude.
POLICIES = {
    "imagenet": """
    Posterize .4 8 Rotate .6 9, Solarize .6 5 AutoContrast .6 -, Equalize .8 - Equalize .6 -,
    Posterize .6 7 Posterize .6 6, Equalize .4 - Solarize .2 4, Equalize .4 - Rotate .8 8,
    Solarize .6 3 Equalize .6 -, Posterize .8 5 Equalize 1 -, Rotate .2 3 Solarize .6 8,
    Equalize .6 - Posterize .4 6, Rotate .8 8 Color .4 0, Rotate .4 9 Equalize .6 -,
    Equalize 0 - Equalize .8 -, Invert .6 - Equalize 1 -, Color .6 4 Contrast 1 8,
    Rotate .8 8 Color 1 2, Color .8 8 Solarize .8 7, Sharpness .4 7 Invert .6 -,
    ShearX .6 5 Equalize 1 -, Color .4 0 Equalize .6 -, Equalize .4 - Solarize .2 4,
    Solarize .6 5 AutoContrast .6 -, Invert .6 - Equalize 1 -, Color .6 4 Contrast 1 8,
    Equalize .8 - Equalize .6 -""",
    "cifar10": """
    Invert .1 - Contrast .2 6, Rotate .7 2 TranslateX .3 9, Sharpness .8 1 Sharpness .9 3,
    ShearY .5 8 TranslateY .7 9, AutoContrast .5 - Equalize .9 -, ShearY .2 7 Posterize .3 7,
    Color .4 3 Brightness .6 7, Sharpness .3 9 Brightness .7 9, Equalize .6 - Equalize .5 -,
    Contrast .6 7 Sharpness .6 5, Color .7 7 TranslateX .5 8, Equalize .3 - AutoContrast .4 -,
    TranslateY .4 3 Sharpness .2 6, Brightness .9 6 Color .2 8, Solarize .5 2 Invert 0 -,
    Equalize .2 - AutoContrast .6 -, Equalize .2 - Equalize .6 -, Color .9 9 Equalize .6 -,
    AutoContrast .8 - Solarize .2 8, Brightness .1 3 Color .7 0, Solarize .4 5 AutoContrast .9 -,
    TranslateY .9 9 TranslateY .7 9, AutoContrast .9 - Solarize .8 3, Equalize .8 - Invert .1 -,
    TranslateY .7 9 AutoContrast .9 -""",
    "svhn": """
    ShearX .9 4 Invert .2 -, ShearY .9 8 Invert .7 -, Equalize .6 - Solarize .6 6,
    Invert .9 - Equalize .6 -, Equalize .6 - Rotate .9 3, ShearX .9 4 AutoContrast .8 -,
    ShearY .9 8 Invert .4 -, ShearY .9 5 Solarize .2 6, Invert .9 - AutoContrast .8 -,
    Equalize .6 - Rotate .9 3, ShearX .9 4 Solarize .3 3, ShearY .8 8 Invert .7 -,
    Equalize .9 - TranslateY .6 6, Invert .9 - Equalize .6 -, Contrast .3 3 Rotate .8 4,
    Invert .8 - TranslateY 0 2, ShearY .7 6 Solarize .4 8, Invert .6 - Rotate .8 4,
    ShearY .3 7 TranslateX .9 3, ShearX .1 6 Invert .6 -, Solarize .7 2 TranslateY .6 7,
    ShearY .8 4 Invert .8 -, ShearX .7 9 TranslateY .8 3, ShearY .8 5 AutoContrast .7 -,
    ShearX .7 2 Invert .1 -""",
}
ALL = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness"),
    *("Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
SIGNED = ALL[1:10]
# What torchvision's _augmentation_space ends with: AutoAugment, TrivialAugmentWide.
MOST = {
    "Shear": (0.3, 0.99),
    "Translate": (150 / 331 * SIDE, 32),
    "Rotate": (30, 135),
    "Posterize": (4, 6),
    "factor": (0.9, 0.99),
}


def pulled(pixels: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The nearest pixel at the coordinates that the matrix (2, 3) gives; 0 beyond."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] + 0.5
    from_x, from_y = np.einsum("ij,jyx->iyx", matrix, np.stack([x, y, np.ones_like(x)]))
    inside = (from_x >= 0) & (from_x < SIDE) & (from_y >= 0) & (from_y < SIDE)
    rows, columns = np.floor(from_y).astype(int), np.floor(from_x).astype(int)
    taken = pixels[rows.clip(0, SIDE - 1), columns.clip(0, SIDE - 1)]
    return np.where(inside[..., None], taken, 0).astype(np.uint8)


def applied(pixels: np.ndarray, name: str, part: float, sign: int, wide: bool) -> np.ndarray:
    """torchvision's `_apply_op`, of a part (0 to 1) of the greatest magnitude."""

    def most(kind):
        return part * MOST[kind][wide]

    shown = Image.fromarray(pixels)
    if name == "Identity":
        return pixels
    if name in ("ShearX", "ShearY"):
        shear = sign * most("Shear")
        matrix = [[1, shear, 0], [0, 1, 0]] if name == "ShearX" else [[1, 0, 0], [shear, 1, 0]]
        return pulled(pixels, np.array(matrix))
    if name in ("TranslateX", "TranslateY"):
        move = sign * int(most("Translate"))
        x, y = (move, 0) if name == "TranslateX" else (0, move)
        return pulled(pixels, np.array([[1, 0, x], [0, 1, y]]))
    if name == "Rotate":
        angle = np.deg2rad(sign * most("Rotate"))
        cos, sin, middle = np.cos(angle), np.sin(angle), SIDE / 2
        turn = np.array([[cos, -sin], [sin, cos]])
        return pulled(pixels, np.c_[turn, middle - turn @ (middle, middle)])
    if name == "Posterize":
        return np.asarray(ImageOps.posterize(shown, 8 - round(most("Posterize"))))
    if name == "Solarize":
        return np.asarray(ImageOps.solarize(shown, 255 * (1 - part)))
    if name in ("AutoContrast", "Equalize", "Invert"):
        return np.asarray(getattr(ImageOps, name.lower())(shown))
    return np.asarray(getattr(ImageEnhance, name)(shown).enhance(1 + sign * most("factor")))


def pairs(policy: str) -> list[list[tuple[str, float, float]]]:
    found = []
    for pair in POLICIES[policy].split(","):
        words = pair.split()
        found.append(
            [
                (name, float(p), 0.0 if magnitude == "-" else int(magnitude) / 9)
                for name, p, magnitude in (words[:3], words[3:])
            ]
        )
    assert len(found) == 25
    return found


def outcomes(pixels: np.ndarray, policy: str) -> dict[bytes, tuple[float, np.ndarray]]:
    """All results that a policy may have, with their probabilities."""
    found: dict[bytes, tuple[float, np.ndarray]] = {}
    for pair in pairs(policy):
        choices = [
            [(None, 1 - p, 0.0, 0)]
            + [
                (name, p / (2 if name in SIGNED else 1), part, sign)
                for sign in ((-1, 1) if name in SIGNED else (1,))
            ]
            for name, p, part in pair
        ]
        for one in itertools.product(*choices):
            made, p = pixels, 1 / 25
            for name, share, part, sign in one:
                p *= share
                if name is not None and p > 0:
                    made = applied(made, name, part, sign, wide=False)
            if p > 0:
                key = made.tobytes()
                found[key] = (found.get(key, (0.0, made))[0] + p, made)
    return found


def nearest(made: np.ndarray, known: np.ndarray) -> tuple[int, float]:
    """Which result a picture is, and its mean difference: edges of turned images are rounded."""
    differences = np.abs(known.astype(np.int16) - made).mean((1, 2, 3))
    return int(differences.argmin()), float(differences.min())


def photograph() -> np.ndarray:
    return np.ascontiguousarray(picture(SIDE, SIDE) // 2 + 40)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policys_results_are_torchvisions_as_often(policy):
    pixels, draws = photograph(), 1500
    table = outcomes(pixels, policy)
    known = np.stack([made for _, made in table.values()])
    expected = np.array([p for p, _ in table.values()])
    assert abs(expected.sum() - 1) < 1e-9
    counts = np.zeros(len(known))
    for made in mapped([pixels] * draws, image.auto_augment(policy)):
        which, differs = nearest(made, known)
        assert differs < 7
        counts[which] += 1
    deviations = np.sqrt(draws * expected * (1 - expected) + 1)
    assert np.abs((counts - draws * expected) / deviations).max() < 4


def test_trivial_augment_applies_one_operation_of_any_strength():
    pixels = photograph()
    table = [
        (name, part, sign, applied(pixels, name, part / 30, sign, wide=True))
        for name in ALL
        for part in range(31)
        for sign in ((-1, 1) if name in SIGNED else (1,))
    ]
    known = np.stack([made for *_, made in table])
    seen = set()
    for made in mapped([pixels] * 400, image.trivial_augment_wide()):
        which, differs = nearest(made, known)
        assert differs < 7
        seen.add(table[which][0])
    # With the least magnitude most operations change nothing.
    assert seen | {"Identity"} == set(ALL)


def chain():
    data = {"image": np.stack([picture(32, 24, seed=i) for i in range(12)]), "n": np.arange(12)}
    chosen = penstock.Dataset.arrays(data).map(image.auto_augment("cifar10", "reflect"))
    return chosen.map(image.trivial_augment_wide(9, interpolation="bilinear")).batch(5)


@each((THREADS, PROCESSES))
def test_results_do_not_depend_on_the_workers(mode):
    with chain().build(workers=0, seed=3) as feed:
        wanted = [[np.array(batch["image"]) for batch in feed] for _ in range(2)]
    assert not np.array_equal(wanted[0][0], wanted[1][0])
    with chain().build(**mode.options, seed=3) as feed:
        for epoch in wanted:
            for batch, made in zip(feed, epoch, strict=True):
                assert np.array_equal(batch["image"], made)


def test_policies_and_single_operations_restart_anywhere():
    images = np.stack([picture(20, 24, seed=i) for i in range(10)])

    def augmented() -> penstock.Dataset:
        dataset = penstock.Dataset.arrays({"image": images}).shuffle(seed=1)
        for operation in (
            image.random_crop(18, 20),
            image.auto_augment("svhn"),
            image.trivial_augment_wide(),
            image.invert(0.5),
            image.posterize(4, 0.5),
            image.solarize(128, 0.5),
            image.autocontrast(0.5),
            image.sharpness(2, 0.5),
            image.gamma(1.5, 0.5),
            image.pad(1),
            image.rot90(),
            image.grayscale(3),
            image.to_chw(),
        ):
            dataset = dataset.map(operation)
        return dataset.batch(1)

    check_checkpoints(lambda **more: augmented().build(**more))


def test_boxes_and_masks_follow_the_operations_that_move_pixels():
    mask = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE), np.uint8)
    element = {
        "image": np.zeros((SIDE, SIDE), np.uint8),
        "mask": mask,
        "boxes": np.eye(4, dtype="f4") * 9,
    }
    apply = image.compose([image.auto_augment("svhn", masks="mask", boxes="boxes", mask_fill=255)])
    moved = 0
    for index in range(60):
        made = apply(element, index=index)
        changed = not np.array_equal(made["mask"], mask)
        assert changed or np.array_equal(made["boxes"], element["boxes"])
        assert set(np.unique(made["mask"])) <= {*np.unique(mask).tolist(), 255}
        moved += changed
    assert 20 < moved < 58


def test_arguments_are_checked():
    with pytest.raises(penstock.InvalidArgument, match="policy is 'coco'; there are imagenet"):
        image.auto_augment("coco")
    with pytest.raises(penstock.InvalidArgument, match="fill is nan"):
        image.trivial_augment_wide(float("nan"))
    floats = np.zeros((4, 4, 3), np.float32)
    for operation in (image.auto_augment(), image.trivial_augment_wide()):
        with pytest.raises(penstock.InvalidArgument, match="it is for uint8"):
            mapped([floats], operation)
    assert repr(image.auto_augment("svhn")) == "image.auto_augment(svhn)"

"""Chains of operations on images: one pass, the same bits for any workers, restored anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import penstock
from contract import (
    FAST,
    INLINE,
    KINDS,
    PROCESSES,
    SLOW,
    SPAWN,
    THREADS,
    assert_same,
    check_checkpoints,
    each,
    epochs,
    options,
)
from image_files import by_pillow, encoded, picture, resized
from penstock import Dataset, image

MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for label, name in enumerate(("a", "b", "c")):
        (root / name).mkdir()
        for i in range(12):
            size = (60 + 7 * i, 50 + 11 * label)
            kind = "PNG" if i % 4 == 0 else "JPEG"
            more = {} if kind == "PNG" else {"progressive": i % 3 == 0, "subsampling": i % 3}
            data = encoded(picture(*size, seed=i), kind, **more)
            (root / name / f"{i:02}.{kind.lower()}").write_bytes(data)
    return root


def training(folder):
    return (
        Dataset.image_folder(folder, validation_split=0.25, subset="training", seed=1)
        .shuffle(seed=7)
        .map(image.decode())
        .map(image.random_resized_crop(32, 40))
        .map(image.random_flip(vertical=0.25))
        .map(image.normalize(MEAN, STD))
        .batch(6)
    )


@pytest.fixture(scope="module")
def wanted(folder):
    with training(folder).build(workers=0) as feed:
        return epochs(feed, 2)


@each(FAST, SLOW)
def test_the_same_bits_for_any_workers(folder, wanted, mode):
    with training(folder).build(**options(mode)) as feed:
        got = epochs(feed, 2)
    assert_same(got, wanted)
    assert got[0][0]["image"].shape == (6, 32, 40, 3)
    assert got[0][0]["image"].dtype == np.float32
    assert not np.array_equal(got[0][0]["image"], got[1][0]["image"])


def test_it_restarts_anywhere(folder):
    check_checkpoints(lambda **more: training(folder).build(**more), restored=(*KINDS, SPAWN))


class Apart:
    """A user's function between two operations: they are two passes then."""

    def __call__(self, element):
        return element


def test_one_pass_gives_what_single_operations_give(folder):
    operations = [
        image.decode(),
        image.random_crop(45, 50),
        image.resize(30, 33, filter="bicubic"),
        image.random_flip(0.5, 0.5),
        image.random_crop(25, 25),
        image.pad(3, 7),
        image.rot90(),
        image.random_resized_crop(20, 21),
        image.normalize(MEAN, STD),
        image.to_chw(),
    ]
    together = apart = Dataset.image_folder(folder)
    for operation in operations:
        together = together.map(operation)
        apart = apart.map(operation)
        if "normalize" not in repr(operation):  # only to_chw may follow
            apart = apart.enumerate().map(second)
    one, other = [list(dataset.build(workers=0)) for dataset in (together, apart)]
    assert len(one) == 36
    # Functions in between have numbers of their own, so random operations draw others.
    assert [a["image"].shape for a in one] == [b["image"].shape for b in other]
    steady = [op for op in operations if "random" not in repr(op)]
    together = apart = Dataset.image_folder(folder)
    for operation in steady:
        together = together.map(operation)
        apart = apart.map(operation)
        if "normalize" not in repr(operation):  # only to_chw may follow
            apart = apart.enumerate().map(second)
    assert_same(*(list(dataset.build(workers=0)) for dataset in (together, apart)))


def second(index, element):
    return element


def test_random_numbers_do_not_depend_on_operations_behind(folder):
    base = Dataset.image_folder(folder).map(image.decode()).map(image.random_crop(40, 40))
    more = base.map(image.random_flip(0.0)).map(image.normalize(0, 1))
    for one, other in zip(base, more, strict=True):
        assert np.array_equal(one["image"], other["image"])


def test_every_part_of_a_chain_agrees_with_pillow(folder):
    chain = (
        Dataset.image_folder(folder)
        .map(image.decode())
        .map(image.resize(64, 64, filter="lanczos"))
        .map(image.center_crop(48, 56))
        .map(image.random_flip(1.0))
        .map(image.grayscale(3))
        .map(image.normalize(MEAN, STD))
        .map(image.to_chw())
    )
    for element in chain:
        with open(element["path"], "rb") as file:
            pixels = by_pillow(file.read())
        made = Image.fromarray(resized(pixels, 64, 64, Image.Resampling.LANCZOS))
        made = made.crop((4, 8, 60, 56)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(made.convert("L").convert("RGB"))
        floats = (pixels - np.float32(MEAN)) / np.float32(STD)
        assert np.array_equal(element["image"], np.moveaxis(floats, -1, 0))


def test_all_fields_of_an_operation_get_the_same_numbers():
    pixels = np.stack([picture(30, 20, seed=i) for i in range(20)])
    dataset = Dataset.arrays({"image": pixels, "mask": pixels[..., :1].copy(), "n": np.arange(20)})
    cut = dataset.map(image.random_crop(11, 12, fields=["image", "mask"])).map(
        image.random_flip(fields=("image", "mask"))
    )
    for i, element in enumerate(cut):
        assert np.array_equal(element["image"][..., :1], element["mask"])
        assert element["n"] == i


def test_an_element_that_is_the_image_alone():
    data = [encoded(picture(20, 10, seed=i), "PNG") for i in range(3)]
    got = list(Dataset.items(data).map(image.decode(fields="")).map(image.rot90(fields="")))
    for i, pixels in enumerate(got):
        assert np.array_equal(pixels, np.rot90(picture(20, 10, seed=i)))


def test_specs_are_known_before_anything_is_read(folder):
    dataset = Dataset.image_folder(folder)
    decoded = dataset.map(image.decode())
    assert decoded.element_spec["image"].shape == (None, None, 3)
    sized = decoded.map(image.resize(20, 30))
    assert sized.element_spec["image"].shape == (20, 30, 3)
    last = sized.map(image.normalize(0, 1)).map(image.to_chw())
    assert last.element_spec["image"].shape == (3, 20, 30)
    assert last.element_spec["image"].dtype == np.float32
    assert last.element_spec["label"].dtype == np.int64


@each((INLINE, THREADS, PROCESSES), ())
def test_behind_a_stream_and_in_front_of_one(folder, mode):
    chain = (
        Dataset.image_folder(folder)
        .filter(not_b)
        .map(image.decode())
        .map(image.resize(16, 16))
        .shuffle(seed=1, buffer=5)
        .map(image.random_flip())
        .batch(5)
    )
    with chain.build(**options(mode)) as feed:
        batches = list(feed)
    assert sum(len(batch["label"]) for batch in batches) == 24
    with chain.build(workers=0) as feed:
        assert_same(batches, list(feed))


def not_b(element):
    return element["label"] != 1


def test_operations_travel(folder):
    import pickle

    for operation in (
        image.decode(1, True, False),
        image.resize(3, 4, filter="box", antialias=False),
        image.random_resized_crop(5, 6, (0.1, 0.2), (1, 2), fields=["a", "b"]),
        image.pad((1, 2)),
        image.normalize(MEAN, STD),
    ):
        assert repr(pickle.loads(pickle.dumps(operation))) == repr(operation)
    assert repr(image.decode()) == "image.decode(3)"
    assert repr(image.resize(3, 4, fields="x")) == "image.resize(3, 4, bilinear, x)"


def test_titles_name_every_operation(folder):
    assert training(folder).build(workers=0).state()  # built
    text = repr(training(folder))
    for word in ("decode", "random_resized_crop", "random_flip", "normalize"):
        assert word in text
    assert penstock.image.__all__ == sorted(penstock.image.__all__)

"""penstock.keras.ImageDataGenerator, against Keras' own class."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import penstock
from image_files import picture
from reference_random import words_at

keras = pytest.importorskip("keras")

from keras.src.legacy.preprocessing import image as legacy  # noqa: E402

from penstock.keras import ImageDataGenerator  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Keras' use of SciPy

SEED = 11
OPERATION = 1  # the number of the transformation among a chain's random operations


class Draws:
    """The random numbers of an image, as the engine draws them."""

    def __init__(self, index: int, epoch: int = 0) -> None:
        self.words = iter(words_at(SEED, epoch, index, OPERATION, 64))

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        number = next(self.words) | next(self.words) << 32
        return low + (high - low) * ((number >> 11) * 2.0**-53)

    def shift(self, given, size: int) -> float:
        if isinstance(given, int) or np.ndim(given):
            choices = list(range(given)) if isinstance(given, int) else list(given)
            if not choices:
                return 0.0
            pixels = choices[int(self.uniform() * len(choices))]
            pixels *= -1 if self.uniform() < 0.5 else 1
            return pixels * size if max(choices) < 1 else pixels
        pixels = self.uniform(-given, given) if given else 0.0
        return pixels * size if given < 1 else pixels


def parameters(generator, index: int, height: int, width: int, epoch: int = 0) -> dict:
    """Keras' dict of parameters for an image."""
    g, draws = generator, Draws(index, epoch)

    def both(most):
        return draws.uniform(-most, most) if most else 0

    made = {"theta": both(g.rotation_range)}
    made["tx"] = draws.shift(g.height_shift_range, height)
    made["ty"] = draws.shift(g.width_shift_range, width)
    made["shear"] = both(g.shear_range)
    low, high = g.zoom_range
    zooms = [1, 1] if low == high == 1 else [draws.uniform(low, high), draws.uniform(low, high)]
    made["zx"], made["zy"] = zooms
    made["flip_horizontal"] = g.horizontal_flip and draws.uniform() < 0.5
    made["flip_vertical"] = g.vertical_flip and draws.uniform() < 0.5
    made["channel_shift_intensity"] = both(g.channel_shift_range) or None
    made["brightness"] = None if g.brightness_range is None else draws.uniform(*g.brightness_range)
    return made


def by_keras(generator, images, epoch: int = 0, seed_of=lambda index: index) -> np.ndarray:
    """The images as Keras' own methods make them, with the engine's parameters."""
    rows = generator.row_axis - 1
    made = []
    for place, image in enumerate(images):
        height, width = image.shape[rows : rows + 2]
        chosen = parameters(generator, seed_of(place), height, width, epoch)
        moved = generator.apply_transform(image.astype(np.float32), chosen)
        made.append(generator.standardize(moved))
    return np.stack(made)


def all_of(batches) -> tuple[np.ndarray, np.ndarray]:
    pairs = list(batches)
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def images_of(count, height=30, width=41, channels=3, dtype=np.uint8) -> np.ndarray:
    pixels = [picture(width, height, seed=n, channels=channels) for n in range(count)]
    made = np.stack(pixels).reshape(count, height, width, channels)
    return made if dtype == np.uint8 else made.astype(dtype) / 255


MOVES = {
    "rotation": {"rotation_range": 40},
    "shifts": {"width_shift_range": 0.3, "height_shift_range": 0.1},
    "pixels": {"width_shift_range": 5, "height_shift_range": [3, 7, 9.5]},
    "shear": {"shear_range": 35},
    "zoom": {"zoom_range": 0.4},
    "zoom in": {"zoom_range": (0.3, 0.6), "fill_mode": "wrap"},
    "flips": {"horizontal_flip": True, "vertical_flip": True},
    "channels": {"channel_shift_range": 60.0},
    "reflect": {"rotation_range": 90, "zoom_range": (1.5, 2.5), "fill_mode": "reflect"},
    "constant": {"rotation_range": 90, "fill_mode": "constant", "cval": 33.0},
    "nearest pixel": {"rotation_range": 50, "interpolation_order": 0},
    "all": {
        "rotation_range": 25,
        "width_shift_range": 0.2,
        "height_shift_range": 0.2,
        "shear_range": 12,
        "zoom_range": 0.3,
        "channel_shift_range": 20.0,
        "horizontal_flip": True,
        "vertical_flip": True,
    },
}


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("name", list(MOVES))
def test_pixels_are_keras_within_one(name, channels):
    generator = ImageDataGenerator(**MOVES[name])
    images = images_of(6, channels=channels)
    with generator.flow(images, np.arange(6), batch_size=4, shuffle=False, seed=SEED) as batches:
        for epoch in range(2):
            made, numbers = all_of(batches)
            assert made.dtype == np.float32
            assert list(numbers) == list(range(6))
            differences = np.abs(made - by_keras(generator, images, epoch))
            if "interpolation_order" in MOVES[name]:  # a pixel in the middle may go either way
                assert (differences > 1).mean() < 0.01
            else:
                assert differences.max() <= 1


def test_brightness_is_pillows():
    for channels, dtype in [(1, np.uint8), (3, np.uint8), (4, np.uint8), (3, np.float32)]:
        generator = ImageDataGenerator(brightness_range=(0.2, 1.9))
        images = images_of(5, channels=channels, dtype=dtype)
        if dtype == np.float32:
            images = images * 500 - 200  # then Keras scales what it gives to Pillow
        with generator.flow(images, np.arange(5), shuffle=False, seed=SEED) as batches:
            made, _ = all_of(batches)
        step = np.ptp(images) / 255
        assert np.abs(made - by_keras(generator, images)).max() <= max(step, 1)


def test_floats_and_channels_first():
    images = images_of(5, dtype=np.float32)
    options = {"rotation_range": 30, "zoom_range": 0.2, "horizontal_flip": True}
    last = ImageDataGenerator(**options)
    with last.flow(images, np.arange(5), shuffle=False, seed=SEED) as batches:
        made, _ = all_of(batches)
    np.testing.assert_allclose(made, by_keras(last, images), atol=2e-4)
    first = ImageDataGenerator(**options, data_format="channels_first")
    with first.flow(np.moveaxis(images, 3, 1), np.arange(5), shuffle=False, seed=SEED) as batches:
        turned, _ = all_of(batches)
    np.testing.assert_array_equal(np.moveaxis(turned, 1, 3), made)


STATISTICS = {
    "rescale": {"rescale": 1 / 255},
    "center": {"samplewise_center": True},
    "sample": {"samplewise_std_normalization": True, "samplewise_center": True, "rescale": 0.1},
    "feature": {"featurewise_center": True, "featurewise_std_normalization": True},
    "zca": {"zca_whitening": True, "featurewise_center": True, "rescale": 1 / 255},
}


@pytest.mark.parametrize("name", list(STATISTICS))
def test_standardization_is_keras(name):
    images = images_of(12, 8, 9)
    generator = ImageDataGenerator(**STATISTICS[name])
    generator.fit(images)
    with generator.flow(images, np.arange(12), shuffle=False, seed=SEED) as batches:
        made, _ = all_of(batches)
    wanted = by_keras(generator, images)
    np.testing.assert_allclose(made, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def test_statistics_need_a_fit():
    generator = ImageDataGenerator(featurewise_center=True, zca_whitening=True)
    images = images_of(3, 4, 4)
    with pytest.warns(UserWarning, match="before fit") as warned:
        batches = generator.flow(images, np.arange(3), shuffle=False)
    assert len(warned) == 2
    with batches:
        np.testing.assert_array_equal(all_of(batches)[0], images)


def plus_one(image):
    assert image.dtype == np.float32
    return image + 1


@pytest.mark.parametrize("processes", [True, False])
def test_a_preprocessing_function_is_between(processes):
    generator = ImageDataGenerator(rotation_range=20, rescale=2.0, preprocessing_function=plus_one)
    images = images_of(4, 8, 8)
    with generator.flow(
        images, np.arange(4), shuffle=False, seed=SEED, workers=1, use_multiprocessing=processes
    ) as batches:
        made, _ = all_of(batches)
    assert np.abs(made - by_keras(generator, images)).max() <= 2  # of 1, rescaled


def test_batches_are_the_same_for_any_workers_and_shuffled_by_epoch():
    generator = ImageDataGenerator(rotation_range=20, horizontal_flip=True)
    images, labels = images_of(17), np.arange(17)
    seen = []
    for workers in (0, 1, 3):
        with generator.flow(images, labels, 5, seed=SEED, workers=workers) as batches:
            assert len(batches) == 4
            seen.append([all_of(batches) for _ in range(2)])
    for other in seen[1:]:
        for (x, y), (x2, y2) in zip(seen[0], other, strict=True):
            np.testing.assert_array_equal(x, x2)
            np.testing.assert_array_equal(y, y2)
    first, second = (list(y) for _, y in seen[0])
    assert sorted(first) == sorted(second) == list(range(17))
    assert first != second


def test_flow_takes_what_keras_takes():
    generator = ImageDataGenerator(validation_split=0.25)
    images, more = images_of(8, 4, 4), np.arange(16).reshape(8, 2)
    labels, weights = np.arange(8) % 2, np.linspace(0, 1, 8)
    with generator.flow(images, batch_size=8, shuffle=False) as batches:
        np.testing.assert_array_equal(next(iter(batches)), images)
        assert next(batches).shape == next(batches).shape == (8, 4, 4, 3)
    with generator.flow(
        [images, more], labels, sample_weight=weights, shuffle=False, subset="training"
    ) as batches:
        (x, other), y, w = next(iter(batches))
        np.testing.assert_array_equal(x, images[2:])
        np.testing.assert_array_equal(other, more[2:])
        np.testing.assert_array_equal(y, labels[2:])
        np.testing.assert_array_equal(w, weights[2:])
        assert (batches.n, batches.batch_size) == (6, 32)
    with generator.flow(images, labels, shuffle=False, subset="validation") as batches:
        np.testing.assert_array_equal(next(iter(batches))[0], images[:2])
    with pytest.raises(ValueError, match="same length"):
        generator.flow(images, labels[:3])


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures of two classes."""
    for number in range(12):
        kind = tmp_path / "pictures" / ("cat" if number % 3 else "dog")
        kind.mkdir(parents=True, exist_ok=True)
        keras.utils.array_to_img(picture(50, 40, seed=number)).save(kind / f"{number:02}.png")
    return tmp_path / "pictures"


@pytest.mark.parametrize("mode", ["categorical", "binary", "sparse", "input", None])
@pytest.mark.parametrize("color", ["rgb", "grayscale", "rgba"])
def test_a_folder_is_keras(folder, color, mode):
    options = {
        "target_size": (24, 20),
        "color_mode": color,
        "class_mode": mode,
        "batch_size": 5,
        "shuffle": False,
        "interpolation": "bilinear",
    }
    mine = ImageDataGenerator(rescale=0.5).flow_from_directory(folder, **options)
    theirs = legacy.ImageDataGenerator(rescale=0.5).flow_from_directory(folder, **options)
    assert mine.class_indices == theirs.class_indices == {"cat": 0, "dog": 1}
    assert mine.filenames == theirs.filenames
    assert len(mine) == len(theirs) == 3
    with mine:
        for place, batch in enumerate(mine):
            parts = batch if isinstance(batch, tuple) else (batch,)
            wanted = theirs[place]
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            for part, other in zip(parts, wanted, strict=True):
                assert (part.shape, part.dtype) == (other.shape, other.dtype)
                assert np.abs(part - other).max() <= 0.5


def test_subsets_of_a_folder_share_no_image(folder):
    generator = ImageDataGenerator(validation_split=0.25)
    parts = [generator.flow_from_directory(folder, subset=s) for s in ("training", "validation")]
    names = [set(part.filenames) for part in parts]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 12
    for part in parts:
        part.close()


def test_a_data_frame_is_keras(folder):
    pandas = pytest.importorskip("pandas")
    names = sorted(str(path) for path in folder.rglob("*.png"))
    frame = pandas.DataFrame(
        {
            "file": names,
            "class": [name.split("/")[-2] for name in names],
            "tags": [["a"] if n % 2 else ["a", "b"] for n in range(12)],
            "value": np.linspace(-1, 1, 12),
            "weight": np.arange(12.0),
        }
    )
    for options in (
        {"y_col": "class"},
        {"y_col": "tags"},
        {"y_col": "value", "class_mode": "raw", "weight_col": "weight"},
        {"y_col": ["value", "weight"], "class_mode": "multi_output"},
    ):
        options = {**options, "x_col": "file", "target_size": (40, 50), "shuffle": False}
        mine = ImageDataGenerator().flow_from_dataframe(frame, **options)
        theirs = legacy.ImageDataGenerator().flow_from_dataframe(frame, **options)
        with mine:
            for part, other in zip(next(iter(mine)), theirs[0], strict=True):
                np.testing.assert_array_equal(part, other)


def test_saved_images(folder, tmp_path):
    (tmp_path / "saved").mkdir()
    generator = ImageDataGenerator()
    with generator.flow_from_directory(
        folder, batch_size=8, save_to_dir=str(tmp_path / "saved"), save_prefix="a", workers=0
    ) as batches:
        assert len(list(batches)) == 2
    assert len(list((tmp_path / "saved").glob("a_*.png"))) == 12


def test_a_model_is_fitted():
    images = images_of(12, 8, 8)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(loss="mse")
    generator = ImageDataGenerator(horizontal_flip=True, rescale=1 / 255)
    with generator.flow(images, np.arange(12.0), batch_size=5) as batches:
        history = model.fit(batches, epochs=2, verbose=0).history
        assert len(history["loss"]) == 2
        assert model.predict(batches, verbose=0).shape == (12, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interpolation_order": 3}, "interpolation_order is 3; give 0 or 1"),
        ({"dtype": "float64"}, "dtype is 'float64'"),
        ({"fill_mode": "mirror"}, "fill is 'mirror'; there are nearest"),
        ({"zoom_range": (0, 1)}, "zoom_range is"),
        ({"width_shift_range": 2e9}, "a shift is"),
    ],
)
def test_arguments_that_cannot_be(arguments, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        ImageDataGenerator(**arguments).flow(images_of(2, 4, 4))


def test_what_is_not_supported_says_what_to_do(folder, tmp_path):
    with pytest.raises(penstock.InvalidArgument, match="image_folder"):
        ImageDataGenerator().flow_from_directory(folder, keep_aspect_ratio=True)
    with pytest.raises(penstock.InvalidArgument, match="interpolation is 'hamming'"):
        ImageDataGenerator().flow_from_directory(folder, interpolation="hamming")
    (tmp_path / "empty").mkdir()
    with pytest.raises(penstock.InvalidArgument, match="no images"):
        ImageDataGenerator().flow_from_directory(tmp_path / "empty")


def test_a_damaged_image_costs_itself_alone(folder):
    damaged = sorted(folder.rglob("*.png"))[3]
    damaged.write_bytes(damaged.read_bytes()[:200])
    with (
        ImageDataGenerator().flow_from_directory(folder, shuffle=False, workers=0) as batches,
        pytest.raises(penstock.errors.DataLoss, match=damaged.name),
    ):
        list(batches)
    with ImageDataGenerator().flow_from_directory(
        folder, shuffle=False, workers=0, on_error="skip"
    ) as batches:
        x, y = next(iter(batches))
        assert len(x) == len(y) == 11
        assert batches.stats()["skipped"] == 1


def test_states_restore_within_an_epoch():
    generator = ImageDataGenerator(rotation_range=30)
    images, labels = images_of(20, 8, 8), np.arange(20)
    with generator.flow(images, labels, 4, seed=SEED) as batches:
        whole = [next(batches) for _ in range(8)]
    with generator.flow(images, labels, 4, seed=SEED) as batches:
        for _ in range(3):
            next(batches)
        state = batches.state()
    with warnings.catch_warnings(), generator.flow(images, labels, 4, seed=SEED) as batches:
        batches.restore(state)
        for x, y in whole[3:]:
            mine, numbers = next(batches)
            np.testing.assert_array_equal(mine, x)
            np.testing.assert_array_equal(numbers, y)

"""train.Population on files of images: 60,000 of MNIST's shape, and scikit-learn's digits."""

from __future__ import annotations

import struct

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock import train  # noqa: E402

IMAGES, BATCH = 60_000, 500


def write_idx(path, array):
    """Write an array of bytes as an IDX file."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())
    return path


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """Files of MNIST's shape: noise, and one of ten bright bars, by the label."""
    folder = tmp_path_factory.mktemp("mnist")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 100, (IMAGES, 28, 28), np.uint8)
    labels = rng.integers(0, 10, IMAGES).astype(np.uint8)
    for label in range(10):
        images[labels == label, 2 * label + 4 : 2 * label + 6] += 150
    return write_idx(folder / "images", images), write_idx(folder / "labels", labels), labels


class Linear(torch.nn.Module):
    """The smallest classifier of images of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(28 * 28, 10)

    def forward(self, images):
        return self.out(images.flatten(1) / 255 - 0.3)


def pairs(dataset):
    return dataset.map(lambda e: (e["image"].astype(np.float32), e["label"].astype(np.int64)))


def test_each_member_has_its_own_order_of_sixty_thousand_images(mnist):
    images, labels, truth = mnist
    seen = {}

    def own(member, seed):
        rows = pairs(penstock.Dataset.idx(images, labels).shuffle(seed=seed).batch(BATCH))
        seen[member] = []

        def noted():
            for x, y in rows:
                seen[member].append(np.array(y))
                yield x, y

        return noted()

    steps = IMAGES // BATCH
    with train.Population(
        Linear, members=3, hyper={"lr": 0.1, "seed": [1, 2, 2]}, optimizer="sgd", strategy="stacked"
    ) as population:
        results = sorted(
            population.train(own, steps=steps).as_completed(), key=lambda each: each.member
        )
    orders = [np.concatenate(seen[member]) for member in range(3)]
    for result, order in zip(results, orders, strict=True):
        assert (result.error, result.steps) == (None, steps)
        assert np.mean(result.losses[-10:]) < 0.1
        assert np.array_equal(np.bincount(order), np.bincount(truth)), "each image once"
    assert not np.array_equal(orders[0], orders[1])
    assert np.array_equal(orders[1], orders[2])
    assert np.array_equal(results[1].losses, results[2].losses)


def test_a_grid_of_learning_rates_on_digits(tmp_path):
    """Digits drawn to 28 x 28: the best of the grid classifies those that were held back."""
    datasets = pytest.importorskip("sklearn.datasets")
    image = pytest.importorskip("PIL.Image")
    digits = datasets.load_digits()
    drawn = np.stack(
        [
            np.asarray(image.fromarray((each * 15).astype(np.uint8)).resize((28, 28)))
            for each in digits.images
        ]
    )
    images = write_idx(tmp_path / "images", drawn[:1500])
    labels = write_idx(tmp_path / "labels", digits.target[:1500].astype(np.uint8))
    rows = pairs(penstock.Dataset.idx(images, labels).shuffle(seed=3).batch(50).repeat(8))
    rates = [1e-5, 1e-3, 3e-2]
    with train.Population(Linear, members=3, hyper={"lr": rates}, optimizer="adam") as population:
        for result in population.train(rows, steps=240).as_completed():
            assert result.error is None
        right = []
        for member in range(3):
            with torch.no_grad():
                odds = population.module(member)(torch.from_numpy(drawn[1500:].astype(np.float32)))
            right.append(float((odds.argmax(1).numpy() == digits.target[1500:]).mean()))
    assert right[0] < right[1]
    assert max(right) > 0.85, right

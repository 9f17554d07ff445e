"""`element_spec` is the schema before iteration, and does not change the iteration."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

import penstock
from penstock import Dataset, TensorSpec

Pair = namedtuple("Pair", ["image", "label"])
F32, F64, I64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)


class Samples:
    def __init__(self, n=20):
        self.n = n
        self.asked = 0

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.asked += 1
        return {"x": np.full((2, 3), index, np.float32), "y": index, "name": f"no {index}"}


def columns():
    return {"x": np.zeros((10, 3), np.float32), "y": np.arange(10)}


def test_a_spec_is_a_value_with_a_repr():
    spec = TensorSpec((None, 3), F32, "x")
    assert spec == TensorSpec((None, 3), F32, "x") != TensorSpec((None, 3), F32, "y")
    assert repr(spec) == "TensorSpec(shape=(None, 3), dtype=float32, name='x')"
    assert repr(TensorSpec((), str)) == "TensorSpec(shape=(), dtype=str, name=None)"


# ---- Dataset


def test_native_chains_are_known_without_an_element():
    dataset = Dataset.arrays(columns())
    x, y = TensorSpec((3,), F32, "x"), TensorSpec((), I64, "y")
    assert dataset.element_spec == {"x": x, "y": y}
    rows = {"x": TensorSpec((None, 3), F32, "x"), "y": TensorSpec((None,), I64, "y")}
    assert dataset.batch(4).element_spec == rows
    assert dataset.shuffle(seed=1).batch(4).repeat(2).prefetch(2).element_spec == rows
    assert dataset.batch(4, drop_last=True).element_spec["x"].shape == (4, 3)
    assert Dataset.range(3).element_spec == TensorSpec((), I64)
    assert Dataset.range(0).element_spec == TensorSpec((), I64)  # no element is needed


def test_text_and_lengths_that_differ():
    lines = Dataset.items([{"t": "a", "b": b"xy"}, {"t": "bcd", "b": b""}])
    assert lines.element_spec == {"t": TensorSpec((), str, "t"), "b": TensorSpec((), bytes, "b")}
    assert lines.batch(2).element_spec["t"] == TensorSpec((None,), str, "t")

    def tokens(n):
        return {"tokens": penstock.ragged(np.arange(n))}

    ragged = Dataset.range(1, 5).map(tokens)
    assert ragged.element_spec == {"tokens": TensorSpec((None,), I64, "tokens")}
    assert ragged.batch(2).element_spec == {"tokens": TensorSpec((None, None), I64, "tokens")}


def test_a_function_is_asked_for_the_first_element():
    dataset = Dataset.range(5).map(lambda x: Pair(np.zeros((4, 4)), {"id": x}))
    spec = dataset.element_spec
    assert type(spec) is Pair
    assert spec.image == TensorSpec((4, 4), F64, "image")
    assert spec.label == {"id": TensorSpec((), I64, "label/id")}
    spec = dataset.batch(2).element_spec
    assert spec.image == TensorSpec((None, 4, 4), F64, "image")
    assert dataset.batch(2, drop_last=True).element_spec.image.shape == (2, 4, 4)


def test_functions_over_batches_and_streams():
    batches = Dataset.range(7).batch(3).map(lambda x: x * 0.5)
    assert batches.element_spec == TensorSpec((None,), F64)
    assert Dataset.range(7).filter(lambda x: x > 1).batch(3).element_spec.shape == (None,)
    parts = Dataset.range(8).batch(4).split_batch(2).element_spec
    assert parts == (TensorSpec((None,), I64, "0"), TensorSpec((None,), I64, "1"))
    windows = Dataset.range(9).window(3).element_spec
    assert windows.shape == (3,)
    assert Dataset.range(9).batch(3).unbatch().element_spec.shape == ()


def test_asking_changes_no_pass():
    calls = []

    def numbers():
        calls.append(1)
        yield from range(4)

    dataset = Dataset.generator(numbers)
    assert dataset.element_spec == TensorSpec((), I64)
    assert len(calls) == 1
    assert dataset.element_spec == TensorSpec((), I64)
    assert len(calls) == 1  # kept
    with iter(dataset) as first:
        assert first.element_spec == TensorSpec((), I64)
        assert first.state()["epoch"] == 0
        assert list(first) == [0, 1, 2, 3]


def test_an_empty_dataset_of_a_function_has_none():
    with pytest.raises(penstock.InvalidArgument, match="there is no element in"):
        _ = Dataset.range(0).map(lambda x: x).element_spec


# ---- Loader


def test_a_loader_of_samples_says_what_batches_are():
    with penstock.Loader(Samples(), batch_size=4, workers=2) as feed:
        spec = {
            "x": TensorSpec((None, 2, 3), F32, "x"),
            "y": TensorSpec((None,), I64, "y"),
            "name": TensorSpec((None,), str, "name"),
        }
        assert feed.element_spec == spec
        assert iter(feed).element_spec == feed.steps(1).element_spec == spec
    with penstock.Loader(Samples(), batch_size=4, drop_last=True, workers=0) as feed:
        assert feed.element_spec["x"].shape == (4, 2, 3)
        asked = feed._info.source.asked
        assert feed.element_spec["y"].shape == (4,)
        assert feed._info.source.asked == asked == 4  # kept
        assert feed.state()["batches"] == 0


def test_columns_whole_batches_and_datasets():
    with penstock.Loader(columns(), batch_size=4, workers=0) as feed:
        assert feed.element_spec["x"] == TensorSpec((None, 3), F32, "x")
    with penstock.Loader(Samples(), workers=0) as feed:
        assert feed.element_spec["x"] == TensorSpec((2, 3), F32, "x")
    with penstock.Loader(Dataset.range(9).batch(3), workers=0) as feed:
        assert feed.element_spec == TensorSpec((None,), I64)


def test_hooks_do_not_run_for_it():
    class Hooked(Samples):
        begun = 0

        def on_epoch_begin(self):
            self.begun += 1

    source = Hooked()
    with penstock.Loader(source, batch_size=4, workers=0) as feed:
        assert feed.element_spec["y"].shape == (None,)
        assert source.begun == 0


def test_a_generator_that_runs_is_not_consumed_for_it():
    with penstock.Loader(iter([np.zeros(2), np.ones(2)]), workers=0) as feed:
        assert feed.element_spec is None
        assert len(list(feed)) == 2


def test_feeds_and_frameworks():
    with Dataset.range(9).batch(3).feeds(2, workers=1) as feeds:
        assert feeds.element_spec == feeds[0].element_spec == TensorSpec((None,), I64)


def test_a_feedable_has_those_of_its_datasets():
    with penstock.Feedable(train=Dataset.range(9).batch(3), rest=Dataset.range(2)) as feeds:
        assert feeds.element_spec == {
            "train": TensorSpec((None,), I64),
            "rest": TensorSpec((), I64),
        }
        assert list(feeds.next("train")) == [0, 1, 2]


def test_jax_has_its_own_types():
    jax = pytest.importorskip("jax")
    with penstock.jax.feed(columns(), batch_size=5, workers=0) as feed:
        spec, batch = feed.element_spec, next(iter(feed))
        assert {name: leaf.dtype for name, leaf in spec.items()} == {
            name: array.dtype for name, array in batch.items()
        }
        assert spec["y"].dtype == jax.dtypes.canonicalize_dtype(np.int64)


def test_keras_feeds_have_it():
    pytest.importorskip("keras")
    with penstock.keras.feed((np.zeros((8, 3)), np.zeros(8)), batch_size=4, workers=0) as feed:
        assert feed.element_spec[0] == TensorSpec((None, 3), F64, "0")

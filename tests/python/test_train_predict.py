"""evaluate and predict: every row once, in order, for any batches."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import penstock
from contract import THREADS, options
from penstock import Dataset, train

ROWS = 23
IMAGES = np.random.default_rng(1).normal(size=(ROWS, 4)).astype(np.float32)
WEIGHTS = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)
NAMES = [f"sample {number} {'x' * (number % 5)}" for number in range(ROWS)]
ELEMENTS = [{"image": IMAGES[n], "id": n, "name": NAMES[n]} for n in range(ROWS)]


def model(x):
    return {"twice": 2 * x, "class": (x[:, None, :] * WEIGHTS.T).sum(axis=2).argmax(axis=1)}


CLASSES = model(IMAGES)["class"]


def batches(size):
    return Dataset.items(ELEMENTS).ragged_batch(size)


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 7, ROWS, 50])
@pytest.mark.parametrize("given", [1, 5, 100])
def test_every_row_is_predicted_once_in_order_with_its_extras(given, batch_size, pad):
    sizes = []

    def counting(x):
        sizes.append(len(x))
        return model(x)

    with batches(given).build(**options(THREADS)) as feed:
        outputs, extras = train.predict(
            counting, feed, inputs="image", batch_size=batch_size, pad=pad
        )
    assert np.array_equal(outputs["twice"], 2 * IMAGES)
    assert np.array_equal(outputs["class"], CLASSES)
    assert extras["id"].tolist() == list(range(ROWS))
    assert extras["name"].to_list() == NAMES
    full, rest = divmod(ROWS, batch_size)
    last = [batch_size if pad else rest] if rest else []
    assert sizes == [batch_size] * full + last


def test_a_dataset_is_rebatched_automatically():
    columns = Dataset.arrays({"image": IMAGES, "id": np.arange(ROWS)})
    outputs, extras = train.predict(model, columns.batch(5), inputs="image", batch_size=8)
    assert np.array_equal(outputs["class"], CLASSES)
    assert extras["id"].tolist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("make", "inputs", "extras"),
    [
        (lambda x: x, None, None),
        (lambda x: {"only": x}, None, None),
        (lambda x: (x, x[:, 0]), None, (IMAGES[:, 0],)),
        (lambda x: (x[:, 0], x), 1, (IMAGES[:, 0],)),
        (lambda x: (x[:, 0], x), -1, (IMAGES[:, 0],)),
        (lambda x: (x, x[:, 0]), -2, (IMAGES[:, 0],)),
        (lambda x: {"a": x, "b": x[:, 1]}, "a", {"b": IMAGES[:, 1]}),
    ],
)
def test_the_models_part_of_a_batch_is_named(make, inputs, extras):
    feed = [make(IMAGES[:10]), make(IMAGES[10:])]
    outputs, rest = train.predict(lambda x: x + 1, feed, inputs=inputs)
    assert np.array_equal(outputs, IMAGES + 1)
    if extras is None:
        assert rest is None
    elif isinstance(extras, dict):
        assert np.array_equal(rest["b"], extras["b"])
    else:
        assert len(rest) == 1
        assert np.array_equal(rest[0], extras[0])


@pytest.mark.parametrize("batch_size", [None, 2, 3, 10])
def test_fields_are_matched_by_name_in_any_order(batch_size):
    feed = [
        {"a": np.zeros(3), "b": np.ones(3), "id": np.arange(3)},
        {"id": np.arange(3, 6), "b": np.ones(3), "a": np.zeros(3)},
    ]

    def in_turns(x):
        said = {"a": x["a"], "nest": {"b": x["b"], "c": 2 * x["b"]}}
        in_turns.calls += 1
        return said if in_turns.calls % 2 else dict(reversed(said.items()))

    in_turns.calls = 0
    outputs, extras = train.predict(in_turns, feed, inputs=["a", "b"], batch_size=batch_size)
    assert outputs["a"].tolist() == [0] * 6
    assert outputs["nest"]["b"].tolist() == [1] * 6
    assert outputs["nest"]["c"].tolist() == [2] * 6
    assert extras["id"].tolist() == list(range(6))
    means = train.evaluate(lambda x: {"a": x["a"]}, feed, batch_size=batch_size)
    assert means == {"a": 0, "rows": 6}


@pytest.mark.parametrize(
    ("feed", "batch_size", "message"),
    [
        ([{"x": IMAGES}, {"y": IMAGES}], 30, r"batch 1 is \{y: float32 \(4,\)\}, batch 0 was \{x:"),
        ([{"x": IMAGES}, {"x": IMAGES, "y": IMAGES}], 30, r"batch 1 is \{x: .*, y: "),
        ([IMAGES, IMAGES.astype(np.float64)], 30, r"batch 1 is float64 .*, batch 0 was float32"),
        ([(IMAGES,), [IMAGES]], 30, "batch 1 is .*batch 0 was"),
        ([(IMAGES, {"x": IMAGES}), (IMAGES, {"y": IMAGES})], None, "number 1 is .*number 0 was"),
    ],
)
def test_batches_that_cannot_be_one_are_refused(feed, batch_size, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        train.predict(
            lambda x: x, feed, inputs=None if batch_size is None else _first, batch_size=batch_size
        )


def _first_of_two(batch):
    return batch[0]


@pytest.mark.parametrize("batch_size", [None, 2, 5])
@pytest.mark.parametrize("inputs", [_first_of_two, None])
def test_predict_keeps_no_batch(inputs, batch_size):
    made, alive = [], []

    def feed():
        for number in range(20):
            batch = np.full((3, 4), number), np.full((3, 4), number)
            made.extend(map(weakref.ref, batch))
            alive.append(sum(array() is not None for array in made) // 2)
            yield batch

    outputs, _ = train.predict(lambda x: x, feed(), inputs=inputs, batch_size=batch_size)
    assert outputs[:, 0].tolist() == np.repeat(range(20), 3).tolist()
    assert max(alive) <= 3  # the next one, and those that the model's last batch is of


def _first(batch):
    return next(iter(batch.values())) if isinstance(batch, dict) else batch[0]


def _same(sample):
    return sample


def _twice(sample):
    return {"image": np.stack([sample["image"]] * 2)}


def _even(number, sample):
    return number % 2 == 0


def _second(number, sample):
    return sample


def _all_rows(sample):
    return {"image": IMAGES}


def _one_of(sample):
    return Dataset.arrays({"image": sample["image"][None]})


def _batch_of(sample):
    return _one_of(sample).batch(2)


@pytest.mark.parametrize(
    "chain",
    [
        lambda samples: samples,
        lambda samples: samples.skip(0).shuffle(seed=1).prefetch(2),
        lambda samples: samples.batch(4).unbatch(),
        lambda samples: samples.batch(4),
        lambda samples: samples.batch(4).map(lambda batch: batch),
        lambda samples: samples.take(3).concatenate(samples.skip(3)),
        lambda samples: samples.map(_same),
        lambda samples: samples.map(_same).shuffle(seed=1).map(_same),
        lambda samples: samples.batch(4).map(_same).unbatch(),
        lambda samples: samples.batch(ROWS).batch(1).unbatch(),
        lambda samples: samples.batch(4).rebatch(3).unbatch(),
        lambda samples: samples.take(1).map(_all_rows).rebatch(3).unbatch(),
        lambda samples: samples.flat_map(_one_of).batch(4),
        lambda samples: samples.interleave(_batch_of, cycle=2).rebatch(4),
        lambda samples: samples.map(_same).batch(4),
        lambda samples: samples.map(_twice).unbatch().enumerate().filter(_even).map(_second),
        lambda samples: samples.take(1).map(_all_rows).rebatch(5),
    ],
)
def test_samples_are_batched_and_batches_are_rebatched(chain):
    """Rows of images are not samples, even if no leaf without rows shows that."""
    samples = Dataset.arrays({"image": IMAGES})
    sizes = []

    def counting(x):
        sizes.append(x.shape)
        return x

    outputs, extras = train.predict(counting, chain(samples), batch_size=10)
    assert sizes == [(10, 4), (10, 4), (3, 4)]
    assert np.array_equal(np.sort(outputs, axis=0), np.sort(IMAGES, axis=0))
    assert extras is None


@pytest.mark.parametrize("size", [None, 4])
def test_evaluate_batches_as_predict_does(size):
    samples = Dataset.arrays({"image": IMAGES})
    given = samples if size is None else samples.batch(size)
    assert train.evaluate(lambda x: {}, given, batch_size=10) == {"rows": ROWS}


def test_samples_without_a_batch_are_refused_and_the_remedy_is_named():
    samples = Dataset.arrays({"image": IMAGES, "id": np.arange(ROWS)}).map(_same)
    remedy = r"a leaf without rows; .*\.batch\(n\) after the stages"
    with pytest.raises(penstock.InvalidArgument, match=remedy):
        train.predict(model, samples, inputs="image")
    with pytest.raises(penstock.InvalidArgument, match=remedy):
        train.evaluate(lambda batch: {}, samples)
    with pytest.raises(penstock.InvalidArgument, match=remedy):
        train.evaluate(lambda batch: {}, ELEMENTS, batch_size=4)


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (lambda samples: samples.flat_map(_one_of), "elements of flat_map"),
        (
            lambda samples: samples.interleave(_one_of).take(3),
            r"elements of interleave\(function\)",
        ),
    ],
)
def test_elements_of_a_functions_datasets_are_not_guessed(chain, said):
    feed = chain(Dataset.arrays({"image": IMAGES}))
    with pytest.raises(penstock.InvalidArgument, match=said + r".*\.batch\(n\).*\.rebatch\(n\)"):
        train.predict(model, feed, batch_size=4)


def test_several_fields_and_functions_are_inputs():
    feed = [{"a": IMAGES, "b": IMAGES, "id": np.arange(ROWS)}]
    outputs, extras = train.predict(lambda x: x["a"] + x["b"], feed, inputs=["a", "b"])
    assert np.array_equal(outputs, IMAGES + IMAGES)
    assert list(extras) == ["id"]
    outputs, extras = train.predict(np.negative, feed, inputs=lambda batch: batch["b"])
    assert np.array_equal(outputs, -IMAGES)
    assert extras is None  # whole batches are not kept


def test_a_model_may_use_its_outputs_memory_again():
    buffer = np.zeros(4, np.float32)

    def reuses(x):
        np.copyto(buffer[: len(x)], x[:, 0])
        return buffer[: len(x)]

    outputs, _ = train.predict(reuses, [IMAGES], batch_size=4)
    assert np.array_equal(outputs, IMAGES[:, 0])


@pytest.mark.parametrize(
    ("feed", "settings", "message"),
    [
        ([], {}, "gave no batch"),
        ([{"x": IMAGES}], {"inputs": "y"}, r"the batch has \['x'\]"),
        ([(IMAGES, IMAGES)], {"inputs": -3}, "the batch has tuple"),
        ([()], {"inputs": -1}, "the batch has tuple"),
        ([IMAGES], {"pad": True}, "needs batch_size"),
        ([IMAGES], {"batch_size": 0}, "batch_size=0"),
        ([(IMAGES, 3.0)], {"batch_size": 2}, "a leaf without rows"),
        ([{"x": IMAGES}, {}], {"inputs": lambda batch: batch}, "has no rows"),
        ([IMAGES, IMAGES[:, :2]], {"batch_size": 30}, "different shapes"),
    ],
)
def test_invalid_arguments_are_refused(feed, settings, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        train.predict(lambda x: x, feed, **settings)


def test_a_model_that_gives_other_rows_is_refused():
    with pytest.raises(penstock.InvalidArgument, match="returned 1 rows for 23"):
        train.predict(lambda x: x[:1], [IMAGES])


def test_tensors_of_torch_come_back_as_arrays():
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 2)
    outputs, _ = train.predict(lambda x: layer(torch.from_numpy(x)), [IMAGES.copy()], batch_size=10)
    assert np.allclose(outputs, layer(torch.from_numpy(IMAGES)).detach().numpy(), atol=1e-6)


# ---- evaluate ------------------------------------------------------------------------------------


def right(batch):
    return {"accuracy": model(batch["image"])["class"] == 1, "size": np.abs(batch["image"]).sum(1)}


def test_metrics_do_not_depend_on_how_rows_are_batched():
    results = [
        train.evaluate(right, [{"image": IMAGES}], batch_size=size, pad=pad)
        for size in (1, 4, 23, 60)
        for pad in (False, True)
    ]
    assert all(result == results[0] for result in results)
    assert results[0]["rows"] == ROWS
    assert results[0]["accuracy"] == np.mean(CLASSES == 1)


def test_means_of_batches_count_by_their_rows():
    feed = [np.ones(30), np.zeros(10)]
    assert train.evaluate(lambda x: {"mean": x.mean()}, feed) == {"mean": 0.75, "rows": 40}


def test_a_mean_over_a_batch_that_is_filled_up_is_refused():
    with pytest.raises(penstock.InvalidArgument, match="a value for each row"):
        train.evaluate(lambda x: {"mean": x.mean()}, [np.ones(30)], batch_size=8, pad=True)


def test_other_metrics_than_before_and_empty_feeds_are_refused():
    with pytest.raises(penstock.InvalidArgument, match="they must be the same"):
        train.evaluate(lambda x: {f"m{len(x)}": x}, [np.ones(3), np.ones(2)])
    with pytest.raises(penstock.InvalidArgument, match="gave no batch"):
        train.evaluate(lambda x: {}, [])
    with pytest.raises(penstock.InvalidArgument, match='called "rows"'):
        train.evaluate(lambda x: {"rows": x}, [np.ones(3)])


# ---- recurrent models ----------------------------------------------------------------------------


def sequences(count, seed=3):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(rng.integers(1, 12), 2)) for _ in range(count)]


class Sums:
    """A recurrent model: its state is the sum of all steps since the sequence began."""

    def __init__(self, lanes):
        self.state = np.full((lanes, 2), np.nan)  # shows where a reset is missing

    def __call__(self, x, reset):
        self.state[reset] = 0
        out = self.state[:, None, :] + np.cumsum(x, axis=1)
        self.state = out[:, -1]
        return out


@pytest.mark.parametrize("window", [1, 3, 20])
@pytest.mark.parametrize("lanes", [1, 4, 9])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_a_lane_continues_where_it_ended_and_resets_with_a_sequence(count, lanes, window):
    feed = [{"x": x, "id": number} for number, x in enumerate(sequences(count))]
    outputs, extras = train.predict(
        Sums(lanes), feed, inputs="x", stateful=True, batch_size=lanes, window=window
    )
    assert [extra["id"] for extra in extras] == list(range(count))
    assert len(outputs) == count
    for made, x in zip(outputs, sequences(count), strict=True):
        assert np.allclose(made, np.cumsum(x, axis=0))


def test_batches_describe_each_lane():
    first, second, third = np.arange(1, 6), np.arange(10, 12), np.arange(20, 23)
    seen = list(train.Stateful([first, second, third], batch_size=2, window=2))
    assert [batch.x.tolist() for batch in seen] == [
        [[1, 2], [10, 11]],
        [[3, 4], [20, 21]],
        [[5, 0], [22, 0]],
    ]
    assert [batch.reset.tolist() for batch in seen] == [[True, True], [False, True], [False, False]]
    assert [batch.sequence.tolist() for batch in seen] == [[0, 1], [0, 2], [0, 2]]
    assert seen[2].mask.tolist() == [[True, False], [True, False]]
    assert seen[2].steps.tolist() == [1, 1]


def test_a_dataset_gives_sequences_too():
    feed = Dataset.items([{"x": x} for x in sequences(9)])
    outputs, extras = train.predict(Sums(3), feed, stateful=True, batch_size=3, window=4)
    assert extras is None
    for made, x in zip(outputs, sequences(9), strict=True):
        assert np.allclose(made, np.cumsum(x, axis=0))


def test_fields_of_sequences_go_by_their_names():
    given = [{"a": np.zeros(3), "b": np.ones(3)}, {"b": np.ones(2), "a": np.zeros(2)}]
    for batch in train.Stateful(given, batch_size=2, window=2):
        assert not batch.x["a"].any()
        assert np.array_equal(batch.x["b"], batch.mask)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([np.zeros((2, 3)), np.zeros((0, 3))], "sequence 1 has no steps"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], "sequence 1 has steps of"),
        ([{"a": np.zeros(3), "b": np.zeros(2)}], "leaves of .* rows"),
        ([{"a": np.zeros(3)}, {"b": np.zeros(3)}], r"sequence 1 has steps of \{b: .*had \{a: "),
    ],
)
def test_sequences_that_do_not_fit_are_named(given, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        list(train.Stateful(given, batch_size=4, window=2))


def test_a_window_is_needed_and_outputs_have_its_shape():
    with pytest.raises(penstock.InvalidArgument, match="needs window="):
        train.predict(Sums(1), [np.zeros((3, 2))], stateful=True)
    with pytest.raises(penstock.InvalidArgument, match="for 2 lanes of 4 steps"):
        train.predict(
            lambda x, reset: x[:, -1], [np.zeros((3, 2))], stateful=True, batch_size=2, window=4
        )

"""Sources that a Loader accepts, and sources that are errors."""

from __future__ import annotations

import collections

import numpy as np
import pytest

import penstock
from contract import INLINE, KINDS, PROCESSES, THREADS, Mode, assert_same, check_checkpoints, each
from loader_datasets import BatchedSamples, Items, Ragged, Samples, ten_items

pytestmark = pytest.mark.timeout(60)

Pair = collections.namedtuple("Pair", ["image", "label"])

RECORD = np.dtype([("a", np.int16), ("b", np.float64, (2,)), ("c", "S3")])


def records(n):
    made = np.zeros(n, RECORD)
    made["a"] = np.arange(n)
    made["b"] = np.arange(2 * n).reshape(n, 2)
    made["c"] = [b"%d" % i for i in range(n)]
    return made


def columns():
    rng = np.random.default_rng(3)
    x = rng.integers(0, 255, (23, 4, 5), np.uint8)
    yield "array", x
    yield "float16", rng.random((23, 3)).astype(np.float16)
    yield "numbers", np.arange(23.0)
    yield "tuple", (x, np.arange(23))
    yield "dict", {"image": x, "label": np.arange(23, dtype=np.int32)}
    yield "nested", {"in": (x, np.arange(23)), "out": np.arange(23) % 2 == 0}
    yield "named tuple", Pair(x, np.arange(23))
    yield "records", records(23)
    yield "big-endian", np.arange(23, dtype=">i4")
    yield "dates", np.arange(23).astype("datetime64[D]")
    yield "text", np.array([f"word {i}" for i in range(23)])
    yield "bytes", np.array([b"word %d" % i for i in range(23)])
    yield "complex", (np.arange(23) * 1j).reshape(23, 1)
    yield "every other row", np.arange(92).reshape(46, 2)[::2]
    yield "reversed", np.arange(46).reshape(23, 2)[::-1]
    yield "transposed", np.arange(46).reshape(2, 23).T
    yield "one row again and again", np.broadcast_to(np.arange(3), (23, 3))
    yield "no columns", np.zeros((23, 0))
    yield "objects", np.array([{"i": i} for i in range(23)])
    yield "read-only", np.frombuffer(bytes(range(46)), np.uint16)


def take(nest, indices):
    if isinstance(nest, dict):
        return {key: take(value, indices) for key, value in nest.items()}
    if isinstance(nest, tuple):
        values = [take(value, indices) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else tuple(values)
    return nest[indices]


@each((INLINE, THREADS, Mode(4), PROCESSES), (Mode(2, "spawn"),))
@pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in columns()])
def test_rows_of_arrays_are_gathered_into_batches(source, mode):
    if isinstance(source, np.ndarray) and source.dtype.hasobject:
        with penstock.Loader(source, batch_size=5, **mode.options) as feed:
            assert [i for batch in feed for i in batch["i"]] == list(range(23))
        return
    with penstock.Loader(source, batch_size=5, shuffle=True, seed=1, **mode.options) as feed:
        assert len(feed) == 5
        with penstock.Loader(np.arange(23), batch_size=5, shuffle=True, seed=1, workers=1) as which:
            for _ in range(2):
                for batch, indices in zip(feed, which, strict=True):
                    assert_same(batch, take(source, indices))
        assert feed.stats()["delivered"] == 10


@each(KINDS, ())
def test_a_masked_array_keeps_its_mask(mode):
    source = np.ma.masked_array(np.arange(12.0).reshape(6, 2), mask=[[0, 1]] * 6)
    with penstock.Loader(source, batch_size=4, **mode.options) as feed:
        rows = [row for batch in feed for row in batch]
    assert len(rows) == 6
    for row, wanted in zip(rows, source, strict=True):
        assert type(row) is np.ma.MaskedArray
        assert (row.mask == wanted.mask).all()
        assert row[0] == wanted[0]


@each(KINDS, ())
def test_arrays_without_a_batch_size_are_a_list_of_rows(mode):
    source = (np.arange(12).reshape(4, 3), np.arange(4))
    with penstock.Loader(source, **mode.options) as feed:
        batches = list(feed)
    assert len(batches) == 4
    for i, (row, number) in enumerate(batches):
        assert (row == source[0][i]).all()
        assert number == i


def test_arrays_restore_at_every_element_in_every_mode():
    source = (np.arange(46).reshape(23, 2), np.arange(23))
    check_checkpoints(
        lambda **mode: penstock.Loader(source, batch_size=4, shuffle=True, **mode),
        Mode(2),
        (INLINE, Mode(1), Mode(4), PROCESSES),
    )


@each(KINDS, ())
def test_a_list_is_samples_or_batches(mode):
    source = [(np.full(3, i), f"n{i}") for i in range(7)]
    with penstock.Loader(source, batch_size=3, **mode.options) as feed:
        batches = list(feed)
        assert [names for _, names in batches] == [["n0", "n1", "n2"], ["n3", "n4", "n5"], ["n6"]]
        assert np.concatenate([x for x, _ in batches])[:, 0].tolist() == list(range(7))
    with penstock.Loader(source, **mode.options) as feed:
        assert [name for _, name in feed] == [name for _, name in source]


def empty_sources():
    yield "list", []
    yield "array", np.zeros((0, 3))
    yield "arrays", (np.zeros((0, 3)), np.zeros(0))
    yield "map", Items(0)


@each(KINDS, ())
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("source", [pytest.param(s, id=name) for name, s in empty_sources()])
def test_an_empty_source_has_empty_epochs(source, batch_size, mode):
    with penstock.Loader(source, batch_size=batch_size, shuffle=True, **mode.options) as feed:
        assert len(feed) == 0
        assert list(feed) == []
        assert list(feed) == []
        state = feed.state()
        feed.restore(state)
        assert list(feed) == []
        with pytest.raises(penstock.InvalidArgument, match="empty"):
            list(feed.steps(1))


@each(KINDS, ())
@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_one_sample_is_one_batch(batch_size, mode):
    with penstock.Loader(Items(1), batch_size=batch_size, shuffle=True, **mode.options) as feed:
        for _ in range(3):
            assert len(list(feed)) == len(feed) == 1
        assert len(list(feed.steps(4))) == 4
    with penstock.Loader(Items(3), batch_size=4, drop_last=True, **mode.options) as feed:
        assert list(feed) == []


@each(KINDS, ())
def test_numbers_text_and_nests_are_stacked_and_collected(mode):
    class Mixed:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return Pair(
                {1: np.float32(i), "list": [i, float(i), bool(i % 2)]},
                (f"t{i}", b"b%d" % i, None, 1 << 70, {i}),
            )

    with penstock.Loader(Mixed(), batch_size=3, **mode.options) as feed:
        batch = list(feed)[1]
    assert type(batch) is Pair
    assert_same(
        batch.image,
        {
            1: np.array([3, 4, 5], np.float32),
            "list": [np.array([3, 4, 5]), np.array([3.0, 4, 5]), np.array([True, False, True])],
        },
    )
    assert batch.label == (
        ["t3", "t4", "t5"],
        [b"b3", b"b4", b"b5"],
        [None] * 3,
        [1 << 70] * 3,
        [{3}, {4}, {5}],
    )


@each(KINDS, ())
@pytest.mark.parametrize("batch_size", [8, 3])
def test_ragged_samples_are_an_error_that_says_which_index_has_which_shape(batch_size, mode):
    with penstock.Loader(Ragged(), batch_size=batch_size, **mode.options) as feed:
        with pytest.raises(penstock.InvalidArgument) as caught:
            list(feed)
        text = str(caught.value)
        assert "float32 of shape (4,)" in text
        assert "float32 of shape (3,)" in text
        assert "index" in text
        assert "collate=" in text


def test_a_ragged_sample_is_the_one_that_is_skipped():
    with penstock.Loader(Ragged(), batch_size=8, workers=0, on_error="skip") as feed:
        (batch,) = list(feed)
        assert batch[1].tolist() == [0, 1, 2, 3, 4, 6, 7]
        assert [loss[:2] for loss in feed.stats()["losses"]] == [(0, 5)]


@each(KINDS, ())
def test_collate_gets_the_list_of_samples(mode):
    def collate(samples):
        assert type(samples) is list
        return {"longest": max(len(x) for x, _ in samples), "labels": [y for _, y in samples]}

    with penstock.Loader(Ragged(), batch_size=4, collate=collate, **mode.options) as feed:
        assert list(feed) == [
            {"longest": 3, "labels": [0, 1, 2, 3]},
            {"longest": 4, "labels": [4, 5, 6, 7]},
        ]


class CountingItems(BatchedSamples):
    def __getitem__(self, index):
        raise AssertionError("one by one although there is __getitems__")

    def __getitems__(self, indices):
        assert all(type(index) is int for index in indices)
        return [{"many": len(indices), "y": index} for index in indices]


@each(KINDS, ())
def test_getitems_is_called_with_a_whole_batch(mode):
    with penstock.Loader(CountingItems(100), batch_size=70, shuffle=True, **mode.options) as feed:
        batches = list(feed)
    assert [set(batch["many"].tolist()) for batch in batches] == [{70}, {30}]
    assert sorted(y for batch in batches for y in batch["y"]) == list(range(100))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": "8"}, "batch_size"),
        ({"workers": -1}, "workers"),
        ({"workers": 257}, "workers"),
        ({"workers": "all"}, "workers"),
        ({"max_queue_size": 0}, "max_queue_size"),
        ({"max_queue_size": 10**6}, "max_queue_size is 1000000; give 65536 at most"),
        ({"batch_size": 2**33}, "batch_size is 8589934592; give 2147483647 at most"),
        ({"batch_size": 10**30}, "batch_size is 10+; give 2147483647 at most"),
        ({"retries": 2**62}, "retries"),
        ({"shard": (0, 2**40)}, "world"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -2.0}, "timeout"),
        ({"timeout": "long"}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"on_error": "ignore"}, "on_error"),
        ({"start_method": "thread"}, "start_method"),
        ({"collate": list}, "collate"),
        ({"batch_size": 2, "collate": 3}, "collate"),
        ({"shard": 3}, "shard"),
        ({"shard": (2, 2)}, "shard"),
        ({"shard": (-1, 2)}, "rank"),
        ({"shard": (0, 0)}, "world"),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused_by_its_name(options, name):
    with pytest.raises(penstock.InvalidArgument, match=name):
        penstock.Loader(Items(), **options)


def test_a_batch_size_far_above_the_length_costs_nothing():
    options = {"batch_size": 2**31 - 1, "timeout": float("inf"), "max_queue_size": 2}
    with penstock.Loader([np.ones(2)] * 5, workers=2, **options) as feed:
        assert [len(batch) for batch in feed] == [5]
        assert feed.stats()["delivered"] == 1


@pytest.mark.parametrize(
    "source",
    [
        None,
        3,
        object(),
        Items,
        len,
        (np.zeros(3), np.zeros(4)),
        (np.zeros(3), np.array(4)),
        np.array(4),
        {"x": np.zeros(3), "y": [1, 2]},
    ],
    ids=lambda source: str(source).partition(" at ")[0][:30],
)
def test_what_cannot_be_fed_is_refused(source):
    with pytest.raises(penstock.InvalidArgument):
        penstock.Loader(source, batch_size=2)


class NegativeLength(Items):
    def __len__(self):
        return -1


def test_a_broken_length_is_an_error():
    with pytest.raises((penstock.InvalidArgument, ValueError)):
        penstock.Loader(NegativeLength())


def test_steps_and_restore_check_their_arguments():
    with penstock.Loader(Items(5), workers=0) as feed:
        for n in (-1, 2.5, None):
            with pytest.raises(penstock.InvalidArgument, match="n is"):
                feed.steps(n)
        state = feed.state()
        for bad in (None, [], {}, {**state, "version": 99}):
            with pytest.raises(penstock.InvalidArgument):
                feed.restore(bad)
        for key in ("epoch", "batches"):
            for value in (-1, "x", None):
                with pytest.raises(penstock.InvalidArgument, match=key):
                    feed.restore({**state, key: value})
            with pytest.raises(penstock.InvalidArgument, match=key):
                feed.restore({k: v for k, v in state.items() if k != key})
        for ahead in (3, [-1], ["x"], [1.5]):
            with pytest.raises(penstock.InvalidArgument, match="ahead"):
                feed.restore({**state, "ahead": ahead})
        for options, said in (
            ({"seed": 1}, "seed=1, this one was built with seed=0"),
            ({"shuffle": True}, r"with shuffle\(seed=0\) as stage 1, this one has batch\(1\)"),
            ({"batch_size": 3}, "with samples as stage 0, this one has items"),
        ):
            with (
                penstock.Loader(Items(5), workers=0, **options) as other,
                pytest.raises(penstock.InvalidArgument, match=said),
            ):
                feed.restore(other.state())
        with pytest.raises(penstock.InvalidArgument, match=r"with 6 elements .* this one has 5"):
            feed.restore({**state, "length": 6})
        assert feed.state() == state
        assert [index for _, index in feed] == list(range(5))


def test_a_state_is_small_and_json():
    import json

    with penstock.Loader(Samples(10**6), batch_size=16, shuffle=True, workers=0) as feed:
        next(iter(feed))
        text = json.dumps(feed.state())
        assert len(text) < 300
        assert json.loads(text) == feed.state()


def test_a_closed_feed_says_so():
    feed = penstock.Loader(Items(), workers=1)
    iterator = iter(feed)
    next(iterator)
    feed.close()
    feed.close()
    for use in (lambda: next(iterator), lambda: iter(feed), lambda: list(feed.steps(1))):
        with pytest.raises(penstock.Closed):
            use()
    assert feed.stats()["delivered"] == 1


def test_a_generator_function_is_recognised_in_a_class():
    class Maker:
        def __call__(self):
            yield from ten_items()

    with penstock.Loader(Maker(), workers=1) as feed:
        assert len(list(feed)) == 10


# ---- what could be misread ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", KINDS)
def test_a_tuple_of_torch_tensors_is_columns_and_comes_as_tensors(mode):
    torch = pytest.importorskip("torch")
    x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10)
    with penstock.Loader((x, y), batch_size=4, **mode.options) as feed:
        batches = list(feed)
    assert [len(a) for a, _ in batches] == [4, 4, 2]
    assert all(isinstance(a, torch.Tensor) and a.dtype == torch.float32 for a, _ in batches)
    assert torch.equal(torch.cat([a for a, _ in batches]), x)
    assert torch.equal(torch.cat([b for _, b in batches]), y)


def test_a_dict_of_jax_arrays_is_columns():
    jnp = pytest.importorskip("jax.numpy")
    with penstock.Loader({"x": jnp.arange(6), "y": np.arange(6)}, batch_size=4) as feed:
        first, last = feed
    assert_same(first, {"x": np.arange(4, dtype=np.int32), "y": np.arange(4)})
    assert_same(last, {"x": np.arange(4, 6, dtype=np.int32), "y": np.arange(4, 6)})


@pytest.mark.parametrize(
    "source",
    [(np.zeros(4), [0, 1, 2, 3]), ([0, 1], np.zeros(2)), (np.zeros(2), None)],
    ids=["list", "list first", "none"],
)
def test_a_tuple_of_arrays_and_other_things_is_refused(source):
    with pytest.raises(penstock.InvalidArgument, match=r"np\.asarray"):
        penstock.Loader(source, batch_size=2)


@pytest.mark.parametrize("path", ["train.tfrecord", b"x.npy", __import__("pathlib").Path("a.csv")])
def test_a_path_is_no_dataset(path):
    for make in (penstock.Loader, penstock.Dataset.source):
        with pytest.raises(penstock.InvalidArgument, match="what is in the file"):
            make(path)


def test_a_table_is_no_dataset():
    table = type("DataFrame", (), {"__module__": "pandas.core.frame", "__len__": lambda self: 3})
    table.__getitem__ = lambda self, key: key
    for make in (penstock.Loader, penstock.Dataset.source):
        with pytest.raises(penstock.InvalidArgument, match=r"pandas\.DataFrame.*to_numpy"):
            make(table())


def test_named_arrays_of_a_mapping_are_no_samples(tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.arange(3), y=np.ones(3))
    named = collections.UserDict(x=np.arange(3), y=np.ones(3))
    makes = (
        penstock.Loader,
        penstock.Dataset.source,
        penstock.Dataset.arrays,
    )
    for make in makes:
        with pytest.raises(penstock.InvalidArgument, match=r"UserDict are names, 'x', 'y': .*dict"):
            make(named)
        with np.load(tmp_path / "rows.npz") as file:
            with pytest.raises(penstock.InvalidArgument, match=r"Dataset\.npz\(path\)"):
                make(file)
            with penstock.Loader(dict(file), batch_size=3) as loader:
                assert [list(batch["x"]) for batch in loader] == [[0, 1, 2]]
    with penstock.Loader(collections.UserDict({0: 5, 1: 6}), batch_size=2) as loader:
        assert [list(batch) for batch in loader] == [[5, 6]]  # numbers are indices
    with pytest.raises(penstock.InvalidArgument, match=r"'b': 'list'.*list of samples"):
        penstock.Loader({"a": np.arange(2), "b": ["x", "y"]}, batch_size=2)


def test_columns_of_a_table_are_no_samples():
    column = type("Series", (), {"__module__": "pandas.core.series", "__len__": lambda self: 3})
    for make in (penstock.Loader, penstock.Dataset.source):
        with pytest.raises(penstock.InvalidArgument, match=r"\{0: 'Series'\}.*to_numpy"):
            make((column(), [1, 2, 3]))


@pytest.mark.parametrize(
    "source",
    [
        (np.zeros(4), np.zeros(4)),
        (np.zeros(4), [0, 1, 2, 3]),
        {"x": np.zeros(4)},
        {"x": [1, 2]},
        {0: np.zeros(2), 1: np.zeros(2)},
    ],
    ids=["arrays", "list", "dict", "dict of lists", "numbered"],
)
def test_a_dataset_of_elements_takes_no_columns(source):
    with pytest.raises(penstock.InvalidArgument, match=r"Dataset\.arrays"):
        penstock.Dataset.source(source)


def test_a_dataset_is_no_source_of_a_dataset():
    with pytest.raises(penstock.InvalidArgument, match="a Dataset already"):
        penstock.Dataset.source(penstock.Dataset.range(3))


def test_an_iterable_dataset_with_a_length_is_a_stream():
    data = pytest.importorskip("torch.utils.data")

    class Sized(data.IterableDataset):
        def __len__(self):
            return 3

        def __iter__(self):
            return iter([np.full(2, i) for i in range(3)])

    with penstock.Loader(Sized(), workers=0) as feed:
        assert [batch[0] for batch in feed] == [0, 1, 2]


@pytest.mark.parametrize("mode", KINDS)
def test_two_names_of_one_integer_type_are_alike(mode):
    kinds = [np.longlong, np.int64, np.ulonglong, np.uint64]
    samples = [(np.ones(2, kinds[i % 2]), np.ones(2, kinds[2 + i % 2])) for i in range(4)]
    with penstock.Loader(samples, batch_size=4, **mode.options) as feed:
        ((signed, unsigned),) = feed
    assert (signed.dtype, unsigned.dtype) == (np.int64, np.uint64)

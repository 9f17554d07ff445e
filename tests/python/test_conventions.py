"""Public objects have a repr, close as context managers, and have torch's names of states."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import train


class Samples:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.full(3, index, np.float32), index


def endless():
    while True:
        yield np.zeros(2)


def numbers(n=20):
    return penstock.Dataset.range(n).batch(4)


# ---- repr


def test_a_loader_names_source_batches_and_workers():
    with penstock.Loader(Samples(), batch_size=8, workers=2) as feed:
        assert repr(feed) == "Loader(Samples, batches=3, workers=2, mode=threads)"
        assert repr(iter(feed)) == f"LoaderIterator({feed!r}, epoch=0)"
        assert repr(feed.steps(5)) == f"BatchIterator({feed!r}, steps=5)"
    assert repr(feed) == "Loader(Samples, batches=3, workers=2, mode=threads, closed=True)"
    with penstock.Loader(endless, workers=0) as feed:
        assert repr(feed) == "Loader(endless, batches=unknown, workers=0, mode=inline)"


def test_what_comes_of_a_dataset_names_its_chain():
    dataset = numbers()
    assert repr(dataset) == "range(0, 20) > batch(4)"
    with dataset.build(workers=1) as feed:
        loader = f"Loader({dataset!r}, batches=5, workers=1, mode=threads)"
        assert repr(feed) == loader
    with penstock.Dataset.range(20).batch(4).feeds(2, workers=1) as feeds:
        assert repr(feeds) == f"Feeds({loader}, consumers=2)"
        assert repr(feeds[1]) == f"Consumer({loader}, number=1)"
    with iter(dataset) as iterator:
        assert repr(iterator).startswith(f"DatasetIterator(Loader({dataset!r}, batches=5, workers=")
        assert repr(iterator).endswith(", epoch=0)")
    with penstock.Feedable(train=dataset) as feedable:
        assert repr(feedable).startswith(f"Feedable(train=DatasetIterator(Loader({dataset!r}, ")


def test_small_objects_are_shown_as_they_are_made():
    shown = "Permutation(5, seed=7, epoch=2)"
    assert repr(penstock.Permutation(5, seed=7, epoch=2)) == shown
    for feature, shown in (
        (penstock.int64(), "int64()"),
        (penstock.int64(3, dtype="int32"), "int64((3,), dtype='int32')"),
        (penstock.float32(ragged=True), "float32(ragged=True)"),
        (penstock.bytes(4), "bytes(4)"),
        (penstock.bytes(many=True, default=b""), "bytes(many=True, default=...)"),
    ):
        assert repr(feature) == shown


def test_a_repr_runs_nothing_of_the_users():
    class Broken(Samples):
        def __repr__(self):
            raise RuntimeError("never asked")

        def __len__(self):
            return 4

    pytest.importorskip("torch")
    with penstock.torch.DataLoader(Broken(), batch_size=2) as loader:
        assert repr(loader).startswith("DataLoader(")
        assert "batches=2, batch_size=2, num_workers=0" in repr(loader)
        iterator = iter(loader)
        assert repr(iterator) == f"Iteration({loader!r}, epoch=0)"
    assert "closed=True" in repr(loader)


def test_feeds_of_frameworks_name_theirs():
    pytest.importorskip("jax")
    with penstock.jax.feed(Samples(), batch_size=8, workers=0) as feed:
        assert repr(feed) == "JaxLoader(Samples, batches=3, workers=0, mode=inline)"
        assert repr(iter(feed)) == f"BatchIterator({feed!r}, epoch=0)"


def test_feeds_of_keras_name_their_loader():
    pytest.importorskip("keras")
    with penstock.keras.feed(Samples(), batch_size=8, workers=0) as feed:
        assert repr(feed) == "PyDatasetFeed(Loader(Samples, batches=3, workers=0, mode=inline))"
    with penstock.keras.feed(endless, workers=0) as feed:
        assert repr(feed) == "StreamFeed(Loader(endless, batches=unknown, workers=0, mode=inline))"


def test_training_names_feed_workers_and_updater():
    parameters = train.Parameters({"w": (2,)})
    updater = train.Updater(parameters, train.SGD(0.5))
    assert repr(updater).startswith("Updater(SGD(")
    assert repr(updater).endswith(", blocks=1, step=0)")
    dataset = numbers()
    for made in (
        train.Hogwild(len, parameters, updater, dataset, workers=3),
        train.Towers(len, parameters, updater, dataset, towers=3),
    ):
        kind = type(made).__name__
        workers = "towers=3" if kind == "Towers" else "workers=3, use_multiprocessing=False"
        assert repr(made) == f"{kind}({dataset!r}, {workers}, updater={updater!r})"
    loop = train.Loop(lambda batch: None, dataset, steps=5)
    assert repr(loop) == f"Loop({dataset!r}, run=5, batch_size=None, steps=0)"
    schedule = train.Schedule.cosine(0.5, 10).after_warmup(3)
    assert repr(schedule) == "Schedule.cosine(0.5).after_warmup(3)"
    stateful = train.Stateful([], batch_size=2, window=8)
    assert repr(stateful) == "Stateful(list, batch_size=2, window=8)"
    with train.ParameterServer(parameters, train.SGD(0.5), shards=1) as server:
        assert repr(server) == "ParameterServer(SGD, blocks=1, shards=1, use_multiprocessing=False)"


# ---- close


@pytest.mark.parametrize("bar", [False, True])
def test_closing_an_iterator_ends_its_epoch_and_no_workers(bar):
    with penstock.Loader(Samples(), batch_size=4, workers=2, progress=bar) as feed:
        with iter(feed) as batches:
            assert next(batches)[1].tolist() == [0, 1, 2, 3]
        assert list(batches) == []
        assert feed.state()["batches"] == 1
        assert [y.tolist()[0] for _, y in feed] == [0, 4, 8, 12, 16]  # as after a break
        assert feed.state()["epoch"] == 2
        with feed.steps(3) as batches:
            next(batches)
        assert list(batches) == []
        assert [y.tolist()[0] for _, y in feed] == [4, 8, 12, 16]
        assert feed.stats()["restarts"] == 0


def test_a_dataset_and_its_iterators_close():
    with numbers() as dataset:
        with iter(dataset) as iterator:
            assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(penstock.Closed):
            next(iterator)
        assert len(list(dataset)) == 5  # another pass starts new workers


def test_an_iteration_of_torch_closes():
    pytest.importorskip("torch")
    with penstock.torch.DataLoader(Samples(), batch_size=4) as loader:
        with iter(loader) as batches:
            next(batches)
        assert list(batches) == []
        assert len(list(loader)) == 5


# ---- states by torch's names


def rest_of(feed):
    return [np.asarray(batch).tolist() for batch in feed]


def test_a_state_dict_is_the_state():
    with numbers().build(workers=1) as feed, numbers().build(workers=1) as other:
        next(iter(feed))
        assert feed.state_dict() == feed.state()
        other.load_state_dict(feed.state_dict())
        assert rest_of(other)[0] == [4, 5, 6, 7]


def test_iterators_and_feedables_have_state_dicts():
    with penstock.Feedable(a=numbers()) as feedable, penstock.Feedable(a=numbers()) as other:
        feedable.next("a")
        assert feedable.state_dict() == feedable.state()
        other.load_state_dict(feedable.state_dict())
        assert other.next("a").tolist() == [4, 5, 6, 7]
    with iter(numbers()) as iterator, iter(numbers()) as other:
        next(iterator)
        other.load_state_dict(iterator.state_dict())
        assert next(other).tolist() == [4, 5, 6, 7]


def test_feeds_have_state_dicts():
    with numbers().feeds(2, workers=1) as feeds, numbers().feeds(2, workers=1) as others:
        next(iter(feeds[0]))
        assert feeds.state_dict() == feeds.state()
        others.load_state_dict(feeds.state_dict())
        rest = [next(iter(consumer)).tolist() for consumer in others]
        assert rest == [[8, 9, 10, 11], [4, 5, 6, 7]]  # each has every second batch


def test_training_has_state_dicts():
    parameters = train.Parameters({"w": np.ones(2, np.float32)})
    updater = train.Updater(parameters, train.Adam(0.1))
    before, weights = updater.state_dict(), parameters.state_dict()
    updater.apply({"w": np.ones(2, np.float32)})
    assert updater.step == 1
    parameters.load_state_dict(weights)
    assert parameters["w"].tolist() == [1, 1]
    updater.load_state_dict(before)
    assert updater.step == 0


def test_keras_and_jax_feeds_have_state_dicts():
    pytest.importorskip("keras")
    pytest.importorskip("jax")
    for make in (penstock.keras.feed, penstock.jax.feed):
        with make(Samples(), batch_size=4, workers=0) as feed:
            next(iter(feed))
            state = feed.state_dict()
            assert state == feed.state()
            assert state["batches"] == 1
            feed.load_state_dict(state)
            assert np.asarray(next(iter(feed))[1]).tolist() == [4, 5, 6, 7]


def test_a_dataloader_follows_the_protocol_of_torchdatas():
    """StatefulDataLoader: a state taken in mid-epoch is loaded before another one is iterated."""
    torch = pytest.importorskip("torch")
    options = {"batch_size": 4, "shuffle": True}

    def order(loader, generator=None):
        return [y.tolist() for _, y in loader]

    with penstock.torch.DataLoader(
        Samples(), **options, generator=torch.Generator().manual_seed(3)
    ) as loader:
        batches = iter(loader)
        first = [next(batches)[1].tolist() for _ in range(2)]
        state = loader.state_dict()
        rest = [y.tolist() for _, y in batches]
    assert sorted(np.concatenate(first + rest).tolist()) == list(range(20))
    with penstock.torch.DataLoader(
        Samples(), **options, generator=torch.Generator().manual_seed(4)
    ) as other:
        other.load_state_dict(state)
        assert order(other) == rest
        assert len(order(other)) == 5

"""Checks of penstock.keras; test_keras.py runs them for every backend."""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras
import numpy as np
import pytest

import penstock
from keras_datasets import Batches
from keras_models import KerasBatches, Recorder, indices, model_of
from penstock.base import notes
from penstock.keras import py_dataset

WORKERS = [
    {"workers": 0},
    {"workers": 2},
    {"workers": 2, "use_multiprocessing": True},
]


def fit_sees_every_batch_once_an_epoch():
    for how in WORKERS:
        recorder = Recorder()
        model = model_of(recorder)
        with penstock.keras.feed(Batches(), **how) as feed:
            model.fit(feed, epochs=3, verbose=0)
            assert indices(recorder) == 3 * list(range(10)), (how, recorder.seen)
            assert len(feed) == 10
            assert feed.epoch == 3


def a_pydataset_goes_in():
    recorder = Recorder()
    model = model_of(recorder)
    data = KerasBatches(length=4)
    with penstock.keras.feed(data, workers=1, use_multiprocessing=True) as feed:
        model.fit(feed, epochs=2, verbose=0)
        assert recorder.seen == [(i, e, 0) for e in range(2) for i in range(4)], recorder.seen
        assert data.ended == 2


def held_batches_stay_right():
    if keras.backend.backend() == "tensorflow":
        adapter = keras.src.trainers.data_adapters.get_data_adapter
        with penstock.keras.feed(Batches(12, rows=5000), workers=2, max_queue_size=2) as feed:
            held = [x for x, _ in adapter(feed).get_tf_dataset()]
            assert [int(x[0, 0]) for x in held] == list(range(12))
            assert [int(x[-1, 0]) for x in held] == list(range(12))
    with penstock.keras.feed(Batches(12, rows=5000), workers=2, max_queue_size=2) as feed:
        held = list(feed)
    assert [int(x[-1, 0]) for x, _ in held] == list(range(12))


def steps_per_epoch_visits_all():
    recorder = Recorder()
    model = model_of(recorder)
    with penstock.keras.feed(Batches(100), workers=2) as feed:
        model.fit(feed, epochs=5, steps_per_epoch=20, verbose=0)
        assert indices(recorder) == list(range(100)), recorder.seen


def hooks_run_once_an_epoch_and_reach_the_workers():
    for how in WORKERS:
        recorder = Recorder()
        model = model_of(recorder)
        data = Batches(5)
        with penstock.keras.feed(data, **how) as feed:
            model.fit(feed, epochs=3, verbose=0)
            assert (data.begun, data.ended) == (3, 3), (how, data.begun, data.ended)
            expected = [(i, e, e + 1) for e in range(3) for i in range(5)]
            assert recorder.seen == expected, (how, recorder.seen)
            model.fit(feed, epochs=1, verbose=0)
            assert (data.begun, data.ended) == (4, 4)
            assert recorder.seen[15:] == [(i, 3, 4) for i in range(5)]


def hooks_follow_the_data_not_steps_per_epoch():
    recorder = Recorder()
    model = model_of(recorder)
    data = Batches(10)
    with penstock.keras.feed(data, workers=2) as feed:
        model.fit(feed, epochs=4, steps_per_epoch=5, verbose=0)
        # Keras treats the generator as exhausted after one pass, and starts another one.
        assert recorder.seen == [(i, e, e + 1) for e in range(2) for i in range(10)], recorder.seen
        assert (data.begun, data.ended) == (2, 2)


def validation_data_is_a_feed_and_its_steps_look_at_the_same_batches():
    for length, steps in ((3, None), (9, 5)):
        both = Recorder()
        model = model_of(both)
        with (
            penstock.keras.feed(Batches(4), workers=2) as feed,
            penstock.keras.feed(Batches(length), workers=2) as validation,
        ):
            how = {"validation_data": validation, "validation_steps": steps}
            history = model.fit(feed, epochs=3, verbose=0, **how)
            assert len(history.history["val_loss"]) == 3
            seen = [*range(4), *range(steps or length)]
            assert indices(both) == 3 * seen, both.seen


def sample_weights_count():
    with penstock.keras.feed(Batches(form="weights"), workers=2) as feed:
        # Only batch 3 has a weight above 0: prediction 1, truth 1.
        assert model_of().evaluate(feed, verbose=0) == 0.0


def class_weights_count():
    with penstock.keras.feed(Batches(), workers=2) as feed:
        model = model_of()  # predicts 1: right for odd batches
        plain = model.fit(feed, epochs=1, verbose=0).history["loss"][0]
        weighed = model.fit(feed, epochs=1, verbose=0, class_weight={0: 3.0, 1: 1.0})
        assert abs(plain - 0.5) < 1e-6
        assert abs(weighed.history["loss"][0] - 1.5) < 1e-6, weighed.history


def class_weights_count_for_streams_and_without_an_end():
    x, y = np.zeros((40, 3), "float32"), (np.arange(40) % 2).astype("float32")[:, None]
    data = penstock.Dataset.arrays((x, y))

    def batches():
        for begin in range(0, 40, 4):
            yield x[begin : begin + 4], y[begin : begin + 4]

    sources = (
        (batches, None),
        (penstock.Dataset.generator(batches), None),
        (data.filter(lambda x, y: True).batch(4), None),
        (data.batch(4).repeat(), 10),
    )
    for source, steps in sources:
        with penstock.keras.feed(source, workers=0) as feed, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' own: the length of a stream is not known
            model = model_of()  # predicts 1
            how = {"epochs": 2, "steps_per_epoch": steps, "verbose": 0}
            for weights, loss in ((None, 0.5), ({0: 3.0, 1: 1.0}, 1.5), (None, 0.5)):
                fitted = model.fit(feed, class_weight=weights, **how)
                assert np.allclose(fitted.history["loss"], loss), (source, weights, fitted.history)
            assert abs(model.evaluate(feed, steps=10, verbose=0) - 0.5) < 1e-6


def class_weights_beside_sample_weights_are_refused():
    def batches():
        yield Batches(form="weights")[0]

    for source in (Batches(form="weights"), batches):
        with (
            penstock.keras.feed(source, workers=0) as feed,
            pytest.raises(ValueError, match="`class_weight` and `sample_weight`"),
        ):
            model_of().fit(feed, class_weight={0: 2.0}, verbose=0)


def class_weights_count_beside_calls_from_callbacks():
    class Evaluate(keras.callbacks.Callback):
        def __init__(self, feed):
            super().__init__()
            self.feed = feed
            self.losses = []

        def on_epoch_end(self, epoch, logs=None):
            self.losses.append(self.model.evaluate(self.feed, verbose=0))
            assert self.model.predict(self.feed, verbose=0).shape == (16, 1)

    def batches():
        for index in range(4):
            yield Batches()[index]

    for source in (batches, penstock.Dataset.generator(batches)):
        with penstock.keras.feed(source, workers=0) as feed, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' own: the length of a stream is not known
            evaluate = Evaluate(feed)
            how = {"epochs": 3, "verbose": 0, "callbacks": [evaluate]}
            fitted = model_of().fit(feed, class_weight={0: 3.0, 1: 1.0}, **how)
            assert np.allclose(fitted.history["loss"], 1.5), fitted.history
            assert np.allclose(evaluate.losses, 0.5), evaluate.losses


def class_weights_of_several_outputs_are_refused_as_by_keras():
    def stream_of(batch):
        def batches():
            yield batch

        return batches

    x, y = Batches()[0]
    for targets in ({"a": y, "b": y}, (y, y)):
        with (
            penstock.keras.feed(stream_of((x, targets)), workers=0) as feed,
            pytest.raises(ValueError, match="only supported for Models with a single output"),
        ):
            model_of().fit(feed, class_weight={0: 2.0}, verbose=0)


def dict_inputs():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    out = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Add()([a, b]))
    model = keras.Model({"a": a, "b": b}, out)
    model.compile(optimizer="sgd", loss="mse")
    with penstock.keras.feed(Batches(form="dict"), workers=2, use_multiprocessing=True) as feed:
        predicted = model.predict(feed, verbose=0)
        # begun is 1 in every batch, ended 0
        assert predicted[:, 0].tolist() == [3.0 * (i + 1) for i in range(10) for _ in range(4)]
        model.fit(feed, epochs=2, verbose=0)
        model.evaluate(feed, verbose=0)


def predict_keeps_order():
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)])
    for how in WORKERS:
        with penstock.keras.feed(Batches(7, form="x"), **how) as feed:
            predicted = model.predict(feed, verbose=0)[:, 0]
            assert predicted.tolist() == [i + 1.0 for i in range(7) for _ in range(4)], predicted
            again = model.predict(feed, verbose=0, steps=2)[:, 0]
            assert again.tolist() == [i + 3.0 for i in range(2) for _ in range(4)], again


def functions_of_the_device_change_batches():
    x = np.arange(40, dtype=np.float32).reshape(10, 4)
    data = penstock.Dataset.arrays((x, x[:, :1])).batch(2)
    backend = keras.backend.backend()
    device = sys.modules["jax"].devices()[0] if backend == "jax" else "cpu"
    chain = data.map(lambda x, y: (x + 1, y), device=device)
    if backend == "tensorflow":
        with pytest.raises(penstock.InvalidArgument, match="Keras computes with tensorflow"):
            penstock.keras.feed(chain)
    elif py_dataset._torch_device() is not None:
        with pytest.raises(penstock.InvalidArgument, match="give one device"):
            penstock.keras.feed(chain)
    else:
        recorder = Recorder()
        model = model_of(recorder)
        with penstock.keras.feed(chain, workers=1) as feed:
            model.fit(feed, epochs=2, verbose=0)
        assert [seen[0] for seen in recorder.seen] == 2 * list(range(1, 41, 8)), recorder.seen


def evaluate_of_an_unbuilt_model_loses_no_batch():
    recorder = Recorder()
    model = model_of(recorder)
    with penstock.keras.feed(Batches(6), workers=2) as feed:
        model.evaluate(feed, verbose=0)
        assert indices(recorder) == list(range(6)), recorder.seen
        model.evaluate(feed, verbose=0)
        assert indices(recorder) == 2 * list(range(6)), recorder.seen
        assert feed.stats()["delivered"] == 12, feed.stats()


def a_fit_that_stops_early_is_followed_by_the_next_epoch():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.stop_training = True

    recorder = Recorder()
    model = model_of(recorder)
    data = Batches(8)
    with penstock.keras.feed(data, workers=2) as feed:
        model.fit(feed, epochs=5, verbose=0, callbacks=[Stop()])
        assert indices(recorder) == [0, 1, 2]
        model.fit(feed, epochs=1, verbose=0)
        assert recorder.seen[3:] == [(i, 1, 2) for i in range(8)], recorder.seen


def a_call_that_was_broken_off_is_followed_by_a_whole_pass_of_any_dataset():
    def rows():
        for index in range(12):
            yield np.full((3,), index, "float32"), np.ones((1,), "float32")

    arrays = penstock.Dataset.arrays(
        (np.repeat(np.arange(12, dtype="float32"), 3).reshape(12, 3), np.ones((12, 1), "float32"))
    )
    stream = penstock.Dataset.generator(rows)
    sources = {
        "arrays": arrays.batch(2),
        "a stream": stream.batch(2),
        "a stream of known length": stream.assert_cardinality(12).batch(2),
        "a sharded one": arrays.batch(1).shard(0, 2),
        "a repeated one": arrays.batch(4).repeat(2),
        "a function": lambda: (tuple(np.stack([v, v]) for v in row) for row in rows()),
    }
    for name, source in sources.items():
        recorder = Recorder()
        model = model_of(recorder)
        with penstock.keras.feed(source, workers=0) as feed, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' own: the length of a stream is not known
            model.evaluate(feed, verbose=0)
            whole = indices(recorder)
            for steps in (1, 4, 3):
                recorder.seen.clear()
                model.evaluate(feed, steps=steps, verbose=0)
                assert indices(recorder) == whole[:steps], (name, steps, recorder.seen)


def a_state_of_another_number_of_ranks_is_left_behind_with_its_pass():
    x = np.repeat(np.arange(12, dtype="float32"), 3).reshape(12, 3)
    data = penstock.Dataset.arrays((x, np.ones((12, 1), "float32"))).batch(1)
    elsewhere = iter(data.shard(0, 2))
    next(elsewhere), next(elsewhere)
    recorder = Recorder()
    model = model_of(recorder)
    with penstock.keras.feed(data.shard(1, 3), workers=0) as feed:
        feed.restore(elsewhere.state())
        model.evaluate(feed, steps=1, verbose=0)
        model.evaluate(feed, steps=2, verbose=0)
    assert indices(recorder) == [5, 1, 4], recorder.seen


def a_state_amid_batches_that_are_given_again_is_exact():
    def rows():
        for index in range(12):
            yield np.full((3,), index, "float32"), np.ones((1,), "float32")

    # Like a generator of Keras, which reads num_batches from a module of Keras.
    begin = eval("lambda feed: feed.num_batches", {"__name__": "keras.generator"})

    def take(feed, numbers):
        begin(feed)
        return [int(feed[number][0][0, 0]) for number in numbers]

    x = np.repeat(np.arange(12, dtype="float32"), 3).reshape(12, 3)
    for source in (
        penstock.Dataset.generator(rows).assert_cardinality(12).batch(2),
        penstock.Dataset.arrays((x, np.ones((12, 1), "float32"))).batch(2).shard(1, 2),
    ):
        with (
            penstock.keras.feed(source, workers=0) as feed,
            penstock.keras.feed(source, workers=0) as other,
        ):
            looked_at = take(feed, (0, 1))
            assert take(feed, (0,)) == looked_at[:1]
            other.restore(feed.state())
            assert take(other, (0,)) == looked_at[1:]


def looking_at_the_number_of_batches_changes_nothing():
    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert feed.num_batches == 10
            assert feed.workers == 1

    recorder = Recorder()
    with penstock.keras.feed(Batches(), workers=0) as feed:
        model_of(recorder).fit(feed, epochs=2, verbose=0, callbacks=[Looks()])
        assert feed.epoch == 2, feed.epoch
        first = feed[0][0]
        assert feed.num_batches == 10
        assert not np.array_equal(feed[0][0], first)  # the next batch, for any index


def initial_epoch_and_compiled_training():
    model = model_of()
    with penstock.keras.feed(Batches(), workers=2, use_multiprocessing=True) as feed:
        history = model.fit(feed, initial_epoch=3, epochs=5, verbose=0)
        assert history.epoch == [3, 4]
        assert feed.epoch == 2
        assert feed.stats()["delivered"] == 20


def steps_per_execution_loses_nothing():
    model = keras.Sequential([keras.layers.Dense(1)])
    several = {"optimizer": "sgd", "loss": "mse", "steps_per_execution": 3}
    if keras.backend.backend() == "torch":
        with pytest.raises(ValueError, match="steps_per_execution"):  # Keras itself refuses it
            model.compile(**several)
            model.make_train_function()
        return
    model.compile(**several)
    with penstock.keras.feed(Batches(9), workers=2) as feed:
        model.fit(feed, epochs=2, verbose=0)
        assert feed.epoch == 2, feed.epoch


def a_state_restores():
    recorder = Recorder()
    model = model_of(recorder)
    with penstock.keras.feed(Batches(10), workers=2, shuffle=True, seed=5) as feed:
        model.fit(feed, epochs=2, verbose=0)
        state = feed.state()
        assert (state["epoch"], state["batches"]) == (2, 0), state
        model.fit(feed, epochs=1, verbose=0)
    expected = indices(recorder)[20:]
    assert sorted(expected) == list(range(10))
    recorder.seen.clear()
    with penstock.keras.feed(Batches(10), workers=0, shuffle=True, seed=5) as feed:
        feed.restore(state)
        model.fit(feed, epochs=1, verbose=0)
    assert indices(recorder) == expected


def states_with_steps_per_epoch_are_exact_where_the_data_ends():
    places = []

    class Save(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            state = feed.state()
            places.append((state["epoch"], state["batches"]))

    with penstock.keras.feed(Batches(10), workers=2) as feed:
        model_of().fit(feed, epochs=4, steps_per_epoch=5, verbose=0, callbacks=[Save()])
    assert places[1::2] == [(1, 0), (2, 0)], places
    if keras.backend.backend() != "tensorflow":  # tf.data takes batches ahead
        assert places[::2] == [(0, 5), (1, 5)], places


def samples_are_batched():
    x = np.arange(40, dtype="float32").reshape(40, 1)
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)])
    with penstock.keras.feed((x,), batch_size=16, workers=2) as feed:
        assert len(feed) == 3
        assert model.predict(feed, verbose=0)[:, 0].tolist() == list(range(40))


def generators_go_in():
    def batches():
        for i in range(6):
            yield np.full((4, 3), i, "float32"), np.ones((4, 1), "float32")

    recorder = Recorder()
    model = model_of(recorder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras' own: the length of a generator is not known
        with penstock.keras.feed(batches, workers=2) as feed:
            model.fit(feed, epochs=2, verbose=0)
            assert indices(recorder) == 2 * list(range(6)), recorder.seen
            model.fit(feed, epochs=2, steps_per_epoch=3, verbose=0)
            assert indices(recorder)[12:] == list(range(6)), recorder.seen[12:]
            model.fit(feed, epochs=1, steps_per_epoch=1, verbose=0)
            model.fit(feed, epochs=1, steps_per_epoch=4, verbose=0)
            assert indices(recorder)[18:] == [0, 0, 1, 2, 3], recorder.seen[18:]


def a_dataset_without_end_goes_in():
    class Endless(keras.utils.PyDataset):
        ended = 0

        @property
        def num_batches(self):
            return None

        def __getitem__(self, index):
            return np.full((4, 3), index, "float32"), np.ones((4, 1), "float32")

        def on_epoch_end(self):
            self.ended += 1

    recorder = Recorder()
    model = model_of(recorder)
    data = Endless()
    with penstock.keras.feed(data, workers=2) as feed:
        model.fit(feed, epochs=3, steps_per_epoch=5, verbose=0)
        assert indices(recorder) == list(range(15)), recorder.seen
        assert data.ended == 3


def an_exception_comes_out_of_fit_and_says_where_it_was_raised():
    class Broken(Batches):
        def __getitem__(self, index):
            if index == 4:
                raise KeyError("number four")
            return super().__getitem__(index)

    def batches():
        for index in range(5):
            yield Broken()[index]

    wrapped = keras.backend.backend() == "tensorflow"  # makes an error of its own of the text
    for source, native in itertools.product((Broken(), batches), {notes.NATIVE, False}):
        with (
            penstock.keras.feed(source, workers=2) as feed,
            mock.patch.object(notes, "NATIVE", native),  # False: as in Python 3.10
            pytest.raises(Exception if wrapped else KeyError, match="number four") as raised,
        ):
            model_of().fit(feed, verbose=0)
        said = raised.value.__notes__[0] if native and not wrapped else str(raised.value)
        assert "epoch 0, index 4" in said, said
        assert "in __getitem__" in said, said


def text_and_rows_of_different_lengths_are_refused_with_the_remedy():
    def element(row):
        return {"image": np.full(3, row, np.float32), "label": row % 2, "path": f"{row}.png"}

    def batches(rows):
        return rows.map(element).batch(4)

    rows = penstock.Dataset.range(8)
    text = r"\['path'\] is text or bytes.*penstock\.select"
    ragged = rows.map(lambda row: (penstock.ragged(np.arange(row + 1)), row)).batch(4)
    for source, options, said in (
        (batches(rows), {}, text),
        (batches(rows.filter(lambda row: row > 1)), {}, text),
        ([("good", 1), ("bad", 0)], {"batch_size": 2}, r"batch\[0\]\[0\] is text"),
        ((np.array(["good", "bad"]), np.arange(2)), {"batch_size": 2}, r"batch\[0\] is text"),
        (ragged, {}, r"batch\[0\] differ in length.*padded_batch"),
    ):
        with (
            penstock.keras.feed(source, workers=0, **options) as feed,
            pytest.raises(penstock.InvalidArgument, match=said),
        ):
            model_of().fit(feed, verbose=0)
    chosen = rows.map(element).map(penstock.select("image", "label")).batch(4)
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with penstock.keras.feed(chosen, workers=0) as feed:
        assert len(model.fit(feed, epochs=2, verbose=0).history["loss"]) == 2
        assert model.predict(feed, verbose=0).shape == (8, 2)


def nothing_to_feed_is_an_error_that_says_so():
    def nothing():
        yield from ()

    for source in (Batches(length=0), nothing):
        with penstock.keras.feed(source, workers=1) as feed:
            for use in (model_of().fit, model_of().evaluate, model_of().predict):
                with pytest.raises(penstock.InvalidArgument, match="the dataset is empty"):
                    use(feed, verbose=0)


def a_generator_restores_after_its_last_batch():
    def batches():
        for index in range(4):
            yield Batches()[index]

    with penstock.keras.feed(batches, workers=1) as feed:
        model_of().fit(feed, steps_per_epoch=4, verbose=0)
        state = feed.state()
    recorder = Recorder()
    with penstock.keras.feed(batches, workers=1) as feed:
        feed.restore(state)
        model_of(recorder).fit(feed, verbose=0)
    assert indices(recorder) == [0, 1, 2, 3], recorder.seen

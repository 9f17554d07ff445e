"""train.Online: every message once, by any policy, across crashes."""

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import _engine, train
from penstock.errors import InvalidArgument
from penstock.train.online import Message


class Model:
    def __init__(self) -> None:
        self.seen: list[float] = []
        self.sizes: list[int] = []

    def predict(self, batch: Any) -> Any:
        return 2 * batch

    def train(self, batch: Any, weights: Any = None) -> float:
        self.sizes.append(len(batch))
        self.seen += batch.tolist() if weights is None else batch[weights > 0].tolist()
        return float(batch.mean())

    def state(self) -> Any:
        return {"seen": np.array(self.seen)}

    def restore(self, state: Any) -> None:
        self.seen = state["seen"].tolist()


def prepare(messages: list[Any]) -> Any:
    return np.array([float(message.payload) for message in messages])


def numbers(n: int) -> list[bytes]:
    return [b"%d" % i for i in range(n)]


def test_every_message_of_an_iterator_is_predicted_then_trained_on_in_order() -> None:
    model, steps = Model(), []
    with train.Online(numbers(1000), prepare, model, max_batch=64, on_batch=steps.append) as live:
        live.run()
        stats = live.stats()
    assert model.seen == list(range(1000))
    assert stats["trained"] == stats["predicted"] == stats["received"] == 1000
    assert max(model.sizes) <= 64
    for step in steps:
        np.testing.assert_array_equal(step.predictions, 2 * step.inputs)
        assert len(step.ages) == len(step.messages)
        assert (step.ages >= 0).all()
    assert steps[-1].offset == 1000
    assert 0 < stats["age_p50"] <= stats["age_p99"] <= stats["age_max"]
    assert stats["largest_batch"] == max(model.sizes)
    sizes = np.array(model.sizes)
    for least, batches in stats["batch_sizes"].items():
        assert batches == np.sum((sizes >= least) & (sizes < 2 * least))
    assert sum(stats["batch_sizes"].values()) == stats["batches"] == len(sizes)


def test_malformed_messages_are_skipped_and_counted_or_raised() -> None:
    items = [b"1", b"x", b"2", b"", b"3"]
    model = Model()
    with train.Online(items, prepare, model) as live:
        with pytest.warns(RuntimeWarning, match="prepare raised"):
            live.run()
        assert live.stats()["malformed"] == 2
        assert live.stats()["trained"] == 3
    assert model.seen == [1, 2, 3]
    with (
        train.Online(items, prepare, Model(), on_malformed="raise") as live,
        pytest.raises(ValueError, match="could not convert"),
    ):
        live.run()


def test_a_model_that_throws_once_loses_no_message() -> None:
    class Throws(Model):
        calls = 0

        def train(self, batch: Any, weights: Any = None) -> float:
            self.calls += 1
            if self.calls == 3:
                raise ZeroDivisionError
            return super().train(batch)

    model = Throws()
    with train.Online(numbers(100), prepare, model, max_batch=10) as live:
        with pytest.raises(ZeroDivisionError):
            live.run()
        live.run()
    assert model.seen == list(range(100))


def test_an_error_of_the_iterator_comes_after_its_items() -> None:
    def items() -> Any:
        yield b"1"
        raise KeyError("gone")

    model = Model()
    with train.Online(items(), prepare, model) as live, pytest.raises(KeyError, match="gone"):
        live.run()
    assert model.seen == [1]


def test_a_closed_online_leaves_a_channel_to_the_next_one() -> None:
    name = f"test-online-{os.getpid()}"
    with train.channel(name) as channel, train.attach_channel(name) as producer:
        for first in (0, 100):
            model = Model()
            with train.Online(channel, np.array, model) as live:
                for number in range(first, first + 100):
                    producer.put(np.float64(number))
                while len(model.seen) < 100:
                    live.run(1)
            assert model.seen == list(range(first, first + 100))


def test_results_in_a_file_are_json_for_any_predictions(tmp_path: Path) -> None:
    class Two(Model):
        def predict(self, batch: Any) -> Any:
            return {"mean": np.array([1.0, np.nan]), "both": (np.array([1, 2]), np.zeros((2, 1)))}

        def train(self, batch: Any, weights: Any = None) -> float:
            return float("inf")

    with train.Online(numbers(1), prepare, Two(), on_batch=tmp_path / "results") as live:
        live.run()

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    line = json.loads((tmp_path / "results").read_text(), parse_constant=refuse)
    assert line["predictions"] == {"mean": [1.0, None], "both": [[1, 2], [[0.0], [0.0]]]}
    assert line["loss"] is None


def test_a_refused_online_does_not_keep_its_spool(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with pytest.raises(OSError, match="missing") as kept:  # with its frames
        train.Online(numbers(1), prepare, Model(), spool=spool, on_batch=tmp_path / "missing" / "x")
    train.Online(numbers(1), prepare, Model(), spool=spool).close()
    assert kept


def test_objects_of_an_iterator_are_one_sequence() -> None:
    model = Model()
    with train.Online([1.0, 2.0, 3.0, 4.0], np.array, model, window=3) as live:
        live.run()
    assert np.array_equal(model.seen, [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])


def test_a_message_whose_key_raises_is_malformed() -> None:
    def sensor(message: Any) -> str:
        return str(json.loads(message.payload)["sensor"])

    def values(windows: list[Any]) -> Any:
        return np.array([[json.loads(each.payload)["value"] for each in w] for w in windows])

    items = [b'{"sensor": "a", "value": %d}' % i for i in range(6)]
    items[3:3] = [b"no json", b'{"value": 7}']
    model = Model()
    with train.Online(items, values, model, window=2, key=sensor) as live:
        with pytest.warns(RuntimeWarning, match="key raised JSONDecodeError"):
            live.run()
        stats = live.stats()
    assert np.array_equal(model.seen, [[i, i + 1] for i in range(5)])
    assert (stats["malformed"], stats["trained"]) == (2, 6)
    with (
        train.Online(items, values, Model(), window=2, key=sensor, on_malformed="raise") as live,
        pytest.raises(json.JSONDecodeError),
    ):
        live.run()


@pytest.mark.parametrize(
    ("key", "first"),
    [
        (lambda message: message.payload[:1], 10),
        (lambda message: np.int64(message.payload[:1]), 10),
        (lambda message: (message.topic, b"x"), 21),
    ],
)
def test_windows_of_any_key_go_on_after_a_restart(tmp_path: Path, key: Any, first: int) -> None:
    for items in ([b"10", b"20", b"21"], [b"11", b"12"]):
        model = Model()
        with train.Online(
            [("t", item) for item in items],
            lambda windows: np.array([[int(each.payload) for each in w] for w in windows]),
            model,
            window=2,
            key=key,
            spool=tmp_path,
        ) as live:
            live.run()
    assert np.array_equal(model.seen[-2:], [[first, 11], [11, 12]])


@pytest.mark.parametrize("size", [2, 5])
def test_a_run_goes_on_with_windows_of_another_size(tmp_path: Path, size: int) -> None:
    class Forgets(Model):
        def state(self) -> Any:
            return {"seen": np.zeros(0)}

    seen: list[list[int]] = []
    for window, items in ((3, numbers(5)), (size, numbers(4))):
        seen.clear()
        with train.Online(
            items,
            lambda rows: np.array([[int(each.payload) for each in row] for row in rows]),
            Forgets(),
            window=window,
            spool=tmp_path,
            on_batch=lambda step: seen.extend(step.inputs.tolist()),
        ) as live:
            live.run()
    whole = [2, 3, 4, 0, 1, 2, 3]
    assert seen == [whole[end - size : end] for end in range(4, 8) if end >= size]


def test_a_snapshot_of_another_model_is_an_error_that_names_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for outputs in (1, 2):
        net = torch.nn.Linear(1, outputs)
        options = {
            "optimizer": torch.optim.SGD(net.parameters(), 0.1),
            "loss": torch.nn.functional.mse_loss,
            "spool": tmp_path,
        }
        if outputs == 2:
            with pytest.raises(
                InvalidArgument, match=r"(?s)snapshot does not fit the model: .*size mismatch"
            ):
                train.Online([], prepare, net, **options)
        else:
            train.Online([], prepare, net, **options).run()


def test_a_torch_module_takes_arrays_and_its_snapshot_any_floats(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weights = []
    for _ in range(2):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1).bfloat16())
        net.insert(1, torch.nn.Identity())
        net[1].forward = lambda x: x.bfloat16()
        with train.Online(
            numbers(20) if not weights else [],
            lambda messages: (prepare(messages).astype(np.float32)[:, None],) * 2,
            net,
            optimizer=torch.optim.Adam(net.parameters(), 1e-2),
            loss=lambda outputs, y: torch.nn.functional.mse_loss(outputs.float(), y),
            spool=tmp_path,
        ) as live:
            live.run()
            assert live.stats()["trained"] == 20
        weights.append(net.state_dict())
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name])
        assert tensor.dtype == weights[1][name].dtype


def test_a_batch_with_too_few_rows_to_pad_is_an_error() -> None:
    def filtered(messages: list[Any]) -> Any:
        return prepare([each for each in messages if each.payload != b"3"])

    with (
        train.Online(numbers(10), filtered, Model(), max_batch=16, pad_to=(4, 16)) as live,
        pytest.raises(InvalidArgument, match="rows for"),
    ):
        live.run()


def test_the_first_error_of_prepare_is_reported() -> None:
    with train.Online([b"1", b"x"], prepare, Model()) as live:
        assert live.stats()["malformed_error"] is None
        with pytest.warns(RuntimeWarning, match="could not convert string to float: b'x'"):
            live.run()
        assert (
            live.stats()["malformed_error"] == "ValueError: could not convert string to float: b'x'"
        )


def test_batches_are_padded_to_sizes_and_predictions_are_cut() -> None:
    model, steps = Model(), []
    with train.Online(
        numbers(100), prepare, model, max_batch=16, pad_to=(4, 16), on_batch=steps.append
    ) as live:
        live.run()
    assert set(model.sizes) <= {4, 16}
    assert model.seen == list(range(100))
    assert all(len(step.predictions) == len(step.messages) for step in steps)


def test_windows_are_those_of_each_key() -> None:
    seen: dict[str, list[list[int]]] = {"a": [], "b": []}

    def windows(batch: list[Any]) -> Any:
        for window in batch:
            seen[window[0].topic].append([int(each.payload) for each in window])
        return np.zeros(len(batch))

    items = [("ab"[i % 2], b"%d" % (i // 2)) for i in range(20)]
    with train.Online(items, windows, Model(), window=3, step=2) as live:
        live.run()
    expected = [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8]]
    assert seen == {"a": expected, "b": expected}


@pytest.mark.parametrize(("policy", "kept"), [("drop_oldest", (90, 100)), ("drop_newest", (0, 10))])
def test_a_full_queue_drops_by_policy(policy: str, kept: tuple[int, int]) -> None:
    model, source = Model(), _engine.PushSource.make(lambda tokens: None)
    with train.Online(source, prepare, model, when_full=policy, max_queue=10) as live:
        live._start()
        for item in numbers(100):
            source.push("t", item)
        source.end()
        live.run()
        assert live.stats()["dropped"] == 90
    assert model.seen == list(range(*kept))


def test_acknowledged_after_train_and_not_before() -> None:
    acknowledged: list[int] = []
    source = _engine.PushSource.make(acknowledged.extend)
    with train.Online(source, prepare, Model(), max_batch=4) as live:
        live._start()
        for i, item in enumerate(numbers(12)):
            source.push("t", item, token=i + 1)
        assert acknowledged == []
        live.run(1)
        assert acknowledged == [1, 2, 3, 4]
        source.end()
        live.run()
    assert acknowledged == list(range(1, 13))


def test_a_redelivered_message_is_trained_on_once(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    model = Model()
    for tokens, duplicate in (((1, 2), False), ((3, 4), True)):
        source = _engine.PushSource.make(acknowledged.extend)
        with train.Online(source, prepare, model, spool=tmp_path) as live:
            live._start()
            for packet, token in enumerate(tokens):
                source.push("t", b"%d" % packet, token, packet + 1, duplicate)
            source.end()
            live.run()
            assert live.stats()["duplicates"] == (2 if duplicate else 0)
    assert model.seen == [0, 1]
    assert sorted(acknowledged) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"when_full": "wait"}, "when_full"),
        ({"ack": "spooled"}, "spool"),
        ({"min_batch": 2}, "max_wait"),
        ({"pad_to": (4,)}, "pad_to"),
    ],
)
def test_invalid_arguments_are_named(options: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        train.Online([], prepare, Model(), **options)
    with pytest.raises(InvalidArgument, match="the source is a NoneType"):
        train.Online(None, prepare, Model())


def test_the_ages_are_those_of_the_rows() -> None:
    ages: list[Any] = []
    source = _engine.PushSource.make(lambda tokens: None)
    with train.Online(
        source, prepare, Model(), on_batch=lambda step: ages.append(step.ages)
    ) as live:
        live._start()
        source.push("t", b"1")
        time.sleep(0.05)
        source.push("t", b"malformed")
        source.push("t", b"2")
        source.end()
        live.run()
    assert [len(each) for each in ages] == [2]
    assert ages[0][0] - ages[0][1] >= 0.05


def test_the_age_of_a_window_is_that_of_its_last_message() -> None:
    steps: list[Any] = []
    source = _engine.PushSource.make(lambda tokens: None)
    with train.Online(
        source, lambda rows: np.zeros(len(rows)), Model(), window=2, on_batch=steps.append
    ) as live:
        live._start()
        for item in (b"1", b"2", b"3"):
            source.push("t", item)
            time.sleep(0.02)
        source.end()
        live.run()
    (step,) = steps
    assert [[each.payload for each in row] for row in step.messages] == [[b"1", b"2"], [b"2", b"3"]]
    assert len(step.ages) == 2
    assert step.ages[0] - step.ages[1] > 0.015


def test_an_iterator_may_yield_bytes_pairs_and_objects() -> None:
    items = [b"1", ("t", b"2"), {"x": 3}, ("t", 4), b"5", None]
    seen: list[Any] = []

    def kept(messages: list[Any]) -> Any:
        seen.extend(messages)
        return np.zeros(len(messages))

    with train.Online(items, kept, Model()) as live:
        live.run()
    assert seen == [Message("", b"1"), ("t", b"2"), {"x": 3}, ("t", 4), Message("", b"5"), None]
    assert isinstance(seen[1], Message)


def test_objects_of_a_source_count_as_bytes_of_the_queue() -> None:
    arrays = ({"x": np.zeros(100_000)} for _ in range(20))
    with train.Online(
        arrays, lambda rows: np.zeros(len(rows)), Model(), max_queue_bytes=2_000_000
    ) as live:
        live._start()
        deadline = time.monotonic() + 20
        while live.stats()["queued_bytes"] < 2_000_000:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(0.02)
        assert live.stats()["queued"] == 3
        live.run()
        assert live.stats()["trained"] == 20


def test_a_channel_is_a_source_and_ends_the_stream_when_it_is_closed() -> None:
    name = f"online-{os.getpid()}"
    channel = train.channel(name)

    def produce() -> None:
        with train.attach_channel(name) as end:
            for i in range(500):
                end.put({"x": np.full(3, i)})
            while channel.stats()["queued"]:
                time.sleep(0.001)
        channel.close()

    producer = threading.Thread(target=produce)
    producer.start()
    model = Model()
    with train.Online(channel, lambda rows: np.array([row["x"][0] for row in rows]), model) as live:
        live.run()
    producer.join()
    assert model.seen == list(range(500))


def test_closing_ends_the_thread_that_reads_a_silent_channel() -> None:
    with train.channel(f"online-{os.getpid()}") as channel:
        live = train.Online(channel, prepare, Model())
        stopping = threading.Timer(0.05, live.stop)
        stopping.start()
        live.run()
        assert live._feeder is not None
        live.close()
        live._feeder.join(5)
        assert not live._feeder.is_alive()


def test_a_slow_model_with_drop_oldest_sees_young_messages() -> None:
    source = _engine.PushSource.make(lambda tokens: None)
    newest = 0

    def push(count: int) -> None:
        nonlocal newest
        for _ in range(count):
            source.push("t", b"%d" % newest)
            newest += 1

    class Slow(Model):
        def predict(self, batch: Any) -> Any:
            assert newest - batch.min() <= 16  # of as many as it is behind after each step
            return super().predict(batch)

        def train(self, batch: Any, weights: Any = None) -> float:
            time.sleep(0.002)
            push(100)
            return super().train(batch)

    model = Slow()
    with train.Online(
        source, prepare, model, max_batch=4, max_queue=16, when_full="drop_oldest"
    ) as live:
        live._start()
        push(100)
        for _ in itertools.islice(live, 150):
            pass
        stats = live.stats()
    assert model.seen == sorted(model.seen)
    assert len(model.seen) == stats["trained"] == 600
    assert stats["dropped"] == 15_100 - 600 - stats["queued"]
    assert stats["age_p50"] < 0.3  # two steps; without dropping, the last would wait for all


@pytest.mark.parametrize("spooled", [False, True])
def test_a_burst_of_100_000_messages_stays_within_the_queue(tmp_path: Path, spooled: bool) -> None:
    model, source = Model(), _engine.PushSource.make(lambda tokens: None)
    options: Any = {"spool": tmp_path, "snapshot_seconds": None} if spooled else {}
    with train.Online(
        source, prepare, model, max_batch=4096, max_queue_bytes=1 << 20, **options
    ) as live:
        live._start()

        def push() -> None:
            for i in range(100_000):
                source.push("t", b"%d" % i)
            source.end()

        pushing = threading.Thread(target=push)
        pushing.start()
        for _ in live:
            assert live.stats()["queued_bytes"] < (1 << 20) + 1000
        pushing.join()
        assert live.stats()["trained"] == 100_000
    assert model.seen == list(range(100_000))


def test_a_torch_module_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def run(spool: Path | None, parts: list[list[bytes]]) -> tuple[Any, Any, list[float]]:
        losses: list[float] = []
        for part in parts:
            torch.manual_seed(3)
            module = torch.nn.Linear(1, 1)
            optimizer = torch.optim.Adam(module.parameters(), lr=0.05)

            def batch(messages: list[Any]) -> Any:
                x = torch.tensor([[float(message.payload)] for message in messages])
                return x, 2 * x + 1

            options: Any = {} if spool is None else {"spool": spool}
            with train.Online(
                *(part, batch, module),
                optimizer=optimizer,
                loss=torch.nn.functional.mse_loss,
                max_batch=4,
                min_batch=4,
                max_wait=60,
                on_batch=lambda step: losses.append(step.loss),
                **options,
            ) as live:
                live.run()
        return module.state_dict(), optimizer.state_dict(), losses

    items = [b"%g" % (i % 7 / 7) for i in range(80)]
    whole = run(None, [items])
    parts = run(tmp_path, [items[:40], items[40:]])
    torch.testing.assert_close(parts[0], whole[0], rtol=0, atol=0)
    assert parts[2] == whole[2]
    assert parts[1]["state"][0]["step"] == whole[1]["state"][0]["step"] == 20
    assert whole[2][-1] < whole[2][0]


def test_windows_go_on_after_a_restart(tmp_path: Path) -> None:
    items = [(f"sensor{i % 3}", b"%d" % i) for i in range(60)]

    def run(spool: Path, parts: list[list[Any]]) -> list[list[bytes]]:
        seen: list[list[bytes]] = []

        def prepare(windows: list[Any]) -> Any:
            seen.extend([message.payload for message in window] for window in windows)
            return np.zeros(len(windows))

        for part in parts:
            with train.Online(
                *(part, prepare, Model()), spool=spool, window=4, step=3, key=lambda m: m.topic[-1:]
            ) as live:
                live.run()
        return seen

    whole = run(tmp_path / "whole", [items])
    assert len(whole) == 3 * 6
    assert run(tmp_path / "parts", [items[:17], items[17:20], [], items[20:]]) == whole


def test_the_keys_of_windows_may_be_bytes_or_tuples(tmp_path: Path) -> None:
    def key(message: Message) -> Any:
        return message.payload[:1], message.topic

    seen: list[Any] = []

    def prepare(windows: list[Any]) -> Any:
        seen.extend(windows)
        return np.zeros(len(windows))

    for part in ([b"a1", b"b1"], [b"b2", b"a2"]):
        with train.Online(part, prepare, Model(), spool=tmp_path, window=2, key=key) as live:
            live.run()
    assert [[message.payload for message in window] for window in seen] == [
        [b"b1", b"b2"],
        [b"a1", b"a2"],
    ]


def test_windows_of_objects_cannot_be_in_a_snapshot(tmp_path: Path) -> None:
    with (
        train.Online(
            *([1, 2, 3], lambda rows: np.zeros(len(rows)), Model()),
            snapshot=tmp_path / "snapshot",
            window=2,
            key=lambda item: 0,
        ) as live,
        pytest.raises(InvalidArgument, match="windows of messages of bytes"),
    ):
        live.run()


def test_an_online_that_is_not_closed_ends_without_waiting_for_the_interpreter(
    tmp_path: Path,
) -> None:
    acknowledged: list[int] = []
    source = _engine.PushSource.make(acknowledged.extend)
    live = train.Online(source, prepare, Model(), spool=tmp_path)
    live._start()
    for token in range(1, 100):
        source.push("t", b"1", token)
    del live
    gc.collect()
    assert acknowledged == list(range(1, 100))


def test_a_stop_before_the_run_ends_it_and_the_next_run_goes_on() -> None:
    model = Model()
    with train.Online(numbers(10), prepare, model) as live:
        live.stop()
        live.run()
        assert model.seen == []
        assert np.isnan(live.stats()["loss"])
        live.run()
        assert model.seen == list(range(10))
        assert live.stats()["loss"] >= 0


def test_the_analysis_says_whether_the_model_keeps_up() -> None:
    with train.Online(numbers(10), prepare, Model(), max_batch=2) as live:
        assert live.analysis()["verdict"] == "No message has been trained on."
        live.run()
        found = live.analysis()
        with pytest.raises(FileNotFoundError):
            live.report("/no/such/folder/page.html")
    assert found["bottleneck"] in ("training step", "source")  # by the speed of the iterator
    assert found["verdict"].startswith("The model waited for messages ")

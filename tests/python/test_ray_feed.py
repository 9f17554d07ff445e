"""penstock.ray.feed with a context of Ray Train that the test makes: needs no Ray."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _engine


class Numbers:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(3, index)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module in the place of ray.train; `become(rank, world)` makes this process a worker."""
    module: Any = ModuleType("ray.train")

    def outside() -> Any:
        raise RuntimeError("`get_context` cannot be used outside of a training function")

    def become(rank: int, world: int, local_world: int = 1) -> None:
        module.get_context = lambda: SimpleNamespace(
            get_world_rank=lambda: rank,
            get_world_size=lambda: world,
            get_local_world_size=lambda: local_world,
        )

    module.get_context, module.become = outside, become
    monkeypatch.setitem(sys.modules, "ray.train", module)
    return module


def epoch_of(train: Any, world: int, source: Any, state: Any = None, **options: Any) -> list[Any]:
    """The batches of each rank, from a state on."""
    found = []
    for rank in range(world):
        train.become(rank, world)
        with penstock.ray.feed(source, batch_size=4, workers=0, **options) as feed:
            if state is not None:
                feed.load_state_dict(state)
            found.append([first_of(batch) for batch in feed])
    return found


def first_of(batch: Any) -> list[int]:
    return np.reshape(batch, (len(batch), -1))[:, 0].tolist()


def rows_of(found: list[Any]) -> Counter[int]:
    return Counter(row for rank in found for batch in rank for row in batch)


SOURCES = {
    "chain": (penstock.Dataset.range(40).shuffle(seed=3), {}),
    "batches": (penstock.Dataset.range(40).shuffle(seed=3).batch(2), {}),
    "samples": (Numbers(), {"shuffle": True, "seed": 3}),
    "columns": (np.arange(40), {"shuffle": True, "seed": 3}),
}


@pytest.mark.parametrize("kind", ["chain", "samples", "columns"])
@pytest.mark.parametrize(("before", "after"), [(2, 5), (4, 2), (1, 3), (3, 1)])
def test_a_state_goes_on_with_another_number_of_ranks(
    train: Any, kind: str, before: int, after: int
) -> None:
    """Every sample once over both parts of the epoch, but for the padding of the last round."""
    source, options = SOURCES[kind]
    taken, states = [], []
    for rank in range(before):
        train.become(rank, before)
        with penstock.ray.feed(source, batch_size=4, workers=0, **options) as feed:
            batches = iter(feed)
            taken.append([first_of(next(batches)) for _ in range(2)])
            states.append(feed.state_dict())
    assert all(state == states[0] for state in states)
    rest = epoch_of(train, after, source, states[0], **options)
    assert len({len(rank) for rank in rest}) == 1
    left = 40 - 8 * before
    counts = rows_of(taken) + rows_of(rest)
    assert set(counts) == set(range(40))
    padded = sum(counts.values()) - 40
    if left % after == 0 and kind == "chain":
        assert padded == 0
    assert padded < (after if kind == "chain" else 4 * after)


@pytest.mark.parametrize("kind", ["chain", "samples", "columns"])
@pytest.mark.parametrize("world", [1, 3, 7])
def test_ranks_have_equally_many_batches_and_no_tail_is_dropped(
    train: Any, kind: str, world: int
) -> None:
    source, options = SOURCES[kind]
    found = epoch_of(train, world, source, **options)
    assert len({len(rank) for rank in found}) == 1
    assert set(rows_of(found)) == set(range(40))
    full = epoch_of(train, world, source, drop_last=True, **options)
    assert len({len(rank) for rank in full}) == 1
    assert all(len(batch) == 4 for rank in full for batch in rank)
    assert max(rows_of(full).values()) == 1


def test_a_chain_with_batches_is_dealt_out_by_batches(train: Any) -> None:
    source, _ = SOURCES["batches"]
    found = []
    for rank in range(4):
        train.become(rank, 4)
        with penstock.ray.feed(source, workers=0) as feed:
            found += [row for batch in feed for row in batch.tolist()]
    assert sorted(found) == list(range(40))


def test_a_chain_with_a_shard_is_fed_as_it_is(train: Any) -> None:
    found = epoch_of(train, 3, penstock.Dataset.range(10).shard(1, 2))
    assert found == [[[1, 3, 5, 7], [9]]] * 3
    train.become(2, 3)
    assert list(penstock.Dataset.range(10).shard("auto")) == [2, 5, 8]


def test_a_stream_is_read_by_every_rank_and_dealt_out(train: Any) -> None:
    stream = penstock.Dataset.generator(lambda: iter(range(10)))
    assert epoch_of(train, 3, stream) == [[[0, 3, 6, 9]], [[1, 4, 7]], [[2, 5, 8]]]


def test_workers_on_one_host_share_its_cores_and_its_memory(train: Any) -> None:
    train.become(0, 4)
    source = penstock.Dataset.range(10)
    with penstock.ray.feed(source, batch_size=2) as alone:
        train.become(0, 4, local_world=2)
        with penstock.ray.feed(source, batch_size=2) as one_of_two:
            cores = _engine.usable_cores()
            assert alone._settings["workers"] == cores
            assert one_of_two._settings["workers"] == max(cores // 2, 1)
            assert one_of_two._settings["max_bytes"] == alone._settings["max_bytes"] // 2


def test_batches_are_tensors_if_there_is_a_device(train: Any) -> None:
    torch = pytest.importorskip("torch")
    train.become(1, 2)
    with penstock.ray.feed(penstock.Dataset.range(8), batch_size=2, device="cpu") as feed:
        batches = list(feed)
        assert all(isinstance(batch, torch.Tensor) for batch in batches)
        assert torch.cat(batches).tolist() == [1, 3, 5, 7]
        state = feed.state_dict()
    with penstock.ray.feed(penstock.Dataset.range(8), batch_size=2) as feed:
        feed.load_state_dict(state)
        assert feed.epoch == 1


def test_another_process_is_told_what_to_do(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(penstock.InvalidArgument, match=r"not a worker of Ray Train: call"):
            penstock.ray.feed(Numbers(), batch_size=4)
        monkeypatch.delitem(sys.modules, "ray.train")
        monkeypatch.setitem(sys.modules, "ray.train", None)  # Ray is not installed
    monkeypatch.setitem(sys.modules, "ray.train", train)
    train.become(0, 2)
    with pytest.raises(penstock.InvalidArgument, match="shard is determined by Ray Train"):
        penstock.ray.feed(Numbers(), batch_size=4, shard=(0, 2))
    with pytest.raises(penstock.InvalidArgument, match=r"a list is not a ray\.data Dataset"):
        penstock.ray.rows([1])


def test_counts_of_a_feed_are_in_ray_s_metrics(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[tuple[str, str], float] = {}

    class Gauge:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            assert tag_keys == ("rank", "feed")
            self.name = name

        def set_default_tags(self, tags: dict[str, str]) -> None:
            self.rank = tags["rank"]

        def set(self, value: float) -> None:
            shown[self.name, self.rank] = value

    ray, module = ModuleType("ray"), ModuleType("ray.util.metrics")
    ray.is_initialized = lambda: True  # type: ignore[attr-defined]
    sent: list[tuple[str, str, int]] = []
    monkeypatch.setattr(
        "penstock.ray.metrics.send",
        lambda part, tags, counts: sent.append((part, tags["rank"], counts["delivered"])),
    )
    pages: list[int] = []
    monkeypatch.setattr(
        "penstock.ray.metrics.send_page", lambda feed, tags: pages.append(feed.stats()["epochs"])
    )
    module.Gauge = Gauge  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, "ray.util.metrics", module)
    monkeypatch.setattr("penstock.ray.metrics.SECONDS", 0.01)
    train.become(1, 2)
    with penstock.ray.feed(Numbers(), batch_size=4, workers=1) as feed:
        assert len(list(feed)) == 5
        wait_for(lambda: shown.get(("penstock_feed_delivered", "1")) == 5)
        assert shown["penstock_feed_samples", "1"] == 20
        assert len(list(feed)) == 5
    wait_for(lambda: not any(each.name == "penstock metrics" for each in threading.enumerate()))
    assert shown["penstock_feed_delivered", "1"] == 10  # the last counts, after close
    assert sent[-1] == ("feed", "1", 10)
    assert pages[-1] == 2


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Blocks:
    """In the place of ray.data's DataIterator: a pass has the numbers below 10, in three tables."""

    def __init__(self) -> None:
        self.passes = 0
        self.ended = 0

    def iter_batches(self, *, batch_size: None, batch_format: str) -> Iterator[Any]:
        pyarrow = pytest.importorskip("pyarrow")
        assert (batch_size, batch_format) == (None, "pyarrow")
        self.passes += 1
        try:
            for part in (range(4), range(4, 5), range(5, 10)):
                yield pyarrow.table({"id": list(part), "twice": [2 * i for i in part]})
        finally:
            self.ended += 1


@pytest.fixture
def blocks(train: Any, monkeypatch: pytest.MonkeyPatch) -> Blocks:
    module: Any = ModuleType("ray.data")
    module.DataIterator, module.Dataset = Blocks, type("Dataset", (Blocks,), {})
    monkeypatch.setitem(sys.modules, "ray.data", module)
    return Blocks()


def test_rows_are_read_block_by_block_once_for_each_pass(blocks: Blocks) -> None:
    rows = penstock.ray.rows(blocks).batch(4)
    with rows.build(workers=1) as feed:
        for number in (1, 2):
            batches = list(feed)
            assert [batch["twice"].tolist() for batch in batches] == [
                [0, 2, 4, 6],
                [8, 10, 12, 14],
                [16, 18],
            ]
            # The next pass waits for its `for`: in ray.data it may wait for other ranks.
            assert (blocks.passes, blocks.ended) == (number, number)


def test_an_iterator_of_ray_data_has_the_rank_s_own_rows(blocks: Blocks, train: Any) -> None:
    train.become(1, 2)
    with penstock.ray.feed(blocks, batch_size=6, drop_last=True) as feed:
        assert [batch["id"].tolist() for batch in feed] == [list(range(6))]
    everyone = sys.modules["ray.data"].Dataset()
    with pytest.raises(penstock.InvalidArgument, match=r"give ray\.train\.get_dataset_shard"):
        penstock.ray.feed(everyone, batch_size=2)


def test_a_pass_of_rows_has_no_state(blocks: Blocks) -> None:
    rows = penstock.ray.rows(blocks).batch(2)
    joined = penstock.Dataset.zip(penstock.Dataset.range(5), rows)
    with rows.build() as feed, rows.feeds(2) as feeds, iter(rows) as iterator, joined.build() as j:
        for source in (feed, feeds, iterator, j):
            with pytest.raises(
                penstock.InvalidArgument, match="no position that could be restored"
            ):
                source.state_dict()
            with pytest.raises(
                penstock.InvalidArgument, match="no position that could be restored"
            ):
                source.load_state_dict({})
        assert len(list(feed)) == 5, "the refusals changed nothing"


def test_a_loader_of_a_framework_has_no_state_either(blocks: Blocks) -> None:
    jax = pytest.importorskip("jax")
    with penstock.jax.feed(penstock.ray.rows(blocks).batch(2), device=jax.devices()[0]) as feed:
        batches = iter(feed)
        next(batches)
        with pytest.raises(penstock.InvalidArgument, match="no position that could be restored"):
            feed.state_dict()
        assert len(list(batches)) == 4
        assert len(list(feed.steps(5))) == 5


def test_an_abandoned_pass_is_ended(blocks: Blocks) -> None:
    with penstock.ray.rows(blocks).build(workers=1) as feed:
        next(iter(feed))
    assert (blocks.passes, blocks.ended) == (1, 1)

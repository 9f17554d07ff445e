"""Workers of penstock.torch.DataLoader: worker info, draws, init functions and failures."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader as TorchLoader  # noqa: E402

import penstock  # noqa: E402
import torch_datasets as data  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from torch_contract import MARKS, all_same, each_way, flat, labels, same  # noqa: E402

pytestmark = MARKS


def test_random_numbers_are_the_same_for_any_number_of_processes():
    drawn = []
    for workers in (1, 2):
        with DataLoader(data.Draws(), batch_size=4, num_workers=workers, seed=7) as loader:
            drawn.append([list(loader), list(loader)])
    all_same(drawn[0], drawn[1])
    first, second = drawn[0]
    for a, b in zip(first, second, strict=True):
        assert not any(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    values = torch.cat([batch[0] for batch in first]).flatten().tolist()
    assert len(set(values)) == len(values)


def test_random_numbers_follow_torchs_manual_seed():
    def draw(seed):
        torch.manual_seed(seed)
        with DataLoader(data.Draws(), batch_size=12, num_workers=1) as loader:
            return next(iter(loader))

    a, b, c = draw(1), draw(1), draw(2)
    same(a, b)
    assert not torch.equal(a[0], c[0])


def test_worker_info_and_init_function():
    with DataLoader(
        data.Told(), num_workers=2, worker_init_fn=data.note, multiprocessing_context="forkserver"
    ) as loader:
        infos = [tuple(int(v) for v in batch) for epoch in range(2) for batch in loader]
    for worker, workers, noted, _, _, threads in infos:
        assert workers == 2
        assert noted == 10 * worker
        assert threads == 1
    seeds = {worker: seed for worker, _, _, seed, _, _ in infos}
    assert {worker for worker, *_ in infos} <= {0, 1}
    if len(seeds) == 2:
        assert seeds[1] == seeds[0] + 1
    assert len({pid for *_, pid, _ in infos}) <= 2  # the same processes in both epochs


def test_an_init_function_that_fails_is_told():
    with (
        DataLoader(data.Told(), num_workers=1, worker_init_fn=data.fail_to_start) as loader,
        pytest.raises(ValueError, match="cannot start"),
    ):
        list(loader)


@pytest.mark.parametrize("persistent", [False, True])
def test_edits_of_the_dataset_reach_workers_unless_they_are_persistent(persistent):
    dataset = data.Numbers(4, "int")
    with DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=persistent) as loader:
        assert [b.tolist() for b in loader] == [[0, 1, 2, 3]]
        dataset.added = 100
        expected = [0, 1, 2, 3] if persistent else [100, 101, 102, 103]
        assert [b.tolist() for b in loader] == [expected]


@each_way
def test_collate_functions_run_in_workers_and_are_not_converted(way):
    with DataLoader(data.Numbers(6), batch_size=4, collate_fn=data.join, **way) as loader:
        all_same(
            list(loader), list(TorchLoader(data.Numbers(6), batch_size=4, collate_fn=data.join))
        )
    with DataLoader(data.Numbers(6), batch_size=4, collate_fn=data.keep_arrays, **way) as loader:
        arrays, numbers = next(iter(loader))
        assert type(arrays) is np.ndarray
        assert numbers == [0, 1, 2, 3]
    offset = 5
    with DataLoader(
        data.Numbers(6), batch_size=None, collate_fn=lambda item: item[1] + offset, **way
    ) as loader:
        assert list(loader) == [5, 6, 7, 8, 9, 10]


@each_way
def test_an_exception_has_its_type_and_place(way):
    with DataLoader(data.Broken(), batch_size=4, **way) as loader:
        batches = iter(loader)
        assert len([next(batches), next(batches)]) == 2
        with pytest.raises(KeyError, match="number eleven") as caught:
            next(batches)
        assert isinstance(caught.value.__cause__, penstock.WorkerTraceback)
        assert caught.value.__cause__.index == 11


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_dead_worker_loses_no_batch(kind):
    dataset = data.Numbers(400) if kind == "map" else data.Stream(400)
    with DataLoader(dataset, batch_size=4, num_workers=2) as loader:
        expected = list(loader)
        batches = iter(loader)
        seen = [next(batches) for _ in range(10)]
        os.kill(loader.stats()["workers"][1]["pid"], signal.SIGKILL)
        all_same([*seen, *batches], expected)
        if kind == "stream":  # a stream, which the other worker cannot take over
            assert loader.stats()["restarts"] == 1


def test_broken_samples_are_skipped_or_replaced_when_asked():
    with DataLoader(data.Broken(), batch_size=4, on_error="skip") as loader:
        assert flat(labels(loader)) == [i for i in range(23) if i != 11]
        assert loader.stats()["skipped"] == 1
    with DataLoader(data.Broken(), batch_size=4, shuffle=True, on_error="replace") as loader:
        seen = flat(labels(loader))
        assert len(seen) == 23
        assert 11 not in seen


def test_a_worker_that_is_stuck_is_an_error_that_says_where():
    with DataLoader(data.Slow(8), batch_size=1, num_workers=1, timeout=2) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        with pytest.raises(TimeoutError, match="index 3"):
            next(batches)


class Deadly(torch.utils.data.Dataset):
    """Keyed by the index that a sampler lists."""

    def __init__(self, deadly):
        self.deadly = deadly

    def __getitem__(self, index):
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def __len__(self):
        return 8


class DeadlyTogether(Deadly):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Names:
    def __iter__(self):
        return iter(["a", "b", ("c", 3), "d"])


@pytest.mark.parametrize(
    ("source", "sampler", "where"),
    [
        (Deadly(6), [7, 5, 3, 6, 1], "index 6 "),
        (DeadlyTogether(6), [7, 5, 3, 6, 1], r"a batch of indices 3 \.\.\. 6 "),
        (Deadly(("c", 3)), Names(), r"index \('c', 3\) "),
        (DeadlyTogether("b"), Names(), r"a batch of indices 'a' \.\.\. 'b' "),
    ],
)
def test_a_lost_worker_is_told_by_the_index_that_the_sampler_gave(source, sampler, where):
    options = {"num_workers": 1, "multiprocessing_context": "fork"}
    with (
        DataLoader(source, batch_size=2, sampler=sampler, **options) as loader,
        pytest.raises(penstock.WorkerLost, match=f"epoch 0, {where}"),
    ):
        list(loader)


def test_ragged_samples_say_what_torch_says_and_what_we_know():
    with DataLoader(data.Numbers(6, "ragged"), batch_size=3) as loader:
        with pytest.raises(RuntimeError, match="equal size") as caught:
            list(loader)
        assert "shape" in str(caught.value.__context__ or caught.value)


def test_an_iterator_that_gave_all_and_is_kept_keeps_no_workers():
    """Lightning keeps the iterator of the last epoch, and does not request its end."""
    threads = {"num_workers": 1, "use_multiprocessing": False}
    with DataLoader(data.Numbers(8), batch_size=4, **threads) as loader:
        kept = []
        for _ in range(3):
            batches = iter(loader)
            kept.append(batches)
            assert [next(batches)[1].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert len(loader._worker_sets) == 1
        assert loader.stats()["delivered"] == 6
        assert [list(batches) for batches in kept] == [[], [], []]

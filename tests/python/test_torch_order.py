"""The order of penstock.torch.DataLoader beside torch's own: shuffles, samplers, iterations."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchLoader  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import torch_datasets as data  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from torch_contract import MARKS, all_same, each_way, flat, labels  # noqa: E402

pytestmark = MARKS


@each_way
def test_shuffle_is_torchs_for_the_same_manual_seed(way):
    dataset = data.Numbers(50)
    torch.manual_seed(3)
    theirs = [labels(TorchLoader(dataset, 8, shuffle=True)) for _ in range(3)]
    after = torch.rand(1)
    torch.manual_seed(3)
    with DataLoader(dataset, 8, shuffle=True, **way) as loader:
        ours = [labels(loader) for _ in range(3)]
        assert torch.rand(1) == after  # the same number of draws
    assert ours == theirs
    assert ours[0] != ours[1]


def test_shuffle_is_torchs_for_the_same_generator():
    dataset = data.Numbers(50)

    def generator():
        return torch.Generator().manual_seed(9)

    theirs = TorchLoader(dataset, 8, shuffle=True, drop_last=True, generator=generator())
    options = {"shuffle": True, "drop_last": True, "generator": generator()}
    with DataLoader(dataset, 8, num_workers=2, use_multiprocessing=False, **options) as ours:
        for _ in range(3):
            all_same(list(ours), list(theirs))


@each_way
def test_a_seed_makes_the_order_the_engines(way):
    with DataLoader(data.Numbers(1000), 64, shuffle=True, seed=4, **way) as loader:
        first, second = labels(loader), labels(loader)
    with DataLoader(data.Numbers(1000), 64, shuffle=True, seed=4) as loader:
        assert labels(loader) == first
        assert labels(loader) == second
    assert sorted(flat(first)) == list(range(1000))
    assert first != second


@each_way
def test_a_seed_makes_the_order_of_items_the_engines_too(way):
    options = {"batch_size": None, "shuffle": True, "seed": 4}

    def items(loader):
        return [int(y) for _, y in loader]

    with DataLoader(data.Numbers(100), **options, **way) as loader:
        assert len(loader) == 100
        first, second = items(loader), items(loader)
    torch.manual_seed(1)
    with DataLoader(data.Numbers(100), **options) as loader:
        assert [items(loader), items(loader)] == [first, second]
        taken = iter(loader)
        third = [int(next(taken)[1]) for _ in range(3)]
        state = loader.state()
        third += items(taken)
        loader.restore(state)
        assert items(loader) == third[3:]
    assert sorted(first) == list(range(100))
    assert len({tuple(first), tuple(second), tuple(third), tuple(range(100))}) == 4


SAMPLERS = {
    "random": lambda d: {"sampler": RandomSampler(d, num_samples=31)},
    "replacement": lambda d: {"sampler": RandomSampler(d, replacement=True)},
    "subset": lambda d: {"sampler": SubsetRandomSampler(range(3, 17))},
    "weighted": lambda d: {"sampler": WeightedRandomSampler([1.0, 9.0] * 10, 12)},
    "list": lambda d: {"sampler": [4, 4, 1]},
    "batches": lambda d: {"batch_sampler": BatchSampler(RandomSampler(d), 7, False)},
    "lists of lists": lambda d: {"batch_sampler": [[0], [1, 2, 3, 4, 5], [6, 7] * 200]},
    "sequential": lambda d: {"sampler": SequentialSampler(d)},
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_are_followed(sampler):
    dataset = data.Numbers(20)
    rows = {} if "batch_sampler" in SAMPLERS[sampler](dataset) else {"batch_size": 6}
    torch.manual_seed(1)
    theirs = TorchLoader(dataset, **rows, **SAMPLERS[sampler](dataset))
    expected = [labels(theirs), labels(theirs)]
    torch.manual_seed(1)
    options = {**rows, **SAMPLERS[sampler](dataset)}
    with DataLoader(dataset, num_workers=3, use_multiprocessing=False, **options) as ours:
        assert len(ours) == len(theirs)
        assert [labels(ours), labels(ours)] == expected


def test_set_epoch_before_an_epoch_counts():
    dataset = data.Numbers(40)
    ours_sampler = DistributedSampler(dataset, num_replicas=3, rank=1, seed=2)
    theirs_sampler = DistributedSampler(dataset, num_replicas=3, rank=1, seed=2)
    theirs = TorchLoader(dataset, 4, sampler=theirs_sampler)
    with DataLoader(
        dataset, 4, sampler=ours_sampler, num_workers=2, use_multiprocessing=False
    ) as ours:
        for epoch in (0, 1, 5):
            ours_sampler.set_epoch(epoch)
            theirs_sampler.set_epoch(epoch)
            assert labels(ours) == labels(theirs)


@each_way
def test_indices_may_be_anything(way):
    with DataLoader(data.Keyed(), batch_size=3, sampler=data.KeySampler(), **way) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 2, 3], [4]]
    lists = BatchSampler(SequentialSampler(range(5)), 2, False)
    with DataLoader(data.Keyed(), batch_size=None, sampler=lists, **way) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30], [40]]


def test_an_exception_of_the_sampler_comes_out_at_its_place():
    with DataLoader(data.Keyed(), sampler=data.BrokenSampler()) as loader:
        batches = iter(loader)
        assert [int(next(batches)), int(next(batches))] == [1, 2]
        with pytest.raises(RuntimeError, match="no third one"):
            next(batches)


@each_way
def test_getitems_is_used(way):
    with DataLoader(data.Batched(), batch_size=4, **way) as loader:
        assert labels(loader) == [[4] * 4, [4] * 4, [2] * 2]


def tensors_of(n=50):
    return TensorDataset(
        torch.arange(n * 6.0).reshape(n, 2, 3),
        torch.arange(n),
        torch.arange(n).to(torch.bfloat16),
        torch.arange(4 * n).reshape(n, 4)[:, 1:3],  # its rows are not adjacent
    )


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "drop_last": True}])
@each_way
def test_rows_of_tensors_are_gathered_natively(way, options):
    dataset = tensors_of()
    torch.manual_seed(2)
    theirs = [list(TorchLoader(dataset, batch_size=8, **options)) for _ in range(2)]
    torch.manual_seed(2)
    with DataLoader(dataset, batch_size=8, **options, **way) as loader:
        for batches in theirs:
            all_same(list(loader), batches)
        assert loader.stats()["errors"] == 0
        assert loader._worker_sets[0].loader._mode != "processes"


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rows_of_tensors_follow_samplers(sampler):
    dataset = tensors_of(20)
    rows = {} if "batch_sampler" in SAMPLERS[sampler](dataset) else {"batch_size": 6}
    torch.manual_seed(1)
    theirs = list(TorchLoader(dataset, **rows, **SAMPLERS[sampler](dataset)))
    torch.manual_seed(1)
    with DataLoader(dataset, num_workers=2, **rows, **SAMPLERS[sampler](dataset)) as ours:
        all_same(list(ours), theirs)


@pytest.mark.parametrize("native", [True, False])
def test_rows_of_tensors_are_indexed_as_torch_does(native):
    dataset = tensors_of(5)
    if not native:
        dataset.tensors = (dataset.tensors[0], dataset.tensors[1], torch.zeros(3, 5).t())
    with DataLoader(dataset, sampler=[-1, -5, 4], batch_size=3) as loader:
        assert next(iter(loader))[1].tolist() == [4, 0, 4]
    for wrong, error in ((5, IndexError), (-6, IndexError), ("a", TypeError)):
        with DataLoader(dataset, sampler=[0, wrong]) as loader:
            batches = iter(loader)
            assert next(batches)[1].tolist() == [0]
            with warnings.catch_warnings(), pytest.raises(error):
                warnings.simplefilter("ignore")  # torch's, of "a"
                next(batches)


def test_other_tensors_in_the_dataset_are_seen_from_the_next_epoch_on():
    dataset = tensors_of(6)
    with DataLoader(dataset, batch_size=6, num_workers=1) as loader:
        assert next(iter(loader))[1].tolist() == list(range(6))
        dataset.tensors = tuple(t + 1 for t in dataset.tensors)
        assert next(iter(loader))[1].tolist() == list(range(1, 7))
        dataset.tensors[1][0] = 77
        assert next(iter(loader))[1].tolist() == [77, 2, 3, 4, 5, 6]
        assert len(loader._worker_sets) == 1


@each_way
def test_subsets(way):
    subset = Subset(tensors_of(), [5, 3, 1])
    with DataLoader(subset, batch_size=2, **way) as loader:
        all_same(list(loader), list(TorchLoader(subset, batch_size=2)))


def test_iterations_side_by_side_do_not_disturb_each_other():
    with DataLoader(
        data.Numbers(12), batch_size=4, num_workers=2, use_multiprocessing=False
    ) as loader:
        pairs = [(a[1].tolist(), b[1].tolist()) for a, b in zip(loader, loader, strict=True)]
        assert pairs == [(row, row) for row in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11])]
        inner = [len(list(loader)) for _ in loader]
        assert inner == [3, 3, 3]
        assert len(loader._worker_sets) <= 2


@each_way
def test_a_break_is_followed_by_a_whole_epoch(way):
    with DataLoader(data.Numbers(30), batch_size=3, **way) as loader:
        for _ in loader:
            break
        assert labels(loader) == [[i, i + 1, i + 2] for i in range(0, 30, 3)]
        assert next(iter(loader))[1].tolist() == [0, 1, 2]
        assert next(iter(loader))[1].tolist() == [0, 1, 2]
        assert len(loader._worker_sets) == 1


class Learns:
    """A sampler that depends on the last batch."""

    def __init__(self, length=6):
        self.length = length
        self.seen = 0

    def __iter__(self):
        for _ in range(self.length):
            yield self.seen


@pytest.mark.parametrize("loader_class", [TorchLoader, DataLoader])
def test_in_line_a_sampler_is_asked_when_its_batch_is(loader_class):
    sampler = Learns()
    taken = []
    for batch in loader_class(data.Numbers(20, "int"), sampler=sampler):
        sampler.seen += 1
        taken.append(int(batch))
    assert taken == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("rows", [4, 5, None])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_in_line_a_generator_of_the_samplers_is_where_torch_has_it(left, rows):
    """After a break `left` batches before the end, or after the whole epoch."""

    def run(loader_class):
        generator = torch.Generator().manual_seed(9)
        dataset = data.Numbers(12)
        sampler = RandomSampler(dataset, generator=generator)
        loader = loader_class(dataset, batch_size=rows, sampler=sampler)
        found = []
        for _ in range(3):
            for i, (_, y) in enumerate(loader):
                found.append(torch.as_tensor(y).tolist())
                if left and i == len(loader) - 1 - left:
                    break
            found.append(generator.get_state().tolist())
        return found

    assert run(DataLoader) == run(TorchLoader)


@each_way
def test_a_batch_sampler_that_is_its_own_iterator_is_gone_through_once(way):
    dataset = data.Numbers(7)
    with DataLoader(dataset, batch_sampler=data.OwnBatches(), **way) as loader:
        theirs = labels(TorchLoader(dataset, batch_sampler=data.OwnBatches()))
        assert theirs == [[0, 1], [2, 3], [4, 5], [6]]
        assert labels(loader) == theirs
        assert labels(loader) == theirs


@each_way
def test_a_sampler_that_is_its_own_iterator_is_begun_once_an_epoch(way):
    sampler = data.OwnIndices(6)
    with DataLoader(data.Numbers(6), None, sampler=sampler, **way) as loader:
        for epoch in (1, 2):
            assert [int(y) for _, y in loader] == list(range(6))
            assert sampler.begun == epoch


@each_way
def test_the_size_of_a_batch_samplers_batches_may_change_between_epochs(way):
    batches = BatchSampler(SequentialSampler(range(200)), 2, False)
    with DataLoader(data.Numbers(200), batch_sampler=batches, **way) as loader:
        assert len(labels(loader)) == 100
        batches.batch_size = 150
        assert [len(batch) for batch in labels(loader)] == [150, 50]

"""penstock.torch.DataLoader beside torch's own: the same arguments must give the same batches."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import warnings

import numpy as np
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

import penstock  # noqa: E402
import torch_datasets as data  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402

pytestmark = [
    pytest.mark.timeout(120),  # a worker imports torch: seconds on a busy machine
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
]

WAYS = {
    "in line": {},
    "threads": {"num_workers": 2, "use_threads": True},
    "processes": {"num_workers": 2},
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def same(a, b):
    """Assert that two batches are alike in types, dtypes and values."""
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.is_contiguous() == b.is_contiguous()
        assert torch.equal(a.detach(), b.detach())
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    else:
        assert a == b


def all_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        same(a, b)


def labels(batches):
    return [y.tolist() for _, y in batches]


def flat(lists):
    return [value for values in lists for value in values]


# ---- types -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [form for form in data.FORMS if form not in data.WRONG])
@pytest.mark.parametrize("name", ["in line", "threads"])
def test_batches_are_of_the_types_that_torch_makes(form, name):
    dataset = data.Numbers(form=form)
    with DataLoader(dataset, batch_size=5, **WAYS[name]) as loader:
        all_same(list(loader), list(TorchLoader(dataset, batch_size=5)))
        all_same(list(loader), list(TorchLoader(dataset, batch_size=5)))


def test_batches_of_processes_are_of_the_types_that_torch_makes():
    """All forms in one pair of processes: an epoch each, by editing the dataset between them."""
    dataset = data.Numbers(form="tuple")
    with DataLoader(dataset, batch_size=5, num_workers=2) as loader:
        for form in data.FORMS:
            if form in data.WRONG:
                continue
            dataset.form = form
            all_same(list(loader), list(TorchLoader(dataset, batch_size=5)))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [3, 64])
def test_samples_that_are_no_rows_keep_their_order(shuffle, batch_size):
    """From the batch on that shows it, the workers collate; what was delivered before stays."""
    dataset = data.Numbers(200, "numbers, then names")
    torch.manual_seed(6)
    options = {"batch_size": batch_size, "shuffle": shuffle}
    theirs = [list(TorchLoader(dataset, **options)) for _ in range(2)]
    torch.manual_seed(6)
    with DataLoader(dataset, num_workers=3, use_threads=True, **options) as loader:
        for batches in theirs:
            all_same(list(loader), batches)


@pytest.mark.parametrize("form", data.WRONG)
def test_what_torch_refuses_is_refused(form):
    dataset = data.Numbers(form=form)
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        list(TorchLoader(dataset, batch_size=4))
    with DataLoader(dataset, batch_size=4) as loader, pytest.raises(theirs.type):
        list(loader)


@pytest.mark.parametrize("form", ["array", "tuple", "dict", "nest", "int", "str", "ordered dict"])
def test_batch_size_none_gives_items(form):
    dataset = data.Numbers(7, form)
    with DataLoader(dataset, batch_size=None, num_workers=2, use_threads=True) as loader:
        all_same(list(loader), list(TorchLoader(dataset, batch_size=None)))


def test_torchvisions_images_are_stacked_in_place():
    kind = type("Image", (torch.Tensor,), {"__module__": "torchvision.tv_tensors._image"})

    class Images:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return torch.full((2, 2), i).as_subclass(kind)

    with DataLoader(Images(), batch_size=4) as loader:
        (batch,) = loader
        assert type(batch) is torch.Tensor
        assert batch[:, 0, 0].tolist() == [0, 1, 2, 3]
        assert sum(loader.stats()["copies"].values()) == 4  # one write per row


def test_custom_types_in_default_collate_count(way, monkeypatch):
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(default_collate_fn_map, str, lambda batch, collate_fn_map=None: len(batch))
    with DataLoader(data.Numbers(6, "str"), batch_size=4, **way) as loader:
        assert list(loader) == [4, 2]


# ---- no copy -----------------------------------------------------------------------------------


def test_tensors_are_the_memory_that_workers_wrote_and_stay_right_while_held(way):
    with DataLoader(data.Numbers(64, "tuple"), batch_size=4, **way) as loader:
        held = [x for _ in range(3) for x, _ in loader]
        copies = loader.stats()["copies"]
        # Each sample's array and its number were written into their rows, and that was all.
        assert sum(copies.values()) == 3 * 64 * 2, copies
    gc.collect()
    for i, x in enumerate(held):
        first = i % 16 * 4
        assert x[:, 0, 0].tolist() == [first, first + 1, first + 2, first + 3]
        x += 1  # they are ours to write to


# ---- order -------------------------------------------------------------------------------------


def test_shuffle_is_torchs_for_the_same_manual_seed(way):
    dataset = data.Numbers(50)
    torch.manual_seed(3)
    theirs = [labels(TorchLoader(dataset, 8, shuffle=True)) for _ in range(3)]
    after = torch.rand(1)
    torch.manual_seed(3)
    with DataLoader(dataset, 8, shuffle=True, **way) as loader:
        ours = [labels(loader) for _ in range(3)]
        assert torch.rand(1) == after  # no more and no less was drawn
    assert ours == theirs
    assert ours[0] != ours[1]


def test_shuffle_is_torchs_for_the_same_generator():
    dataset = data.Numbers(50)

    def generator():
        return torch.Generator().manual_seed(9)

    theirs = TorchLoader(dataset, 8, shuffle=True, drop_last=True, generator=generator())
    options = {"shuffle": True, "drop_last": True, "generator": generator()}
    with DataLoader(dataset, 8, num_workers=2, use_threads=True, **options) as ours:
        for _ in range(3):
            all_same(list(ours), list(theirs))


def test_a_seed_makes_the_order_the_engines(way):
    with DataLoader(data.Numbers(1000), 64, shuffle=True, seed=4, **way) as loader:
        first, second = labels(loader), labels(loader)
    with DataLoader(data.Numbers(1000), 64, shuffle=True, seed=4) as loader:
        assert labels(loader) == first
        assert labels(loader) == second
    assert sorted(flat(first)) == list(range(1000))
    assert first != second


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
    with DataLoader(dataset, num_workers=3, use_threads=True, **options) as ours:
        assert len(ours) == len(theirs)
        assert [labels(ours), labels(ours)] == expected


def test_set_epoch_before_an_epoch_counts():
    dataset = data.Numbers(40)
    ours_sampler = DistributedSampler(dataset, num_replicas=3, rank=1, seed=2)
    theirs_sampler = DistributedSampler(dataset, num_replicas=3, rank=1, seed=2)
    theirs = TorchLoader(dataset, 4, sampler=theirs_sampler)
    with DataLoader(dataset, 4, sampler=ours_sampler, num_workers=2, use_threads=True) as ours:
        for epoch in (0, 1, 5):
            ours_sampler.set_epoch(epoch)
            theirs_sampler.set_epoch(epoch)
            assert labels(ours) == labels(theirs)


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


def test_getitems_is_used(way):
    with DataLoader(data.Batched(), batch_size=4, **way) as loader:
        assert labels(loader) == [[4] * 4, [4] * 4, [2] * 2]


def tensors_of(n=50):
    return TensorDataset(
        torch.arange(n * 6.0).reshape(n, 2, 3),
        torch.arange(n),
        torch.arange(n).to(torch.bfloat16),
        torch.arange(4 * n).reshape(n, 4)[:, 1:3],  # its rows lie apart
    )


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "drop_last": True}])
def test_rows_of_tensors_are_gathered_natively(way, options):
    dataset = tensors_of()
    torch.manual_seed(2)
    theirs = [list(TorchLoader(dataset, batch_size=8, **options)) for _ in range(2)]
    torch.manual_seed(2)
    with DataLoader(dataset, batch_size=8, **options, **way) as loader:
        for batches in theirs:
            all_same(list(loader), batches)
        assert loader.stats()["errors"] == 0
        assert loader._lines[0].loader._mode != "processes"


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
        assert len(loader._lines) == 1


def test_subsets(way):
    subset = Subset(tensors_of(), [5, 3, 1])
    with DataLoader(subset, batch_size=2, **way) as loader:
        all_same(list(loader), list(TorchLoader(subset, batch_size=2)))


def test_iterations_side_by_side_do_not_disturb_each_other():
    with DataLoader(data.Numbers(12), batch_size=4, num_workers=2, use_threads=True) as loader:
        pairs = [(a[1].tolist(), b[1].tolist()) for a, b in zip(loader, loader, strict=True)]
        assert pairs == [(row, row) for row in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11])]
        inner = [len(list(loader)) for _ in loader]
        assert inner == [3, 3, 3]
        assert len(loader._lines) <= 2


def test_a_break_is_followed_by_a_whole_epoch(way):
    with DataLoader(data.Numbers(30), batch_size=3, **way) as loader:
        for _ in loader:
            break
        assert labels(loader) == [[i, i + 1, i + 2] for i in range(0, 30, 3)]
        assert next(iter(loader))[1].tolist() == [0, 1, 2]
        assert next(iter(loader))[1].tolist() == [0, 1, 2]
        assert len(loader._lines) == 1


# ---- streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [4, None])
def test_iterable_datasets_are_shared_and_ordered_as_in_torch(batch_size, drop_last):
    if batch_size is None and drop_last:
        return
    dataset = data.Stream(40)
    options = {"batch_size": batch_size, "drop_last": drop_last, "num_workers": 3}
    with DataLoader(dataset, **options) as loader:
        theirs = TorchLoader(dataset, **options)
        for _ in range(2):
            all_same(list(loader), list(theirs))
        all_same(list(loader), list(theirs))


@pytest.mark.parametrize("name", ["in line", "threads"])
def test_in_one_process_an_iterable_dataset_is_one_stream(name):
    with DataLoader(data.Stream(10), batch_size=4, **WAYS[name]) as loader:
        for _ in range(2):
            assert labels(loader) == [
                [[i, i] for i in row] for row in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])
            ]


def test_too_long_an_iterable_dataset_is_warned_of():
    dataset = data.SizedStream(6)
    with DataLoader(dataset, batch_size=None) as loader:
        assert len(loader) == 6
        dataset.length = 8
        with pytest.warns(UserWarning, match="reported to be 6"):
            list(loader)


def test_streams_draw_apart_and_anew_each_epoch():
    with DataLoader(data.DrawnStream(), batch_size=2, num_workers=2, seed=1) as loader:
        first = torch.cat([x for x, _ in loader])
        second = torch.cat([x for x, _ in loader])
    drawn = torch.cat([first, second]).flatten().tolist()
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 6 * 2


# ---- workers -----------------------------------------------------------------------------------


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
        told = [tuple(int(v) for v in batch) for epoch in range(2) for batch in loader]
    for worker, workers, noted, _, _, threads in told:
        assert workers == 2
        assert noted == 10 * worker
        assert threads == 1
    seeds = {worker: seed for worker, _, _, seed, _, _ in told}
    assert {worker for worker, *_ in told} <= {0, 1}
    if len(seeds) == 2:
        assert seeds[1] == seeds[0] + 1
    assert len({pid for *_, pid, _ in told}) <= 2  # the same processes in both epochs


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
        if kind == "stream":  # which the other worker cannot take over
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


def test_ragged_samples_say_what_torch_says_and_what_we_know():
    with DataLoader(data.Numbers(6, "ragged"), batch_size=3) as loader:
        with pytest.raises(RuntimeError, match="equal size") as caught:
            list(loader)
        assert "shape" in str(caught.value.__context__ or caught.value)


# ---- place -------------------------------------------------------------------------------------

ORDERS = {
    "sequential": lambda d: {},
    "torch's": lambda d: {"shuffle": True},
    "a generator": lambda d: {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
    "the engine's": lambda d: {"shuffle": True, "seed": 3},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("taken", [0, 3, 8])
def test_a_state_restores(order, taken):
    dataset = data.Numbers(30)  # 8 batches

    def make(**way):
        return DataLoader(dataset, 4, **ORDERS[order](dataset), **way)

    torch.manual_seed(11)
    with make(num_workers=2, use_threads=True) as loader:
        list(loader)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = json.loads(json.dumps(loader.state()))
        assert len(json.dumps(state)) < 10_000
        rest = labels(batches)
        following = labels(loader)
    torch.manual_seed(12)  # another run's
    with make() as loader:
        loader.restore(state)
        assert loader.state() == state
        restored = [labels(loader), labels(loader)]
    if taken == 8:
        restored = [[], restored[0]]  # that epoch was over
    assert restored[0] == rest
    if order in ("sequential", "the engine's"):
        assert restored[1] == following


def test_a_state_of_something_else_is_refused_and_changes_nothing():
    with (
        penstock.Loader(data.Numbers(30), workers=0) as feed,
        DataLoader(data.Numbers(30), batch_size=4) as loader,
    ):
        batches = iter(loader)
        next(batches)
        whole = loader.state()
        for wrong in (None, {}, feed.state(), {**whole, "loader": None}, {"version": 1}):
            with pytest.raises(penstock.InvalidArgument, match="no state of a DataLoader"):
                loader.restore(wrong)
        with pytest.raises(penstock.InvalidArgument, match="no state of a Loader"):
            feed.restore(whole)
        assert len(list(batches)) == 7


def test_a_stream_restores():
    with DataLoader(data.Stream(20), batch_size=3) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state()
        rest = list(batches)
    with DataLoader(data.Stream(20), batch_size=3) as loader:
        loader.restore(state)
        all_same(list(loader), rest)
        assert len(list(loader)) == 7


# ---- being a DataLoader ------------------------------------------------------------------------


def test_it_is_a_torch_dataloader():
    dataset = data.Numbers()
    with DataLoader(dataset, 4, drop_last=True, num_workers=2, pin_memory=True) as loader:
        theirs = TorchLoader(dataset, 4, drop_last=True, num_workers=2, pin_memory=True)
        assert isinstance(loader, TorchLoader)
        assert len(loader) == len(theirs) == 5
        names = ("dataset batch_size num_workers drop_last prefetch_factor timeout pin_memory "
                 "persistent_workers collate_fn worker_init_fn generator")  # fmt: skip
        for name in names.split():
            assert getattr(loader, name) == getattr(theirs, name)
        assert type(loader.sampler) is type(theirs.sampler)
        with pytest.raises(ValueError, match="should not be set"):
            loader.batch_size = 5
        copied = pickle.loads(pickle.dumps(loader))
        assert len(copied) == 5


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": [1]},
        {"batch_size": 2, "batch_sampler": [[1]]},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "spawn"},
        {"num_workers": 1, "multiprocessing_context": "none such"},
        {"batch_size": 0},
    ],
)
def test_arguments_are_checked_as_torch_does(options):
    with pytest.raises(ValueError) as theirs:  # noqa: PT011
        TorchLoader(data.Numbers(), **options)
    with pytest.raises(ValueError) as ours:  # noqa: PT011
        DataLoader(data.Numbers(), **options)
    assert str(ours.value) == str(theirs.value)


def test_what_cannot_be_is_said():
    with pytest.raises(penstock.InvalidArgument, match="worker_init_fn"):
        DataLoader(data.Numbers(), worker_init_fn=data.note, use_threads=True)
    loader = DataLoader(data.Numbers())
    with pytest.raises(penstock.InvalidArgument):
        loader.stats()
    loader.close()
    with pytest.raises(penstock.Closed):
        iter(loader)


def test_a_forgotten_loader_ends_its_workers():
    loader = DataLoader(data.Numbers(), batch_size=4, num_workers=2)
    batches = iter(loader)
    next(batches)
    del loader, batches  # the rest is up to the check that nothing is left behind


def test_a_report_is_written(tmp_path):
    with DataLoader(data.Numbers(), batch_size=4) as loader:
        list(loader)
        loader.report(tmp_path / "run.html")
        assert loader.stats()["delivered"] == 6
        assert "bottleneck" in loader.analysis()
    assert "<html" in (tmp_path / "run.html").read_text()[:500].lower()


def test_no_warning_is_given_for_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with DataLoader(data.Numbers(), batch_size=4) as loader:
            list(loader)

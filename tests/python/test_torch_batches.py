"""Batches of penstock.torch.DataLoader beside torch's own: their types and their memory."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader as TorchLoader  # noqa: E402

import penstock  # noqa: E402
import torch_datasets as data  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from torch_contract import MARKS, WAYS, all_same, each_way  # noqa: E402

pytestmark = MARKS


# ---- types --------------------------------------------------------------------------------------


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
    """From the first such batch on, the workers collate; earlier batches stay valid."""
    dataset = data.Numbers(200, "numbers, then names")
    torch.manual_seed(6)
    options = {"batch_size": batch_size, "shuffle": shuffle}
    theirs = [list(TorchLoader(dataset, **options)) for _ in range(2)]
    torch.manual_seed(6)
    with DataLoader(dataset, num_workers=3, use_multiprocessing=False, **options) as loader:
        for batches in theirs:
            all_same(list(loader), batches)


@pytest.mark.parametrize("form", data.WRONG)
def test_what_torch_refuses_is_refused(form):
    dataset = data.Numbers(form=form)
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        list(TorchLoader(dataset, batch_size=4))
    with DataLoader(dataset, batch_size=4) as loader, pytest.raises(theirs.type):
        list(loader)


def test_a_pipeline_is_iterated_over_and_not_indexed():
    with pytest.raises(penstock.InvalidArgument, match=r"penstock\.torch\.feed"):
        DataLoader(penstock.Dataset.range(0, 9).batch(3), batch_size=3)


@pytest.mark.parametrize("form", ["array", "tuple", "dict", "nest", "int", "str", "ordered dict"])
def test_batch_size_none_gives_items(form):
    dataset = data.Numbers(7, form)
    with DataLoader(dataset, batch_size=None, num_workers=2, use_multiprocessing=False) as loader:
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


@each_way
def test_custom_types_in_default_collate_count(way, monkeypatch):
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(default_collate_fn_map, str, lambda batch, collate_fn_map=None: len(batch))
    with DataLoader(data.Numbers(6, "str"), batch_size=4, **way) as loader:
        assert list(loader) == [4, 2]


# ---- no copy ------------------------------------------------------------------------------------


@each_way
def test_tensors_are_the_memory_that_workers_wrote_and_stay_right_while_held(way):
    with DataLoader(data.Numbers(64, "tuple"), batch_size=4, **way) as loader:
        held = [x for _ in range(3) for x, _ in loader]
        copies = loader.stats()["copies"]
        # Each sample's array and number were written into their rows; there was no other copy.
        assert sum(copies.values()) == 3 * 64 * 2, copies
    gc.collect()
    for i, x in enumerate(held):
        first = i % 16 * 4
        assert x[:, 0, 0].tolist() == [first, first + 1, first + 2, first + 3]
        x += 1  # tensors are writeable


@each_way
def test_an_assigned_collate_function_counts_from_the_next_epoch_on(way):
    with DataLoader(data.Numbers(4), 2, **way) as loader:
        assert [y.tolist() for _, y in loader] == [[0, 1], [2, 3]]
        loader.collate_fn = data.Scaled(10)
        assert list(loader) == [[0, 10], [20, 30]]
        loader.collate_fn.factor = 3
        assert list(loader) == [[0, 3], [6, 9]]


@each_way
def test_a_tuple_of_another_class_is_collated_as_torch_does(way):
    with DataLoader(data.Pairs(), 2, **way) as loader:
        all_same(list(loader), list(TorchLoader(data.Pairs(), 2)))


def test_the_class_takes_a_type_of_samples():
    assert DataLoader[int].__origin__ is DataLoader

"""penstock.torch.DataLoader is a torch DataLoader: its arguments, errors and end."""

from __future__ import annotations

import json
import pickle
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader as TorchLoader  # noqa: E402

import penstock  # noqa: E402
import torch_datasets as data  # noqa: E402
from penstock import TensorSpec  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from torch_contract import MARKS  # noqa: E402

pytestmark = MARKS


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
        DataLoader(data.Numbers(), worker_init_fn=data.note, use_multiprocessing=False)
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
    del loader, batches  # conftest checks that nothing is left behind


def test_a_report_and_a_trace_are_written(tmp_path):
    with DataLoader(data.Numbers(), batch_size=4) as loader:
        list(loader)
        loader.report(tmp_path / "run.html")
        loader.trace(tmp_path / "run.json")
        assert loader.stats()["delivered"] == 6
        assert "bottleneck" in loader.analysis()
    assert "<html" in (tmp_path / "run.html").read_text()[:500].lower()
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert any(event["ph"] == "X" for event in events)


def test_no_warning_is_given_for_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with DataLoader(data.Numbers(), batch_size=4) as loader:
            list(loader)


class Described(torch.utils.data.Dataset):
    """A sample is a dict of a tensor, an array, a number and a text, and a pair of texts."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        pair = (f"a{index}", f"b{index}")
        return {"x": torch.zeros(2, 3), "a": np.zeros(4), "n": index, "t": "text", "pair": pair}


def test_element_spec_is_that_of_the_batches_with_torchs_types():
    with DataLoader(Described(), 4, num_workers=2) as loader:
        spec = loader.element_spec
        assert spec == {
            "x": TensorSpec((None, 2, 3), torch.float32, "x"),
            "a": TensorSpec((None, 4), torch.float64, "a"),
            "n": TensorSpec((None,), torch.int64, "n"),
            "t": TensorSpec((None,), str, "t"),
            "pair": [TensorSpec((None,), str, "pair/0"), TensorSpec((None,), str, "pair/1")],
        }
        iterator = iter(loader)
        assert iterator.element_spec == spec
        assert next(iterator)["x"].dtype == spec["x"].dtype
    with DataLoader(Described(), 4, drop_last=True) as loader:
        assert loader.element_spec["x"].shape == (4, 2, 3)
    with DataLoader([torch.zeros(5)], None) as loader:
        assert loader.element_spec == TensorSpec((5,), torch.float32)
    with DataLoader(Described(), 2, collate_fn=len) as loader:
        assert loader.element_spec == TensorSpec((), np.dtype(int))
    with (
        DataLoader(torch.utils.data.TensorDataset(torch.zeros(0, 2)), 2) as loader,
        pytest.raises(penstock.InvalidArgument, match="no batch in"),
    ):
        _ = loader.element_spec


@pytest.mark.parametrize("seeded", [False, True])
def test_element_spec_changes_no_order(seeded):
    def order(asks):
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(4) if seeded else None
        with DataLoader(range(40), 4, shuffle=True, generator=generator) as loader:
            if asks:
                assert loader.element_spec == TensorSpec((None,), torch.int64)
            first = torch.cat(list(loader))
            if asks:
                _ = loader.element_spec
            return first.tolist() + torch.cat(list(loader)).tolist()

    assert order(True) == order(False)


def test_element_spec_consumes_no_iterator():
    class Ends(torch.utils.data.IterableDataset):
        left = 3

        def __iter__(self):
            return self

        def __next__(self):
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            return self.left

    with DataLoader(Ends(), 1) as loader:
        assert loader.element_spec is None
        assert len(list(loader)) == 3
    for place in ("sampler", "batch_sampler"):
        with DataLoader(range(9), **{place: iter([[1], [2]])}) as loader:
            assert loader.element_spec is None

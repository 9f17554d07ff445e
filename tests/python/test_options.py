"""Each option has one name; old names are equivalent, and the types list all names."""

from __future__ import annotations

import inspect

import pytest

import penstock
from penstock import train
from penstock.loader.options import LoaderOptions, RunOptions


def test_typed_options_are_those_of_the_loader():
    taken = set(inspect.signature(penstock.Loader).parameters) - {"source"}
    assert set(LoaderOptions.__annotations__) | set(RunOptions.__annotations__) == taken


def test_what_a_dataset_says_itself_is_no_option_of_its_run():
    both = set(inspect.signature(penstock.Loader).parameters) - {"source"}
    own = {"batch_size", "shuffle", "drop_last", "collate", "shard", "streams"}
    assert set(RunOptions.__annotations__) == both - own


def test_an_old_name_means_the_same():
    dataset = penstock.Dataset.range(10)
    old, new = dataset.batch(4, drop_remainder=True), dataset.batch(4, drop_last=True)
    assert len(old) == len(new) == 2
    assert repr(old) == repr(new)


def test_both_names_at_once_are_refused():
    with pytest.raises(TypeError, match="drop_remainder is the old name of drop_last"):
        penstock.Dataset.range(10).batch(4, drop_remainder=True, drop_last=False)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_an_old_name_has_its_old_values(kind):
    parameters = train.Parameters({"w": (2,)}, shared=True)
    made = train.Hogwild(len, parameters, train.SGD(0.1), [], workers=2, kind=kind)
    assert type(made._runner).__name__ == kind.title()


def test_an_old_value_that_never_was_is_refused():
    with pytest.raises(penstock.InvalidArgument, match="use_multiprocessing is 'fibers'"):
        train.Hogwild(len, train.Parameters({"w": (2,)}), train.SGD(0.1), [], kind="fibers")


def test_threads_of_torch_by_the_old_name():
    pytest.importorskip("torch")
    loader = penstock.torch.DataLoader([1, 2, 3], num_workers=1, use_threads=True)
    assert loader.use_multiprocessing is False
    assert [int(x) for x in loader] == [1, 2, 3]
    loader.close()

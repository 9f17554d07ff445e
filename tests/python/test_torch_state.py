"""States of a penstock.torch.DataLoader: taken, and restored in other loaders."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")


import penstock  # noqa: E402
import torch_datasets as data  # noqa: E402
from penstock.errors import Closed  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from torch_contract import MARKS, all_same, labels  # noqa: E402

pytestmark = MARKS


class AtOnce(torch.utils.data.Sampler):
    """Draws in ``__iter__``, and not at its first index."""

    def __init__(self, rows, generator):
        self.rows, self.generator = rows, generator

    def __iter__(self):
        return iter(torch.randperm(self.rows, generator=self.generator).tolist())

    def __len__(self):
        return self.rows


class Pairs(AtOnce):
    def __iter__(self):
        return iter(torch.randperm(self.rows, generator=self.generator).reshape(-1, 2).tolist())

    def __len__(self):
        return self.rows // 2


class Lazily(Pairs):
    """Draws in ``__iter__``, and returns a generator."""

    def __iter__(self):
        pairs = super().__iter__()
        return (pair for pair in pairs)


class Twice(Pairs):
    """Groups its sampler's indices by draws from its own generator."""

    def __init__(self, rows):
        super().__init__(rows, torch.Generator().manual_seed(7))
        self.sampler = AtOnce(rows, seeded())

    def __iter__(self):
        rows = list(self.sampler)
        return ([rows[i] for i in pair] for pair in super().__iter__())


def seeded():
    return torch.Generator().manual_seed(6)


def nested(dataset):
    sampler = torch.utils.data.RandomSampler(dataset, generator=seeded())
    return torch.utils.data.BatchSampler(sampler, 4, False)


def unseeded(dataset, replacement=False):
    sampler = torch.utils.data.RandomSampler(dataset, replacement)
    return torch.utils.data.BatchSampler(sampler, 4, False)


def sharing(sampler):
    """The base seed of an iteration comes from the sampler's generator, too."""
    return {"batch_size": 1, "batch_sampler": sampler, "generator": sampler.generator}


ORDERS = {
    "sequential": lambda d: {},
    "torch's": lambda d: {"shuffle": True},
    "a generator": lambda d: {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
    "the engine's": lambda d: {"shuffle": True, "seed": 3},
    "weights": lambda d: {
        "sampler": torch.utils.data.WeightedRandomSampler(torch.ones(30), 30, generator=seeded())
    },
    "a subset": lambda d: {
        "sampler": torch.utils.data.SubsetRandomSampler(range(30), generator=seeded())
    },
    "batches": lambda d: {"batch_size": 1, "batch_sampler": nested(d)},
    "at once": lambda d: {"sampler": AtOnce(30, seeded())},
    "batches at once": lambda d: {"batch_size": 1, "batch_sampler": Pairs(16, seeded())},
    "lazily at once": lambda d: {"batch_size": 1, "batch_sampler": Lazily(16, seeded())},
    "two generators": lambda d: {"batch_size": 1, "batch_sampler": Twice(16)},
    "one for all": lambda d: sharing(Pairs(16, seeded())),
    "torch's batches": lambda d: {"batch_size": 1, "batch_sampler": unseeded(d)},
    "torch's, replaced": lambda d: {"batch_size": 1, "batch_sampler": unseeded(d, True)},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("taken", [0, 3, 8])
def test_a_state_restores(order, taken):
    dataset = data.Numbers(30)  # 8 batches

    def make(**way):
        return DataLoader(dataset, **{"batch_size": 4, **ORDERS[order](dataset), **way})

    torch.manual_seed(11)
    with make(num_workers=2, use_multiprocessing=False) as loader:
        list(loader)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = json.loads(json.dumps(loader.state()))
        assert len(json.dumps(state)) < 20_000  # a generator is 7000
        rest = labels(batches)
        following = [labels(loader), labels(loader)]
    torch.manual_seed(12)  # as in another run
    with make() as loader:
        loader.restore(state)
        assert loader.state() == state
        restored = [labels(loader), labels(loader), labels(loader)]
    if taken == 8:
        restored = [[], *restored]  # that epoch had ended
    assert restored[0] == rest
    if not order.startswith("torch's"):  # their next order is drawn from the global generator
        assert restored[1:3] == following


@pytest.mark.parametrize("way", ["in line", "threads", "persistent", "its own"])
def test_a_state_between_epochs_has_the_next_order(way):
    dataset = data.Numbers(30)

    def make(kind):
        options = {"generator": torch.Generator().manual_seed(5)}
        if way == "its own":
            options["sampler"] = torch.utils.data.RandomSampler(
                dataset, replacement=True, generator=torch.Generator().manual_seed(6)
            )
        else:
            options["shuffle"] = True
        if way in ("threads", "persistent"):
            options.update(num_workers=2, persistent_workers=way == "persistent")
            if kind is DataLoader:
                options["use_multiprocessing"] = False
        return kind(dataset, 5, **options)

    places, epochs = [], []
    with make(DataLoader) as loader:
        for epoch in range(3):
            places.append((epoch, loader.state()))
            batches = iter(loader)
            taken = [next(batches) for _ in range(6)]
            places.append((epoch + 1, loader.state()))  # before the end was requested
            assert next(batches, None) is None
            epochs.append(labels(taken))
    if way != "threads":  # torch's workers are processes; draws in line are the same
        theirs = make(torch.utils.data.DataLoader)
        assert epochs == [labels(theirs) for _ in range(3)]
    for epoch, state in places:
        assert (state["loader"]["epoch"], state["loader"]["batches"]) == (epoch, 0)
        with make(DataLoader) as loader:
            loader.restore(json.loads(json.dumps(state)))
            assert [labels(loader) for _ in range(epoch, 3)] == epochs[epoch:]


@pytest.mark.parametrize("there", [True, False])
def test_a_state_restores_where_workers_are_persistent_or_not(there):
    """Then torch draws a base seed only in the first epoch, from the generator of the order."""
    dataset = data.Numbers(30)

    def make(persistent):
        options = {"num_workers": 2, "use_multiprocessing": False, "persistent_workers": True}
        generator = torch.Generator().manual_seed(5)
        return DataLoader(
            dataset, 5, shuffle=True, generator=generator, **(options if persistent else {})
        )

    with make(there) as loader:
        list(loader)
        batches = iter(loader)
        next(batches)
        state = loader.state()
        rest = labels(batches)
    with make(not there) as loader:
        loader.restore(state)
        assert labels(loader) == rest


@pytest.mark.parametrize("replacement", [False, True])
def test_batches_of_a_random_sampler_are_torchs_and_go_on(replacement):
    dataset = data.Numbers(30)
    torch.manual_seed(4)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=unseeded(dataset, replacement))
    theirs = [labels(loader), labels(loader)]
    after = torch.rand(1)
    torch.manual_seed(4)
    with DataLoader(dataset, batch_sampler=unseeded(dataset, replacement)) as loader:
        batches = iter(loader)
        taken = labels([next(batches) for _ in range(3)])
        state = loader.state()
        assert taken + labels(batches) == theirs[0]
        assert labels(loader) == theirs[1]
        assert torch.rand(1) == after  # no more and no less was drawn
        loader.restore(state)
        assert taken + labels(loader) == theirs[0]


def test_a_generator_that_cannot_be_looked_at_is_none():
    class Shy(AtOnce):
        generator = property(lambda self: 1 / 0)

        def __init__(self, rows):
            self.rows = rows

        def __iter__(self):
            return iter(range(self.rows))

    with DataLoader(data.Numbers(30), 4, sampler=Shy(30)) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state()
        rest = labels(batches)
        loader.restore(state)
        assert labels(loader) == rest


def test_a_state_of_another_kind_of_sampler_is_refused_and_changes_nothing():
    dataset = data.Numbers(30)

    def place(**options):
        with DataLoader(dataset, 4, **options) as loader:
            next(iter(loader))
            return loader.state()

    random = place(shuffle=True)
    generated = place(shuffle=True, generator=seeded())
    plain, listed = place(), place(sampler=list(range(30)))
    for options, states in (
        ({}, (random, generated)),
        ({"shuffle": True}, (generated, plain, listed)),
        ({"shuffle": True, "generator": seeded()}, (random, plain, listed)),
        ({"batch_size": 1, "batch_sampler": nested(dataset)}, (random, plain, listed)),
    ):
        with DataLoader(dataset, **{"batch_size": 4, **options}) as loader:
            batches = iter(loader)
            next(batches)
            for state in states:
                with pytest.raises(penstock.InvalidArgument, match="drawn otherwise"):
                    loader.restore(state)
            assert len(list(batches)) == 7


def test_a_generator_that_is_seeded_every_epoch_decides_after_restore_too():
    generator = torch.Generator()
    with DataLoader(data.Numbers(30), 5, shuffle=True, generator=generator) as loader:
        list(loader)
        state = loader.state()
        generator.manual_seed(1)
        following = labels(loader)
        loader.restore(state)
        generator.manual_seed(1)
        assert labels(loader) == following


def test_a_state_is_no_draw():
    torch.manual_seed(3)
    theirs = labels(torch.utils.data.DataLoader(data.Numbers(30), 4, shuffle=True))
    torch.manual_seed(3)
    with DataLoader(data.Numbers(30), 4, shuffle=True) as loader:
        loader.state()
        assert labels(loader) == theirs


def test_a_sampler_that_has_more_than_its_length_is_not_over():
    class More(list):
        def __len__(self):
            return 2

    sampler = More([[0, 1], [2], [3, 4]])
    with DataLoader(data.Numbers(30), batch_sampler=sampler) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state()
        rest = labels(batches)
        loader.restore(state)
        assert labels(loader) == rest
    assert len(rest) == 1


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
        with pytest.raises(penstock.InvalidArgument, match="not a state of a Loader"):
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


def test_a_closed_loader_is_not_restored():
    loader = DataLoader(data.Numbers(4), 2)
    state = loader.state()
    loader.close()
    with pytest.raises(Closed):
        loader.restore(state)
    with pytest.raises(Closed):
        iter(loader)

"""penstock.device.resident with torch: rows that stay on a device, in the order of the host."""

from __future__ import annotations

import itertools
import json
import types

import numpy as np
import pytest

import contract

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import resident_cases as cases  # noqa: E402
from penstock.device import resident, rows  # noqa: E402
from penstock.device.permutation import torch_permuted  # noqa: E402
from penstock.device.words import TorchWords, philox  # noqa: E402

INLINE = {"workers": 0}


@pytest.fixture(params=["one by one", "several at once"])
def gathered(request, monkeypatch):
    """Batches in memory are gathered one by one; those on a device, several at once."""
    if request.param == "several at once":
        made = rows.TorchRows.__init__

        def init(self, device):
            made(self, device)
            self._together = 1000

        monkeypatch.setattr(rows.TorchRows, "__init__", init)


def plain(batch):
    """A batch of tensors as arrays."""
    return penstock.base.nests.mapped(lambda leaf: leaf.numpy(), batch)


class Plain(penstock.device.Resident):
    """Batches as arrays, for the shared contract."""

    def _made_of(self, *of):
        return plain(super()._made_of(*of))


def of_host(dataset, epochs):
    with dataset.build(**INLINE) as feed:
        return [list(feed) for _ in range(epochs)]


@pytest.mark.parametrize("length", cases.LENGTHS)
def test_the_order_is_that_of_the_engine(length):
    for seed, epoch in cases.SEEDS:
        order = torch_permuted(length, seed, epoch, torch.arange(length))
        wanted = penstock.Permutation(length, seed, epoch).take(0, length)
        assert np.array_equal(order.numpy(), wanted.astype(np.int64))


@pytest.mark.parametrize("length", [2**31 + 5, 2**40 + 123, 2**62])
def test_the_order_of_very_many_is_that_of_the_engine(length):
    wanted = penstock.Permutation(length, 5, 6)
    for first in (0, length // 3, length - 500):
        order = torch_permuted(length, 5, 6, torch.arange(first, first + 500))
        assert np.array_equal(order.numpy(), wanted.take(first, 500).astype(np.int64))


def test_philox_gives_the_published_words():
    # Known answers of Random123 (kat_vectors): all ones, and the digits of pi.
    ones = torch.full((2,), 0xFFFFFFFF)
    words = philox(TorchWords(), (ones,) * 4, (0xFFFFFFFF, 0xFFFFFFFF))
    assert [int(w[1]) for w in words] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [torch.tensor(w) for w in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)]
    words = philox(TorchWords(), pi, (0xA4093822, 0x299F31D0))
    assert [int(w) for w in words] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("max_bytes", [None, 3000], ids=["all fit", "some fit"])
@pytest.mark.parametrize("name", cases.CHAINS)
def test_batches_and_states_are_those_of_the_host(name, max_bytes, gathered):
    dataset = cases.CHAINS[name]()
    with (
        resident(dataset, "cpu", max_bytes=max_bytes, **INLINE) as kept,
        dataset.build(**INLINE) as host,
    ):
        assert len(kept) == len(host)
        for epoch in range(3):
            for batch, wanted in zip(kept, host, strict=True):
                contract.assert_same(plain(batch), wanted, f"epoch {epoch}")
                assert kept.state() == host.state()
            assert kept.state() == host.state()
            assert kept.epoch == host.epoch


@pytest.mark.parametrize("name", ["shuffled", "padded shards", "batches left out"])
def test_states_are_exact_at_every_batch(name, gathered):
    dataset = cases.CHAINS[name]()

    def make(**options):
        return Plain(dataset, "cpu", None, options)

    contract.check_checkpoints(make, restored=(contract.INLINE, contract.THREADS))


def test_a_state_goes_to_the_host_and_back():
    dataset = cases.CHAINS["shuffled"]()
    wanted = of_host(dataset, 2)
    with resident(dataset, "cpu", **INLINE) as kept, dataset.build(**INLINE) as host:
        assert next(iter(kept)) is not None
        host.restore(json.loads(json.dumps(kept.state())))
        contract.assert_same(list(host), wanted[0][1:])
        next(iter(host))
        kept.load_state_dict(host.state())
        contract.assert_same([plain(batch) for batch in kept], wanted[1][1:])


def test_a_state_of_other_ranks_goes_on():
    def of(rank, world):
        return cases.rows().shuffle(seed=3).shard(rank, world, remainder="pad").batch(16)

    with of(0, 2).build(**INLINE) as host:
        assert len(list(host.steps(5))) == 5
        state = host.state()
    with of(2, 3).build(**INLINE) as host, resident(of(2, 3), "cpu", **INLINE) as kept:
        host.restore(state)
        kept.restore(state)
        contract.assert_same([plain(b) for b in kept], list(host))
        assert kept.state() == host.state()


def test_a_state_of_other_ranks_is_refused_where_the_rows_are_a_share():
    def of(rank, world):
        return cases.rows().shard(rank, world).batch(16)

    with of(0, 2).build(**INLINE) as host:
        assert len(list(host.steps(5))) == 5
        state = host.state()
    with (
        resident(of(2, 3), "cpu", **INLINE) as kept,
        pytest.raises(penstock.InvalidArgument, match="put shard behind shuffle"),
    ):
        kept.restore(state)


def test_a_state_of_another_chain_is_refused():
    with resident(cases.CHAINS["shuffled"](), "cpu", **INLINE) as kept:
        with pytest.raises(penstock.InvalidArgument, match="shuffle"):
            kept.restore(cases.rows().shuffle(seed=4).batch(64).build(**INLINE).state())
        assert len(list(kept)) == 11


def test_an_endless_pass_goes_on():
    dataset = cases.rows().shuffle(seed=3).batch(64).repeat()
    wanted = [batch for epoch in of_host(cases.CHAINS["shuffled"](), 3) for batch in epoch]
    with resident(dataset, "cpu", **INLINE) as kept:
        with pytest.raises(TypeError, match="no end"):
            len(kept)
        batches = iter(kept)
        contract.assert_same([plain(next(batches)) for _ in wanted], wanted)
        assert kept.epoch == 3


@pytest.mark.parametrize("taken", [1, 3, 4])
@pytest.mark.parametrize("rounds", [1, 2, None])
def test_a_break_between_rounds_is_followed_by_the_epoch_of_the_host(rounds, taken):
    dataset = cases.rows().shuffle(seed=3).batch(64).take(3).repeat(rounds)

    def epochs(feed):
        for _ in range(3):
            for _ in itertools.islice(feed, taken):
                yield feed.epoch, feed.state()["batches"]

    with resident(dataset, "cpu", **INLINE) as kept, penstock.Loader(dataset, workers=0) as host:
        assert list(epochs(kept)) == list(epochs(host))


def test_after_a_break_comes_the_next_epoch():
    wanted = of_host(cases.CHAINS["shuffled"](), 2)
    with resident(cases.CHAINS["shuffled"](), "cpu", **INLINE) as kept:
        for _ in kept:
            break
        contract.assert_same([plain(batch) for batch in kept], wanted[1])


def test_nothing_crosses_the_link_after_the_rows_were_read():
    size = sum(leaf.nbytes for leaf in penstock.base.nests.leaves_of(_whole()))
    with resident(cases.CHAINS["shuffled"](), "cpu", **INLINE) as kept:
        assert kept.stats()["link_bytes"] == 0
        for epoch in range(1, 4):
            assert len(list(kept)) == 11
            stats = kept.stats()
            assert stats["link_bytes"] == stats["resident_bytes"] == size
            assert (stats["delivered"], stats["epochs"]) == (11 * epoch, epoch)
        assert (stats["rows"], stats["resident_rows"], stats["host_rows"]) == (700, 700, 0)


def _whole():
    (whole,) = of_host(cases.rows().batch(cases.COUNT), 1)[0]
    return whole


def test_rows_that_do_not_fit_are_sent_when_they_are_needed():
    row = 3 + 4 + 1 + 4
    with resident(cases.CHAINS["shuffled"](), "cpu", max_bytes=100 * row + 5, **INLINE) as kept:
        assert len(list(kept)) == 11
        stats = kept.stats()
        assert (stats["resident_rows"], stats["resident_bytes"]) == (100, 100 * row)
        assert (stats["host_rows"], stats["host_bytes"]) == (600, 600 * row)
        once = stats["link_bytes"]
        assert once == 100 * row + 600 * (row + 8)  # each with its place in the batch
        assert len(list(kept)) == 11
        assert kept.stats()["link_bytes"] - once == 600 * (row + 8)


def test_batches_whose_rows_are_all_there_are_not_sent():
    with resident(cases.rows().batch(50), "cpu", max_bytes=12 * 350, **INLINE) as kept:
        assert [int(batch["z"][0, 0, 0]) for batch in kept] == list(range(0, 700, 50))
        assert kept.stats()["link_bytes"] == 12 * 350 + (12 + 8) * 350


def test_not_even_one_row_fits():
    with (
        resident(cases.rows().batch(8), "cpu", max_bytes=11, **INLINE) as kept,
        pytest.raises(penstock.InvalidArgument, match=r"a row has 12 bytes.* 11 on cpu"),
    ):
        next(iter(kept))


def test_batches_stay_as_they_are(gathered):
    wanted = of_host(cases.CHAINS["shuffled"](), 2)
    with resident(cases.CHAINS["shuffled"](), "cpu", **INLINE) as kept:
        held = [list(kept), list(kept)]
    contract.assert_same([[plain(batch) for batch in epoch] for epoch in held], wanted)


def test_a_batch_may_be_changed_while_another_is_needed_for_gradients(gathered):
    dataset = penstock.Dataset.arrays({"x": np.ones((64, 2), np.float32)}).batch(8)
    weight = torch.ones(2, requires_grad=True)
    with resident(dataset, "cpu", **INLINE) as kept:
        first, second, *_ = (batch["x"] for batch in kept)
        loss = (first * weight).sum()
        second.mul_(3)
        loss.backward()
    assert weight.grad.tolist() == [8, 8]


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64", "float16", "complex64"])
def test_other_types_are_kept(name):
    values = np.arange(300).astype(name)
    dataset = penstock.Dataset.arrays(values).shuffle(seed=1).batch(32)
    (wanted,) = of_host(dataset, 1)
    for most in (None, 100):
        with resident(dataset, "cpu", max_bytes=most, **INLINE) as kept:
            contract.assert_same([batch.numpy() for batch in kept], wanted)


@pytest.mark.parametrize("most", [None, 100])
def test_rows_without_values_are_kept(most):
    columns = {"none": np.zeros((20, 0, 3), np.float32), "y": np.arange(20)}
    dataset = penstock.Dataset.arrays(columns).shuffle(seed=1).batch(8)
    (wanted,) = of_host(dataset, 1)
    with resident(dataset, "cpu", max_bytes=most, **INLINE) as kept:
        contract.assert_same([{k: v.numpy() for k, v in batch.items()} for batch in kept], wanted)


@pytest.mark.parametrize("in_place", [True, False])
def test_rows_are_read_into_memory_that_the_device_reads(in_place):
    dataset = penstock.Dataset.arrays(np.arange(8)).batch(2)
    with resident(dataset, "cpu", **INLINE) as kept:
        place = types.SimpleNamespace(reads_in_place=in_place, close=lambda: None)
        kept._rows.place = place
        with kept._reader(dataset) as reader:
            assert reader._info.for_device is in_place


def test_values_without_a_type_are_refused():
    dataset = penstock.Dataset.source([{"x": 1, "name": "one"}] * 4).batch(2)
    with (
        resident(dataset, "cpu", **INLINE) as kept,
        pytest.raises(penstock.InvalidArgument, match=r"leaf 1 .*select"),
    ):
        next(iter(kept))


def test_the_first_epoch_trains_while_the_rows_are_read():
    read = []

    def noted(row):
        read.append(int(row["z"][0, 0]))
        return row

    dataset = cases.rows().map(noted).shuffle(seed=3).batch(64)
    with resident(dataset, "cpu", **INLINE) as kept:
        for given, _ in enumerate(kept, 1):
            assert len(read) == min(64 * given, 700)
        assert len(list(kept)) == 11
    assert sorted(read) == list(range(700))


def test_an_exception_of_a_function_is_raised_at_its_place_and_the_rows_can_be_read_again():
    ill = [True]

    def fails(row):
        if ill[0] and row["z"][0, 0] == 99:
            raise OverflowError("99")
        return row

    dataset = cases.rows().map(fails).shuffle(seed=3).batch(64)
    with resident(dataset, "cpu", **INLINE) as kept:
        given = []
        with pytest.raises(OverflowError, match="99"):
            given.extend(kept)
        ill[0] = False
        given.extend(kept)
        assert kept.epoch == 1
    wanted = of_host(cases.rows().shuffle(seed=3).batch(64), 1)[0]
    contract.assert_same([plain(batch) for batch in given], wanted)


@pytest.mark.parametrize("text", cases.REFUSED)
def test_chains_without_rows_to_keep_are_refused(text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        resident(cases.REFUSED[text](), "cpu")


@pytest.mark.parametrize(
    ("source", "device", "options", "text"),
    [
        ([1, 2], "cpu", {}, "is not a penstock.Dataset"),
        (None, "nowhere", {}, "device is 'nowhere'"),
        (None, None, {}, "device is None"),
        (None, "cpu", {"on_error": "skip"}, "on_error is not an option"),
        (None, "cpu", {"max_bytes": 0}, "max_bytes is 0"),
    ],
)
def test_arguments_are_checked(source, device, options, text):
    dataset = cases.rows().batch(8) if source is None else source
    with pytest.raises(penstock.InvalidArgument, match=text):
        resident(dataset, device, **options)


def test_a_closed_one_says_so():
    kept = resident(cases.CHAINS["shuffled"](), "cpu", **INLINE)
    batches = iter(kept)
    first = next(batches)
    kept.close()
    kept.close()
    assert first["z"].shape == (64, 1, 1)
    for late in (lambda: next(batches), lambda: iter(kept)):
        with pytest.raises(penstock.Closed, match="released by close"):
            late()


def test_an_iteration_closes_and_says_what_it_is():
    with resident(cases.CHAINS["shuffled"](), "cpu", **INLINE) as kept:
        with iter(kept) as batches:
            next(batches)
            assert repr(batches) == f"BatchIterator({kept!r}, epoch=0)"
            assert batches.element_spec == kept.element_spec
        assert list(batches) == []
        assert repr(kept.steps(3)) == f"BatchIterator({kept!r}, steps=3)"


def test_no_elements_are_no_batches():
    with resident(cases.rows().take(0).batch(8), "cpu", **INLINE) as kept:
        assert list(kept) == []
        assert len(kept) == 0
    with (
        resident(cases.rows().take(0).batch(8).repeat(), "cpu", **INLINE) as kept,
        pytest.raises(penstock.InvalidArgument, match="no batch"),
    ):
        iter(kept)

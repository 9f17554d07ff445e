"""Dataset.map(function, device=...) with torch: in order, ahead of the step, behind the batches."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.device.place import TorchDevice  # noqa: E402
from penstock.torch import feed, tensor_loader  # noqa: E402

INLINE = {"workers": 0}


def numbers():
    """Batches of 4 of the numbers from 0 to 39."""
    return penstock.Dataset.range(40).batch(4)


@pytest.fixture(params=["in memory", "on a device"])
def way(request, monkeypatch):
    """Batches stay, or are sent ahead: the CPU stands for a device."""
    if request.param == "on a device":
        monkeypatch.setattr(tensor_loader, "torch_place", lambda _: TorchDevice("cpu"))


def firsts(batches):
    return [int(batch[0]) for batch in batches]


def test_functions_run_one_after_the_other_on_tensors(way):
    twice = numbers().map(lambda x: x * 2, device="cpu")
    chain = twice.map(lambda x: {"x": x, "y": x + 1}, device="cpu")
    with feed(chain, **INLINE) as batches:
        assert len(batches) == len(chain) == 10
        for _ in range(2):
            for i, batch in enumerate(batches):
                assert isinstance(batch["x"], torch.Tensor)
                assert batch["x"].tolist() == [8 * i + 2 * j for j in range(4)]
                assert batch["y"].tolist() == [8 * i + 2 * j + 1 for j in range(4)]
            assert i == 9


def test_a_tuple_is_given_as_arguments(way):
    data = penstock.Dataset.arrays((np.arange(8), np.ones(8))).batch(4)
    with feed(data.map(lambda x, y: x + y, device="cpu"), **INLINE) as batches:
        assert [batch.tolist() for batch in batches] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_the_function_runs_ahead_of_the_step_on_a_device(monkeypatch):
    monkeypatch.setattr(tensor_loader, "torch_place", lambda _: TorchDevice("cpu"))
    calls = []

    def noted(x):
        calls.append(int(x[0]))
        return x

    with feed(numbers().map(noted, device="cpu"), ahead=2, workers=1) as batches:
        iterator = iter(batches)
        seen = []
        for _ in range(10):
            seen.append(int(next(iterator)[0]))
            assert seen == calls[: len(seen)]
            assert len(calls) <= len(seen) + 2
            while batches._core.ready() == 0 and len(seen) < 7:
                pass
        assert seen == list(range(0, 40, 4))
        assert next(iterator, None) is None


def test_an_exception_is_raised_at_its_place(way):
    def fails(x):
        if int(x[0]) == 12:
            raise OverflowError("twelve")
        return x

    with feed(numbers().map(fails, device="cpu"), **INLINE) as batches:
        seen, iterator = [], iter(batches)
        with pytest.raises(OverflowError, match="twelve"):
            for batch in iterator:
                seen.append(int(batch[0]))
        assert seen == [0, 4, 8]
        assert batches.state()["batches"] == 3
        assert next(iterator, None) is None
        batches.restore({**batches.state(), "batches": 4})
        assert firsts(batches) == list(range(16, 40, 4))


def test_states_are_those_of_the_dataset(way):
    chain = numbers().shuffle(seed=3).map(lambda x: x, device="cpu")
    with feed(chain, **INLINE) as batches, numbers().shuffle(seed=3).build(**INLINE) as host:
        wanted = firsts(host)
        iterator = iter(batches)
        assert firsts([next(iterator) for _ in range(3)]) == wanted[:3]
        host.restore(batches.state())
        assert firsts(host) == wanted[3:]
        batches.restore({**batches.state(), "batches": 7})
        assert firsts(batches) == wanted[7:]


def test_resident_batches_go_through_the_functions():
    def fails(x):
        if 12 in x.tolist():
            raise OverflowError("twelve")
        return -x

    chain = numbers().map(fails, device="cpu")
    with penstock.device.resident(chain, "cpu", **INLINE) as kept:
        seen = []
        with pytest.raises(OverflowError, match="twelve"):
            for batch in kept:
                seen.append(int(batch[0]))
        assert seen == [0, -4, -8]
        assert kept.state()["batches"] == 3


def test_a_device_has_several_names():
    chain = numbers().map(lambda x: -x, device="cpu").map(lambda x: x, device=torch.device("cpu"))
    with (
        penstock.device.resident(chain, torch.device("cpu"), **INLINE) as kept,
        feed(chain, device=torch.device("cpu"), **INLINE) as batches,
    ):
        assert firsts(kept) == firsts(batches) == [-4 * i for i in range(10)]


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda ds: ds.batch(2), "come last.*put other stages before"),
        (lambda ds: ds.shuffle(seed=1), "come last"),
        (lambda ds: ds.map(lambda x: x), "device is None and that of the map before is 'cpu'"),
        (lambda ds: ds.map(lambda x: x, device="cuda:1"), "that of the map before is 'cpu'"),
        (lambda ds: ds.map(7, device="cpu"), "7 is not a function"),
        (iter, "come last"),
        (penstock.Loader, "come last: give .* to the feed of penstock.torch"),
        (lambda ds: feed(ds, device="meta"), "functions of the Dataset run on 'cpu'"),
        (lambda ds: penstock.device.resident(ds, "meta"), "functions of the Dataset run on 'cpu'"),
    ],
)
def test_other_uses_are_refused(use, text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        use(numbers().map(lambda x: x, device="cpu"))


def test_a_native_operation_is_no_function_of_a_device():
    with pytest.raises(penstock.InvalidArgument, match="native operations run in the workers"):
        numbers().map(penstock.cast("int8"), device="cpu")


def test_other_attributes_are_unknown():
    chain = numbers().map(lambda x: x, device="cpu")
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = chain.colour
    assert "range(0, 40) > batch(4) > map(device='cpu') x 1" in repr(chain)

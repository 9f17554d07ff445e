"""What goes to a device of the values in a batch: through the driver for tests, and by torch."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.device.functions import Worked  # noqa: E402


class Made:
    """Three items, each a whole batch: `make` of its number."""

    def __init__(self, make) -> None:
        self.make = make

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int):
        return self.make(i)


def fed(make, device: str) -> list:
    with penstock.torch.feed(Made(make), device=device, workers=0) as feed:
        return list(feed)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex32"])
def test_tensors_of_types_that_numpy_lacks_are_staged(cuda, monkeypatch, dtype):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # torch does not need it
    dtype = getattr(torch, dtype)
    copies = cuda.get("cuMemcpyHtoDAsync")
    got = fed(lambda i: (torch.full((4,), i).to(dtype), np.float32(i)), "cuda:0")
    assert cuda.get("cuMemcpyHtoDAsync") - copies == 3
    for i, (tensor, number) in enumerate(got):
        assert tensor.torch_dtype == dtype
        same = torch.from_numpy(tensor.numpy()).view(dtype)
        assert same.to(torch.complex64).tolist() == [i] * 4
        assert number.numpy() == i


@dataclasses.dataclass(frozen=True)
class Fields:
    x: object
    name: str


class Encoding(collections.UserDict):
    """As transformers' BatchEncoding: a mapping that is no dict."""

    def to(self, device, *, non_blocking=False):
        raise AssertionError("its values are staged with those of the batch")


@pytest.mark.parametrize("device", ["cuda:0", "meta"])
def test_dataclasses_and_mappings_keep_their_class(cuda, device):
    def make(i: int):
        x = np.full(3, i)
        ordered = collections.OrderedDict(b=x, a="text")
        return Fields(x, "f"), Encoding(x=x, inner=Encoding(y=x)), ordered

    source = Made(make)
    with penstock.torch.feed(source, device=device, workers=0) as feed:
        got = list(feed)
    for i, (fields, encoding, ordered) in enumerate(got):
        assert (type(fields), fields.name) == (Fields, "f")
        assert type(encoding) is type(encoding["inner"]) is Encoding
        assert (list(ordered), ordered["a"]) == (["b", "a"], "text")
        for there in (fields.x, encoding["x"], encoding["inner"]["y"], ordered["b"]):
            assert str(there.device) == device
            if device == "cuda:0":
                assert there.numpy().tolist() == [i] * 3


def test_a_batch_of_the_source_is_not_changed(cuda):
    kept = Encoding(x=np.arange(3))
    with penstock.torch.feed(Made(lambda i: kept), device="cuda:0", workers=0) as feed:
        assert [batch["x"].device for batch in feed] == ["cuda:0"] * 3
    assert kept["x"].tolist() == [0, 1, 2]


def test_values_that_move_themselves_are_moved():
    def make(i: int):
        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
        return packed, torch.eye(2).to_sparse(), torch.ones(2, requires_grad=True)

    packed, sparse, grown = fed(make, "meta")[0]
    assert (packed.data.device.type, packed.batch_sizes.tolist()) == ("meta", [2, 2, 1])
    assert (sparse.device.type, sparse.layout) == ("meta", torch.sparse_coo)
    assert grown.device.type == "meta"


class Day:
    """Its `to` is not torch's."""

    def to(self, zone):
        raise AssertionError(zone)


def test_other_objects_stay_as_they_are(cuda):
    got = fed(lambda i: {"day": Day(), "x": np.zeros(0), "big": np.full(2, i, ">i4")}, "cuda:0")
    assert [type(batch["day"]) for batch in got] == [Day] * 3
    assert [batch["x"].shape for batch in got] == [(0,)] * 3
    assert [batch["big"].numpy().tolist() for batch in got] == [[i, i] for i in range(3)]


class OnDevice:
    """A tensor of a device, by the address of its memory."""

    is_cuda = True

    def __init__(self, address: int) -> None:
        self.address = address

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: self.address)

    def clone(self) -> OnDevice:
        return OnDevice(self.address + 1)


def test_results_of_functions_have_memory_of_their_own_in_objects_too(monkeypatch):
    stream = types.SimpleNamespace(record_event=lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())

    def applied(batch, rows):
        return Fields(batch["x"], "f"), Encoding(x=batch["x"], new=OnDevice(7)), batch

    way = Worked(types.SimpleNamespace(applied=applied), lambda: None, dict, dict, "cuda:0")
    (fields, encoding, plain), _ = way.send({"x": OnDevice(1)})
    assert [each.address for each in (fields.x, encoding["x"], plain["x"])] == [2, 2, 2]
    assert encoding["new"].address == 7


def test_feeds_on_the_cpu_have_tensors_and_those_without_a_device_arrays():
    rows = penstock.Dataset.arrays(np.arange(12)).batch(2)
    with rows.feeds(3, devices=["cpu", torch.device("cpu"), None], workers=2) as feeds:
        kinds = [{type(batch) for batch in feed} for feed in feeds]
    assert kinds == [{torch.Tensor}, {torch.Tensor}, {np.ndarray}]
    with pytest.raises(penstock.InvalidArgument, match="one for each"):
        rows.feeds(4, devices="cuda")

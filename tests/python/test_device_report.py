"""A device's copies and steps in the report, and copies from the device, by a driver for tests."""

from __future__ import annotations

import json
import re
import sys
import types

import numpy as np
import pytest

pytest.importorskip("torch")

import penstock.torch
from test_device import numbers


def test_the_report_draws_copies_and_steps_on_the_device(cuda, tmp_path):
    cuda.set("copy_us", 2000)
    with penstock.torch.feed(numbers(), device="cuda:1", workers=1) as feed:
        kept = list(feed)
        stats = feed.stats()["device"]
        cuda.finish()
        feed.report(tmp_path / "run.html")
        feed.trace(tmp_path / "run.json")
    assert len(kept) == 8
    assert stats["events"] == stats["batches"], "events of the report do not count"
    page = (tmp_path / "run.html").read_text()
    data = json.loads(re.search(r'type="application/json" id="data">(.*?)</script>', page, re.S)[1])
    copies, steps = data["devices"]
    assert (copies["name"], steps["name"]) == ("cuda:1 copies", "cuda:1 step")
    names = [data["kinds"][event[0]] for event in copies["events"]]
    assert names == ["copy to the device"] * 8
    assert [event[5] for event in copies["events"]] == list(range(8))
    assert all(event[2] > 1000 for event in copies["events"])
    assert {data["kinds"][event[0]] for event in steps["events"]} >= {"step on the device"}
    trace = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert {event.get("cat") for event in trace} >= {"consumer", "device", "worker"}


def test_an_array_of_jax_is_published_by_one_copy_from_the_device(cuda, monkeypatch):
    from penstock.train import parameters

    here = np.arange(6, dtype=np.float32).reshape(2, 3)
    there = here.copy()  # the fake's device memory is memory of the host

    class Array:
        """As jax's on a GPU. NumPy cannot read it."""

        dtype, shape, is_fully_replicated = there.dtype, there.shape, True
        __cuda_array_interface__ = {"data": (there.ctypes.data, False), "strides": None}  # noqa: RUF012

        def addressable_data(self, index):
            return self

        def devices(self):
            return [types.SimpleNamespace(platform="gpu", local_hardware_id=1)]

        def block_until_ready(self):
            self.waited = True

    array = Array()
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(Array=Array))
    into = np.zeros((2, 3), np.float32)
    before = cuda.get("cuMemcpyDtoH")
    parameters.copy_block("w", into, array, "publish")
    assert np.array_equal(into, here)
    assert array.waited
    assert cuda.get("cuMemcpyDtoH") - before == 1

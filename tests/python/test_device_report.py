"""What is seen of a device, and copies from it, by a driver for tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time
import types

import numpy as np
import pytest

pytest.importorskip("torch")

import penstock.torch
from penstock import cli
from penstock.commands import doctor
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


def test_the_time_is_shared_by_the_host_the_link_and_the_step(cuda):
    cuda.set("copy_us", 3000)
    with penstock.torch.feed(numbers(400), device="cuda:0", ahead=1) as feed:
        for _ in feed:
            pass
        shares = feed.stats()["device"]["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["link"] > 0.5, shares
    assert all(share >= 0 for share in shares.values())
    cuda.set("copy_us", 0)
    with penstock.torch.feed(numbers(), device="cuda:0") as feed:
        for _ in feed:
            time.sleep(0.005)
        shares = feed.stats()["device"]["shares"]
    assert shares["step"] > 0.5, shares


def test_doctor_measures_the_link(cuda, monkeypatch):
    monkeypatch.setattr(doctor, "_LINK_BYTES", 1 << 20)
    cuda.set("copy_us", 1000)
    (finding,) = doctor.devices()
    assert finding.status == doctor.OK
    speed = re.search(r"cuda:1 .*, ([\d.]+) GB/s to it from pinned memory, [\d.]+ GB/s from other",
                      finding.found)  # fmt: skip
    assert speed, finding.found
    assert 0 < float(speed[1]) <= (1 << 20) / 1e-3 / 1e9
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: (8 << 20, 8 << 20))
    cuda.set("device_memory", 1 << 10)
    (finding,) = doctor.devices()
    assert finding.found.endswith("; ulimit -l is 8.0 MiB"), finding.found
    assert "its link could not be measured (cuda:0: " in finding.found


def test_bench_feeds_the_device_of_a_datasets_functions(capsys, monkeypatch):
    mapped = numbers(800).map(lambda batch: batch, device="meta")
    monkeypatch.setitem(sys.modules, "device_dataset", types.SimpleNamespace(rows=mapped))
    arguments = ["bench", "device_dataset:rows", "--workers", "1", "--steps", "20"]
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "link"
    assert len([line for line in lines[1:4] if line.endswith("GB/s")]) == 3, lines
    assert cli.main([*arguments, "--device", "cpu"]) == 1
    assert "functions of the Dataset run on 'meta'" in capsys.readouterr().err


def test_the_import_of_torch_is_no_part_of_a_first_batch():
    code = """
        import sys, types, numpy, penstock
        from penstock.commands import bench
        rows = penstock.Dataset.arrays(numpy.zeros((64, 8))).batch(8)
        sys.modules["device_dataset"] = types.SimpleNamespace(rows=rows)
        measure = bench.measure
        def checked(mode, source, options):
            assert "penstock.torch.tensor_loader" in sys.modules
            measure(mode, source, options)
        bench.measure = checked
        from penstock import cli
        sys.exit(cli.main(["bench", "device_dataset:rows", "--device", "meta", "--steps", "4"]))
    """
    program = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_bench_counts_what_goes_over_the_link(cuda, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "device_dataset", types.SimpleNamespace(rows=numbers(800)))
    arguments = ["bench", "device_dataset:rows", "--device", "cuda:0", "--workers", "1"]
    assert cli.main([*arguments, "--steps", "80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "link"
    assert all(line.endswith("GB/s") for line in lines[1:3])
    assert cli.main([*arguments, "--steps", "80", "--json"]) == 0
    modes = json.loads(capsys.readouterr().out)["modes"]
    assert all(mode["link_gb_per_s"] > 0 for mode in modes)

"""Parameters and updaters in safetensors files."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import penstock
from penstock import train


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(13, 5)), "b": rng.normal(size=5), "scalar": rng.normal()}


def steps(updater, first, last):
    for step in range(first, last):
        updater.apply(drawn(100 + step))


def same(a, b):
    return list(a) == list(b) and all(a[name].tobytes() == b[name].tobytes() for name in a)


def test_parameters_come_back(tmp_path):
    parameters = train.Parameters(drawn())
    parameters.version = 7
    parameters.save(tmp_path / "file")
    into = train.Parameters({"w": (13, 5), "b": 5, "scalar": ()})
    into.load(str(tmp_path / "file"))
    made = train.Parameters.from_file(tmp_path / "file", shared=True)
    assert type(made) is train.Parameters
    assert made.shared
    for found in (into, made):
        assert same(found, parameters)
        assert found.version == 7
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "optimizer", [train.SGD(0.1), train.Momentum(0.1), train.RMSProp(centered=True), train.AdamW()]
)
def test_a_run_goes_on_from_its_file_bit_for_bit(tmp_path, optimizer):
    whole = train.Updater(train.Parameters(drawn()), optimizer)
    steps(whole, 0, 5)
    whole.save(tmp_path / "file")
    steps(whole, 5, 10)
    resumed = train.Updater(train.Parameters({"w": (13, 5), "b": 5, "scalar": ()}), optimizer)
    resumed.load(tmp_path / "file")
    assert resumed.step == resumed.parameters.version == 5
    steps(resumed, 5, 10)
    assert same(resumed.parameters, whole.parameters)
    assert all(same(a, b) for a, b in zip(resumed.slabs, whole.slabs, strict=True))
    assert list(train.Parameters.from_file(tmp_path / "file")) == ["w", "b", "scalar"]


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_half_precision_is_rounded_and_widened(tmp_path, dtype, error):
    parameters = train.Parameters(drawn())
    parameters.save(tmp_path / "file", dtype=dtype)
    made = train.Parameters.from_file(tmp_path / "file")
    for name, array in parameters.items():
        np.testing.assert_allclose(made[name], array, rtol=error, atol=1e-7)
    parameters["w"][1, 2] = 1e5 if dtype == "float16" else 3.4e38
    with pytest.raises(penstock.InvalidArgument, match=r"'w' has .* too large"):
        parameters.save(tmp_path / "file", dtype=dtype)
    assert same(train.Parameters.from_file(tmp_path / "file"), made)


def test_files_of_other_layouts_are_refused(tmp_path):
    updater = train.Updater(train.Parameters(drawn()), train.Adam())
    updater.save(tmp_path / "updater")
    updater.parameters.save(tmp_path / "weights")
    (tmp_path / "damaged").write_bytes((tmp_path / "weights").read_bytes()[:-3])
    other = train.Updater(train.Parameters({"w": (13, 5), "b": 6, "scalar": ()}), train.Adam())
    for target, name, error, text in [
        (other, "updater", penstock.InvalidArgument, r"'b' is \(6,\) here and \(5,\) in the file"),
        (other.parameters, "weights", penstock.InvalidArgument, r"'b' is \(6,\) here"),
        (
            train.Updater(updater.parameters, train.SGD()),
            "updater",
            penstock.InvalidArgument,
            "adam",
        ),
        (updater, "weights", penstock.InvalidArgument, "weights only"),
        (updater.parameters, "damaged", penstock.DataLoss, "its arrays end at"),
        (updater, "nowhere", penstock.NotFound, "nowhere"),
    ]:
        with pytest.raises(error, match=text):
            target.load(tmp_path / name)
    assert not any(array.any() for array in other.parameters.values())
    with pytest.raises(penstock.NotFound):
        train.Parameters.from_file(tmp_path / "nowhere")
    with pytest.raises(penstock.InvalidArgument, match="float64"):
        updater.parameters.save(tmp_path / "new", dtype="float64")
    with pytest.raises(penstock.InvalidArgument, match="no dtype half"):
        updater.parameters.save(tmp_path / "new", dtype="half")
    with pytest.raises(penstock.NotFound, match="no folder"):
        updater.save(tmp_path / "no" / "folder")
    assert not (tmp_path / "new").exists()


def test_a_process_killed_while_it_saves_leaves_a_whole_file(tmp_path):
    parameters = train.Parameters({"w": (500_000,)})
    for round_ in range(3):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            while True:
                parameters.version += 1
                parameters["w"][:] = parameters.version
                parameters.save(tmp_path / "file")
                os.write(writing, b".")
        for _ in range(2 + round_):
            assert os.read(reading, 1) == b"."
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
        found = train.Parameters.from_file(tmp_path / "file")
        assert found.version >= 2 + round_
        assert (found["w"] == found.version).all()


def test_the_safetensors_package_reads_and_writes_the_same(tmp_path):
    reference = pytest.importorskip("safetensors.numpy")
    updater = train.Updater(train.Parameters(drawn()), train.Adam())
    steps(updater, 0, 2)
    updater.save(tmp_path / "ours")
    theirs = reference.load_file(tmp_path / "ours")
    assert len(theirs) == 9
    for name, array in updater.parameters.items():
        assert np.array_equal(theirs[name], array)
        assert np.array_equal(theirs[f"optimizer/1/{name}"], updater.slabs[1][name])
    arrays = {name: np.asarray(array, np.float16) for name, array in drawn().items()}
    reference.save_file(arrays, tmp_path / "theirs", {"version": "3"})
    made = train.Parameters.from_file(tmp_path / "theirs")
    assert made.version == 3
    assert set(made) == set(arrays)
    assert all(np.array_equal(made[name], arrays[name]) for name in made)

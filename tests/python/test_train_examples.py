"""The training examples, run as a user would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import train

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "train"


def run(name, *arguments):
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_numpy_network_learns_digits_and_predicts_with_ids(tmp_path):
    digits = pytest.importorskip("sklearn.datasets").load_digits().target
    file = tmp_path / "weights.safetensors"
    said = run("digits_numpy.py", file)
    right = [float(part) for part in re.findall(r"([\d.]+)% of the unknown right", said)]
    assert len(right) == 15
    assert right[-1] > 95
    # The file has the final weights, and the full state to continue.
    parameters = train.Parameters.from_file(file)
    assert parameters.version == 15 * 44
    assert f"version {parameters.version}" in said

    said = run("predict_ids.py", file)
    wrong = re.findall(r"id (\d+): a (\d), taken for a (\d)", said)
    assert wrong
    for number, digit, taken in wrong:
        assert digits[int(number) - 5000] == int(digit) != int(taken)
    accuracy = float(re.search(r"'accuracy': ([\d.]+)", said)[1])
    assert 0.95 < accuracy < 1
    assert f"'rows': {len(digits)}" in said


@pytest.mark.parametrize("workers", [1, 3])
def test_hogwild_learns_digits(workers):
    pytest.importorskip("sklearn")
    said = run("hogwild.py", str(workers))
    assert f"660 updates by {workers} workers" in said
    assert float(re.search(r"([\d.]+)% of the unknown right", said)[1]) > 95


def test_towers_learn_digits_and_the_same_bits_twice():
    pytest.importorskip("sklearn")
    said = run("towers.py", "4")
    assert "660 updates from 2625 batches by 4 towers" in said
    assert float(re.search(r"([\d.]+)% of the unknown right", said)[1]) > 95
    assert "a second run has the same bits" in said
    assert float(re.search(r"differ by (\S+) at most", said)[1]) < 1e-3


@pytest.mark.parametrize("mode", [[], ["--shards", "3", "--staleness", "0"]])
def test_workers_of_a_parameter_server_learn_digits(mode):
    pytest.importorskip("sklearn")
    said = run("server.py", *mode)
    each = 400 if mode else 800  # synchronous: both workers' gradients make one update
    assert f"versions {[each] * (3 if mode else 2)}" in said
    assert said.count("loss 0.") == 2
    assert float(re.search(r"([\d.]+)% of the unknown right", said)[1]) > 90


def test_a_loop_of_any_length_learns_the_same():
    pytest.importorskip("sklearn")
    pytest.importorskip("jax")
    said = run("loop.py", "1", "20")
    assert said.count("in 440 steps") == 2
    assert "same bits: True" in said
    assert all(float(part) > 88 for part in re.findall(r"([\d.]+)% of the unknown right", said))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_comparison_of_ways_to_train_has_a_row_for_each():
    pytest.importorskip("sklearn")
    command = [sys.executable, ROOT / "bench" / "convergence.py", "--runs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    form = r"\| ([^|]+) \| ([\d.]+) ± 0.0000 \| ([\d.]+)% ± 0.0% \| ([\d.]+) \|"
    rows = re.findall(form, done.stdout)
    assert [row[0] for row in rows] == [
        "a plain loop",
        *("Hogwild, 1 worker", "Hogwild, 2 workers", "Hogwild, 4 workers"),
        *(f"towers: {count}, batches of {32 // count}" for count in (1, 2, 4)),
    ]
    for name, loss, right, staleness in rows:
        assert float(right) > 95, name
        assert 0 < float(loss) < 0.2, name
        assert float(staleness) == 0 or name.startswith("Hogwild"), name
    # One worker is a plain loop, and so is one tower.
    assert rows[1][1:] == rows[4][1:] == rows[0][1:]


def test_examples_fit_on_a_page():
    folders = [ROOT / "examples" / name for name in ("cpp", "torch", "train")]
    files = [file for folder in folders for end in ("cc", "py") for file in folder.glob(f"*.{end}")]
    assert {file.parent for file in files} == set(folders)
    files.append(ROOT / "examples" / "imagenet.py")
    for file in files:
        assert len(file.read_text().splitlines()) < 80, file

"""``penstock bench``."""

from __future__ import annotations

import argparse
import json
import sys

import pytest

from penstock import cli
from penstock.commands import Failed
from penstock.commands import bench as bench_command
from penstock.commands.bench import Mode, choose
from penstock.commands.target import load_dataset
from program import run_program

DATASETS = """
import threading
import numpy as np

class Ready:
    def __len__(self):
        return 12
    def __getitem__(self, k):
        return np.full(5000, k, np.float32)

ready = Ready()
samples = [np.full(3, k) for k in range(64)]
rows = np.zeros((64, 3))

def numbers():
    for k in range(10):
        yield np.full(10, k)

def make():
    return ready

class Locked(Ready):
    def __init__(self):
        self.own = threading.local()

class Broken(Ready):
    def __getitem__(self, k):
        raise OSError("no such image")

class Greedy:
    def __init__(self, path):
        self.path = path

begun = numbers()
number = 3
"""


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """A module `cli_datasets` in the current folder."""
    (tmp_path / "cli_datasets.py").write_text(DATASETS)
    (tmp_path / "cli_broken.py").write_text("import json\nraise RuntimeError('no data here')\n")
    (tmp_path / "cli_needs.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("cli_datasets", "cli_broken", "cli_needs"):
        sys.modules.pop(name, None)


# ---- bench: finding the dataset -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["ready", "make", "Ready"])
def test_an_object_a_function_and_a_class_give_a_dataset(datasets, name):
    assert len(load_dataset(f"cli_datasets:{name}")) == 12


def test_a_generator_function_is_fed_and_not_called(datasets):
    function = load_dataset("cli_datasets:numbers")
    assert len(list(function())) == 10


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("cli_datasets", "is no module:object"),
        ("cli_datasets:", "is no module:object"),
        ("no_such_module:x", "there is no module 'no_such_module'"),
        ("cli_datasets.inner:x", "there is no module"),
        ("cli_datasets:reddy", "has no 'reddy'; it has ready"),
        ("cli_datasets:ready.nothing", "has no 'ready.nothing'"),
        ("cli_datasets:Greedy", "called without arguments"),
        ("cli_datasets:begun", "name the generator function"),
    ],
)
def test_a_target_that_is_none_is_a_usage_error_that_says_why(datasets, capsys, target, says):
    assert cli.main(["bench", target]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("cli_broken:x", "RuntimeError: no data here"),
        ("cli_needs:x", "No module named 'no_such_library'"),
    ],
)
def test_a_module_that_cannot_be_imported_says_where(datasets, target, says):
    with pytest.raises(Failed, match=r"importing .* failed") as raised:
        load_dataset(target)
    assert says in str(raised.value)
    assert "line " in str(raised.value)
    assert raised.value.code == 1


@pytest.mark.parametrize(
    ("target", "says"),
    [("cli_datasets:number", "cannot be fed"), ("cli_datasets:Broken", "no such image")],
)
def test_what_does_not_work_in_line_ends_the_bench(datasets, capsys, target, says):
    assert cli.main(["bench", target, "--steps", "2", "--workers", "1"]) == 1
    assert says in capsys.readouterr().err


# ---- bench: measuring ---------------------------------------------------------------------------


def test_every_way_is_measured_and_one_is_advised(datasets, capsys):
    arguments = ["bench", "cli_datasets:ready", "--steps", "30", "--workers", "1,2", "--json"]
    assert cli.main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    ways = [(mode["kind"], mode["workers"]) for mode in result["modes"]]
    assert ways == [
        ("in line", 0),
        ("threads", 1),
        ("threads", 2),
        ("processes", 1),
        ("processes", 2),
    ]
    for mode in result["modes"]:
        assert not mode["failed"]
        assert mode["batches"] == 30
        assert mode["batches_per_s"] > 0
        assert mode["ms_per_batch"] == pytest.approx(1e3 / mode["batches_per_s"])
        assert mode["first_batch_ms"] > 0
        assert mode["memory"] > 1 << 20
    assert result["advice"].startswith("Choose workers=")


def test_time_ends_a_generator_that_starts_over(datasets, capsys):
    arguments = ["bench", "cli_datasets:numbers", "--seconds", "0.2", "--workers", "1"]
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == bench_command.HEADER.split()
    assert [line.split()[0] for line in lines[1:4]] == ["in", "threads", "processes"]
    assert lines[-1].startswith("Choose ")


def test_samples_are_made_into_batches(datasets):
    options = argparse.Namespace(batch_size=16, steps=5, seconds=1.0, device=None)
    mode = Mode("in line", 0)
    bench_command.measure(mode, load_dataset("cli_datasets:samples"), options)
    assert (mode.failed, mode.batches) == ("", 5)


def test_a_dataset_that_cannot_be_sent_is_fed_by_threads_and_the_reason_printed(datasets, capsys):
    assert cli.main(["bench", "cli_datasets:Locked", "--steps", "5", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "processes failed: InvalidArgument: dataset.own" in said
    assert "Choose workers=" in said


def test_the_program_finds_a_module_in_the_current_folder(tmp_path):
    (tmp_path / "cli_datasets.py").write_text(DATASETS)
    done = run_program(
        "bench", "cli_datasets:ready", "--steps", "4", "--workers", "1", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "processes" in done.stdout
    assert not done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ["--steps", "0"],
        ["--workers", "1,x"],
        ["--batch-size", "-1"],
        ["--seconds", "-1"],
        ["--seconds", "nan"],
        ["--seconds", "inf"],
        ["--seconds", "long"],
    ],
    ids=" ".join,
)
def test_wrong_numbers_are_usage_errors(capsys, wrong):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "json:dumps", *wrong])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert wrong[0] in said
    assert "value" not in said  # argparse's default text for a failed parser function


def test_arrays_are_not_measured_in_processes_that_they_do_not_use(datasets, capsys):
    arguments = ["bench", "cli_datasets:rows", "--batch-size", "4", "--steps", "9", "--workers"]
    assert cli.main([*arguments, "1,2", "--json"]) == 0
    modes = json.loads(capsys.readouterr().out)["modes"]
    assert [mode["kind"] for mode in modes] == ["in line", "threads", "threads"]


# ---- bench: choosing ----------------------------------------------------------------------------


def ways(inline, threads, processes, ms=None):
    def mode(kind, workers, rate):
        failed = "" if rate else "failed"
        return Mode(kind, workers, 10, rate, 1e3 / rate if rate else 0.0, failed=failed)

    return [
        mode("in line", 0, inline),
        *(mode("threads", 1 << k, rate) for k, rate in enumerate(threads)),
        *(mode("processes", 1 << k, rate) for k, rate in enumerate(processes)),
    ]


@pytest.mark.parametrize(
    ("rates", "kind", "workers", "because"),
    [
        # Python code: threads take turns.
        ((100, [98, 97, 90], [95, 190, 380]), "processes", 4, "threads reach 26%"),
        # NumPy code: threads are as fast.
        ((100, [99, 195, 380], [97, 190, 370]), "threads", 4, "leaves the interpreter free"),
        # More workers add nothing, so the fewest are enough.
        ((100, [99, 195, 199], [97, 190, 201]), "threads", 2, "leaves the interpreter free"),
        # The disk is the bottleneck.
        ((100, [99, 101, 100], [97, 99, 100]), "threads", 1, "while the model trains"),
        # Nothing to gain.
        ((400_000, [200_000], [90_000]), "in line", 0, "less than handing it over"),
        ((100, [0], [190]), "processes", 1, "threads do not work"),
        ((100, [0], [0]), "in line", 0, "nothing else works"),
    ],
)
def test_the_cheapest_way_that_is_about_the_fastest_is_chosen(rates, kind, workers, because):
    best, why = choose(ways(*rates))
    assert (best.kind, best.workers) == (kind, workers)
    assert because in why
    assert why.count(".") <= 2  # one sentence, possibly with a decimal number


def test_worker_counts_end_at_the_usable_cores(monkeypatch):
    from penstock import _engine

    for cores, counts in ((1, [1]), (2, [1, 2]), (6, [2, 4, 6]), (16, [4, 8, 16])):
        monkeypatch.setattr(_engine, "usable_cores", lambda cores=cores: cores)
        assert bench_command.worker_counts() == counts

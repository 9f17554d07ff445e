"""The command line: what it says, and its exit codes."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import cli
from penstock.commands import Failed, bytes_text, doctor
from penstock.commands import bench as bench_command
from penstock.commands._dataset import load_dataset
from penstock.commands.bench import Mode, choose

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
        self.lock = threading.Lock()

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


def run(*arguments, cwd=None, timeout=50, before=None):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env=environment,
        preexec_fn=before,
    )


# ---- the program ---------------------------------------------------------------------------------


def test_python_m_penstock_prints_help_and_asks_for_a_command():
    done = run()
    assert done.returncode == 2
    assert "doctor" in done.stdout
    assert "bench" in done.stdout


def test_the_version_is_printed(capsys):
    from penstock import __version__

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {__version__}\n"


def test_an_unknown_command_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["dcotor"])
    assert ended.value.code == 2
    assert "dcotor" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error():
    line = f"{sys.executable} -m penstock doctor --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=50)
    assert done.stdout.strip() == "0"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (1 << 50, "1024 TiB")],
)
def test_bytes_are_said_in_their_unit(count, text):
    assert bytes_text(count) == text


# ---- doctor --------------------------------------------------------------------------------------


def test_doctor_finds_this_machine_fit():
    # In a process of its own: it forks, too.
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["ok"]
    findings = {finding["name"]: finding for finding in result["findings"]}
    for name in ("python", "numpy", "engine", "cores", "memory", "shared memory", "open files"):
        assert findings[name]["status"] in ("ok", "warn"), findings[name]
    for method in ("spawn", "forkserver", "fork"):
        assert "first batch after" in findings[f"workers, {method}"]["found"]
    assert "NEP 49" in findings["zero copy"]["found"]


def test_doctor_prints_a_line_per_finding_and_a_verdict(capsys, monkeypatch):
    checks = (
        lambda: iter([doctor.Finding("one", doctor.OK, "fine")]),
        lambda: iter([doctor.Finding("two", doctor.WARN, "so so", "do this")]),
    )
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "one", "fine"]
    assert lines[1].split() == ["warn", "two", "so", "so"]
    assert lines[2].strip() == "-> do this"
    assert "1 of 2" in lines[-1]


def test_a_check_that_breaks_is_a_failure_and_the_others_are_made(capsys, monkeypatch):
    def broken_check():
        raise OSError("no such file")

    monkeypatch.setattr(doctor, "CHECKS", (broken_check, doctor.python))
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "broken check" in said
    assert "no such file" in said
    assert "python" in said


def test_few_open_files_are_a_warning_and_very_few_a_failure(monkeypatch):
    def found(soft):
        monkeypatch.setattr(
            resource,
            "getrlimit",
            lambda which: (soft, 4096) if which == resource.RLIMIT_NOFILE else (-1, -1),
        )
        return {finding.name: finding for finding in doctor.limits()}["open files"]

    assert found(1024).status == "ok"
    assert found(-1).found == "unlimited"
    few = found(100)
    assert (few.status, few.change) == ("warn", "ulimit -n 4096")
    assert found(16).status == "fail"


def test_a_limit_on_file_size_is_found_and_what_to_change_is_said():
    """The limit is real: memory files count as files."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (512 << 10, 512 << 10))

    done = run("doctor", "--json", before=limit)
    assert done.returncode == 1, done.stderr
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["file size"]["status"] == "fail"
    assert "ulimit -f" in findings["file size"]["change"]
    assert findings["shared memory"]["status"] == "fail"


def test_a_quota_is_told_from_an_affinity(monkeypatch):
    from penstock import _engine

    monkeypatch.setattr(_engine, "usable_cores", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    (finding,) = doctor.cores()
    assert finding.status == "warn"
    assert "1 usable of 8" in finding.found
    assert "3 of them" in finding.found
    assert "quota" in finding.found


# ---- bench: finding the dataset ------------------------------------------------------------------


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


# ---- bench: measuring ----------------------------------------------------------------------------


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
    options = argparse.Namespace(batch_size=16, steps=5, seconds=1.0)
    mode = Mode("in line", 0)
    bench_command.measure(mode, load_dataset("cli_datasets:samples"), options)
    assert (mode.failed, mode.batches) == ("", 5)


def test_a_dataset_that_cannot_be_sent_is_fed_by_threads_and_the_reason_printed(datasets, capsys):
    assert cli.main(["bench", "cli_datasets:Locked", "--steps", "5", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "processes failed: InvalidArgument: dataset.lock" in said
    assert "Choose workers=" in said


def test_the_program_finds_a_module_in_the_current_folder(tmp_path):
    (tmp_path / "cli_datasets.py").write_text(DATASETS)
    done = run("bench", "cli_datasets:ready", "--steps", "4", "--workers", "1", cwd=tmp_path)
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
    assert "value" not in said  # argparse's words for a function of ours


def test_arrays_are_not_measured_in_processes_that_they_do_not_use(datasets, capsys):
    arguments = ["bench", "cli_datasets:rows", "--batch-size", "4", "--steps", "9", "--workers"]
    assert cli.main([*arguments, "1,2", "--json"]) == 0
    modes = json.loads(capsys.readouterr().out)["modes"]
    assert [mode["kind"] for mode in modes] == ["in line", "threads", "threads"]


# ---- bench: choosing -----------------------------------------------------------------------------


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
        # NumPy code: threads do as well.
        ((100, [99, 195, 380], [97, 190, 370]), "threads", 4, "leaves the interpreter free"),
        # More workers add nothing, so the fewest are enough.
        ((100, [99, 195, 199], [97, 190, 201]), "threads", 2, "leaves the interpreter free"),
        # A disk that is the limit.
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
    assert why.count(".") <= 2  # one sentence, and perhaps a number in it


def test_worker_counts_end_at_the_usable_cores(monkeypatch):
    from penstock import _engine

    for cores, counts in ((1, [1]), (2, [1, 2]), (6, [2, 4, 6]), (16, [4, 8, 16])):
        monkeypatch.setattr(_engine, "usable_cores", lambda cores=cores: cores)
        assert bench_command.worker_counts() == counts


def test_the_commands_are_documented():
    """docs/cli.md names every command and option."""
    page = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
    text = page.read_text(encoding="utf-8")
    parser = cli.build_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        assert f"penstock {name}" in text
        for action in command._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help") or option in text, f"{name} {option}"

"""The command line: its output and exit codes."""

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
from penstock.commands import bytes_text, doctor
from program import run_program

# ---- the program --------------------------------------------------------------------------------


def test_python_m_penstock_prints_help_and_asks_for_a_command():
    done = run_program()
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


# ---- doctor -------------------------------------------------------------------------------------


def test_doctor_finds_this_machine_fit():
    # In a process of its own, because the check forks.
    done = run_program("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["ok"]
    findings = {finding["name"]: finding for finding in result["findings"]}
    for name in ("python", "numpy", "engine", "cores", "memory", "shared memory", "open files"):
        assert findings[name]["status"] in ("ok", "warn"), findings[name]
    has = set(Path("/proc/cpuinfo").read_text().split())
    features = findings["CPU features"]["found"].split()
    for name in ("sse4_2", "avx2", "avx512f", "asimd", "sve", "pclmulqdq"):
        assert (name in features) == (name in has)
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
    """A real limit, because memory files count as files."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (512 << 10, 512 << 10))

    done = run_program("doctor", "--json", before=limit)
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

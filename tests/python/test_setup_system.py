"""tools/setup_system.sh on bare machines: what it installs or prints."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "setup_system.sh"
# The script also looks in /usr/sbin, which a simulated machine shares with the real one.
MOSQUITTO = "" if Path("/usr/sbin/mosquitto").exists() else "mosquitto "
BENCH = ("libmosquitto-dev", "redis-tools")
PACKAGES = (
    "chromium g++ libdeflate-dev libgtest-dev libisal-dev libjpeg-dev libmosquitto-dev libpng-dev "
    f"libsodium-dev libssl-dev libwebp-dev {MOSQUITTO}nlohmann-json3-dev openssl python3 "
    "python3-dev python3-venv redis-tools"
)
GROUPS = ("build", "test", "report", "bench")


@pytest.fixture
def machine(tmp_path):
    """Runs the script on a simulated machine with only these programs, which record their calls."""

    def run(programs: dict[str, str], *groups: str) -> tuple[int, str, str, list[str]]:
        path = tmp_path / "bin"
        path.mkdir()
        for name in ("bash", "dirname", "sort", "env"):
            os.symlink(shutil.which(name), path / name)
        calls = tmp_path / "calls"
        calls.touch()
        for name, body in programs.items():
            program = path / name
            program.write_text(f'#!/bin/bash\necho "${{0##*/}} $*" >> {calls}\n{body}\n')
            program.chmod(0o755)
        done = subprocess.run(
            [path / "bash", SCRIPT, *groups],
            env={"PATH": str(path)},
            capture_output=True,
            text=True,
            timeout=50,
        )
        return done.returncode, done.stdout, done.stderr, calls.read_text().splitlines()

    return run


def test_without_root_it_prints_the_one_line_to_run(machine):
    programs = {"id": "echo 1000", "sudo": "exit 1", "apt-get": "exit 0"}
    code, out, error, calls = machine(programs, *GROUPS)
    assert (code, out) == (1, "")
    assert error.splitlines() == [
        "penstock needs packages of the system. Run this, then the same make again:",
        f"  sudo apt-get install {PACKAGES}",
    ]
    assert "sudo -n true" in calls  # without a password prompt
    assert not any(call.startswith("apt-get") for call in calls)


def test_without_apt_it_names_what_is_missing(machine):
    code, out, error, _ = machine({"id": "echo 0"}, "build", "test")
    assert (code, out) == (1, "")
    first, *rest = error.splitlines()
    assert first == "penstock needs, and this machine does not have:"
    names = [line.split()[0] for line in rest]
    others = ("chromium", *BENCH)
    assert sorted(names) == [name for name in PACKAGES.split() if name not in others]
    assert all(line.endswith("(as Debian calls it)") for line in rest)


@pytest.mark.parametrize("root", [True, False])
def test_where_it_may_it_installs(machine, root):
    programs = {"id": f"echo {0 if root else 1000}", "sudo": 'shift; "$@"', "apt-get": "exit 0"}
    code, out, _, calls = machine(programs, "build")
    others = ("chromium", "libgtest-dev", "mosquitto", "openssl", *BENCH)
    packages = " ".join(name for name in PACKAGES.split() if name not in others)
    assert (code, out) == (0, f"penstock: installing {packages}\n")
    assert [call for call in calls if call.startswith("apt-get")] == [
        "apt-get -q update",
        f"apt-get -q install -y --no-install-recommends {packages}",
    ]
    assert any(call.startswith("sudo") for call in calls) == (not root)


def test_a_compiler_that_is_too_old_is_no_package_to_install(machine):
    programs = {"id": "echo 0", "apt-get": "exit 0", "g++": "exit 1"}
    code, _, error, calls = machine(programs, "build")
    assert code == 1
    assert "  a compiler for C++20: g++ 11" in error
    assert not any(call.startswith("apt-get") for call in calls)

"""penstock::torch against the installed torch: its C++ tests, and its examples as a project."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "test" / "release"
TESTS = "torch_tests"


def run(*command, prefixes, timeout=1200):
    """Run a command that looks for packages in the prefixes."""
    environment = {
        **os.environ,
        "CMAKE_PREFIX_PATH": os.pathsep.join(str(prefix) for prefix in prefixes),
    }
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the compilers too
            raise
    assert process.returncode == 0, said[-8000:]
    return said


def losses_of(said):
    return [float(loss) for loss in re.findall(r"batches/s, x [\d.]+, loss ([\d.]+)", said)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_builds_against_the_installed_torch_and_a_project_finds_it(tmp_path):
    torch = pytest.importorskip("torch")
    for program in ("cmake", "ninja"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    libtorch = torch.utils.cmake_prefix_path
    run("cmake", "--preset", "torch", prefixes=[libtorch])
    run("cmake", "--build", BUILD, "--target", "penstock_torch", TESTS, prefixes=[libtorch])
    assert "[  PASSED  ]" in run(BUILD / "tests" / "cpp" / TESTS, prefixes=[], timeout=300)

    installed, project = tmp_path / "installed", tmp_path / "project"
    run("cmake", "--install", BUILD, "--prefix", installed, "--component", "engine", prefixes=[])
    run(
        *("cmake", "-S", ROOT / "examples" / "torch", "-B", project, "-G", "Ninja"),
        "-DCMAKE_BUILD_TYPE=Release",
        prefixes=[installed, libtorch],
    )
    run("cmake", "--build", project, prefixes=[])
    said = run(project / "example_torch_lenet_hogwild", "300", prefixes=[], timeout=300)
    assert len(losses_of(said)) == 6, said  # two models, each by the plain loop, 1 and 2 workers
    assert max(losses_of(said)) < 1  # chance is 2.3
    said = run(project / "example_torch_lenet_population", "300", prefixes=[], timeout=300)
    # It exits with an error if a network differs from torch's.
    assert len(re.findall(r"network \d: learning rate [\d.]+, loss [\d.]+", said)) == 8, said
    said = run(project / "example_torch_mqtt_lstm", "6", prefixes=[], timeout=60)
    # It exits with an error if the model has not learnt.
    assert re.search(r"\d+ values; mean error [\d.]+ at the beginning, [\d.]+ at the end", said)
    said = run(project / "example_torch_lenet_towers", "300", prefixes=[], timeout=300)
    assert len(losses_of(said)) == 6, said  # 1 and 2: the plain loop, towers, towers again
    assert max(losses_of(said)) < 1
    assert re.findall(r"differ by at most (\S+) from one run", said) == ["0.0e+00"] * 2, said

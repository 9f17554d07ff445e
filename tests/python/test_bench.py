"""The benchmark's cases can be imported and are all listed; its C++ programs belong to cases."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in (BENCH / "cases").glob("*.py")}
PROGRAMS = sorted(path.stem for path in BENCH.glob("*.cc"))


def test_every_case_is_imported_and_listed() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), "--list"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "\nsmall: " in done.stdout
    # A module with cases has a list of them, and all_cases.py puts the lists together.
    modules = {name for name, text in SOURCES.items() if re.search(r"^CASES\b", text, re.MULTILINE)}
    text = (BENCH / "all_cases.py").read_text(encoding="utf-8")
    together = text[text.index("_MODULES = (") :]
    assert set(re.findall(r"^    (\w+),$", together, re.MULTILINE)) == modules


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_in_cpp_is_built_by_a_case(program: str) -> None:
    built = (f'"bench/{program}.cc"', f'torch_programs.build(size, "{program}")')
    assert any(text.count(each) for text in SOURCES.values() for each in built)


def test_programs_that_cases_build_exist() -> None:
    text = "\n".join(SOURCES.values())
    named = re.findall(r'"((?:bench|penstock|tests)/[\w/]+\.cc)"', text)
    named += [f"bench/{name}.cc" for name in re.findall(r'programs\.build\(size, "(\w+)"\)', text)]
    assert len(named) >= len(PROGRAMS)
    missing = [name for name in named if not (ROOT / name).is_file()]
    assert not missing

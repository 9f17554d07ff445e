"""Runs the examples of the documentation, and compares its figures with the stored ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mosquitto import broker
from page import program_of, program_with, run_program

ROOT = Path(__file__).resolve().parents[2]
# Each page, and the modules that its examples need.
PAGES = {
    "docs/migrate/from-torch.md": ["torch"],
    "docs/migrate/from-tf-data.md": ["tensorflow"],
    "docs/migrate/from-grain.md": ["grain"],
    "docs/migrate/from-keras-sequence.md": ["keras", "jax"],
}


def run(text, name, modules, folder, monkeypatch):
    for module in modules:
        pytest.importorskip(module)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    run_program(text, name, folder, timeout=380)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    run(program_of(ROOT / page), Path(page).stem, PAGES[page], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_examples_of_the_readme_run(tmp_path, monkeypatch):
    text = program_with(ROOT / "README.md", Path(__file__).parent / "readme_parts.py")
    run(text, "readme", ["torch", "keras", "jax"], tmp_path, monkeypatch)


@pytest.mark.slow
def test_the_examples_of_the_guide_to_online_run(tmp_path):
    pytest.importorskip("torch")
    with broker(tmp_path / "broker") as running:
        text = program_of(ROOT / "docs" / "online.md")
        assert text.count("mqtt://broker.example") == 4
        run_program(text.replace("mqtt://broker.example", running.url), "online", tmp_path, 100)


def test_the_figures_of_the_readme_are_those_that_were_kept():
    command = [sys.executable, ROOT / "bench" / "table.py"]
    table = subprocess.run(command, check=True, capture_output=True, text=True, timeout=50).stdout
    assert table.count("\n| ") == 10
    assert table.strip() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_a_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150

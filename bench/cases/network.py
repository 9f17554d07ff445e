"""The rate of large messages of penstock/net over loopback, compared with plain send() and recv().

connection_rate.cc sends the same bytes in both ways in turns, between two threads, so other load
affects both; the share is the ratio to the plain rate.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from harness import Case, Figure, Figures, Size, Target, once

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("penstock/net", "penstock/base", "penstock/base/linux")
LINES = ("tcp", "tcp with a secret", "unix", "tcp encrypted")


def program(size: Size) -> Path:
    return size.path("connection_rate")


def prepare(size: Size) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.cc"))]
    paths += [ROOT / "bench/connection_rate.cc"]
    newest = max(path.stat().st_mtime for path in paths)
    if program(size).exists() and program(size).stat().st_mtime < newest:
        program(size).unlink()

    def build(part: Path) -> None:
        flags = ["-std=c++20", "-O2", f"-I{ROOT}", "-pthread"]
        sources = [str(path) for path in paths]
        subprocess.run(
            [compiler, *flags, *sources, "-lsodium", "-lssl", "-lcrypto", "-o", str(part)],
            check=True,
        )

    once(program(size), build)


CASE = Case(
    "network",
    "messages of 40 MB between two threads over loopback",
    {
        "rate": Figure("GB/s", 1e-9, more_is_better=True, compared=False),
        "plain": Figure("GB/s, plain send() and recv()", 1e-9, more_is_better=True, compared=False),
        "share": Figure("% of plain", 100, more_is_better=True, compared=False),
    },
    full={"megabytes": 40, "rounds": 7},
    quick={"megabytes": 40, "rounds": 3},
    prepare=prepare,
    targets=[
        Target("share", line, at_least=0.8, says="80 % of loopback's plain rate")
        for line in LINES[:2]
    ],
)


def measured(size: Size, line: str) -> Figures:
    if not program(size).exists():
        raise ImportError("no C++ compiler")
    words = [str(program(size)), str(size.megabytes), str(size.rounds), line]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = json.loads(said)
    return {
        "rate": found["gb_s"] * 1e9,
        "plain": found["plain_gb_s"] * 1e9,
        "share": found["ratio"],
    }


@CASE.entry(LINES[0], "ours")
def tcp(size: Size) -> Figures:
    return measured(size, LINES[0])


@CASE.entry(LINES[1], "ours")
def with_a_secret(size: Size) -> Figures:
    return measured(size, LINES[1])


@CASE.entry(LINES[2], "ours")
def unix(size: Size) -> Figures:
    return measured(size, LINES[2])


@CASE.entry(LINES[3], "ours", "ChaCha20 on one core at each end")
def encrypted(size: Size) -> Figures:
    return measured(size, LINES[3])


CASES = [CASE]

"""Check the engine: a folder includes those before it only, and nothing prints or ends programs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Each folder may include those before it; penstock.h, which lies in none, all of them.
FOLDERS = ("base", "observe", "memory", "net", "workers", "io", "pipeline", "train", "torch", "")
# The same within pipeline/. What lies in no folder of it says what is made and puts it together:
# all but elements know it, and it knows all.
PIPELINE = (
    ("element",),
    ("",),
    ("stages",),
    ("feed",),
    ("streams",),
    ("cache",),
    ("sources", "transformations"),
    ("engine",),
)
FORBIDDEN = re.compile(
    r"std::(?:cout|cerr|clog)\b|\b(?:v?f?printf|f?puts|putchar|perror|assert"
    r"|abort|terminate|_?exit|_Exit|quick_exit)(?=\s*\()"
)
# Processes of the library's own end so, and one whose parent has ended.
MAY_EXIT = ("penstock/base/linux/process.cc", "penstock/train/server/shard_supervisor.cc")

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def folders_of(path: str) -> tuple[str, str]:
    first, second, *_ = [*path.split("/")[1:-1], "", ""]
    return first, second


def level_of(folder: str) -> int:
    return next(level for level, folders in enumerate(PIPELINE) if folder in folders)


def comes_later(included: str, name: str) -> bool:
    folder, inner = folders_of(name)
    other, other_inner = folders_of(included)
    if folder == other == "pipeline" and inner:
        return level_of(other_inner) > level_of(inner)
    return FOLDERS.index(other) > FOLDERS.index(folder)


def faults(name: str, text: str) -> Iterator[str]:
    for included in INCLUDE.findall(text):
        if not included.startswith("penstock/"):
            yield f"includes {included}: give the whole path"
        elif comes_later(included, name):
            yield f"includes {included}, which may include it"
    for called in FORBIDDEN.findall(COMMENT_OR_TEXT.sub("", text)):
        if called != "_exit" or name not in MAY_EXIT:
            yield f"uses {called}"


def main() -> int:
    listing = subprocess.run(
        ["git", "ls-files", "penstock/*.h", "penstock/*.cc"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = [ROOT / name for name in listing.stdout.splitlines()]
    found = []
    for file in files:
        name = str(file.relative_to(ROOT))
        if file.exists():
            found += [f"{name}: {fault}" for fault in faults(name, file.read_text())]
    print("\n".join(found) or f"{len(files)} files include what is before them")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

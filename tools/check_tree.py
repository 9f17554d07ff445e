"""Check the order of directories in the engine and in the Python package.

Engine: a folder includes those before it only, and nothing prints or ends programs.
Python: a directory imports those before it only, and no modules import each other in a circle.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Each folder may include those before it; penstock.h, which lies in none, all of them.
FOLDERS = (
    "base",
    "observe",
    "memory",
    "net",
    "workers",
    "io",
    "online",
    "image",
    "pipeline",
    "train",
    "device",
    "torch",
    "",
)
# The same within pipeline/.
PIPELINE = (
    ("element",),
    ("stages",),
    ("scheduler",),
    ("streams",),
    ("cache",),
    ("plan",),
    ("sources", "transformations"),
    ("engine",),
    ("api",),
)
FORBIDDEN = re.compile(
    r"std::(?:cout|cerr|clog)\b|\b(?:v?f?printf|f?puts|putchar|perror|assert"
    r"|abort|terminate|_?exit|_Exit|quick_exit)(?=\s*\()"
)
# The library's own processes end so, and a process whose parent has ended.
MAY_EXIT = ("penstock/base/linux/process.cc", "penstock/train/server/shard_supervisor.cc")

# The entries of python/penstock; each may import those before it. The package's own `__init__`
# imports each module when it is first used. python/README.md has the same list.
PYTHON = (
    "errors",
    "base",
    "streams",
    "processes",
    "remote",
    "loader",
    "device",
    "feeds",
    "dataset",
    "features",
    "operations",
    "image",
    "files",
    "writers",
    "feedable",
    "train",
    "torch",
    "jax",
    "keras",
    "ray",
    "commands",
    "cli",
    "__main__",
)

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
    if folder == other == "pipeline":
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


def imports_of(module: str, is_package: bool, tree: ast.AST) -> Iterator[str]:
    """The modules of the package that a module imports, also in functions; not only for types."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{home}.{alias.name}" for alias in node.names)


def python_faults(sources: dict[str, str]) -> Iterator[str]:
    """Check modules, given as their paths below python/ and their text."""
    names = {path: path.removesuffix(".py").replace("/", ".") for path in sources}
    modules = {name.removesuffix(".__init__"): path for path, name in names.items()}
    edges: dict[str, set[str]] = {}
    for module, path in modules.items():
        found = imports_of(module, path.endswith("/__init__.py"), ast.parse(sources[path]))
        # `from .a import b`: b is a module, or is in module a.
        homes = {name if name in modules else name.rpartition(".")[0] for name in found}
        edges[module] = homes & (modules.keys() - {module, "penstock"})
    for module, imported in edges.items():
        unit = module.partition(".")[2].partition(".")[0]
        if not unit:
            continue
        if unit not in PYTHON:
            yield f"{modules[module]}: {unit} has no place in the order of directories"
            continue
        for other in imported:
            later = other.split(".")[1]
            if later in PYTHON and PYTHON.index(later) > PYTHON.index(unit):
                yield f"{modules[module]}: imports {other}, which may import {unit}"
    for module in edges:
        seen: set[str] = set()
        left = [module]
        while left:
            left += edges[left.pop()] - seen
            seen.update(left)
        if module in seen:
            yield f"{modules[module]}: imports itself, by way of other modules"


def listed(*patterns: str) -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [name for name in listing.stdout.splitlines() if (ROOT / name).exists()]


def main() -> int:
    files = [ROOT / name for name in listed("penstock/*.h", "penstock/*.cc")]
    found = []
    for file in files:
        name = str(file.relative_to(ROOT))
        found += [f"{name}: {fault}" for fault in faults(name, file.read_text())]
    modules = listed("python/penstock/*.py")
    found += python_faults({m.removeprefix("python/"): (ROOT / m).read_text() for m in modules})
    print("\n".join(found) or f"{len(files)} files and {len(modules)} modules keep the order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

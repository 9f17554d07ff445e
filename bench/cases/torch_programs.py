"""C++ programs with libtorch: built with the engine and the installed torch, and run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from harness import Size, once

ROOT = Path(__file__).resolve().parents[2]


def program(size: Size, name: str) -> Path:
    return size.path(name)


def build(size: Size, name: str) -> None:
    """Build bench/<name>.cc, unless it is up to date; nothing if a requirement is missing."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    libraries = sorted(ROOT.glob("build/test/release/penstock/libpenstock.a"))
    found = importlib.util.find_spec("torch")
    if compiler is None or not libraries or found is None or found.origin is None:
        return
    sources = [ROOT / f"bench/{name}.cc", *sorted(ROOT.glob("penstock/torch/*.cc"))]
    newest = max(path.stat().st_mtime for path in (*sources, libraries[-1]))
    made = program(size, name)
    if made.exists() and made.stat().st_mtime < newest:
        made.unlink()
    torch = Path(found.origin).parent

    def compile_it(part: Path) -> None:
        include = torch / "include"
        flags = ["-std=c++20", "-O3", f"-I{ROOT}", "-pthread"]
        headers = [f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}"]
        linked = [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-Wl,--no-as-needed"]
        names = "torch torch_cpu c10 isal deflate sodium ssl crypto jpeg png webp webpdemux"
        linked += [f"-l{name}" for name in names.split()]
        files = [*map(str, sources), str(libraries[-1])]
        subprocess.run([compiler, *flags, *headers, *files, *linked, "-o", str(part)], check=True)

    once(made, compile_it)


def run(size: Size, name: str, *arguments: object) -> tuple[float, float]:
    """The two numbers that it prints. ImportError: it could not be built."""
    if not program(size, name).exists():
        raise ImportError("no C++ compiler, no libtorch, or no engine built in build/test/release")
    command = [str(program(size, name)), *map(str, arguments)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    first, second = map(float, said)
    return first, second

#!/usr/bin/env bash
# usage: stubs.sh [--check]: with the venv's bin on the PATH. Writes the type stub of the extension that is built, or
# with --check says whether the one in the tree is that.
set -euo pipefail
cd "$(dirname "$0")/.."
stub=python/penstock/_engine.pyi
fresh=build/_engine.pyi
mkdir -p build
python -m nanobind.stubgen -q -m penstock._engine -o $fresh
ruff format -q --config pyproject.toml --no-force-exclude $fresh
if [ "${1:-}" = --check ]; then
  diff -u $stub $fresh || { echo "$stub is not that of the bindings: make format" >&2; exit 1; }
else
  cp $fresh $stub
fi

#!/usr/bin/env bash
# Brings every file into the form that lint.sh checks.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/stubs.sh
ruff check --fix-only .
ruff format .
git ls-files -z '*.h' '*.cc' | xargs -0 clang-format -i

#!/usr/bin/env bash
# Style and types; changes nothing. Runs with the venv's bin on the PATH.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
run() { echo "+ ${*:1:4}" | cut -c1-100; "$@" || failed=1; }

run ruff check .
run ruff format --check .
run tools/stubs.sh --check
run mypy
run python tools/check_docs.py
run python tools/check_tree.py
mapfile -t sources < <(git ls-files '*.h' '*.cc')
run clang-format --dry-run -Werror "${sources[@]}"
mapfile -t scripts < <(git ls-files '*.sh' .ci/run)
for script in "${scripts[@]}"; do bash -n "$script" || failed=1; done
exit $failed

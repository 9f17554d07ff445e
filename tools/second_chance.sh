#!/usr/bin/env bash
# usage: second_chance.sh pytest PYTHON [arguments] | second_chance.sh ctest PRESET
# Runs tests side by side, as many as there are cores (of Python's at most 8). With CI=true, tests that failed run once
# more, one at a time, and only what fails again counts: many kill processes and wait for deadlines, and another tenant
# of the machine may stop all of them for seconds. The log names those tests after FLAKY; mend them.
set -uo pipefail
runner=$1 what=$2
shift 2
case $runner in
  pytest)
    cores=$(nproc)
    "$what" -m pytest -n $((cores < 8 ? cores : 8)) --dist worksteal "$@"
    status=$?
    failed=1
    again=("$what" -m pytest "$@" --last-failed --last-failed-no-failures none)
    ;;
  ctest)
    ctest --preset "$what" --parallel "$(nproc)" "$@"
    status=$?
    failed=8
    again=(ctest --preset "$what" "$@" --rerun-failed)
    ;;
  *)
    echo "second_chance.sh: pytest or ctest, not '$runner'" >&2
    exit 2
    ;;
esac
if [ "$status" -ne "$failed" ] || [ "${CI:-}" != true ]; then exit "$status"; fi
echo "FLAKY: running the failed tests again"
exec "${again[@]}"

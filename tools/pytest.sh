#!/usr/bin/env bash
# usage: pytest.sh PYTHON [pytest's arguments]: runs pytest. With CI=true, tests that failed run once more, by themselves,
# and only those that fail again count: timing on a shared machine is not what CI is about. What was flaky stays in the
# log, under FLAKY.
set -uo pipefail
python=$1
shift
"$python" -m pytest "$@"
status=$?
if [ "$status" -ne 1 ] || [ "${CI:-}" != true ]; then exit "$status"; fi
echo "FLAKY? running the failed tests again"
exec "$python" -m pytest "$@" --last-failed --last-failed-no-failures none

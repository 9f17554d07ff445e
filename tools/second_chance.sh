#!/usr/bin/env bash
# usage: pytest.sh PYTHON [pytest's arguments]. With CI=true, tests that failed run once more, by themselves, and only
# what fails again counts: many kill processes and wait for deadlines, and another tenant of the machine may stop all of
# them for seconds. What needed it stays in the log, under FLAKY, and is to be mended.
set -uo pipefail
python=$1
shift
"$python" -m pytest "$@"
status=$?
if [ "$status" -ne 1 ] || [ "${CI:-}" != true ]; then exit "$status"; fi
echo "FLAKY: running the failed tests again"
exec "$python" -m pytest "$@" --last-failed --last-failed-no-failures none

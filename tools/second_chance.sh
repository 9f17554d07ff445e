#!/usr/bin/env bash
# usage: second_chance.sh pytest PYTHON [arguments] | second_chance.sh ctest PRESET
# Runs tests side by side, as many as there are cores, and of Python's half as many again (at most 8), because they wait
# for processes and deadlines. With CI=true, tests that failed run once more, one at a time, and only a second failure
# counts: many kill processes, and another tenant of the machine may stop all of them for seconds. The log names those
# that tests/known_flaky.txt does not list.
set -uo pipefail
cd "$(dirname "$0")/.."
runner=$1 what=$2
shift 2
# Processes of tests read compiled modules. Compiling them takes 0.2 s of each process and 8 s of each pytest.
export PYTHONDONTWRITEBYTECODE=
cores=$(nproc)
case $runner in
  pytest)
    # In two runs, for the forks of processes that have not imported a framework; named tests in one.
    parts=(without only)
    if [[ " $*" == *" tests/"* ]]; then parts=(all); fi
    status=0
    failed=1
    for part in "${parts[@]}"; do
      "$what" -m pytest -n $((cores < 5 ? cores + (cores + 1) / 2 : 8)) --dist worksteal "--frameworks=$part" "$@"
      found=$?
      if [ "$part $found" = "only 5" ]; then continue; fi # no framework is installed
      if [ $found -gt $failed ]; then exit $found; fi
      if [ $found -ne 0 ]; then status=$found; fi
    done
    names() { "$what" -c 'import json; print(*json.load(open(".pytest_cache/v/cache/lastfailed")), sep="\n")'; }
    again=("$what" -m pytest "$@" --last-failed --last-failed-no-failures none)
    ;;
  ctest)
    ctest --preset "$what" --parallel "$cores" "$@"
    status=$?
    failed=8
    names() { sed 's/^[0-9]*://' "build/test/$what/Testing/Temporary/LastTestsFailed.log"; }
    again=(ctest --preset "$what" "$@" --rerun-failed)
    ;;
  *)
    echo "second_chance.sh: pytest or ctest, not '$runner'" >&2
    exit 2
    ;;
esac
if [ "$status" -ne "$failed" ] || [ "${CI:-}" != true ]; then exit "$status"; fi
unknown=$(names | grep -vxF -f <(grep -v '^#' tests/known_flaky.txt)) &&
  printf 'FLAKY, and not in tests/known_flaky.txt: mend or list\n%s\n' "$unknown"
echo "running the failed tests again"
exec "${again[@]}"

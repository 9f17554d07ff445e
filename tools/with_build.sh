#!/usr/bin/env bash
# usage: with_build.sh PRESET... -- COMMAND...
# Builds the C++ tests of the presets, one after the other, while COMMAND runs: at the lowest priority, so that the
# compiler takes the time in which tests wait. Fails if either fails; a build that fails prints its output.
set -uo pipefail
targets=()
while [ "$1" != -- ]; do
  targets+=("build-$1")
  shift
done
shift
output=$(mktemp)
set -m # the build gets a process group of its own, which can be ended as a whole
for target in "${targets[@]}"; do
  nice -n 19 "${MAKE:-make}" --no-print-directory "$target" || exit
done >"$output" 2>&1 </dev/null &
build=$!
set +m
trap 'kill -- -$build 2>/dev/null; rm -f "$output"' EXIT
trap 'exit 130' INT TERM

"$@" || exit
if wait $build; then exit 0; fi
cat "$output"
exit 1

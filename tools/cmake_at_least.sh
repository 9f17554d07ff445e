#!/usr/bin/env bash
# usage: cmake_at_least.sh 3.22: succeeds if the cmake on the PATH is that version or newer.
set -euo pipefail
have=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')
[ -n "$have" ] && [ "$(printf '%s\n' "$1" "$have" | sort -V | head -n 1)" = "$1" ]
